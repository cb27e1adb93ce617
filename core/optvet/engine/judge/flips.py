"""How far decisions inside a model move an output when rounding turns them, and what that excuses.

Behind a decision (a Where, an If, an ArgMax, a quantizer) one roundoff may become a difference of
any size, so the size alone is no evidence. Perturbed runs of the original show what its decisions
do: an element may be off by ``REACH`` times its own largest move in one of them. Where there are
many elements, all of them together show it: the k-th largest difference may be ``REACH`` times the
k/n-th largest move of a run, for the n of ``Thresholds.flips``. Nothing beyond that is excused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from optvet.engine.judge.known_noise import Noise, moved_runs, runs_of
from optvet.engine.judge.sizes import slices, wide
from optvet.engine.judge.thresholds import Thresholds
from optvet.engine.numerics.floats import is_float

REACH = 2.0
"""How many times as far as an element moved under perturbations its difference is excused."""
MANY = 64
"""From so many elements on, all of them together tell how often and how far an output flips."""
_STEP = 1.01
"""A value beside a boundary of a quantizer may be rounded either way: one step, but for rounding.
"""
_MEAN = 0.5
"""Of many elements on a grid, rounding moves the mean by less steps than this."""


@dataclass(frozen=True)
class Flips:
    """Why the differences of an output behind a decision are excused.

    Attributes:
        moved: The largest move of the perturbed original among what they are compared with.
        allowed: The largest difference that is excused; in units of the output, like ``moved``.
        words: What the perturbed original does, as the rest of a sentence about the differences.
    """

    moved: float
    allowed: float
    words: str


def flips_excuse(
    name: str,
    ref: np.ndarray,
    cand: np.ndarray,
    wrong: np.ndarray,
    noise: Noise,
    limits: Thresholds,
) -> Flips | None:
    """What excuses the differences in ``wrong``; None if one is beyond what decisions may do."""
    # One step of a known grid needs no run: any value near the middle may be rounded either way.
    step = noise.steps.get(name)
    if step is not None and _is_one_step(ref, cand, wrong, step):
        return Flips(step, _STEP * step, f"by one step of its grid, {step:.2g}")
    runs = runs_of(name, ref, moved_runs(noise, limits))
    truth = noise.truth.get(name)
    if truth is not None and truth.shape == ref.shape and not is_float(truth.dtype):
        # Where the float64 evaluation decides differently, the reference is close to a threshold.
        # Jitter hardly changes a model of integers, so for these this is the only measure.
        runs = [*runs, truth]
    # Texts have no distance, so one that no run shows cannot be near a decision.
    if not runs or not _are_known_texts(cand[wrong], [ref, *runs]):
        return None
    if not np.all(is_place_explained(ref, cand, runs) | ~wrong):
        return None
    # Each element by itself first: it is the stronger proof. All together only for many elements,
    # since few say nothing of how often decisions turn.
    found = _by_each(ref, cand, wrong, runs)
    return found or (by_all(ref, cand, wrong, runs, limits) if wrong.size >= MANY else None)


def _by_each(
    ref: np.ndarray, cand: np.ndarray, wrong: np.ndarray, runs: Sequence[np.ndarray]
) -> Flips | None:
    """Every wrong element by its own moves."""
    size, moved = _moves(ref[wrong], cand[wrong]), np.zeros(int(wrong.sum()))
    for run in runs:
        moved = np.maximum(moved, _moves(ref[wrong], run[wrong]))
    if not np.all(size <= REACH * moved):
        return None
    return _flips(ref, float(moved[np.argmax(size)]) if size.size else 0.0)


def loose_excuse(
    ref: np.ndarray,
    cand: np.ndarray,
    wrong: np.ndarray,
    runs: Sequence[np.ndarray],
    limits: Thresholds,
) -> Flips | None:
    """What excuses discrete values in ``wrong`` by runs in which all moves as far as is declared.

    Of few elements each flips in some run, and is no larger than ``REACH`` times all values there:
    of many labels that are as good, runs show few, and numbers of classes have no distance. Many
    elements are held to their moves, as under jitter.
    """
    if not runs or not _are_known_texts(cand[wrong], [ref, *runs]):
        return None
    if wrong.size >= MANY:
        return _by_each(ref, cand, wrong, runs) or by_all(ref, cand, wrong, runs, limits)
    turned = np.logical_or.reduce([run != ref for run in runs])
    none = np.zeros_like(ref) if ref.dtype.kind in "iu" else ref
    most = max(float(_moves(none, values).max(initial=0.0)) for values in (ref, *runs))
    if not np.all(turned[wrong]) or np.any(_moves(none, cand)[wrong] > REACH * max(most, 1.0)):
        return None
    words = f"all flip in some run, and values up to {REACH * most:.2g} are excused"
    return Flips(most, REACH * most, words)


def by_all(
    ref: np.ndarray,
    cand: np.ndarray,
    wrong: np.ndarray,
    runs: Sequence[np.ndarray],
    limits: Thresholds,
) -> Flips | None:
    """What excuses the differences in ``wrong`` by the moves of all elements in ``runs``."""
    largest = 0.0
    for unit in _units(ref):
        size = np.sort(_moves(ref, cand)[wrong] / unit[wrong])[::-1]
        # So many more elements may flip than in the run with the most: runs are few, and each shows
        # only a part of the decisions that are close.
        count = math.ceil(size.size / limits.flips)
        moved = np.zeros(count)
        for run in runs:
            moved = np.maximum(moved, _largest(_moves(ref, run) / unit, count))
        places = np.ceil(np.arange(1, size.size + 1) / limits.flips).astype(np.intp) - 1
        if not np.all(size <= REACH * moved[places]):
            return None
        largest = largest or float(moved[0])
    return _flips(ref, largest)


def _flips(ref: np.ndarray, moved: float) -> Flips:
    if not is_float(ref.dtype) and ref.dtype.kind not in "iu":
        return Flips(1.0, 1.0, "perturbed by rounding they flip as often")
    words = f"perturbed by rounding they move by up to {moved:.2g}"
    return Flips(moved, REACH * moved, f"{words}, and up to {REACH * moved:.2g} is excused")


def _units(ref: np.ndarray) -> Iterator[np.ndarray]:
    """The output's own unit; and for each element the largest magnitude of the part it lies in.

    A tensor may hold quantities of different size: a flip of a large one excuses no small one.
    """
    yield np.ones(ref.shape)
    if ref.dtype.kind in "iuf" or is_float(ref.dtype):
        size = np.abs(wide(ref))
        size = np.where(np.isfinite(size), size, 0.0)
        unit = np.full(ref.shape, float(size.max(initial=0.0)) or 1.0)
        for axes in slices(ref.shape):
            top = np.max(size, axis=axes, keepdims=True, initial=0.0)
            unit = np.minimum(unit, np.where(top > 0, top, unit))
        yield unit


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """The ``count`` largest values, in falling order."""
    flat = values.ravel()
    kept = np.partition(flat, flat.size - count)[flat.size - count :]
    return np.sort(kept)[::-1]


def _moves(ref: np.ndarray, other: np.ndarray) -> np.ndarray:
    """How far each element is from that of ``ref``: 1 of what is no number, 0 of no finite one."""
    if not is_float(ref.dtype) and ref.dtype.kind not in "iu":
        return np.asarray(ref != other, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        moved = np.abs(wide(other) - wide(ref))
    return np.where(np.isfinite(moved), moved, 0.0)


def is_place_explained(ref: np.ndarray, cand: np.ndarray, runs: Sequence[np.ndarray]) -> np.ndarray:
    """Where NaN and infinities are as in the reference, or as in some of its perturbed runs.

    A number in their place has a sign that runs have there, and is neither ``REACH`` times larger
    nor smaller than what they have.
    """
    if not is_float(ref.dtype):
        return np.ones(ref.shape, bool)
    y, z = wide(ref), wide(cand)
    known = _same_kind(y, z)
    low, high = np.full(y.shape, math.inf), np.zeros(y.shape)
    signed = np.zeros(y.shape, bool)
    for j in map(wide, runs):
        # A run that is finite where the reference is not excuses no number of any size: that is
        # checked below.
        known |= _same_kind(j, z) & (~np.isfinite(z) | np.isfinite(y))
        size = np.abs(j)
        low = np.where(np.isfinite(j), np.fmin(low, size), low)
        high = np.where(np.isfinite(j), np.fmax(high, size), high)
        signed |= np.isfinite(j) & (np.sign(j) == np.sign(z))
    size = np.abs(z)
    with np.errstate(invalid="ignore", over="ignore"):
        known |= np.isfinite(z) & signed & (low / REACH <= size) & (size <= REACH * high)
    return known


def _same_kind(y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Where both are numbers, or the same infinity, or NaN."""
    same = (np.isfinite(y) & np.isfinite(z)) | (np.isnan(y) & np.isnan(z)) | (y == z)
    return np.asarray(same)


def _is_one_step(ref: np.ndarray, cand: np.ndarray, wrong: np.ndarray, step: float) -> bool:
    """Whether elements are one step of a grid off, not all of many to one side."""
    y, z = wide(ref), wide(cand)
    with np.errstate(invalid="ignore"):
        if not np.all(np.abs(y[wrong] - z[wrong]) <= _STEP * step):
            return False
        # Ties fall to both sides. If many elements go to one side, the grid itself was moved.
        return wrong.size < MANY or abs(float(np.mean(z - y))) <= _MEAN * step


def _are_known_texts(values: np.ndarray, runs: Sequence[np.ndarray]) -> bool:
    """Whether texts are among those that the output has in some run."""
    if values.dtype != object and values.dtype.kind not in "US":
        return True
    known = {str(v) for run in runs for v in run.ravel()}
    return all(str(v) in known for v in values.ravel())
