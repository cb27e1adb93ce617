"""Arrays of floats, from the halves on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from optvet.graph.types import FLOATS

Array = NDArray[Any]
_DTYPES = frozenset(np.dtype(helper.tensor_dtype_to_np_dtype(kind)) for kind in FLOATS)


def float_type(inputs: Sequence[Any]) -> np.dtype[Any]:
    """Type of the first input that is a float."""
    types = (x.dtype for x in inputs if isinstance(x, np.ndarray) and is_float(x.dtype))
    return next(types, np.dtype(np.float32))


def at_least_single(x: Any) -> Any:
    """Halves as float32: their products are not to be summed up in a half."""
    half = isinstance(x, np.ndarray) and is_float(x.dtype) and x.dtype.itemsize < 4
    return x.astype(np.float32) if half else x


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether it is a float of two bytes or more."""
    return dtype.kind == "f" or dtype in _DTYPES
