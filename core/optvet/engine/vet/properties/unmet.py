"""That the user would not accept the result, whether or not the optimizer did wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optvet.engine.vet.examine import finite
from optvet.engine.vet.localize import Answer
from optvet.engine.vet.meter import Meter, Reading
from optvet.engine.vet.properties.base import Property
from optvet.engine.work.facts import Trial
from optvet.spec.records import Finding
from optvet.spec.requirement import Required
from optvet.spec.types import Sample, Symptom


@dataclass(frozen=True)
class Unmet(Property):
    """That ``required`` is not met over all samples."""

    meter: Meter
    required: Required
    symptom = Symptom.REQUIREMENT

    @property
    def samples(self) -> Sequence[Sample]:
        """All of them, where they are at hand: a metric is one over all samples."""
        return self.meter.samples

    def read(self, passes: Sequence[str] | None, *, fresh: bool = False) -> Reading:
        """How it stands after ``passes``."""
        return self.meter.read(
            self.required, None if passes is None else tuple(passes), fresh=fresh
        )

    def answer(self, trial: Trial) -> Answer:
        """Whether it is not met; unresolved where that cannot be told."""
        met = self.read(trial.passes).met
        if met is None:
            return "unresolved"
        return "passes" if met else "fails"

    def describe(self, trial: Trial, culprit: Sequence[str]) -> Finding:
        """What was measured after the culprit alone."""
        reading = self.read(trial.passes)
        return Finding(
            symptom=self.symptom,
            severity="requirement",
            stage="compare",
            culprit=list(culprit),
            confirmed=True,
            outputs=[self.required.output] if self.required.output is not None else [],
            message=f"{self.required} is required; {reading.words}",
            requirement=str(self.required),
            measured=finite(reading.value),
        )
