"""Properties of floating-point element types, bfloat16 and the float8 types included."""

from __future__ import annotations

import numpy as np


def is_float(dtype: np.dtype) -> bool:
    """Whether values of ``dtype`` are rounded; covers bfloat16 and the float8 types too."""
    return bool(dtype.kind == "f" or "float" in dtype.name)


def unit_roundoff(dtype: np.dtype) -> float:
    """Half the distance from 1 to the next number of ``dtype``.

    >>> import ml_dtypes
    >>> unit_roundoff(np.dtype(ml_dtypes.float8_e5m2))  # whose kind is "f" too
    0.125
    """
    if np.issubdtype(dtype, np.floating):
        return float(np.finfo(dtype).eps) / 2
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).eps) / 2  # type: ignore[no-untyped-call]
