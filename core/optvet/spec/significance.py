"""Which floating-point values rounding may have made, as far as the values themselves tell."""

from __future__ import annotations

import numpy as np

KEPT_BITS = {"float16": 5, "bfloat16": 4, "float32": 16, "float64": 32}
"""Significant bits that a value may have and still count as exact, by type."""


def may_be_rounded(values: np.ndarray) -> np.ndarray:
    """Which of ``values`` rounding may have made; the others are exact and have no noise.

    Whole numbers, halves and the like have few significant bits, as next to no rounded value has.
    What measures the noise of a source must leave them alone (``load_perturbed``): a step away from
    the 1 of a mask turns ``(1 - mask) * -1e9`` from 0 into 60, an error that no kernel makes.

    Args:
        values: Floats of any type and shape.

    Returns:
        bool, same shape. False for zeros and infinities, and for values of no known float type.

    Source: Dekker 1971, "A Floating-Point Technique for Extending the Available Precision", Sec. 5.

    >>> may_be_rounded(np.array([1, 0.5, -255, 0.1], np.float32)).tolist()
    [False, False, False, True]
    """
    bits = KEPT_BITS.get(values.dtype.name)
    if bits is None:
        return np.zeros(values.shape, bool)
    wide = values.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = wide * (2.0 ** (53 - bits) + 1)
        first = scaled - (scaled - wide)
    return np.asarray((first != wide) & np.isfinite(first))
