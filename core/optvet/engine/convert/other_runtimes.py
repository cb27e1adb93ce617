"""What other runtimes make of the artifact to blame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from optvet.engine.convert.compare_outputs import Judge
from optvet.engine.convert.guilty_stage import Blame
from optvet.engine.convert.match_interface import fed_to
from optvet.engine.convert.session import Conversion
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.inference import Outputs, RuntimeConfig
from optvet.engine.work.trials.resolution import exact_by_operator
from optvet.engine.work.trials.undefined_values import refusable, unanswered
from optvet.spec.records.convert import ConversionPlace
from optvet.spec.records.vet import CrossCheck
from optvet.spec.symptoms import ScriptCheck
from optvet.spec.types import Artifact, Failure, Sample


def cross_check(
    conversion: Conversion,
    artifact: Artifact,
    blame: Blame,
    judge: Judge,
    tolerance: float | None,
    config: RuntimeConfig,
    place: ConversionPlace | None,
) -> Iterator[CrossCheck]:
    """What other runtimes make of the guilty artifact on the witness, and on others like it.

    Unless the user chose some, that is the next best one. Where the conversion has nothing to do
    with what the first wrong node computes, others are asked too until one is right, but for those
    that compute as the source does, by its own library.
    """
    chosen = bool(conversion.request.cross_check)
    for number, other in enumerate(conversion.others(config, artifact.format)):
        if not chosen and number:
            if place is None or not place.alike:
                return
            if conversion.shares_library(other.runtime):
                continue
        check = _cross_check_with(conversion, other, artifact, blame, judge, tolerance)
        yield check
        if not chosen and check.outcome == "no-fault":
            return


def _cross_check_with(
    conversion: Conversion,
    config: RuntimeConfig,
    artifact: Artifact,
    blame: Blame,
    judge: Judge,
    tolerance: float | None,
) -> CrossCheck:
    name, shown = config.runtime.name, _telling(blame)
    observed = conversion.observe(config, artifact, shown)
    if observed.load is not None:
        return CrossCheck(runtime=name, outcome="not-judged", detail=describe(observed.load))
    run = observed.runs[shown[0].id]
    values = not blame.symptom.info.failed
    if isinstance(run, Failure) and values:
        return CrossCheck(runtime=name, outcome="not-judged", detail=describe(run))
    judged = [s for s in shown if not (values and isinstance(observed.runs[s.id], Failure))]
    seen = judge.see(observed, judged, tolerance)
    for killed in (seen[s.id] for s in judged if seen[s.id].unexplained):
        return CrossCheck(runtime=name, outcome="not-judged", detail=killed.message)
    wrong = next((s.id for s in judged if not seen[s.id].right), None)
    # A model that does not run is right if it runs elsewhere, and does there as the source does.
    if wrong is None or (not values and any(seen[s.id].right for s in judged)):
        raises = blame.symptom.info.check is ScriptCheck.ERROR
        why = _ask(conversion, config, artifact, shown[:1], refusable) if raises else {}
        if why:  # which one runtime may run, and the other refuse
            return CrossCheck(runtime=name, outcome="not-judged", detail=why[shown[0].id])
        return CrossCheck(runtime=name, outcome="no-fault", detail=seen[shown[0].id].message)
    where = "" if wrong == shown[0].id else f"{wrong}: "
    detail = f"{where}{seen[wrong].message}"
    return CrossCheck(runtime=name, outcome="fault", sample=wrong, detail=detail)


def find_unanswered(
    conversion: Conversion, artifact: Artifact, blame: Blame, config: RuntimeConfig
) -> dict[str, str]:
    """Samples on which the ONNX standard has no answer for a model, and why not.

    The values are those of ``config``: no runtime that gives others breaks a rule.
    """
    return _ask(conversion, config, artifact, [d.sample for d in blame.inputs], unanswered)


def find_exact(
    conversion: Conversion, artifact: Artifact, blame: Blame, config: RuntimeConfig
) -> dict[str, str]:
    """Samples on which ``config`` computes no operator of a model wrong, and that in words."""
    return _ask(conversion, config, artifact, [d.sample for d in blame.inputs], exact_by_operator)


def _ask(
    conversion: Conversion,
    config: RuntimeConfig,
    artifact: Artifact,
    samples: Sequence[Sample],
    question: Callable[[bytes, Outputs, RuntimeConfig], str],
) -> dict[str, str]:
    """Words about a model in ONNX, for the samples for which there are some."""
    if artifact.format != "onnx":
        return {}
    sandbox, found = conversion.sandbox_of(config.runtime), {}
    for sample in samples:
        about = (artifact.data, fed_to(artifact, sample.feeds), config)
        if words := sandbox.call(question, *about, role="judging").value:
            found[sample.id] = words
    return found


_ASKED = 8
"""Inputs on which another runtime is asked."""


def _telling(blame: Blame) -> list[Sample]:
    """The witness, and others of its fault: what they show elsewhere is no fault of one runtime.

    Edge values with NaN, where a fault shows on others too, may go wrong for reasons of their own.
    """
    alike = [d for d in blame.inputs if d.outside_domain == blame.inputs[0].outside_domain]
    return [d.sample for d in alike[:_ASKED]]
