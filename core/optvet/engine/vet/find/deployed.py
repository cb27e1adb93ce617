"""A second comparison: what the user will run, beside the original in the clean room."""

from __future__ import annotations

from optvet.engine.judge.flips import REACH
from optvet.engine.judge.thresholds import OTHER_KERNELS
from optvet.engine.vet.find.detect import Detected
from optvet.engine.vet.find.eliminate import clear
from optvet.engine.vet.observe.examine import Examiner
from optvet.engine.vet.observe.observation import Examination
from optvet.engine.vet.session import VetSession
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.case import Checks
from optvet.spec.types import Failure


def _unexplained(found: Examination, of_original: Examination) -> str:
    """What the optimized model is off by, in words, beyond what the runtime itself is off by."""
    for name, judged in found.judgements.items():
        own = of_original.judgements.get(name)
        error, explained = judged.error or 0.0, 0.0 if own is None else own.error or 0.0
        if judged.call == "fault" and error > REACH * explained:
            size = f"off by {error:.2g} of its largest value, on the original by {explained:.2g}"
            return f"That explains no difference as large as that of {name!r}: {size}"
    return ""


def judge_as_deployed(
    session: VetSession, detected: Detected, safe: tuple[str, ...]
) -> tuple[str, ...]:
    """Report faults of ``safe`` that only the runtime's defaults show; returns its safe part.

    The optimized model under the runtime's defaults is compared with the original in the clean
    room: both under the defaults would be wrong alike wherever the runtime optimizes both.
    """
    samples, ledger = detected.samples, session.ledger
    runner = session.runner.on(
        session.case.shipped().under(full=False, ignored_complaint=Checks().ignored_complaint)
    )
    examiner = Examiner(
        runner, samples, tolerance=runner.case.passes.tolerance, thresholds=OTHER_KERNELS
    )
    examiner.learn_reference(runner.reference(samples))
    found = examiner.examine(runner.trial(safe, samples, "detect"), samples)
    share = detected.share(samples)
    if found.observation is None:
        whole = runner.case.passes.pipeline
        words = f"agrees{share}"
        if safe != whole:
            shown = examiner.examine(runner.trial(whole, samples, "detect"), samples).observation
            of_whole = "agrees" if shown is None else f"shows {shown.symptom}"
            words = f"the verified pipeline {words}; the whole {of_whole}"
        ledger.control("as deployed", "passed", words)
        return safe
    # Whose fault is it? The runtime's, where its defaults are wrong on the original too.
    original = session.runner.on(runner.case.run_by(runner.case.candidate)).reference(samples)
    failures = [r for r in original.runs.values() if isinstance(r, Failure)]
    if failures:
        words = f"the original itself fails: {describe(failures[0])}"
        ledger.control("as deployed", "limited", words)
        return safe
    of_original = examiner.examine(original, samples)
    if of_original.observation is not None:
        words = f"the runtime is wrong on the original too{share}; vet it as an optimizer"
        further = _unexplained(found, of_original)
        if further:
            words = f"{words}. {further}"
            ledger.add_undecided_reason(words)
        ledger.control("as deployed", "limited", words)
        return safe
    before = len(ledger.findings)
    safe = clear(session.at(runner), examiner, samples, safe, found, as_deployed=True).passes
    faults = len(ledger.findings) - before
    ledger.control("as deployed", "failed", f"{faults} more findings{share}")
    return safe
