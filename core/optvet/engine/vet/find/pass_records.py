"""What was measured of every pass, whatever the strategy was."""

from __future__ import annotations

from collections.abc import Sequence

from optvet.spec.records import Finding, PassRecord


def pass_records(
    pipeline: Sequence[str],
    findings: Sequence[Finding],
    *,
    alone: Sequence[PassRecord],
    changing: Sequence[str] | None,
) -> list[PassRecord]:
    """One record per pass: of those tried alone, then of the others of the pipeline.

    Args:
        pipeline: The passes that were applied together.
        findings: All findings; the passes of a searched culprit are at fault, or changed the model
            where the finding is a note.
        alone: The records of passes that were tried alone.
        changing: Passes that changed the model by the optimizer's log; None if it keeps none.
    """
    tried = {record.name for record in alone}
    others = [name for name in dict.fromkeys(pipeline) if name not in tried]
    return [*alone, *(_record(name, findings, changing) for name in others)]


def _record(name: str, findings: Sequence[Finding], changing: Sequence[str] | None) -> PassRecord:
    named = [f for f in findings if f.localized and f.confirmed and name in f.culprit]
    # A finding is better evidence than the log, which repeats what the optimizer says of itself.
    guilty = next((f for f in named if f.severity != "note"), None)
    if guilty is not None:
        return PassRecord(
            name=name,
            effect="failed",
            evidence="culprit",
            symptom=guilty.symptom,
            known_limit=guilty.known_limit,
        )
    if named:
        return PassRecord(name=name, effect="changed", evidence="culprit")
    if changing is None:
        return PassRecord(name=name, effect="not-measured", evidence="none")
    return PassRecord(name=name, effect="changed" if name in changing else "none", evidence="log")
