"""A requirement of the user that the optimized model does not meet; not always a fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optvet.engine.vet.find.localize import Answer
from optvet.engine.vet.observe.observation import finite
from optvet.engine.vet.properties.base import Property
from optvet.engine.vet.require.gauges import RequirementReading
from optvet.engine.vet.require.metrics import RequirementMeter
from optvet.engine.work.trials.trial_results import Trial
from optvet.spec.records import Finding
from optvet.spec.requirement import Required
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Sample


@dataclass(frozen=True)
class UnmetRequirement(Property):
    """The requirement ``required`` is not met over all samples."""

    meter: RequirementMeter
    required: Required
    symptom = Symptom.REQUIREMENT

    @property
    def samples(self) -> Sequence[Sample]:
        """All samples in memory, since a metric is defined over all of them."""
        return self.meter.samples

    def read(self, passes: Sequence[str] | None, *, fresh: bool = False) -> RequirementReading:
        """The measured value after ``passes``; ``fresh`` repeats it in fresh processes."""
        return self.meter.read(
            self.required, None if passes is None else tuple(passes), fresh=fresh
        )

    def answer(self, trial: Trial) -> Answer:
        """Whether it is not met; unresolved if it cannot be measured."""
        met = self.read(trial.passes).met
        if met is None:
            return "unresolved"
        return "passes" if met else "fails"

    def describe(self, trial: Trial, culprit: Sequence[str]) -> Finding:
        """The finding with the value after the culprit alone."""
        reading = self.read(trial.passes)
        required = self.required
        tensor = required.tensor
        return Finding(
            symptom=self.symptom,
            severity="requirement",
            stage="compare",
            culprit=list(culprit),
            confirmed=True,
            outputs=[] if tensor is None else [tensor],
            message=f"{self.required} is required; {reading.words}",
            requirement=str(self.required),
            measured=finite(reading.value),
        )
