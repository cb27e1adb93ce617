"""Labels of samples, and the accuracy of both sides by them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from optvet_classification.rank_metrics import ranking


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


def label_accuracy(
    reference: np.ndarray, candidate: np.ndarray, truth: Sequence[frozenset[int]]
) -> dict[str, float]:
    """Share of rows with an acceptable label among the first 1 and 5, on both sides."""
    metrics: dict[str, float] = {"labelled": float(len(truth))}
    for k in (1, 5):
        if k > 1 and k >= reference.shape[1]:
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
            for side in (reference, candidate)
        )
        metrics[f"accuracy_top{k}_reference"] = before
        metrics[f"accuracy_top{k}_candidate"] = after
        metrics[f"accuracy_top{k}_delta"] = after - before
    return metrics
