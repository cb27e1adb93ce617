"""A discrete decision of the model, such as an argmax, that differs because of rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optvet.engine.judge.judgement import Judgement
from optvet.engine.vet.find.localize import Answer
from optvet.engine.vet.observe.examine import Examiner
from optvet.engine.vet.observe.observation import finite
from optvet.engine.vet.properties.base import Property
from optvet.engine.work.trials.trial_results import Trial
from optvet.spec.records import Finding
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Sample


@dataclass(frozen=True)
class Sensitivity(Property):
    """An output differs no more than it does if the original's inputs are perturbed by rounding."""

    examiner: Examiner
    sample: Sample
    judgement: Judgement
    symptom = Symptom.SENSITIVITY

    @property
    def samples(self) -> Sequence[Sample]:
        """The sample that shows it."""
        return (self.sample,)

    def answer(self, trial: Trial) -> Answer:
        """Whether the output differs in this way; unresolved if the trial shows a fault."""
        found = self.examiner.examine(trial, self.samples)
        if found.observation is not None:
            return "unresolved"
        judgement = found.judgements.get(self.judgement.output)
        return "fails" if judgement and judgement.call == "sensitivity" else "passes"

    def describe(self, trial: Trial, culprit: Sequence[str]) -> Finding:
        """How the output differs after the whole pipeline."""
        name = self.judgement.output
        return Finding(
            symptom=self.symptom,
            severity="note",
            stage="compare",
            culprit=list(culprit),
            confirmed=True,
            outputs=[name],
            error=finite(self.judgement.error),
            noise_floor=finite(self.judgement.noise),
            message=f"output {name!r}: {self.judgement.detail}",
        )
