"""The property of a model that runs, and of which strict shape inference says that it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optvet.engine.vet.find.localize import Answer
from optvet.engine.vet.properties.base import Property
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.trial_results import Trial
from optvet.spec.records import Finding
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Failure


@dataclass(frozen=True)
class FailsInference(Property):
    """``complaint`` is what the whole pipeline gives; a runtime that does not infer is content."""

    complaint: Failure
    symptom = Symptom.INVALID_MODEL

    def answer(self, trial: Trial) -> Answer:
        """Whether strict shape inference fails; unresolved if nothing was built."""
        if trial.build.failure is not None:
            return "unresolved"
        return "passes" if trial.build.strict is None else "fails"

    def describe(self, trial: Trial, culprit: Sequence[str]) -> Finding:
        """What it says of the culprit's model."""
        words = describe(trial.build.strict or self.complaint)
        return Finding(
            symptom=self.symptom,
            severity="note",
            stage="check",
            culprit=list(culprit),
            confirmed=True,
            message=f"strict shape inference fails, but the model runs: {words}",
        )
