"""Distance of black and white, as far as the values of images and their type tell it."""

from __future__ import annotations

import numpy as np

USUAL_RANGES = ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0))
"""Black and white of most images. Resampling overshoots, so a tenth beyond still is the range."""


def bounds_of(image: np.ndarray) -> tuple[float, float]:
    """The least and the greatest finite number in it, and 0 beside them."""
    wide = image.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    return float(finite.min(initial=0.0)), float(finite.max(initial=0.0))


def is_whole(image: np.ndarray) -> bool:
    """Whether all finite values are integers: levels of eight bits, in a float."""
    finite = image[np.isfinite(image)] if image.dtype.kind == "f" else image
    return bool(np.all(finite == np.rint(finite)))


def data_range(reference: np.ndarray) -> float:
    """Distance of black and white, as far as one image tells it; see ``usual_range``."""
    low, high = bounds_of(reference)
    return usual_range(low, high, reference.dtype, whole=is_whole(reference))


def usual_range(low: float, high: float, dtype: np.dtype, *, whole: bool = False) -> float:
    """Distance of black and white: of integers all there are; of floats the usual range they fit.

    Only values that reach its upper half, or that are integers above 1 (``whole``), tell of 0..255:
    0..1 with some overshoot fits it too, and a range that is too wide hides errors by up to 48 dB.
    What fits none is its own range.
    """
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return float(int(limits.max) - int(limits.min))
    for bottom, top in USUAL_RANGES:
        certain = top < 255 or high >= top / 2 or (whole and high > 1)
        if certain and is_within(low, high, bottom, top):
            return top - bottom
    # Python's own numbers do not warn where a difference is too large for them.
    return min(high - low, float(np.finfo(np.float64).max))


def is_within(low: float, high: float, bottom: float, top: float, share: float = 0.1) -> bool:
    """Whether a range fits into another one, with a margin of a share of that on both sides."""
    margin = share * (top - bottom)
    return low >= bottom - margin and high <= top + margin
