"""The rows that tables are made of: one per trial, with the counted parts of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optvet.engine.campaign.causes import cause_of, cause_of_conversion
from optvet.engine.campaign.conversion_findings import findings_of, reason_of
from optvet.engine.campaign.display_names import short_model
from optvet.engine.campaign.documents import options_in_words, options_of
from optvet.engine.campaign.results import JobResult
from optvet.engine.campaign.store_answers import identity
from optvet.engine.work.cache.cache_key import key
from optvet.engine.work.sandbox.remote import LEFT_OUT
from optvet.engine.work.trials.raised_errors import normalized_message
from optvet.spec.records import Finding, Impact, VetResult
from optvet.spec.records.convert import ConversionResult
from optvet.spec.request import VetRequest
from optvet.spec.studies import FaultRow, Outcome, TrialParts, TrialRow
from optvet.spec.symptoms import Symptom


def row_of(trial: JobResult) -> TrialRow:
    """The row of a trial."""
    request, result = trial.request, trial.result
    version = result.optimizer.version if result else trial.versions.get(trial.optimizer, "")
    options, data_options = options_of(request), ""
    if isinstance(request, VetRequest):
        *others, of_dataset = request.plugin_options
        options, data_options = options_in_words(others), options_in_words([of_dataset])
    known: dict[str, Any] = {
        "key": trial.key,
        "model": short_model(trial.model),
        "digest": trial.model_digest or trial.model,
        "source": trial.model,
        "optimizer": trial.optimizer,
        "version": version,
        "parts": TrialParts(
            trial.optimizer,
            version,
            trial.pipeline,
            options,
            trial.dataset,
            trial.runtime,
            trial.comparator,
            data_options,
        ),
    }
    if trial.conversion is not None:
        return _row_of_conversion(trial.conversion, known)
    if result is None:
        return TrialRow(**known, outcome=_without_result(trial), reason=_reason(trial))
    faults = tuple(_row_of_finding(result, f) for f in result.findings if f.severity == "fault")
    impact = result.impact
    error, noise = _worst(result, faults)
    return TrialRow(
        **known,
        outcome=_outcome(result, faults),
        reason=result.reason,
        task=result.model.task or (impact.comparator if impact else ""),
        opset=result.model.opsets.get("ai.onnx"),
        faults=faults,
        notes=tuple(f for f in result.findings if f.severity == "note"),
        warnings=tuple(w for w in result.warnings if w.new and LEFT_OUT not in w.message),
        impact=in_short(impact),
        error=error,
        noise=noise,
        passes=tuple(result.passes_alone),
        round_trip=result.round_trip,
        pipeline=tuple(result.optimizer.pipeline),
        structures=result.structures,
        placements=result.placements,
        timing=result.timing,
    )


def _row_of_conversion(result: ConversionResult, known: dict[str, Any]) -> TrialRow:
    """The row of a conversion; a source that was refused is not taken, which is no fault."""
    counted = [f for f in result.findings if f.severity == "fault"]
    found = [f for f in findings_of(result) if f.severity == "fault"]
    faults = tuple(
        FaultRow(str(f.fingerprint), str(f.fingerprint), f, cause_of_conversion(own))
        for own, f in zip(counted, found, strict=True)
    )
    outcome: Outcome = "same"
    if faults:
        outcome = "crashes" if any(f.stage != "compare" for f in found) else "differs"
    elif result.verdict == "refused":
        outcome = "not taken"
    elif result.verdict == "undecided":
        outcome = "undecided"
    elif result.stages[-1].state == "drift":
        outcome = "rounded"
    sizes = [(f.error, f.noise) for f in counted] or [
        (s.error, s.noise) for s in result.stages[-1:]
    ]
    error, noise = max(
        (size for size in sizes if size[0] is not None),
        key=lambda size: size[0] or 0.0,
        default=(None, None),
    )
    version = ", ".join(c.version for c in result.converters)
    parts = known["parts"]._replace(version=version)
    return TrialRow(
        **{**known, "version": version, "parts": parts, "kind": "convert"},
        outcome=outcome,
        reason=reason_of(result),
        task=result.impact.comparator if result.impact else "",
        faults=faults,
        impact=in_short(result.impact),
        timing=result.timing,
        error=error,
        noise=noise,
    )


def in_short(impact: Impact | None) -> Impact | None:
    """An impact without the comparisons of its samples."""
    return None if impact is None else impact.model_copy(update={"details": []})


def _worst(result: VetResult, faults: Sequence[FaultRow]) -> tuple[float | None, float | None]:
    """Error and noise of the worst fault that has a size; without faults, of the worst output."""
    sizes = [(o.error, o.noise_floor) for o in result.outputs]
    if faults:
        sizes = [(s.finding.error, s.finding.noise_floor) for s in faults]
    known = [size for size in sizes if size[0] is not None]
    return max(known, key=lambda size: size[0] or 0.0, default=(None, None))


def _without_result(trial: JobResult) -> Outcome:
    if trial.error is None:
        return "waits"
    # Stores of old know the name of the error only.
    refused = trial.error.symptom is Symptom.REFUSED or trial.error.error == "Unsupported"
    return "not taken" if refused else "no result"


def _reason(trial: JobResult) -> str:
    return trial.error.message if trial.error is not None else ""


def _outcome(result: VetResult, faults: Sequence[FaultRow]) -> Outcome:
    if any(seen.finding.stage != "compare" for seen in faults):
        return "crashes"
    if faults:
        return "differs"
    if result.verdict == "undecided":
        return "undecided"
    return "rounded" if result.verdict == "drift" else "same"


def _row_of_finding(result: VetResult, finding: Finding) -> FaultRow:
    fingerprint = identity(result, finding)
    words = "" if finding.stage == "compare" else normalized_message(finding.message)
    issue = fingerprint
    if words:
        issue = key("crash", result.optimizer.name, finding.stage, words)[:16]
    return FaultRow(fingerprint, issue, finding, cause_of(finding))
