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
        least_atol: Least absolute part, in units of the arrays, with which all would be within;
            infinite where none suffices.
    """

    ratio: float
    beyond: int
    elements: int
    least_atol: float = math.inf


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
        ratio = math.inf if beyond else 0.0
        return Excess(ratio, beyond, reference.size, ratio)
    wide = np.complex128 if reference.dtype.kind == "c" else np.float64
    r, c = reference.astype(wide), candidate.astype(wide)
    same = (reference == candidate) | (np.isnan(r) & np.isnan(c))
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        # Whole numbers beyond 2**53 may differ by less than float64 can tell.
        least = 1.0 if reference.dtype.kind in "iu" else 0.0
        difference = np.maximum(np.abs(c - r), least)
        ratios = difference / (atol + rtol * np.abs(r))
        lacking = difference - rtol * np.abs(r)
    # An infinite reference allows any number; that is no agreement.
    nonfinite = ~(np.isfinite(r) & np.isfinite(c))
    ratios = np.where(same, 0.0, np.where(nonfinite | np.isnan(ratios), np.inf, ratios))
    lacking = np.where(same, 0.0, np.where(nonfinite, np.inf, lacking))
    beyond = int(np.count_nonzero(ratios > 1.0))
    worst, least = (float(values.max(initial=0.0)) for values in (ratios, lacking))
    return Excess(worst, beyond, int(reference.size), least)


def round_up(value: float, digits: int = 2) -> float:
    """The least number of so many decimal digits that is at least ``value``, which is positive."""
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    rounded = float(f"{math.ceil(value / step) * step:.{digits - 1}e}")
    return rounded if rounded >= value else float(f"{rounded + step:.{digits - 1}e}")
