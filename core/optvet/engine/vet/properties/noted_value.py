"""A note on the values of an output, such as a decision that differs because of rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optvet.engine.judge.value_notes import ValueNote
from optvet.engine.vet.find.localize import Answer
from optvet.engine.vet.observe.examine import Examiner
from optvet.engine.vet.observe.observation import finite
from optvet.engine.vet.properties.base import Property
from optvet.engine.work.trials.trial_results import Trial
from optvet.spec.records import Finding
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Sample


@dataclass(frozen=True)
class NotedValue(Property):
    """An output has a note; ``noted`` is the one that the whole pipeline gives."""

    examiner: Examiner
    sample: Sample
    noted: ValueNote

    @property
    def symptom(self) -> Symptom:
        """What the note is about."""
        return self.noted.symptom

    @property
    def samples(self) -> Sequence[Sample]:
        """The sample that shows it."""
        return (self.sample,)

    def answer(self, trial: Trial) -> Answer:
        """Whether the output has the note; unresolved if the trial shows a fault."""
        found = self.examiner.examine(trial, self.samples)
        if found.observation is not None:
            return "unresolved"
        wanted = (self.noted.symptom, self.noted.output)
        noted = any((n.symptom, n.output) == wanted for _, n in found.notes)
        return "fails" if noted else "passes"

    def describe(self, trial: Trial, culprit: Sequence[str]) -> Finding:
        """What the whole pipeline gives."""
        return Finding(
            symptom=self.symptom,
            severity="note",
            stage="compare",
            culprit=list(culprit),
            confirmed=True,
            outputs=[self.noted.output],
            error=finite(self.noted.error),
            noise_floor=finite(self.noted.noise),
            message=f"output {self.noted.output!r}: {self.noted.detail}",
        )
