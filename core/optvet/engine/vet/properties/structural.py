"""Properties of the structure of the optimized model; no run is needed."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from optvet.engine.vet.find.localize import Answer
from optvet.engine.vet.properties.base import Property
from optvet.engine.vet.properties.naming import mentions
from optvet.engine.work.trials.trial_results import Trial
from optvet.graph import structure
from optvet.graph.interface import ShapeChange, lost_inputs, shape_changes
from optvet.graph.structure import Facts
from optvet.spec.memory import in_units
from optvet.spec.records import Finding
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Pass

_LISTED = 6
_TRIED = 2
_BECAME = {
    "weaker": "declared shapes became less specific",
    "stronger": "declared shapes became more specific",
    "corrected": "declared shapes were corrected to what is computed",
}


@dataclass(frozen=True)
class Structural(Property):
    """A property that a comparison with the original's structure shows."""

    original: Facts

    @abstractmethod
    def shows(self, facts: Facts) -> bool:
        """Whether a model of this structure has the property."""

    def answer(self, trial: Trial) -> Answer:
        """Whether the built model has it; unresolved if none was built."""
        facts = trial.build.facts
        if facts is None:
            return "unresolved"
        return "fails" if self.shows(facts) else "passes"

    def _note(self, culprit: Sequence[str], message: str, changed: Iterable[str] = ()) -> Finding:
        return Finding(
            symptom=self.symptom,
            severity="note",
            stage="build",
            culprit=list(culprit),
            confirmed=True,
            message=message,
            changed=sorted(changed),
        )


@dataclass(frozen=True)
class Bloat(Structural):
    """The optimized model has many more nodes than the original."""

    symptom = Symptom.BLOAT

    def shows(self, facts: Facts) -> bool:
        """Whether the number of nodes reaches the limit of ``structure.is_bloated``."""
        return structure.is_bloated(self.original, facts)

    def likely(self, whole: Trial) -> Sequence[str]:
        """The passes that are named after operators which are gone, most of them first.

        A name proves nothing, but it mostly spares the search, each step of which optimizes the
        model again.
        """
        facts = whole.build.facts
        fewer = Counter(self.original.operators)
        fewer.subtract(facts.operators if facts is not None else {})
        named = {
            name: sum(n for op, n in fewer.items() if n > 0 and mentions(name, op))
            for name in whole.passes
        }
        return sorted((n for n in named if named[n]), key=lambda n: -named[n])[:_TRIED]

    def describe(self, trial: Trial, culprit: Sequence[str]) -> Finding | None:
        """How much the culprit's model grows; None if the culprit alone does not bloat it."""
        facts = trial.build.facts
        if facts is None or not self.shows(facts):
            return None
        return self._note(culprit, structure.growth(self.original, facts))


_GROWTH, _GROWTH_BYTES = 1.25, 1 << 20


@dataclass(frozen=True)
class LargerFile(Structural):
    """The optimized model is a quarter larger, and at least 1 MiB: weights were folded."""

    symptom = Symptom.LARGER_FILE

    def shows(self, facts: Facts) -> bool:
        """Whether the size reaches both limits."""
        before, after = self.original.size_bytes, facts.size_bytes
        return after >= max(_GROWTH * before, before + _GROWTH_BYTES)

    def describe(self, trial: Trial, culprit: Sequence[str]) -> Finding | None:
        """Both sizes; None if the culprit alone does not make it so much larger."""
        facts = trial.build.facts
        if facts is None or not self.shows(facts):
            return None
        before, after = (in_units(s) for s in (self.original.size_bytes, facts.size_bytes))
        return self._note(culprit, f"{before} became {after}")


GROWN: Sequence[Callable[[Facts], Structural]] = (Bloat, LargerFile)
"""What an optimized model may have more of than the original, whose structure each is made with."""


@dataclass(frozen=True)
class LostMetadata(Structural):
    """Metadata of the model is changed or gone."""

    lost: Mapping[str, tuple[str, str]]
    symptom = Symptom.METADATA_CHANGE

    def shows(self, facts: Facts) -> bool:
        """Whether all entries of ``lost`` are changed."""
        return self.lost.keys() <= structure.lost_metadata(self.original, facts).keys()

    def describe(self, trial: Trial, culprit: Sequence[str]) -> Finding:
        """The entries with both values."""
        return self._note(culprit, structure.in_words(self.lost), self.lost)


@dataclass(frozen=True)
class OtherShapes(Structural):
    """Declared shapes of inputs and outputs became weaker (fewer known dimensions) or stronger."""

    direction: str
    shapes: Mapping[str, ShapeChange]
    symptom = Symptom.METADATA_CHANGE

    def shows(self, facts: Facts) -> bool:
        """Whether all of ``shapes`` changed in this direction."""
        changed = shape_changes(self.original, facts)[self.direction]
        return self.shapes.keys() <= changed.keys()

    def describe(self, trial: Trial, culprit: Sequence[str]) -> Finding:
        """The shapes before and after, the first six."""
        listed = [f"{what} {was} became {now}" for what, (was, now) in self.shapes.items()]
        more = [f"{len(listed) - _LISTED} more"] if len(listed) > _LISTED else []
        shown = "; ".join([*listed[:_LISTED], *more])
        words = f"{_BECAME[self.direction]}: {shown}"
        return self._note(culprit, words, [f"{self.direction} shapes"])


@dataclass(frozen=True)
class LostInputs(Structural):
    """Weights that are graph inputs of the original are none of the optimized model."""

    lost: tuple[str, ...]
    symptom = Symptom.INTERFACE_CHANGE

    def shows(self, facts: Facts) -> bool:
        """Whether all of ``lost`` are gone."""
        return set(self.lost) <= set(lost_inputs(self.original, facts))

    def describe(self, trial: Trial, culprit: Sequence[str]) -> Finding:
        """How many are gone."""
        return self._note(
            culprit,
            f"{len(self.lost)} weights are no longer among the inputs, such as {self.lost[0]!r}: "
            "callers can no longer replace them. A model that lists most of its weights rarely "
            "intends that",
        )


@dataclass(frozen=True)
class Portability(Structural):
    """The optimized model has operators of ``domain``, which is not a domain of ONNX."""

    domain: str
    operators: Mapping[str, int]
    passes: Mapping[str, Pass]
    symptom = Symptom.PORTABILITY

    def shows(self, facts: Facts) -> bool:
        """Whether there are operators of that domain which the original does not have."""
        return self.domain in structure.gained_operators(self.original, facts)

    def describe(self, trial: Trial, culprit: Sequence[str]) -> Finding:
        """The operators, and the descriptions of the passes that add them."""
        descriptions = [
            f"{n}: {p.description}" for n in culprit if (p := self.passes[n]).description
        ]
        words = structure.portability(self.domain, self.operators)
        return self._note(culprit, "; ".join([words, *descriptions]))
