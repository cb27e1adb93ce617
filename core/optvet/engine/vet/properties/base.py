"""The contract of a property."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from optvet.engine.vet.find.localize import Answer
from optvet.engine.work.trials.trial_results import Trial
from optvet.spec.records import Finding
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Sample


class Property(ABC):
    """Something that a trial shows or does not show, and that has a culprit.

    A subclass sets ``symptom``, answers for one trial, and makes the finding from the trial of the
    culprit. The other methods have defaults.
    """

    @property
    @abstractmethod
    def symptom(self) -> Symptom:
        """What a trial shows; a class attribute where it is always the same."""

    @property
    def samples(self) -> Sequence[Sample]:
        """Inputs of the trials; empty if building the model is enough."""
        return ()

    @abstractmethod
    def answer(self, trial: Trial) -> Answer:
        """Whether ``trial`` shows the property: "fails" if it does; see ``localize``."""

    @abstractmethod
    def describe(self, trial: Trial, culprit: Sequence[str]) -> Finding | None:
        """The finding, from the trial of ``culprit``; None if that trial does not show it."""

    def find_in_base(self, base: Trial) -> Property | None:
        """The property as the empty pipeline shows it; None if it does not."""
        return self if self.answer(base) == "fails" else None

    def likely(self, whole: Trial) -> Sequence[str]:
        """Passes of ``whole``, which shows the property, to be tried alone before the search."""
        return ()

    def as_observed_in(self, passes: tuple[str, ...]) -> Property:
        """The property as ``passes`` showed it; used to reduce ``passes`` further."""
        return self
