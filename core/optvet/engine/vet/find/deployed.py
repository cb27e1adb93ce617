"""A second comparison, under the runtime's own defaults."""

from __future__ import annotations

from optvet.engine.vet.find.detect import Detected
from optvet.engine.vet.find.eliminate import clear
from optvet.engine.vet.observe.examine import Examiner
from optvet.engine.vet.session import VetSession
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.case import Checks
from optvet.spec.types import Failure


def judge_as_deployed(
    session: VetSession, detected: Detected, safe: tuple[str, ...]
) -> tuple[str, ...]:
    """Report faults of ``safe`` that only the runtime's defaults show; returns its safe part."""
    samples, ledger = detected.samples, session.ledger
    deployed = session.case.as_deployed()
    runner = session.runner.on(
        deployed.under(full=False, ignored_complaint=Checks().ignored_complaint)
    )
    reference, candidate = runner.both(safe, samples, "detect")
    failures = [r for r in reference.runs.values() if isinstance(r, Failure)]
    if failures or candidate is None:
        words = f"the original itself fails: {describe(failures[0])}"
        ledger.control("as deployed", "limited", words)
        return safe
    examiner = Examiner(runner, samples, tolerance=deployed.passes.tolerance)
    examiner.learn_reference(reference)
    found = examiner.examine(candidate, samples)
    before = len(ledger.findings)
    safe = clear(session.at(runner), examiner, samples, safe, found, as_deployed=True).passes
    faults = len(ledger.findings) - before
    words = f"{faults} more findings" if faults else "agrees"
    ledger.control("as deployed", "failed" if faults else "passed", words + detected.share(samples))
    return safe
