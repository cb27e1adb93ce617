"""Classes and their scores: which labels a user would see, and how the order of them moved.

Scores are compared as the model gives them. A soft-max over what already is one makes ties that
are not there, and label ids have no order; so Kendall's tau is taken between the *ranks* that both
sides give to the labels in either top-k list.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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

MAX_ROWS = 10
"""Rows of one sample that a report shows; changed ones first."""
_TASK = re.compile(
    r"classif|categori[sz]|keyword.spotting|content.type|sentiment"
    r"|(language|accent|speaker).(identification|detection)"
    r"|(image|digit|emotion|action|gesture|object|scene|expression).recognition"
)
_OTHER_TASK = re.compile(r"tabular|token.classif|pixel|detection.and")
_SCORES = re.compile(r"prob|score|logit|soft_?max|class|pred", re.IGNORECASE)
_LABEL = re.compile(r"label|class|pred|target", re.IGNORECASE)
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
        if _sums_to_one(outputs[name], rows):
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
            return _labels_alone(sample, reference, candidate)
        ours, theirs = (rows_of(side[name], options.layout) for side in (reference, candidate))
        if not ours.shape[1]:
            # Without classes there is nothing to choose from, so there is no row to judge.
            ours, theirs = ours[:0], theirs[:0]
        if ours.shape[1] == 1:
            ours, theirs = _two_classes(ours, theirs)
        keys = [str(k) for k in reference[f"{name}.keys"]] if f"{name}.keys" in reference else None
        return _compare(sample, ours, theirs, options, noise.get(name, 0.0), keys)

    def metrics(self, options: ClassificationOptions) -> Sequence[str]:
        """Every metric of a summary."""
        sizes = sorted({1, *options.topk})
        accuracy = [f"accuracy_top{k}_{of}" for k in (1, 5) for of in _SIDES]
        agreement = [f"top{k}_agreement" for k in sizes]
        order = ("kendall_tau", "kendall_tau_top*", "reordered_top*", f"{_CERTAINTY}*")
        return (*agreement, *accuracy, *order, "confidence_change", *sorted(_COUNTS))

    def summarise(
        self, comparisons: Sequence[Comparison], options: ClassificationOptions
    ) -> Summary:
        """Means over rows, the largest change of confidence, the number of changed labels."""
        metrics = {
            key: max(c.metrics[key] for c in comparisons if key in c.metrics)
            if key == "confidence_change"
            else _mean(comparisons, key, _weight(key))
            for key in sorted({k for c in comparisons for k in c.metrics} - _COUNTS)
        }
        for key in [k for k in metrics if k.startswith(_CERTAINTY) and k.endswith("_sd")]:
            metrics[key] = _pooled(comparisons, key, metrics[key.removesuffix("_sd")])
        for key in sorted(_COUNTS):
            metrics[key] = sum(c.metrics.get(key, 0.0) for c in comparisons)
        total = int(metrics["rows"])
        headline = f"{int(metrics['labels_changed'])} of {total} labels changed"
        if metrics["labels_undecided"]:
            headline += f", {int(metrics['labels_undecided'])} undecided"
        if "accuracy_top1_reference" in metrics:
            before, after = (metrics[f"accuracy_top1_{s}"] for s in ("reference", "candidate"))
            headline += f"; top-1 accuracy {before:.4g} → {after:.4g}"
        return Summary(metrics, headline)


_CERTAINTY = "certainty_change_top"
_SAME_ORDER = 0.99
"""Least tau of labels in the same order, as in DiTOX (arXiv:2505.01892)."""
_SIDES = ("reference", "candidate", "delta")
_COUNTS = frozenset({"rows", "labelled", "labels_changed", "labels_undecided"})


def _weight(key: str) -> str:
    return "labelled" if key.startswith("accuracy") else "rows"


def _mean(comparisons: Sequence[Comparison], key: str, weight: str) -> float:
    """Mean of a metric over rows, of which a sample may have many."""
    having = [c for c in comparisons if key in c.metrics]
    total = sum(c.metrics[weight] for c in having)
    if any(c.metrics[weight] and not np.isfinite(c.metrics[key]) for c in having):
        return float("nan")
    return sum(c.metrics[key] * c.metrics[weight] for c in having) / total if total else 0.0


def _pooled(comparisons: Sequence[Comparison], key: str, mean: float) -> float:
    """Standard deviation over all rows, from those of the samples: E[x²] - E[x]²."""
    having = [c for c in comparisons if key in c.metrics]
    total = sum(c.metrics["rows"] for c in having)
    if not total:
        return 0.0
    squares = [
        (c.metrics[key] ** 2 + c.metrics[key.removesuffix("_sd")] ** 2) * c.metrics["rows"]
        for c in having
    ]
    value = sum(squares) / total - mean**2
    # Rounding may make a little less than nothing of rows that are all alike.
    return math.sqrt(max(value, 0.0)) if math.isfinite(value) else math.inf


# ── Finding the scores ─────────────────────────────────────────────────────────────────────────


def scores_name(outputs: Mapping[str, np.ndarray], wanted: str) -> str:
    """Name of the output that has the scores; empty if there are but labels.

    Raises:
        InputError: There is no such output.
    """
    if wanted:
        if wanted not in outputs:
            raise InputError(
                f"comparator 'classification': there is no output {wanted!r}; "
                f"expected one of {', '.join(map(repr, outputs))}"
            )
        return wanted
    numeric = {
        n: v
        for n, v in outputs.items()
        if v.ndim and v.dtype.kind not in "OUSbMc" and not n.endswith((".keys", ".length"))
    }
    floats = [n for n, v in numeric.items() if v.dtype.kind not in "iu"]
    # Quantized models score in integers of 8 bits; wider ones hold labels or indices.
    small = [n for n, v in numeric.items() if v.dtype.itemsize == 1 and v.ndim > 1]
    candidates = floats or small
    wide = [n for n in candidates if numeric[n].size > max(1, numeric[n].shape[0])] or candidates
    named = [n for n in wide if _SCORES.search(n)]
    return next(iter(named or wide), "")


def rows_of(scores: np.ndarray, layout: str) -> np.ndarray:
    """Scores as float64 of shape [rows, classes], whatever their rank and layout.

    Raises:
        InputError: There is no telling which axis holds the classes.
    """
    if scores.dtype.kind in "OUSbMc":
        raise InputError(
            f"comparator 'classification': scores are of type {scores.dtype}, expected numbers; "
            "select another output with the option 'output'"
        )
    if layout:
        return _by_layout(scores, layout).astype(np.float64)
    if scores.ndim <= 1:
        return np.atleast_2d(scores).astype(np.float64)
    kept = [d for d in scores.shape[1:] if d != 1]
    if len(kept) > 1:
        raise InputError(
            f"comparator 'classification': the scores have shape {list(scores.shape)}, expected "
            "one axis of classes; select another output with the option 'output'"
        )
    return scores.reshape(scores.shape[0], *(kept or [1])).astype(np.float64)


def _by_layout(scores: np.ndarray, layout: str) -> np.ndarray:
    ones = all(d == 1 for d, a in zip(scores.shape, layout, strict=False) if a == "1")
    if len(layout) != scores.ndim or not ones:
        raise InputError(
            f"comparator 'classification': the scores have shape {list(scores.shape)}, which is "
            f"not of layout {layout!r}; choose another with the option 'layout'"
        )
    classes = layout.index("C")
    moved = np.moveaxis(scores, classes, -1)
    return moved.reshape(-1 if scores.size else _rows(scores, layout), scores.shape[classes])


def _rows(scores: np.ndarray, layout: str) -> int:
    return scores.shape[layout.index("N")] if "N" in layout else 1


def _two_classes(ours: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One score per row as scores of two classes: 1 - p and p, or -x/2 and x/2 of a logit."""
    finite = ours[np.isfinite(ours)]
    if finite.size and finite.min() >= 0 and finite.max() <= 1:
        return np.hstack([1 - ours, ours]), np.hstack([1 - theirs, theirs])
    return np.hstack([-ours / 2, ours / 2]), np.hstack([-theirs / 2, theirs / 2])


def _sums_to_one(raw: np.ndarray, rows: np.ndarray) -> bool:
    """Whether every row is a soft-max, or one in 8-bit integers."""
    if raw.dtype.kind in "iu":
        sums = (rows - np.iinfo(raw.dtype).min).sum(axis=1)
        # Rounding to the grid moves each of the few large scores by half a step.
        return bool(np.all(np.abs(sums - 255.5) <= 8))
    if not np.isfinite(rows).all() or rows.min() < 0 or rows.max() > 1:
        return False
    return bool(np.all(np.abs(rows.sum(axis=1) - 1) <= 1e-3 + 1e-5 * rows.shape[1]))


def _is_image(shape: tuple[int | str | None, ...] | None) -> bool:
    return shape is not None and len(shape) == 4 and bool({1, 3, 4} & {shape[1], shape[3]})


# ── Comparing rows ─────────────────────────────────────────────────────────────────────────────


def _compare(
    sample: Sample,
    ours: np.ndarray,
    theirs: np.ndarray,
    options: ClassificationOptions,
    noise: float,
    keys: Sequence[str] | None,
) -> Comparison:
    rows = len(ours)
    parts = [row_metrics(ours[i], theirs[i], options.topk) for i in range(rows)]
    flips = [is_firm_flip(ours[i], theirs[i], noise) for i in range(rows)]
    names = list(parts[0]) if parts else []
    metrics = {
        n: max(p[n] for p in parts)
        if n == "confidence_change"
        else float(np.mean([p[n] for p in parts]))
        for n in names
    }
    certain = [n for n in names if n.startswith(_CERTAINTY)]
    metrics |= {f"{n}_sd": _deviation([p[n] for p in parts]) for n in certain}
    metrics |= {
        "rows": float(rows),
        "labels_changed": float(sum(f is True for f in flips)),
        "labels_undecided": float(sum(f is False for f in flips)),
    }
    truth = labels_of(sample.label, rows, keys)
    if truth is not None:
        metrics |= _accuracy(ours, theirs, truth)
    order = sorted(range(rows), key=lambda i: flips[i] is None)[:MAX_ROWS]
    shown = [
        {
            "row": i,
            "reference": _best(ours[i], keys),
            "candidate": _best(theirs[i], keys),
            **({"label": sorted(truth[i], key=str)} if truth is not None else {}),
        }
        for i in order
    ]
    changed = True in flips
    return Comparison(sample.id, metrics, changed, not changed and False in flips, {"rows": shown})


def _deviation(values: Sequence[float]) -> float:
    """Standard deviation of all values; infinite where one of them is."""
    return float(np.std(values)) if np.isfinite(values).all() else float("inf")


def ranking(scores: np.ndarray) -> np.ndarray:
    """Class numbers by falling score; of equal scores the first class, and NaN last."""
    return np.argsort(-np.where(np.isnan(scores), -np.inf, scores), kind="stable")


def row_metrics(ours: np.ndarray, theirs: np.ndarray, topk: Sequence[int]) -> dict[str, float]:
    """Metrics of one row of scores.

    Args:
        ours: The reference's scores, float64 [classes].
        theirs: The candidate's.
        topk: Lengths of lists; those that would hold all classes say nothing and are left out,
            but for the first label alone.

    Returns:
        ``top<k>_agreement``, the share of labels that both top-k lists have; ``kendall_tau`` of
        the ranks of all labels in either of the longest lists, and ``kendall_tau_top<k>`` of each
        length above 1; ``reordered_top<k>``, 1 where that tau is below 0.99, or the first label is
        another one; ``confidence_change``, by how much the score of the reference's first label
        moved, in units of the scores, and ``certainty_change_top<k>``, by how much those of its
        first k labels moved on average. Where NaN stands on one side only the agreements are 0,
        tau is 0 and the changes are infinite.
    """
    sizes = sorted({k for k in topk if k < len(ours)} | {1})
    # A list of all labels has an order, and changes, though it always agrees.
    lengths = sorted({min(k, len(ours)) for k in topk} | {1})
    if not np.array_equal(np.isnan(ours), np.isnan(theirs)):
        lost = {f"top{k}_agreement": 0.0 for k in sizes}
        lost |= {f"kendall_tau_top{k}": 0.0 for k in lengths if k > 1}
        lost |= {f"reordered_top{k}": 1.0 for k in lengths}
        changes = {f"{_CERTAINTY}{k}": float("inf") for k in lengths}
        return {**lost, **changes, "kendall_tau": 0.0, "confidence_change": float("inf")}
    first, second = ranking(ours), ranking(theirs)
    metrics = {
        f"top{k}_agreement": len(set(first[:k]) & set(second[:k])) / min(k, len(ours))
        for k in sizes
    }
    taus = {k: kendall_tau(ours, theirs, k) for k in lengths if k > 1}
    metrics |= {f"kendall_tau_top{k}": tau for k, tau in taus.items()}
    metrics |= {f"reordered_top{k}": float(tau < _SAME_ORDER) for k, tau in taus.items()}
    metrics["reordered_top1"] = float(first[0] != second[0])
    longest = lengths[-1]
    metrics["kendall_tau"] = taus[longest] if longest > 1 else kendall_tau(ours, theirs, 1)
    moved = [_distance(ours[i], theirs[i]) for i in first[:longest]]
    metrics |= {f"{_CERTAINTY}{k}": float(np.mean(moved[:k])) for k in lengths}
    metrics["confidence_change"] = moved[0]
    return metrics


def _distance(a: float, b: float) -> float:
    """|a - b|; 0 where both are the same infinity, or both NaN."""
    # Python's own numbers: those of numpy warn where a difference is too large for them.
    return 0.0 if a == b or (np.isnan(a) and np.isnan(b)) else abs(float(a) - float(b))


def kendall_tau(ours: np.ndarray, theirs: np.ndarray, k: int) -> float:
    """Kendall's tau-b between the ranks of all labels that are in either top-k list.

    tau-b = (P - Q) / sqrt((P + Q + T) (P + Q + U)): P concordant and Q discordant pairs, T and U
    pairs tied on one side only. 1 if the ranks are equal, ties and all; 0 if one side has but one
    rank, since then there is no order to agree with.

    Source: Kendall 1945, "The treatment of ties in ranking problems", Biometrika 33 (3);
    ``scipy.stats.kendalltau``.
    """
    if np.array_equal(ours, theirs, equal_nan=True):
        return 1.0
    union = sorted({*ranking(ours)[:k].tolist(), *ranking(theirs)[:k].tolist()})
    ranks = [_ranks(np.where(np.isnan(s), -np.inf, s))[union] for s in (ours, theirs)]
    if np.array_equal(ranks[0], ranks[1]):
        return 1.0
    if any(np.ptp(r) == 0 for r in ranks):
        return 0.0
    from scipy import stats  # Only now: importing it takes longer than vetting a small model.

    return float(stats.kendalltau(*ranks).statistic)


def _ranks(scores: np.ndarray) -> np.ndarray:
    """How many scores are higher, for each of ``scores``; equal ones have equal ranks."""
    return np.searchsorted(np.sort(-scores), -scores, side="left")


def is_firm_flip(ours: np.ndarray, theirs: np.ndarray, noise: float) -> bool | None:
    """Whether the first label changed although the reference was sure; None if it did not change.

    False: the reference's scores of the two labels lie no further apart than ``noise``.
    """
    if not len(ours):
        return None
    if not np.array_equal(np.isnan(ours), np.isnan(theirs)):
        return True
    first, second = ranking(ours)[0], ranking(theirs)[0]
    if first == second:
        return None
    return not _distance(ours[first], ours[second]) <= noise


def _best(scores: np.ndarray, keys: Sequence[str] | None) -> list[list[Any]]:
    """The five best labels with their scores."""
    return [
        [
            keys[i] if keys else int(i),
            float(scores[i]) if np.isfinite(scores[i]) else str(scores[i]),
        ]
        for i in ranking(scores)[:5]
    ]


# ── Labels ─────────────────────────────────────────────────────────────────────────────────────


def labels_of(
    label: Any, rows: int, keys: Sequence[str] | None = None
) -> list[frozenset[int]] | None:
    """Class numbers that count as right, per row; None where the sample has no such labels.

    One row takes a number, a name among ``keys``, or a list of acceptable ones; several rows take
    a list of these.
    """
    if label is None:
        return None
    if isinstance(label, np.ndarray):
        label = label.tolist()
    labels = [label] if rows == 1 and not _is_nested(label) else label
    if not isinstance(labels, (list, tuple)) or len(labels) != rows:
        return None
    found = [_acceptable(one, keys) for one in labels]
    return None if any(f is None for f in found) else [f for f in found if f is not None]


def _is_nested(label: Any) -> bool:
    return (
        isinstance(label, (list, tuple))
        and len(label) == 1
        and isinstance(label[0], (list, tuple, set, frozenset))
    )


def _acceptable(one: Any, keys: Sequence[str] | None) -> frozenset[int] | None:
    several = one if isinstance(one, (list, tuple, set, frozenset)) else [one]
    found = set()
    for item in several:
        if keys is not None and str(item) in keys:
            found.add(keys.index(str(item)))
            continue
        try:
            found.add(operator.index(item))
        except TypeError:
            return None
    return frozenset(found)


def _accuracy(
    ours: np.ndarray, theirs: np.ndarray, truth: Sequence[frozenset[int]]
) -> dict[str, float]:
    """Share of rows with an acceptable label among the first 1 and 5, on both sides."""
    metrics: dict[str, float] = {"labelled": float(len(truth))}
    for k in (1, 5):
        if k > 1 and k >= ours.shape[1]:
            continue
        before, after = (
            float(
                np.mean(
                    [
                        bool(t & set(ranking(s)[:k].tolist()))
                        for s, t in zip(side, truth, strict=True)
                    ]
                )
            )
            if truth
            else 0.0
            for side in (ours, theirs)
        )
        metrics[f"accuracy_top{k}_reference"] = before
        metrics[f"accuracy_top{k}_candidate"] = after
        metrics[f"accuracy_top{k}_delta"] = after - before
    return metrics


def _labels_alone(
    sample: Sample, reference: Mapping[str, np.ndarray], candidate: Mapping[str, np.ndarray]
) -> Comparison:
    """Models that end in an arg-max: labels are equal or not."""
    discrete = [n for n, v in reference.items() if v.dtype.kind in "iuOUSb"]
    named = [n for n in discrete if _LABEL.search(n)]
    if not discrete:
        raise InputError(
            "comparator 'classification': there is neither an output with scores nor one with "
            f"labels among {', '.join(map(repr, reference))}; choose another with --comparator"
        )
    name = (named or discrete)[0]
    ours, theirs = reference[name].ravel(), candidate[name].ravel()
    wrong = np.flatnonzero(np.asarray(ours != theirs, dtype=bool))
    metrics = {
        "top1_agreement": 1 - len(wrong) / len(ours) if len(ours) else 1.0,
        "rows": float(len(ours)),
        "labels_changed": float(len(wrong)),
        "labels_undecided": 0.0,
    }
    truth = labels_of(sample.label, len(ours), None) if ours.dtype.kind in "iu" else None
    if truth is not None:
        before, after = (
            float(np.mean([int(v) in t for v, t in zip(side, truth, strict=True)]))
            if truth
            else 0.0
            for side in (ours, theirs)
        )
        metrics |= {
            "labelled": float(len(truth)),
            "accuracy_top1_reference": before,
            "accuracy_top1_candidate": after,
            "accuracy_top1_delta": after - before,
        }
    shown = [
        {"row": int(i), "reference": str(ours[i]), "candidate": str(theirs[i])}
        for i in wrong[:MAX_ROWS]
    ]
    return Comparison(sample.id, metrics, bool(len(wrong)), detail={"rows": shown})


@hookimpl
def optvet_comparators() -> Iterable[Comparator]:
    """The comparator "classification"."""
    return [ClassificationComparator()]
