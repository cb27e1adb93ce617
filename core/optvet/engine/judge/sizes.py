"""Sizes of differences between arrays, over whole tensors and their slices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from optvet.engine.judge.thresholds import Thresholds
from optvet.engine.numerics.floats import is_float

SLICE_ELEMENTS = 16
"""Of fewer elements, a slice is a poor estimate of its noise."""
_PART = 1 << 16
"""Elements whose runs are looked at together: all at once would take gigabytes."""
_DEVIATIONS = 1.4826
"""Standard deviations in the median of absolute deviations, of normal ones."""


def wide(array: np.ndarray) -> np.ndarray:
    """``array`` in float64, in which differences neither overflow nor round."""
    return array.astype(np.float64)


# --- floating-point outputs ---------------------------------------------------------------------


def largest_difference(y: np.ndarray, z: np.ndarray) -> float:
    """Largest difference of two elements of float arrays of one shape; of finite ones only."""
    a, b = wide(y), wide(z)
    both = np.isfinite(a) & np.isfinite(b)
    with np.errstate(invalid="ignore"):
        return float(np.max(np.abs(a - b), where=both, initial=0.0))


def other_places(y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Mask of elements where one has NaN or an infinity that the other does not have."""
    with np.errstate(invalid="ignore"):
        same = (np.isfinite(y) & np.isfinite(z)) | (np.isnan(y) & np.isnan(z)) | (y == z)
    return np.asarray(~same)


def differing(y: np.ndarray, z: np.ndarray, size: float) -> np.ndarray:
    """Which elements differ: floats by more than ``size``, or in NaN and infinities."""
    if not is_float(y.dtype):
        return np.asarray(y != z)
    a, b = wide(y), wide(z)
    with np.errstate(invalid="ignore"):
        return np.asarray(other_places(a, b) | (np.abs(a - b) > size))


def spread_of(y: np.ndarray, jitters: Sequence[np.ndarray]) -> np.ndarray:
    """Elementwise RMS change of the reference under jitter; 0 for elements that are not finite."""
    if not jitters:
        return np.zeros_like(y)
    squares = np.zeros_like(y)
    with np.errstate(invalid="ignore", over="ignore"):
        # One at a time: in double, all runs of a large output at once would take gigabytes.
        for jitter in jitters:
            squares += np.square(wide(jitter) - y)
    # Elements that are not finite in a run say nothing of size; their places are judged apart.
    squares /= len(jitters)
    return np.sqrt(np.where(np.isfinite(squares), squares, 0.0))


def usual_spread_of(y: np.ndarray, runs: Sequence[np.ndarray]) -> np.ndarray:
    """Elementwise spread by what most runs do; as ``spread_of`` where changes are normal.

    What an element does in few runs alone, a jump at a decision, does not widen it.
    """
    found = np.zeros(y.size)
    flat = [run.ravel() for run in runs]
    for start in range(0, y.size if runs else 0, _PART):
        part = slice(start, start + _PART)
        with np.errstate(invalid="ignore", over="ignore"):
            moves = [np.abs(wide(run[part]) - y.ravel()[part]) for run in flat]
        found[part] = _DEVIATIONS * np.median(moves, axis=0)
    return np.where(np.isfinite(found), found, 0.0).reshape(y.shape)


def slices(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Axes to reduce: all axes, and all but one axis if enough elements are left.

    A tensor may hold quantities of different size (box coordinates and scores, say); one bound from
    the largest values would hide faults in the small ones.
    """
    axes = tuple(range(len(shape)))
    yield axes
    size = math.prod(shape)
    for axis in axes:
        if 1 < shape[axis] and size // shape[axis] >= SLICE_ELEMENTS:
            yield tuple(a for a in axes if a != axis)


def rms(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Root of the mean square over ``axes``, which are kept."""
    if x.size == 0:
        return np.zeros(1)
    # Scaled first: squares of huge values overflow even float64, those of tiny ones underflow.
    top = np.max(np.abs(x), axis=axes, keepdims=True)
    safe = np.where(top > 0, top, 1.0)
    return np.asarray(np.sqrt(np.mean(np.square(x / safe), axis=axes, keepdims=True)) * top)


def rms_of_all(x: np.ndarray) -> float:
    """Root of the mean square of all elements."""
    return float(rms(x, tuple(range(x.ndim))).max(initial=0.0))


def is_rounding(d: np.ndarray, y: np.ndarray, u: float, limits: Thresholds) -> bool:
    """Whether differences ``d`` from ``y`` are a few roundoffs ``u``, in every slice."""
    # Every element within its own rounding needs no slices, and holds for most outputs.
    if bool(np.all(d <= 4 * u * np.abs(y))):
        return True
    bound = limits.rounding * u
    for axes in slices(d.shape):
        top = np.max(np.abs(y), axis=axes, keepdims=True, initial=0.0)
        # Both the largest and the mean: one wrong element hides in the mean, and a small shift of
        # all elements hides below the largest.
        if np.any(np.max(d, axis=axes, keepdims=True, initial=0.0) > bound * top):
            return False
        if np.any(rms(d, axes) > bound * rms(y, axes)):
            return False
    return True


def ratio_to_allowance(
    d: np.ndarray, spread: np.ndarray, y: np.ndarray, floor: float, limits: Thresholds
) -> float:
    """Largest ratio of difference to allowance, over the whole tensor and its slices."""
    worst = 0.0
    for axes in slices(d.shape):
        # A slice of few elements is a poor estimate of its noise: add a share of the tensor's.
        mean = limits.jitter_rms * rms(spread, axes) + floor * rms(y, axes)
        top = limits.jitter_max * np.max(spread, axis=axes, keepdims=True, initial=0.0)
        top = top + floor * np.max(np.abs(y), axis=axes, keepdims=True, initial=0.0)
        largest = np.max(d, axis=axes, keepdims=True, initial=0.0)
        worst = max(worst, _ratio(rms(d, axes), mean), _ratio(largest, top))
    return worst


def _ratio(value: np.ndarray, allowed: np.ndarray) -> float:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(value > 0, value / allowed, 0.0)
    return float(np.max(ratio, initial=0.0))


def exceeds_allowance(
    d: np.ndarray, spread: np.ndarray, y: np.ndarray, floor: float, limits: Thresholds
) -> np.ndarray:
    """Which of the differences ``d`` from ``y`` are larger than the noise allows."""
    quiet = np.median(spread) if spread.size else 0.0
    allowed = limits.jitter_max * np.maximum(spread, quiet) + 4 * floor * np.abs(y)
    return np.asarray(d > allowed)
