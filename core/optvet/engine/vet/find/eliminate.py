"""Removes one culprit after another from a pipeline until the remaining passes show no fault.

A round finds one fault, as one hides others: outputs differ already, or nothing runs. The order of
a round matters. An outside cause, or one more hang, ends the search, since each trial would meet it
again. Import and export come next: their fault is in every trial, so it has to be set aside before
a pass can be judged. The search of a pass only raises a suspicion, as earlier trials may have left
something in the process; a fresh process confirms it, and only then a pass is removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from optvet.engine.vet.find.blame import blame, search_timeout
from optvet.engine.vet.find.confirm import explain_no_repeat, report_fault
from optvet.engine.vet.find.refusal import refuse_what_it_does_not_take
from optvet.engine.vet.find.set_aside import set_aside
from optvet.engine.vet.observe.examine import Examiner
from optvet.engine.vet.observe.observation import Examination
from optvet.engine.vet.properties import Fault
from optvet.engine.vet.session import VetSession
from optvet.engine.work.trials.trial_runner import TrialRunner, isolate
from optvet.spec.records import Finding
from optvet.spec.types import Sample

MAX_ROUNDS = 24
Rest = Callable[[VetSession, tuple[str, ...]], Examination]
"""Tries a pipeline on the samples after the first chunk."""


@dataclass(frozen=True)
class Cleared:
    """The result of ``clear``.

    Attributes:
        passes: The remaining passes.
        runner: The runner, in which a fault of import and export alone is set aside.
        found: The examination of the remaining passes; None if they were not tried.
    """

    passes: tuple[str, ...]
    runner: TrialRunner
    found: Examination | None = None


def clear(
    session: VetSession,
    examiner: Examiner,
    samples: Sequence[Sample],
    pipeline: tuple[str, ...],
    found: Examination,
    *,
    rest: Rest | None = None,
    as_deployed: bool = False,
) -> Cleared:
    """Report every fault of ``pipeline`` with its culprit; the remaining passes are safe.

    Args:
        session: Where trials are made and findings are added.
        examiner: Judges the trials.
        samples: Inputs of the trials.
        pipeline: Passes in order.
        found: The examination of the pipeline.
        rest: Tries a pipeline without fault on further samples.
        as_deployed: Whether the runtime's own graph optimizations are on.
    """
    ledger, runner, table = session.ledger, session.runner, session.case.passes
    rounds = 0
    while found.observation is not None:
        rounds += 1
        fault = Fault(examiner, found.observation)
        if runner.isolated:
            fault = replace(fault, before=_before(samples, fault))
        if ledger.is_unexplained(fault.observation) or ledger.ends_search(fault.observation):
            return Cleared(table.required_of(pipeline), runner)
        runner.progress(f"localizing {fault.symptom}", rounds, None)
        inherited, searching = _control(session.at(runner), fault)
        if inherited is not None:
            seen = inherited.observation
            if ledger.is_unexplained(seen):
                return Cleared((), runner)
            finding = report_fault(
                searching, inherited, (), as_deployed=as_deployed, undecided=runner.isolated
            )
            if not finding.confirmed:
                if runner.isolated:
                    return Cleared((), runner)
                runner, found = _alone(session.at(runner), fault, finding, pipeline, samples)
                continue
            aside = set_aside(session.at(runner), examiner, finding, seen, samples)
            if aside is None:
                return Cleared((), runner)
            runner = aside
        else:
            culprit = blame(searching.runner, pipeline, fault, session.request.strategy)
            finding = report_fault(
                searching, fault, culprit, as_deployed=as_deployed, undecided=runner.isolated
            )
            if not finding.confirmed:
                if runner.isolated:
                    return Cleared(table.required_of(pipeline), runner)
                runner, found = _alone(session.at(runner), fault, finding, pipeline, samples)
                continue
            # Without a pass to leave out, the next round would be this one again.
            optional = [n for n in culprit if n not in table.required]
            if not optional or rounds >= MAX_ROUNDS or session.request.strategy == "none":
                ledger.reasons.append(f"found no safe pipeline in {rounds} rounds")
                return Cleared(table.required_of(pipeline), runner)
            # The last one makes the fault of what those before leave: these may be harmless now.
            pipeline = tuple(n for n in pipeline if n != optional[-1])
        found = examiner.examine(runner.trial(pipeline, samples, "verify"), samples)
        # Other samples last: they cost more, and say nothing new while the kept ones still fail.
        if found.observation is None and rest is not None:
            found = rest(session.at(runner), pipeline)
    return Cleared(pipeline, runner, found)


def _before(samples: Sequence[Sample], fault: Fault) -> tuple[Sample, ...]:
    """A sample to run before the one that shows a fault, where that is not the first.

    By itself it may be right: an executable that writes into its own constants is wrong from its
    second run on.
    """
    shown = fault.observation.sample
    first = samples[0] if samples else None
    kept = shown is not None and first is not None and shown.id != first.id
    return (first,) if kept and first is not None else ()


def _alone(
    session: VetSession,
    fault: Fault,
    finding: Finding,
    pipeline: tuple[str, ...],
    samples: Sequence[Sample],
) -> tuple[TrialRunner, Examination]:
    """Try the pipeline again with a process for each trial, since trials of one process interact.

    If no fault shows then, ``finding`` is recorded as undecided.
    """
    runner, controls = isolate(session.runner), session.ledger.controls
    # The failure did not repeat, so the control is made again by trials that cannot interact.
    if "empty pipeline" in controls and controls["empty pipeline"].state == "failed":
        del controls["empty pipeline"]
    session.ledger.control("isolation", "limited", "each trial in a process of its own")
    found = fault.examiner.examine(runner.trial(pipeline, samples, "verify"), samples)
    if found.observation is None:
        session.ledger.add_undecided_reason(explain_no_repeat(finding))
    return runner, found


def _control(session: VetSession, fault: Fault) -> tuple[Fault | None, VetSession]:
    """The fault of import and export alone, if any, and the session in which to search the culprit.

    The culprit of a timeout is searched with a shorter time limit.
    """
    runner, ledger = session.runner, session.ledger
    started = time.perf_counter()
    base = runner.trial(session.case.passes.base, fault.samples, "control")
    inherited = fault.find_in_base(base)
    if inherited is not None:
        refuse_what_it_does_not_take(session, base)
    # The first answer counts. Later rounds ask under faults set aside, which is another question.
    if "empty pipeline" not in ledger.controls:
        if inherited is None:
            ledger.control("empty pipeline", "passed", "shows no fault")
        else:
            ledger.control("empty pipeline", "failed", f"shows {inherited.symptom}")
    if fault.symptom.info.limit == "time":
        # A cached trial takes no time; ``search_timeout`` has a least value for that.
        empty_s = time.perf_counter() - started
        runner = runner.under(timeout_s=search_timeout(session.request.timeout, empty_s))
    return inherited, session.at(runner)
