"""The answer where the time for the whole of it is over: what is known then."""

from __future__ import annotations

import time
from collections.abc import Callable

from optvet.engine.vet.assemble import model_record, optimizer_record, runtime_record
from optvet.engine.vet.session import VetSession
from optvet.spec.errors import BudgetSpent
from optvet.spec.records import VetResult
from optvet.spec.records.saved import Saved


def run_within_budget(
    session: VetSession, started: float, run: Callable[[VetSession, float], VetResult]
) -> VetResult:
    """What ``run`` answers; if the budget ends before that, the confirmed findings.

    An answer that rests on a step that the budget stopped is none either.
    """
    sandbox, runner = session.runner.sandbox, session.runner
    doing = ["starting"]
    shown = runner.progress

    def noted(text: str, done: int, total: int | None) -> None:
        doing[0] = text
        shown(text, done, total)

    runner.progress = noted
    given = session.request.budget
    left_s = None if given is None else given - (time.perf_counter() - started)
    try:
        with sandbox.budget(left_s):
            result = run(session, started)
    except BudgetSpent:
        return _so_far(session, started, doing[0])
    finally:
        runner.progress = shown
    return _so_far(session, started, doing[0]) if sandbox.budget_spent else result


def _so_far(session: VetSession, started: float, doing: str) -> VetResult:
    """The confirmed findings; undecided if there is none. No pipeline is recommended.

    A fault that nobody asked yet what excuses it is a note.
    """
    case, ledger, request = session.case, session.ledger, session.request
    words = f"the {request.budget:g} s of --budget were over while {doing}"
    session.runner.progress(f"stopped: {words}", 0, None)
    early = f"{words}: what may excuse it was not asked"
    for i in range(ledger.weighed, len(ledger.findings)):
        if ledger.findings[i].severity == "fault":
            ledger.amend(i, {"severity": "note", "known_limit": early})
    found = [f for f in ledger.findings if f.confirmed]
    faulty = any(f.severity == "fault" for f in found)
    unweighed = next((f for f in found if f.known_limit == early), None)
    reason = f"{words}; give a larger one"
    if unweighed is not None:
        culprit = " then ".join(unweighed.culprit) or "import and export"
        reason = f"{culprit} shows {unweighed.symptom}, but {words}, before it was asked what may "
        reason += "excuse that; give a larger one"
    ledger.control("budget", "limited", f"{words}: nothing more was tried")
    return VetResult(
        schema="optvet.vet/3",
        model=model_record(case.model),
        optimizer=optimizer_record(case),
        runtime=runtime_record(case.candidate),
        verdict="faulty" if faulty else "undecided",
        reason="" if faulty else reason,
        findings=found,
        safe_pipeline=[],
        saved=None if request.save is None else Saved(reason=f"{words}: no pipeline is verified"),
        controls=list(ledger.controls.values()),
        complete=False,
        seed=request.seed,
        strategy=request.strategy,
        cost=session.runner.ledger.cost(time.perf_counter() - started),
    )
