"""The known fault that a finding of ``vet`` is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from onnx import ModelProto

from optvet.engine.discovery import Plugins
from optvet.engine.known.advise import types_in_worker
from optvet.engine.known.documents import shipped
from optvet.engine.models.sources import resolve_model
from optvet.engine.work.cache.disk import cache_root
from optvet.graph.pattern import find_matches, parse_pattern
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
    findings = [
        finding.model_copy(update={"known": [fault.id for fault in named.get(number, ())]})
        for number, finding in enumerate(result.findings)
    ]
    return result.model_copy(update={"findings": findings})


def name_findings(
    result: VetResult, faults: Sequence[KnownFault], cache_dir: Path | None = None
) -> Mapping[int, Sequence[KnownFault]]:
    """Known faults by the number of the finding that they are; findings without one are left out.

    A fault fits if its release has it, passes and symptom agree, and its trigger is in the model;
    or if it lists the finding's fingerprint.
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
    named = {}
    for number, fitting in possible.items():
        fingerprint = result.findings[number].fingerprint
        there = [
            fault
            for fault in fitting
            if fingerprint in fault.fingerprints
            or find_matches(parse_pattern(fault.trigger), model, types)
        ]
        if there:
            named[number] = there
    return named


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
