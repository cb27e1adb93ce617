"""The optimized model is slower than what it is timed against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optvet.engine.vet.find.localize import Answer
from optvet.engine.vet.properties.base import Property
from optvet.engine.work.timing.stopwatch import Stopwatch, Timed
from optvet.engine.work.trials.trial_results import Trial
from optvet.spec.records import Finding
from optvet.spec.symptoms import Symptom


@dataclass(frozen=True)
class Slower(Property):
    """The result takes longer by more than the threshold of ``watch``, at its confidence."""

    watch: Stopwatch
    symptom = Symptom.SLOWDOWN

    def answer(self, trial: Trial) -> Answer:
        """Whether it is slower; unresolved if it cannot be timed, or the noise hides it."""
        return answer_of(self.watch.time(trial.passes, sequential=True), self.watch.threshold)

    def describe(self, trial: Trial, culprit: Sequence[str]) -> Finding:
        """The finding, with the ratio of the culprit alone."""
        timed = self.watch.time(trial.passes)
        found = timed.interval
        assert found is not None
        return Finding(
            symptom=self.symptom,
            severity="requirement",
            stage="run",
            culprit=list(culprit),
            confirmed=True,
            requirement=f"latency ratio <= {1 + self.watch.threshold:g}",
            measured=found.ratio,
        )


def answer_of(timed: Timed, threshold: float) -> Answer:
    """What a timing says of the question whether it is slower by more than ``threshold``."""
    if timed.identical:
        return "passes"
    if timed.interval is None:
        return "unresolved"
    if timed.interval.low > 1 + threshold:
        return "fails"
    return "passes" if timed.interval.high < 1 + threshold else "unresolved"
