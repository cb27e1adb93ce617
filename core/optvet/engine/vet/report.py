"""From a property and its culprit to a finding in the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from optvet.engine.vet.blame import blame
from optvet.engine.vet.examine import same_fault
from optvet.engine.vet.properties import Fault, Property
from optvet.engine.vet.session import Session
from optvet.spec.records import Finding
from optvet.spec.types import NOTES, Failure, Symptom


def note(session: Session, noted: Property) -> None:
    """Blame a note on passes of the pipeline, and report it."""
    passes = session.case.passes
    culprit = blame(session.lab, passes.pipeline, noted, session.request.strategy)
    applied = passes.complete(culprit) if culprit else passes.base
    trial = session.lab.trial(applied, noted.samples, "localize")
    finding = noted.describe(trial, culprit)
    if finding is not None:
        sample = next(iter(noted.samples), None)
        witness = session.witness(sample)
        session.ledger.add(finding.model_copy(update={"witness": witness}))


def report_fault(
    session: Session,
    fault: Fault,
    culprit: Sequence[str],
    *,
    as_deployed: bool = False,
    undecided: bool = True,
) -> Finding:
    """Report a fault as the culprit's own trial shows it, replayed in a fresh process.

    What a fresh process does not show again is no finding: it is returned, and the vet undecided
    about it unless ``undecided`` is False.
    """
    table, lab = session.case.passes, session.lab
    passes = table.complete(culprit) if culprit else table.base
    trial = lab.trial(passes, fault.samples, "confirm")
    shown = fault.shown(trial)
    severity, limit = _severity(session, shown.symptom, culprit)
    finding = fault.describe(trial, culprit).model_copy(
        update={
            "confirmed": _shows_again(session, shown, passes),
            "severity": severity,
            "known_limit": limit,
            "witness": session.witness(fault.observation.sample),
            "as_deployed": as_deployed,
        }
    )
    if finding.confirmed:
        session.ledger.add(finding)
    elif undecided:
        session.ledger.undecided(unrepeated(finding))
    return finding


def unrepeated(finding: Finding) -> str:
    """Why a finding that a fresh process does not show is none, in words."""
    culprit = " then ".join(finding.culprit) or "import and export"
    return (
        f"{culprit} showed {finding.symptom} once and not again in a fresh process: what the "
        "optimizer makes is not the same each time, or depends on what its process did before "
        f"({finding.message})"
    )


def _shows_again(session: Session, fault: Fault, passes: tuple[str, ...]) -> bool:
    """Whether fresh processes show it too, and the reference agrees with itself there."""
    lab, examiner, samples = session.lab, fault.examiner, fault.samples
    again = examiner.examine(lab.fresh(passes, samples), samples).observation
    if again is None or not same_fault(again, fault.observation):
        return False
    if fault.observation.stage != "compare":
        return True
    reference = lab.fresh(examiner.base, samples)
    return all(
        not isinstance(run := reference.runs.get(s.id), Failure)
        and run is not None
        and examiner.agrees(s, run)
        for s in samples
    )


def _severity(
    session: Session, symptom: Symptom, culprit: Sequence[str]
) -> tuple[Literal["fault", "note"], str | None]:
    """How serious it is, and the documented limit of a pass that explains it."""
    for name in culprit:
        for limit in session.case.passes.limits(name):
            if symptom in limit.symptoms:
                return "note", f"documented limit of {name}: {limit.reason}"
    return ("note" if symptom in NOTES else "fault"), None
