"""A fault of import and export alone is set aside in a copy, so that passes can be judged.

::

    what every pipeline makes gets back what import and export lose (a mend), if that cures them
             └ else: what the checker says of them is ignored; outputs that they change are compared
                     with what they make of them, and outputs that they lose are ignored
                      └ else: no pass can be judged
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optvet.engine.vet.find.localize import ddmin
from optvet.engine.vet.observe.examine import Examiner
from optvet.engine.vet.observe.observation import Observation
from optvet.engine.vet.session import VetSession
from optvet.engine.work.trials.raised_errors import normalized_message
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.spec.mends import in_words
from optvet.spec.records import Finding
from optvet.spec.symptoms import Stage, Symptom
from optvet.spec.types import Failure, Sample

_STAGES: tuple[Stage, ...] = ("build", "check", "load", "run", "compare")


@dataclass(frozen=True)
class _SetAside:
    """How a fault was set aside; ``runner`` is None if no pass can be judged."""

    runner: TrialRunner | None
    words: str


def set_aside(
    session: VetSession,
    examiner: Examiner,
    finding: Finding,
    seen: Observation,
    samples: Sequence[Sample],
) -> TrialRunner | None:
    """A runner that judges passes although import and export show ``seen``; None if none can.

    What was done, or why nothing was, is told in the finding and in the control.
    """
    aside = (
        # From the least loss to the largest: a mend hides only passes that lose the same thing, a
        # new reference hides how far import and export are off, and what is ignored is not judged.
        _mended(session.runner, examiner, seen, samples)
        or _compared_with_base(session.runner, examiner, seen, samples)
        or _ignoring(session, examiner, seen)
    )
    session.ledger.amend_equal(finding, {"set_aside": aside.words})
    words = f"shows {seen.symptom}; {aside.words}"
    session.ledger.control("empty pipeline", "failed", words)
    return aside.runner


def _mended(
    runner: TrialRunner, examiner: Examiner, seen: Observation, samples: Sequence[Sample]
) -> _SetAside | None:
    """Only as much is mended as is needed: a pass that loses it too can no longer be found."""
    base, kept = runner.case.passes.base, runner.case.checks.mends
    found = [mend for mend in runner.mendable(base) if mend not in kept]

    def under(chosen: Sequence[int]) -> TrialRunner:
        return runner.under(mends=(*kept, *(found[i] for i in chosen)))

    def left(chosen: Sequence[int]) -> Observation | None:
        trial = under(chosen).trial(base, samples, "control")
        return examiner.examine(trial, samples).observation

    every = list(range(len(found)))
    # All mends at once tell whether any of them can help; only then is it worth choosing.
    rest = left(every) if found else seen
    if rest is not None and not _goes_further(rest, seen):
        return None

    def cures(chosen: Sequence[int]) -> bool:
        now = left(chosen)
        return now is None or (rest is not None and _goes_further(now, seen))

    chosen = ddmin(every, cures)
    words = f"a copy was judged that has {in_words([found[i] for i in chosen])}"
    return _SetAside(under(chosen), words)


def _compared_with_base(
    runner: TrialRunner, examiner: Examiner, seen: Observation, samples: Sequence[Sample]
) -> _SetAside | None:
    """Where import and export change values alone, passes are compared with what these make."""
    base = runner.trial(runner.case.passes.base, samples, "control")
    # The base can replace the reference only if it has all outputs, in the same types, for every
    # sample. Otherwise there is nothing to compare passes with.
    kept = not seen.lost and examiner.reference.keys() >= {s.id for s in samples}
    if seen.stage != "compare" or not seen.outputs or not kept:
        return None
    changed: set[str] = set()
    for sample in samples:
        known, run = examiner.reference[sample.id], base.runs.get(sample.id)
        if run is None or isinstance(run, Failure):
            return None
        if any(n not in run or run[n].dtype != known[n].dtype for n in known):
            return None
        changed |= {n for n in known if not np.array_equal(known[n], run[n])}
    # What the original exactly gives says nothing of outputs in which the two differ.
    examiner.of_base |= changed
    examiner.learn_reference(base)
    names = ", ".join(sorted(changed))
    return _SetAside(runner, f"passes were compared with what it makes of {names}")


def _goes_further(now: Observation, before: Observation) -> bool:
    return _STAGES.index(now.stage) > _STAGES.index(before.stage)


def _ignoring(session: VetSession, examiner: Examiner, seen: Observation) -> _SetAside:
    runner, gone = session.runner, {*seen.outputs, *seen.lost}
    # One complaint of the checker is ignored by its words, so that other complaints still count.
    if seen.symptom == Symptom.INVALID_MODEL:
        excusing = _excusing(runner)
        sample = () if seen.sample is None else (seen.sample,)
        base = excusing.trial(runner.case.passes.base, sample, "control")
        rest = examiner.examine(base, sample).observation
        # A second fault in named outputs is set aside in a further round; one without cannot be.
        if rest is None or rest.outputs or rest.lost:
            return _SetAside(excusing, "this complaint of the checker was ignored in what follows")
        return _SetAside(
            None, f"nothing else was judged: with that ignored, it still shows {rest.symptom}"
        )
    if not gone:
        return _SetAside(None, "nothing else was judged: every pipeline begins and ends with it")
    examiner.ignored_outputs |= gone
    names = ", ".join(sorted(gone))
    if {o.name for o in runner.model.outputs} <= gone:
        return _SetAside(None, f"nothing else was judged: no output but {names}")
    return _SetAside(runner, f"passes were judged without {names}")


def _excusing(runner: TrialRunner) -> TrialRunner:
    """Ignore the checker's message on import and export alone, to find other faults."""
    failure = runner.trial(runner.case.passes.base, (), "control").build.failure
    return runner.under(
        ignored_complaint=normalized_message(failure.message if failure is not None else "")
        or "nothing"
    )
