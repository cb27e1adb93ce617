"""The known fault that a finding of ``vet`` is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from optvet.engine.discovery import Plugins
from optvet.engine.known.documents import ranges_of, shipped, shows_in_form, types_in_worker
from optvet.engine.models.sources import resolve_model
from optvet.engine.work.cache.disk import cache_root
from optvet.graph.pattern import PatternSearch, parse_pattern, search
from optvet.spec.errors import OptvetError
from optvet.spec.foreign import load_model
from optvet.spec.records import Finding, VetResult
from optvet.spec.records.known import KnownFault

_MOST_BYTES = 2 << 30


def with_known(result: VetResult, cache_dir: Path | None = None) -> VetResult:
    """The same answer, whose findings name the known faults that they are.

    Args:
        result: An answer of ``vet``.
        cache_dir: Where models of model sources are kept.
    """
    if not result.findings:
        return result
    named = name_findings(result, shipped(), cache_dir)
    findings = []
    for number, finding in enumerate(result.findings):
        one = named.get(number, Named({}, []))
        update = {
            "known": list(one.releases),
            "known_releases": one.releases,
            "known_unfinished": one.unfinished,
        }
        findings.append(finding.model_copy(update=update))
    return result.model_copy(update={"findings": findings})


@dataclass(frozen=True)
class Named:
    """The known faults that a finding is, with the releases that show the form of each, in words.

    ``unfinished`` are those that it may be, since their search in the model ran out of steps.
    """

    releases: dict[str, str]
    unfinished: list[str]


def name_findings(
    result: VetResult, faults: Sequence[KnownFault], cache_dir: Path | None = None
) -> Mapping[int, Named]:
    """Known faults by the number of the finding that they are; findings without one are left out.

    A fault fits if its release has it, passes and symptom agree, and its trigger is in the model,
    in a form that this release shows; or if it lists the finding's fingerprint.
    """
    possible = {
        number: fitting
        for number, finding in enumerate(result.findings)
        if (fitting := [f for f in faults if _may_be(f, finding, result)])
    }
    if not possible:
        return {}
    model = _model_of(result, cache_dir or cache_root())
    if model is None:
        return {}
    types = types_in_worker(model)
    version, named = result.optimizer.version, {}
    searched: dict[str, PatternSearch] = {}
    for number, fitting in possible.items():
        fingerprint = result.findings[number].fingerprint
        one = Named({}, [])
        for fault in fitting:
            if fault.id not in searched:
                searched[fault.id] = search(parse_pattern(fault.trigger), model, types)
            found = searched[fault.id]
            forms = [p.form for p in found.places if shows_in_form(fault, version, p.form)]
            if forms or fingerprint in fault.fingerprints:
                one.releases[fault.id] = _releases(fault, forms)
            elif not found.complete:
                one.unfinished.append(fault.id)
        named[number] = one
    return named


def _releases(fault: KnownFault, forms: Sequence[str]) -> str:
    """Which releases show the first of these forms that was dated; of none, its model's own."""
    dated = [ranges for form in forms if (ranges := ranges_of(fault, form)) is not None]
    if forms and not dated:
        return "in a form of which no release was tried"
    return fault.when_of(dated[0] if dated else fault.affected)


def _may_be(fault: KnownFault, finding: Finding, result: VetResult) -> bool:
    optimizer = result.optimizer
    if fault.optimizer != optimizer.name or not fault.affects(optimizer.version):
        return False
    if finding.symptom not in fault.symptoms:
        return False
    culprit = list(finding.culprit)
    if fault.pipeline:
        return culprit == fault.pipeline
    return bool(set(culprit) & set(fault.passes)) or (not culprit and not fault.passes)


def _model_of(result: VetResult, cache_dir: Path) -> ModelProto | None:
    """The model, if it is there and not too large to look at."""
    path = Path(result.model.source)
    if result.model.size_bytes > _MOST_BYTES:
        return None
    if path.is_file():
        return load_model(path)
    try:
        models = resolve_model(result.model.source, Plugins(), cache_dir)
    except OptvetError:  # Such as a model that was given as bytes: its file is gone.
        return None
    return models[0].load() if len(models) == 1 else None
