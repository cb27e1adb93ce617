"""Differences against fixed tolerances, which know nothing of the model and its noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Excess:
    """How two arrays stand to a tolerance.

    Attributes:
        ratio: Largest difference in units of what is allowed for its element; at most 1 where all
            is within. Infinite where nothing is allowed, or where there is no number.
        beyond: Number of elements that are not within the tolerance.
        elements: Number of elements.
    """

    ratio: float
    beyond: int
    elements: int


def excess(reference: np.ndarray, candidate: np.ndarray, *, rtol: float, atol: float) -> Excess:
    """How far ``|candidate - reference| <= atol + rtol * |reference|`` is kept or exceeded.

    NaN agrees with NaN, and an infinity with itself. What is no number must be equal. Arrays of
    different shapes agree nowhere.
    """
    if reference.shape != candidate.shape:
        size = max(reference.size, candidate.size, 1)
        return Excess(math.inf, size, size)
    if reference.dtype.kind in "OUSbMm" or candidate.dtype.kind in "OUSbMm":
        beyond = int(np.count_nonzero(reference != candidate))
        return Excess(math.inf if beyond else 0.0, beyond, reference.size)
    wide = np.complex128 if reference.dtype.kind == "c" else np.float64
    r, c = reference.astype(wide), candidate.astype(wide)
    same = (reference == candidate) | (np.isnan(r) & np.isnan(c))
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        # Whole numbers beyond 2**53 may differ by less than float64 can tell.
        least = 1.0 if reference.dtype.kind in "iu" else 0.0
        difference = np.maximum(np.abs(c - r), least)
        ratio = difference / (atol + rtol * np.abs(r))
    # An infinite reference allows any number; that is no agreement.
    odd = ~(np.isfinite(r) & np.isfinite(c))
    ratio = np.where(same, 0.0, np.where(odd | np.isnan(ratio), np.inf, ratio))
    beyond = int(np.count_nonzero(ratio > 1.0))
    return Excess(float(ratio.max(initial=0.0)), beyond, int(reference.size))
