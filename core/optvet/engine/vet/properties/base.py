"""The contract of a property."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from optvet.engine.vet.localize import Answer
from optvet.engine.work.facts import Trial
from optvet.spec.records import Finding
from optvet.spec.types import Sample, Symptom


class Property(ABC):
    """Something that a trial shows or does not show, whose cause is searched for.

    A subclass sets ``symptom``, answers for one trial, and describes what the culprit's trial
    shows. The rest has defaults.
    """

    symptom: Symptom

    @property
    def samples(self) -> Sequence[Sample]:
        """What trials are run on; empty if building the model is enough."""
        return ()

    @abstractmethod
    def answer(self, trial: Trial) -> Answer:
        """Whether ``trial`` "fails", which means that it shows the property."""

    @abstractmethod
    def describe(self, trial: Trial, culprit: Sequence[str]) -> Finding | None:
        """The finding, from the trial of its culprit; None if there is nothing to tell."""

    def inherited(self, base: Trial) -> Property | None:
        """What the trial of the empty pipeline already shows of it; None if nothing."""
        return self if self.answer(base) == "fails" else None

    def as_observed_in(self, passes: tuple[str, ...]) -> Property:
        """The same, exactly as ``passes`` showed it; the search then reduces these."""
        return self
