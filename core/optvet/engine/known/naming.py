"""The known fault that a finding of ``vet`` is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from onnx import ModelProto

from optvet.engine.known.advise import types_in_worker
from optvet.graph.pattern import find_matches, parse_pattern
from optvet.spec.foreign import load_model
from optvet.spec.records import Finding, VetResult
from optvet.spec.records.known import KnownFault

_MOST_BYTES = 200_000_000


def name_findings(
    result: VetResult, faults: Sequence[KnownFault]
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
    model = _model_of(result)
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


def _model_of(result: VetResult) -> ModelProto | None:
    """The model, if it is a file that is not too large to look at."""
    path = Path(result.model.source)
    if result.model.size_bytes > _MOST_BYTES or not path.is_file():
        return None
    return load_model(path)
