"""Notes on the structure of what was built: no run is needed to see them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optvet.engine.vet.localize import Answer
from optvet.engine.vet.properties.base import Property
from optvet.engine.work.facts import Trial
from optvet.graph import structure
from optvet.graph.interface import lost_inputs, shape_changes
from optvet.graph.structure import Facts
from optvet.spec.records import Finding
from optvet.spec.types import Pass, Symptom

_LISTED = 6
_SAYS = {"weaker": "less than they did", "stronger": "more than they did"}


@dataclass(frozen=True)
class Structural(Property):
    """What a comparison with the original's structure shows."""

    original: Facts

    @abstractmethod
    def shows(self, facts: Facts) -> bool:
        """Whether a model of this structure has the property."""

    def answer(self, trial: Trial) -> Answer:
        """Whether the model has it; unresolved if there is no model."""
        facts = trial.build.facts
        if facts is None:
            return "unresolved"
        return "fails" if self.shows(facts) else "passes"

    def _note(self, culprit: Sequence[str], message: str) -> Finding:
        return Finding(
            symptom=self.symptom,
            severity="note",
            stage="build",
            culprit=list(culprit),
            confirmed=True,
            message=message,
        )


@dataclass(frozen=True)
class Bloat(Structural):
    """That the model grows beyond measure."""

    symptom = Symptom.BLOAT

    def shows(self, facts: Facts) -> bool:
        """Whether nodes or bytes are far more than the original's."""
        return structure.is_bloated(self.original, facts)

    def describe(self, trial: Trial, culprit: Sequence[str]) -> Finding | None:
        """By how much the culprit's model grows, if it alone does."""
        facts = trial.build.facts
        if facts is None or not self.shows(facts):
            return None
        return self._note(culprit, structure.growth(self.original, facts))


@dataclass(frozen=True)
class LostMetadata(Structural):
    """That what the model says of itself is changed."""

    lost: Mapping[str, tuple[str, str]]
    symptom = Symptom.METADATA_CHANGE

    def shows(self, facts: Facts) -> bool:
        """Whether all of it is changed."""
        return self.lost.keys() <= structure.lost_metadata(self.original, facts).keys()

    def describe(self, trial: Trial, culprit: Sequence[str]) -> Finding:
        """What is changed."""
        return self._note(culprit, structure.in_words(self.lost))


@dataclass(frozen=True)
class OtherShapes(Structural):
    """That the declared shapes of inputs and outputs say less, or more, than they did."""

    direction: str
    shapes: Mapping[str, str]
    symptom = Symptom.METADATA_CHANGE

    def shows(self, facts: Facts) -> bool:
        """Whether all of them do."""
        changed = shape_changes(self.original, facts)[self.direction]
        return self.shapes.keys() <= changed.keys()

    def describe(self, trial: Trial, culprit: Sequence[str]) -> Finding:
        """What became what."""
        listed = [f"{what} {words}" for what, words in self.shapes.items()]
        more = [f"{len(listed) - _LISTED} more"] if len(listed) > _LISTED else []
        shown = "; ".join([*listed[:_LISTED], *more])
        return self._note(culprit, f"shapes say {_SAYS[self.direction]}: {shown}")


@dataclass(frozen=True)
class LostInputs(Structural):
    """That weights which the model lists among its inputs can no longer be fed."""

    lost: tuple[str, ...]
    symptom = Symptom.INTERFACE_CHANGE

    def shows(self, facts: Facts) -> bool:
        """Whether all of them are gone."""
        return set(self.lost) <= set(lost_inputs(self.original, facts))

    def describe(self, trial: Trial, culprit: Sequence[str]) -> Finding:
        """How many are gone."""
        return self._note(
            culprit,
            f"{len(self.lost)} weights are no longer among the inputs, such as {self.lost[0]!r}: "
            "a caller who replaced them no longer can. A model that lists most of its weights "
            "seldom means that",
        )


@dataclass(frozen=True)
class Portability(Structural):
    """That the model has operators of ``domain``, which ONNX does not define."""

    domain: str
    operators: Mapping[str, int]
    passes: Mapping[str, Pass]
    symptom = Symptom.PORTABILITY

    def shows(self, facts: Facts) -> bool:
        """Whether there are operators of that domain which the original does not have."""
        return self.domain in structure.gained_operators(self.original, facts)

    def describe(self, trial: Trial, culprit: Sequence[str]) -> Finding:
        """The operators, and what the optimizer says of the passes that bring them."""
        descriptions = [
            f"{n}: {p.description}" for n in culprit if (p := self.passes[n]).description
        ]
        words = structure.portability(self.domain, self.operators)
        return self._note(culprit, "; ".join([words, *descriptions]))
