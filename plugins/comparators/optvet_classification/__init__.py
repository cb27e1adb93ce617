"""Classes and their scores: which labels a user would see, and how the order of them moved.

Scores are compared as the model gives them. A soft-max over what already is one makes ties that
are not there, and label ids have no order; so Kendall's tau is taken between the *ranks* that both
sides give to the labels in either top-k list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    Comparator,
    Comparison,
    InputError,
    Model,
    Sample,
    Suggestion,
    Summary,
    hookimpl,
)
from optvet_classification.compare_rows import compare_labels, compare_scores
from optvet_classification.find_scores import (
    rows_of,
    scores_name,
    spread_to_two_classes,
    sums_to_one,
)
from optvet_classification.rank_metrics import CERTAINTY
from optvet_classification.summarise import COUNTS, SIDES, summarise

_TASK = re.compile(
    r"classif|categori[sz]|keyword.spotting|content.type|sentiment"
    r"|(language|accent|speaker).(identification|detection)"
    r"|(image|digit|emotion|action|gesture|object|scene|expression).recognition"
)
_OTHER_TASK = re.compile(r"tabular|token.classif|pixel|detection.and")
# Numbers of classes of the usual collections of images, with and without a background class.
_USUAL_CLASSES = frozenset({10, 47, 100, 101, 102, 200, 257, 365, 1000, 1001, 21841, 21843})


class ClassificationOptions(BaseModel):
    """Which scores, and how many of the best labels."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    topk: tuple[int, ...] = Field(default=(1, 5, 10), min_length=1)
    """Lengths of the lists of best labels that are compared; the longest is ranked."""
    output: str = ""
    """The output that has the scores; found by shape and name where it is empty."""
    layout: str = Field(default="", pattern="^(1*N?1*C1*|1*C1*N1*)?$")
    """Meaning of its axes: "N" rows, "C" classes, "1" an axis of that size, as in "NC",
    "NC11", "N11C" or "C"; found from the shape where it is empty.
    """


class ClassificationComparator:
    """Agreement of the best labels, their order, confidence and accuracy."""

    name = "classification"
    suggestions = (Suggestion("classification", ("topk",)),)
    options: ClassificationOptions = ClassificationOptions()

    def matches(self, model: Model, outputs: Mapping[str, np.ndarray]) -> float:
        """0.95 for a declared task; less for scores that sum to one, or look like logits."""
        task = (model.task or "").lower()
        if _TASK.search(task) and not _OTHER_TASK.search(task):
            return 0.95
        try:
            name = scores_name(outputs, "")
            rows = rows_of(outputs[name], "") if name else None
        except InputError:
            return 0.0
        if rows is None or min(rows.shape) < 1 or rows.shape[1] < 2 or outputs[name].ndim > 4:
            return 0.0
        if sum(v.dtype.kind == "f" and v.size > 1 for v in outputs.values()) > 1:
            return 0.0
        if sums_to_one(outputs[name], rows):
            return 0.7
        named = re.search(r"logit|soft_?max|prob", name, re.IGNORECASE)
        image = any(_is_image(i.shape) for i in model.inputs)
        return 0.5 if named or (image and rows.shape[1] in _USUAL_CLASSES) else 0.0

    def compare(
        self,
        model: Model,
        sample: Sample,
        reference: Mapping[str, np.ndarray],
        candidate: Mapping[str, np.ndarray],
        options: ClassificationOptions,
        *,
        noise: Mapping[str, float],
    ) -> Comparison:
        """Per row of the batch; see ``row_metrics``. Accuracy where the sample has labels."""
        name = scores_name(reference, options.output)
        if not name:
            return compare_labels(sample, reference, candidate)
        expected, actual = (rows_of(side[name], options.layout) for side in (reference, candidate))
        if not expected.shape[1]:
            # Without classes there is nothing to choose from, so there is no row to judge.
            expected, actual = expected[:0], actual[:0]
        if expected.shape[1] == 1:
            expected, actual = spread_to_two_classes(expected, actual)
        keys = [str(k) for k in reference[f"{name}.keys"]] if f"{name}.keys" in reference else None
        return compare_scores(sample, expected, actual, options.topk, noise.get(name, 0.0), keys)

    def metrics(self, options: ClassificationOptions) -> Sequence[str]:
        """Every metric of a summary."""
        sizes = sorted({1, *options.topk})
        accuracy = [f"accuracy_top{k}_{of}" for k in (1, 5) for of in SIDES]
        agreement = [f"top{k}_agreement" for k in sizes]
        order = ("kendall_tau", "kendall_tau_top*", "reordered_top*", f"{CERTAINTY}*")
        return (*agreement, *accuracy, *order, "confidence_change", *sorted(COUNTS))

    def summarise(
        self, comparisons: Sequence[Comparison], options: ClassificationOptions
    ) -> Summary:
        """Means over rows, the largest change of confidence, the number of changed labels."""
        return summarise(comparisons)


def _is_image(shape: tuple[int | str | None, ...] | None) -> bool:
    return shape is not None and len(shape) == 4 and bool({1, 3, 4} & {shape[1], shape[3]})


@hookimpl
def optvet_comparators() -> Iterable[Comparator]:
    """The comparator "classification"."""
    return [ClassificationComparator()]
