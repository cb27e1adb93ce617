"""Finds the output that has the scores, and brings it into rows of classes."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from optvet.plugin import InputError

_SCORES = re.compile(r"prob|score|logit|soft_?max|class|pred", re.IGNORECASE)


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


def spread_to_two_classes(
    reference: np.ndarray, candidate: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """One score per row as scores of two classes: 1 - p and p, or -x/2 and x/2 of a logit."""
    finite = reference[np.isfinite(reference)]
    if finite.size and finite.min() >= 0 and finite.max() <= 1:
        return np.hstack([1 - reference, reference]), np.hstack([1 - candidate, candidate])
    return np.hstack([-reference / 2, reference / 2]), np.hstack([-candidate / 2, candidate / 2])


def sums_to_one(raw: np.ndarray, rows: np.ndarray) -> bool:
    """Whether every row is a soft-max, or one in 8-bit integers."""
    if raw.dtype.kind in "iu":
        sums = (rows - np.iinfo(raw.dtype).min).sum(axis=1)
        # Rounding to the grid moves each of the few large scores by half a step.
        return bool(np.all(np.abs(sums - 255.5) <= 8))
    if not np.isfinite(rows).all() or rows.min() < 0 or rows.max() > 1:
        return False
    return bool(np.all(np.abs(rows.sum(axis=1) - 1) <= 1e-3 + 1e-5 * rows.shape[1]))
