"""The property of a faulty trial: a step that fails, or wrong outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from optvet.engine.vet.find.localize import Answer
from optvet.engine.vet.observe.examine import Examiner
from optvet.engine.vet.observe.observation import Observation, finite, same_fault, same_symptom
from optvet.engine.vet.properties.base import Property
from optvet.engine.work.trials.trial_results import Trial
from optvet.spec.records import Finding, LayerRecord
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Sample


@dataclass(frozen=True)
class Fault(Property):
    """The fault ``observation``, in any trial.

    A trial shows it if the symptom is the same and, for wrong outputs, at least one of them is. If
    ``exact``, the messages must be equal too, except for names and numbers. Samples of ``before``
    run in the same session first: what an optimized model keeps of them may be what is wrong.
    """

    examiner: Examiner
    observation: Observation
    exact: bool = False
    before: tuple[Sample, ...] = ()
    _seen: dict[tuple[str, ...], Observation | None] = field(default_factory=dict, compare=False)

    @property
    def symptom(self) -> Symptom:
        """The symptom of the observation."""
        return self.observation.symptom

    @property
    def samples(self) -> Sequence[Sample]:
        """Those before, and the sample that shows it; empty if no run is needed."""
        sample = self.observation.sample
        return () if sample is None else (*self.before, sample)

    def observe(self, trial: Trial) -> Observation | None:
        """The fault of ``trial``, this or another one; None if there is none."""
        if trial.passes not in self._seen:
            self._seen[trial.passes] = self.examiner.examine(trial, self.samples).observation
        return self._seen[trial.passes]

    def answer(self, trial: Trial) -> Answer:
        """Whether ``trial`` shows this fault; unresolved if it shows another one."""
        other = self.observe(trial)
        if other is None:
            return "passes"
        same = (
            same_fault(other, self.observation)
            if self.exact
            else same_symptom(other, self.observation)
        )
        return "fails" if same else "unresolved"

    def find_in_base(self, base: Trial) -> Fault | None:
        """The fault of the empty pipeline, this or another: passes cannot be judged then."""
        observation = self.observe(base)
        return None if observation is None else replace(self, observation=observation)

    def as_observed_in(self, passes: tuple[str, ...]) -> Fault:
        """The fault that ``passes`` showed, to be searched with ``exact``."""
        seen = self._seen.get(passes) or self.observation
        return replace(self, observation=seen, exact=True)

    def with_observation_of(self, trial: Trial) -> Fault:
        """The fault with the observation of ``trial``, if that has the same symptom."""
        own = self.observe(trial)
        if own is None or own.symptom != self.symptom or own.unexplained:
            return self
        return replace(self, observation=own)

    def describe(self, trial: Trial, culprit: Sequence[str]) -> Finding:
        """The finding, not yet confirmed by a fresh process."""
        seen = self.with_observation_of(trial).observation
        return Finding(
            symptom=seen.symptom,
            severity="note" if seen.symptom.info.severity == "note" else "fault",
            stage=seen.stage,
            culprit=list(culprit),
            confirmed=False,
            outputs=list(seen.outputs),
            error=finite(seen.error),
            noise_floor=finite(seen.noise),
            wrong_form=seen.wrong_form,
            message=seen.message,
            layer=self._layer(trial, seen),
        )

    def _layer(self, trial: Trial, seen: Observation) -> LayerRecord | None:
        """The wrong layer of a quantized model, if layers were compared."""
        if seen.sample is None or not any(j.layered for j in seen.faults):
            return None
        return self.examiner.layers.wrong(trial.passes, seen.outputs, seen.sample.id)
