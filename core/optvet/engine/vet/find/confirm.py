"""Adds findings to the ledger: of a note, or of a fault that a fresh process confirms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from optvet.engine.vet.find.blame import blame
from optvet.engine.vet.find.limits import passes_with_more, was_denied, was_short
from optvet.engine.vet.observe.observation import same_fault
from optvet.engine.vet.properties import Fault, Property
from optvet.engine.vet.session import VetSession
from optvet.engine.work.trials.trial_results import Trial
from optvet.spec.records import Finding
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Failure, Sample


def note(session: VetSession, noted: Property) -> None:
    """Find the passes that cause the property ``noted``, and add the note."""
    passes = session.case.passes
    culprit = blame(session.runner, passes.pipeline, noted, session.request.strategy)
    applied = passes.complete(culprit) if culprit else passes.base
    trial = session.runner.trial(applied, noted.samples, "localize")
    finding = noted.describe(trial, culprit)
    if finding is not None:
        sample = next(iter(noted.samples), None)
        witness = session.witness(sample)
        session.ledger.add(finding.model_copy(update={"witness": witness}))


def report_fault(
    session: VetSession,
    fault: Fault,
    culprit: Sequence[str],
    *,
    as_deployed: bool = False,
    undecided: bool = True,
) -> Finding:
    """Repeat a fault in a fresh process, and add it to the ledger if it shows again.

    Symptom and values are those of the trial of ``culprit`` alone.

    Args:
        session: Where trials are made and findings are added.
        fault: The fault under search.
        culprit: The passes that cause it; empty for import and export.
        as_deployed: Whether the runtime's own graph optimizations are on.
        undecided: Whether a fault that does not show again is recorded as undecided.

    Returns:
        The finding; if ``confirmed`` is False, it is not in the ledger.
    """
    table, runner = session.case.passes, session.runner
    passes = table.complete(culprit) if culprit else table.base
    # The finding describes the culprit alone: in the pipeline, other passes may have changed the
    # values, or even the symptom.
    trial = runner.trial(passes, fault.samples, "confirm")
    shown = fault.with_observation_of(trial)
    severity, limit = _severity(session, shown.symptom, culprit)
    finding = fault.describe(trial, culprit).model_copy(
        update={
            "confirmed": _shows_again(session, shown, passes),
            "severity": severity,
            "known_limit": limit,
            "witness": session.witness(fault.observation.sample),
            "as_deployed": as_deployed,
            "mended": list(runner.case.checks.mends),
        }
    )
    if finding.confirmed:
        # Only a confirmed fault is worth a run under higher limits. A limit of the sandbox is no
        # fault of the pass: a user without that limit may never see it.
        words = _find_limit(session, finding.symptom, trial, fault.samples)
        if words:
            finding = finding.model_copy(update={"severity": "note", "known_limit": words})
            session.ledger.add_undecided_reason(
                f"{' then '.join(culprit) or 'import and export'}: {words}"
            )
    if finding.confirmed and fault.before and _is_right_alone(session, fault, passes):
        words = f"{finding.message}; right in the first run of a session, and wrong after others"
        finding = finding.model_copy(update={"message": words})
    if finding.confirmed:
        session.ledger.add(finding)
    # A fault that shows once is neither proven nor refuted, so the verdict stays open.
    elif undecided:
        session.ledger.add_undecided_reason(explain_no_repeat(finding))
    return finding


def _is_right_alone(session: VetSession, fault: Fault, passes: tuple[str, ...]) -> bool:
    """Whether nothing is wrong in a session of its own, in which no other sample ran before."""
    alone = fault.samples[-1:]
    return fault.examiner.examine(session.runner.fresh(passes, alone), alone).observation is None


def _find_limit(
    session: VetSession, symptom: Symptom, trial: Trial, samples: Sequence[Sample]
) -> str:
    """The limit of the sandbox that may make ``trial`` fail, in words; empty if none."""
    if symptom.info.limit == "memory":
        return passes_with_more(session, trial.passes, samples)
    return "" if symptom.info.limit else was_denied(session, trial) or was_short(trial)


def explain_no_repeat(finding: Finding) -> str:
    """The reason why a fault that does not show again is undecided."""
    culprit = " then ".join(finding.culprit) or "import and export"
    return (
        f"{culprit} showed {finding.symptom} once and not again in a fresh process: the "
        "optimizer's result differs between runs, or depends on what its process did before "
        f"({finding.message})"
    )


def _shows_again(session: VetSession, fault: Fault, passes: tuple[str, ...]) -> bool:
    """Whether fresh processes show the fault again and repeat the reference's outputs."""
    runner, examiner, samples = session.runner, fault.examiner, fault.samples
    again = examiner.examine(runner.fresh(passes, samples), samples).observation
    if again is None or not same_fault(again, fault.observation):
        return False
    # A failed step is evidence by itself; a difference depends on what it is compared with.
    if fault.observation.stage != "compare":
        return True
    # If the reference does not repeat its own outputs, the difference may come from there.
    reference = runner.fresh(examiner.base, samples)
    return all(
        not isinstance(run := reference.runs.get(s.id), Failure)
        and run is not None
        and examiner.agrees(s, run)
        for s in samples
    )


def _severity(
    session: VetSession, symptom: Symptom, culprit: Sequence[str]
) -> tuple[Literal["fault", "note"], str | None]:
    """The severity, and the documented limit of a pass that explains the symptom, if any."""
    # A documented limit of any pass of the culprit makes it a note: whoever took the pass could
    # know. It covers the listed symptoms only.
    for name in culprit:
        for limit in session.case.passes.limits(name):
            if symptom in limit.symptoms:
                return "note", f"documented limit of {name}: {limit.reason}"
    return ("note" if symptom.info.severity == "note" else "fault"), None
