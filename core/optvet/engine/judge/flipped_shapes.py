"""Whether an output that has another number of rows has those that rounding adds and removes.

A detector finds a box more or less where a score lies at its threshold: the others are the same.
So rows are compared in any order: most must be rows of the reference, and of others there are no
more, and in them no larger numbers, than in perturbed runs of the reference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from optvet.engine.judge.flips import REACH
from optvet.engine.judge.thresholds import Thresholds
from optvet.engine.numerics.floats import is_float, unit_roundoff

_PAIRS = 20_000_000
"""Numbers compared at most; of more rows each column is compared by itself."""


def rows_excuse(
    ref: np.ndarray, cand: np.ndarray, runs: Sequence[np.ndarray], limits: Thresholds
) -> str:
    """Why the rows of ``cand`` are excused, in words; empty if they are not.

    Args:
        ref: What the reference gave.
        cand: What the candidate gave, of another size along one axis.
        runs: What perturbed runs of the reference gave, of any shape.
        limits: What may pass for rounding.
    """
    axes = [i for i, (a, b) in enumerate(zip(ref.shape, cand.shape, strict=True)) if a != b]
    if len(axes) != 1:
        return ""
    rest = cand.shape[: axes[0]], cand.shape[axes[0] + 1 :]
    of_form = [
        run
        for run in runs
        if run.ndim == cand.ndim and (run.shape[: axes[0]], run.shape[axes[0] + 1 :]) == rest
    ]
    tables = _tables([ref, cand, *of_form], axes[0])
    known, rows, others = tables[0], tables[1], tables[2:]
    if not others or not rows.size:
        return "" if not others else "none is left, as in a perturbed run"
    top = np.max(np.abs(np.concatenate([known, *others])), axis=0, initial=0.0)
    apart = [_apart(other, known) for other in others]
    # What most rows of perturbed runs are off is noise; the rest are other rows.
    found = np.concatenate(apart)
    quiet = np.median(found, axis=0) if len(found) else np.zeros(rows.shape[1])
    u = unit_roundoff(ref.dtype) if is_float(ref.dtype) else 0.0
    noise = np.minimum(limits.jitter_max * quiet, limits.unmeasured * top)
    noise = np.maximum(noise, limits.rounding * u * top)
    most = max(int(np.sum(np.any(a > noise, axis=1))) for a in apart)
    new = np.any(_apart(rows, known) > noise, axis=1)
    count, allowed = int(new.sum()), math.ceil(limits.flips * most)
    if count > allowed or np.any(np.abs(rows[new]) > REACH * top):
        return ""
    words = f"{count} of {len(rows)} rows are new, {most} in a perturbed run"
    return f"{words}, and up to {allowed} are excused"


def _tables(arrays: Sequence[np.ndarray], axis: int) -> list[np.ndarray]:
    """Each array as rows of numbers along ``axis``; texts, by their place among all."""
    tables = [np.moveaxis(a, axis, 0).reshape(a.shape[axis], -1) for a in arrays]
    if arrays[0].dtype == object or arrays[0].dtype.kind in "USO":
        places: dict[str, int] = {}
        numbers = [[places.setdefault(str(v), len(places)) for v in t.ravel()] for t in tables]
        pairs = zip(numbers, tables, strict=True)
        return [np.array(n, np.float64).reshape(t.shape) for n, t in pairs]
    return [np.nan_to_num(t.astype(np.float64)) for t in tables]


def _apart(rows: np.ndarray, known: np.ndarray) -> np.ndarray:
    """How far each row is from the nearest of ``known``, by column; infinite if there is none."""
    if not len(known):
        return np.full(rows.shape, math.inf)
    if rows.size * len(known) > _PAIRS:
        return np.stack([_apart_in_column(r, k) for r, k in zip(rows.T, known.T, strict=True)], 1)
    top = np.max(np.abs(known), axis=0, initial=0.0)
    unit = np.where(top > 0, top, 1.0)
    found = np.empty(rows.shape)
    for i, row in enumerate(rows):
        off = np.abs(known - row)
        with np.errstate(over="ignore"):
            size = np.max(off / unit, axis=1, initial=0.0)
        found[i] = off[int(np.argmin(size))]
    return found


def _apart_in_column(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    ordered = np.sort(known)
    places = np.searchsorted(ordered, values)
    below, above = (ordered[np.clip(places - i, 0, len(ordered) - 1)] for i in (1, 0))
    return np.asarray(np.minimum(np.abs(values - below), np.abs(values - above)))
