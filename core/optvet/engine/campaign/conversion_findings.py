"""A conversion's answer in the words of a campaign: findings, numbers, and why there is no verdict.

The whole answer stays in the store; what is made here is what tables of all jobs have in common.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from optvet.engine.work.cache.cache_key import key
from optvet.engine.work.trials.raised_errors import normalized_message
from optvet.spec.records.convert import ConversionFinding, ConversionResult
from optvet.spec.records.vet import Finding, Witness
from optvet.spec.symptoms import Stage

_CALLED = re.compile(r"= *([\w.]+)")


def findings_of(result: ConversionResult) -> list[Finding]:
    """The faults, unmet requirements and notes of a conversion; a refusal is none."""
    wanted = [f for f in result.findings if f.severity != "refusal"]
    return [_finding(result, f) for f in wanted]


def refusal_of(result: ConversionResult) -> ConversionFinding | None:
    """Why the converter did not take the source; None if it did, or died."""
    return next((f for f in result.findings if f.severity == "refusal"), None)


def reason_of(result: ConversionResult) -> str:
    """Why the verdict is neither right nor faulty, with the converter's own words."""
    refused = refusal_of(result)
    return f"{refused.culprit}: {refused.message}" if refused is not None else result.reason


def stage_of(result: ConversionResult, finding: ConversionFinding) -> Stage:
    """Where in a trial it showed; the death of a process behind the conversion is "run"."""
    *others, usual = finding.symptom.info.stages
    if not (others and finding.symptom.info.failed):
        return usual
    states = {f"{s.converter}/{s.name}": s.state for s in result.stages}
    return "build" if states.get(finding.stages[0]) == "not-reached" else "run"


def operators_of(nodes: Sequence[str]) -> list[str]:
    """Operator types of nodes given as text."""
    return [match[1] for node in nodes if (match := _CALLED.search(node))]


def numbers_of(result: ConversionResult) -> Iterator[tuple[str, str, float | None]]:
    """Kind, name and value of each number of an answer."""
    for stage in result.stages:
        yield "stage", f"{stage.converter}/{stage.name}.error", stage.error
        yield "stage", f"{stage.converter}/{stage.name}.noise", stage.noise
        yield "stage", f"{stage.converter}/{stage.name}.edge_error", stage.edge_error
        yield "stage", f"{stage.converter}/{stage.name}.edge_noise", stage.edge_noise
        yield "stage", f"{stage.converter}/{stage.name}.quantized", stage.quantized
    yield "cost", "wall_s", result.wall_s
    yield "model", "samples", result.samples


def _finding(result: ConversionResult, found: ConversionFinding) -> Finding:
    assert found.severity != "refusal"
    inside = found.place.words() if found.place is not None else ""
    witness = found.witness
    return Finding(
        symptom=found.symptom,
        severity=found.severity,
        stage=stage_of(result, found),
        culprit=[_name_culprit(found)],
        confirmed=found.confirmed,
        outputs=found.outputs,
        error=found.error,
        noise_floor=found.noise,
        witness=None
        if witness is None
        else Witness(dataset=witness.origin, sample=witness.sample, seed=result.seed),
        message=f"{found.message}; inside: {inside}" if inside else found.message,
        consequence=found.consequence,
        requirement=found.requirement,
        measured=found.measured,
        cross_check=found.cross_check,
        fingerprint=_fingerprint(result, found),
    )


def _name_culprit(found: ConversionFinding) -> str:
    where = " or ".join(found.stages)
    return f"runtime {found.culprit}" if found.kind == "target-runtime" else where


def _fingerprint(result: ConversionResult, found: ConversionFinding) -> str:
    """Equal for one chain, stage, symptom and place, or message where no place is known."""
    chain = [c.name for c in result.converters]
    place: list[str] = []
    if found.place is not None:
        place = [found.place.operator, *operators_of(found.place.nodes)]
        place += sorted(found.place.attributes)
    words = found.requirement or ""
    if not any(place) and not words:
        # Two models whose outputs differ need not have one defect.
        differs = stage_of(result, found) == "compare"
        words = result.source.digest if differs else normalized_message(found.message)
    return key("conversion", chain, _name_culprit(found), found.symptom, place, words)[:16]
