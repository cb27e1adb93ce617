"""The rows that tables are made of: one per trial, with the counted parts of its answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from optvet.engine.campaign.causes import Cause, cause_of, cause_of_conversion
from optvet.engine.campaign.conversion_findings import findings_of, reason_of
from optvet.engine.campaign.display_names import short_model
from optvet.engine.campaign.documents import options_of
from optvet.engine.campaign.results import JobKind, JobResult
from optvet.engine.campaign.store_answers import identity
from optvet.engine.work.cache.disk import key
from optvet.engine.work.trials.trial import normalized_message
from optvet.spec.records import (
    Finding,
    Impact,
    PassRecord,
    Placements,
    Structures,
    Timing,
    VetResult,
)
from optvet.spec.records.convert import ConversionResult

Outcome = Literal[
    "same", "rounded", "differs", "crashes", "undecided", "not taken", "no result", "waits"
]
"""What became of a model under a variant, from the best; "crashes" has no result to compare."""
OUTCOMES: tuple[Outcome, ...] = (
    "same", "rounded", "differs", "crashes", "undecided", "not taken", "no result", "waits"
)  # fmt: skip


@dataclass(frozen=True)
class FaultRow:
    """One fault; ``issue`` is equal for crashes of one stage and normalized message."""

    fingerprint: str
    issue: str
    finding: Finding
    cause: Cause


@dataclass(frozen=True)
class Row:
    """One trial.

    ``parts`` are the parts of its request in which trials of one model can differ: optimizer,
    version, pipeline, options, dataset, runtime, comparator. ``error`` and ``noise`` are those of
    the worst output. Unknown values are None, or empty.
    """

    key: str
    model: str
    digest: str
    source: str
    optimizer: str
    version: str
    parts: tuple[str, ...]
    outcome: Outcome
    reason: str = ""
    task: str = ""
    opset: int | None = None
    faults: tuple[FaultRow, ...] = ()
    impact: Impact | None = None
    error: float | None = None
    noise: float | None = None
    kind: JobKind = "vet"
    passes: tuple[PassRecord, ...] | None = None
    pipeline: tuple[str, ...] = ()
    structures: Structures | None = None
    placements: Placements | None = None
    timing: Timing | None = None

    @property
    def judged(self) -> bool:
        """Whether there is a verdict on the optimizer."""
        return self.outcome in ("same", "rounded", "differs", "crashes")

    @property
    def faulty(self) -> bool:
        """Whether outputs differ, or a stage fails."""
        return self.outcome in ("differs", "crashes")


def row_of(trial: JobResult) -> Row:
    """The row of a trial."""
    request, result = trial.request, trial.result
    version = result.optimizer.version if result else trial.versions.get(trial.optimizer, "")
    known: dict[str, Any] = {
        "key": trial.key,
        "model": short_model(trial.model),
        "digest": trial.model_digest or trial.model,
        "source": trial.model,
        "optimizer": trial.optimizer,
        "version": version,
        "parts": (
            trial.optimizer,
            version,
            trial.pipeline,
            options_of(request),
            trial.dataset,
            trial.runtime,
            trial.comparator,
        ),
    }
    if trial.conversion is not None:
        return _converted(trial.conversion, known)
    if result is None:
        return Row(**known, outcome=_without_result(trial), reason=_reason(trial))
    faults = tuple(_seen(result, f) for f in result.findings if f.severity == "fault")
    impact = result.impact
    error, noise = _worst(result, faults)
    return Row(
        **known,
        outcome=_outcome(result, faults),
        reason=result.reason,
        task=result.model.task or (impact.comparator if impact else ""),
        opset=result.model.opsets.get("ai.onnx"),
        faults=faults,
        impact=None if impact is None else impact.model_copy(update={"details": []}),
        error=error,
        noise=noise,
        passes=None if result.passes is None else tuple(result.passes),
        pipeline=tuple(result.optimizer.pipeline),
        structures=result.structures,
        placements=result.placements,
        timing=result.timing,
    )


def _converted(result: ConversionResult, known: dict[str, Any]) -> Row:
    """The row of a conversion; a source that was refused is not taken, which is no fault."""
    told = [f for f in result.findings if f.severity == "fault"]
    found = [f for f in findings_of(result) if f.severity == "fault"]
    faults = tuple(
        FaultRow(str(f.fingerprint), str(f.fingerprint), f, cause_of_conversion(own))
        for own, f in zip(told, found, strict=True)
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
    sizes = [(f.error, f.noise) for f in told] or [(s.error, s.noise) for s in result.stages[-1:]]
    error, noise = max(
        (size for size in sizes if size[0] is not None),
        key=lambda size: size[0] or 0.0,
        default=(None, None),
    )
    version = ", ".join(c.version for c in result.converters)
    parts = (known["parts"][0], version, *known["parts"][2:])
    return Row(
        **{**known, "version": version, "parts": parts, "kind": "convert"},
        outcome=outcome,
        reason=reason_of(result),
        faults=faults,
        error=error,
        noise=noise,
    )


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
    return "not taken" if trial.error.error == "Unsupported" else "no result"


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


def _seen(result: VetResult, finding: Finding) -> FaultRow:
    fingerprint = identity(result, finding)
    words = "" if finding.stage == "compare" else normalized_message(finding.message)
    issue = fingerprint
    if words:
        issue = key("crash", result.optimizer.name, finding.stage, words)[:16]
    return FaultRow(fingerprint, issue, finding, cause_of(finding))


# --- variants ------------------------------------------------------------------------------------

_ALWAYS, _VERSION = 0, 1


def variants(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows by variant, under the shortest names that are distinct."""
    listed = list(rows)
    differs = [len({row.parts[i] for row in listed}) > 1 for i in range(7)]
    # Versions of two optimizers always differ; what matters is one optimizer's.
    versions: dict[str, set[str]] = {}
    for row in listed:
        versions.setdefault(row.optimizer, set()).add(row.version)
    differs[_VERSION] = any(len(found) > 1 for found in versions.values())
    differs[_ALWAYS] = True
    found: dict[str, list[Row]] = {}
    for row in listed:
        words = [p for p, wanted in zip(row.parts, differs, strict=True) if wanted and p]
        found.setdefault(" ".join(words), []).append(row)
    return found


def by_model(rows: Iterable[Row]) -> dict[str, Row]:
    """The worst row of each model."""
    found: dict[str, Row] = {}
    for row in rows:
        other = found.get(row.digest)
        if other is None or _RANK[row.outcome] > _RANK[other.outcome]:
            found[row.digest] = row
    return found


_FROM_BEST: tuple[Outcome, ...] = (
    "waits",
    "no result",
    "not taken",
    "same",
    "rounded",
    "undecided",
    "differs",
    "crashes",
)
_RANK: Mapping[Outcome, int] = {name: rank for rank, name in enumerate(_FROM_BEST)}
"""What stands for several jobs of a model: the outcome that says most against the optimizer."""


def grouped(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows by optimizer, in order of first appearance."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.optimizer, []).append(row)
    return found
