"""What makes confirmed faults show, and which suspicions they explain.

The reduced model of a finding has little besides what its fault needs. Another model that has all
of it, and shows the same symptom after the same passes in the same words, shows the same fault;
unless the model that it was made of had all of it too, and was right. Where two models lead to one
finding, only what both have can be needed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace

from onnx import ModelProto

from optvet.engine.hunt.suspicions import Place, SuspicionKey
from optvet.graph.features import Feature, features
from optvet.graph.plain import PLAIN_OPERATORS

_PLAIN_KINDS = frozenset(
    {
        *("input", "of float", "of rank 1", "of many elements", "of one element"),
        *("has positive", "has fraction", "with a dimension of 1"),
    }
)
"""Kinds that reductions leave where any other would do."""


@dataclass(frozen=True)
class Trigger:
    """What suspicions have in common that led to one finding.

    Attributes:
        fingerprint: Of the finding.
        place: Passes and symptom of the suspicions.
        words: Their words.
        features: Texts of the features that all their models have, of those of the reduced model.
    """

    fingerprint: str
    place: Place
    words: str
    features: frozenset[str]

    def narrowed(self, present: Set[str]) -> Trigger:
        """After one more model, with these features, led to the finding."""
        return replace(self, features=self.features & present)

    def explains(self, key: SuspicionKey, present: Set[str], edit: Iterable[str] = ()) -> bool:
        """Whether a suspicion is of this fault.

        Args:
            key: Of the suspicion.
            present: Texts of the features of its model.
            edit: What was changed of a model that does not show it; see ``edit_between``.
        """
        if (self.place, self.words) != (key.place, key.words):
            return False
        if not self.features:
            # Nothing in the models tells them apart. Messages do, unlike values that are wrong.
            return not key.symptom.info.of_values
        if not self.features <= present:
            return False
        changes = [(part[:2], part[2:]) for part in edit]
        before = present - {text for sign, text in changes if sign == "+ "}
        before |= {text for sign, text in changes if sign == "- "}
        return not changes or not self.features <= before


def explained(
    triggers: Iterable[Trigger], key: SuspicionKey, present: Set[str], edit: Iterable[str] = ()
) -> bool:
    """Whether one of the triggers explains a suspicion, or what several of them have in common.

    The latter of import and export alone, such as of a runtime: all that a pass does wrong has the
    pattern of that pass. Of one error, it is what all have; of wrong values, whose words tell no
    causes apart, what makes up most of one, but for bodies, and is in another.
    """
    near = [t for t in triggers if t.place == key.place]
    alike = [t for t in near if t.words == key.words]
    if any(trigger.explains(key, present, edit) for trigger in alike):
        return True
    if key.passes:
        return False
    shared = [frozenset[str].intersection(*(t.features for t in alike))] if len(alike) > 1 else []
    if key.symptom.info.of_values:
        shared += (
            one.features & other.features
            for one, other in itertools.permutations(near, 2)
            if 2 * len(_of_graph(one.features & other.features)) > len(_of_graph(one.features))
        )
    common = (Trigger("", key.place, key.words, texts) for texts in shared if texts)
    edit = list(edit)
    return any(trigger.explains(key, present, edit) for trigger in common)


def _of_graph(texts: Iterable[str]) -> list[str]:
    """Features of the graph itself: operators in bodies are mostly those that a model had there."""
    return [text for text in texts if "/" not in text.partition(" ")[0]]


def texts_of(model: ModelProto) -> frozenset[str]:
    """The features of a model as texts."""
    return frozenset(map(str, features(model)))


def needed_features(reduced: ModelProto) -> list[str]:
    """Texts of the features of a reduced model that are not as reductions leave them; sorted."""
    return sorted(str(f) for f in features(reduced) if not _is_plain(f))


def _is_plain(feature: Feature) -> bool:
    operator = feature.operator.rpartition("/")[2]
    return (
        operator in PLAIN_OPERATORS or feature.place == "since" or feature.kind in _PLAIN_KINDS
    ) and bool(operator)
