"""Pickles of data that processes with other versions of numpy read.

An array is pickled by numpy as a call of a function of its own, which numpy 2 moved to another
module: a process with numpy 1 cannot read it, and numpy 1.26 finds only some of these functions
under their new names. Here an array is its bytes, its dtype and its shape.
"""

from __future__ import annotations

import copyreg
import io
import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


def pickle_portably(
    value: object, buffer_callback: Callable[[pickle.PickleBuffer], object] | None = None
) -> bytes:
    """The pickle of ``value``; raises whatever pickling raises.

    Args:
        value: Any value that can be pickled.
        buffer_callback: As of ``pickle.dumps``: keeps the bytes of an array out of the pickle.
    """
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=5, buffer_callback=buffer_callback)
    scalars = dict.fromkeys(_scalar_types(np.generic), _reduce_scalar)
    pickler.dispatch_table = {**copyreg.dispatch_table, **scalars, np.ndarray: _reduce_array}
    pickler.dump(value)
    return file.getvalue()


def _scalar_types(kind: type) -> Iterator[type]:
    """All types of numpy's scalars so far: libraries add some when they are imported."""
    parts: list[type] = kind.__subclasses__()
    for part in parts:
        yield part
        yield from _scalar_types(part)


def _reduce_array(array: np.ndarray) -> Reduced:
    dtype = array.dtype
    if dtype.hasobject or not dtype.itemsize:
        return array_of_items, (dtype, array.shape, array.ravel().tolist())
    by_columns = array.flags.f_contiguous and not array.flags.c_contiguous
    rows = array.T if by_columns else np.ascontiguousarray(array)
    # As bytes: a buffer has no format for dates, nor for the floats of other libraries.
    data = pickle.PickleBuffer(rows.reshape(-1).view(np.uint8).data)
    return array_of_bytes, (data, dtype, array.shape, "F" if by_columns else "C")


def _reduce_scalar(scalar: np.generic) -> Reduced:
    if scalar.dtype.hasobject or not scalar.dtype.itemsize:
        return scalar_of, (array_of_items(scalar.dtype, (), [scalar.item()]),)
    return scalar_of, (np.asarray(scalar),)


def array_of_bytes(
    data: bytes | memoryview, dtype: np.dtype, shape: tuple[int, ...], order: Any
) -> np.ndarray:
    """The array of these bytes, in whose memory it lies."""
    return np.frombuffer(data, dtype).reshape(shape, order=order)


def array_of_items(dtype: np.dtype, shape: tuple[int, ...], items: Sequence[Any]) -> np.ndarray:
    """The array of these elements, row by row.

    Raises:
        ValueError: There are more or fewer elements than the shape has.
    """
    if len(items) != math.prod(shape):  # Before memory is taken: another process wrote the shape.
        raise ValueError(f"{len(items)} elements for the shape {shape}")
    array = np.empty(len(items), dtype)
    for number, item in enumerate(items):
        array[number] = item
    return array.reshape(shape)


def scalar_of(array: np.ndarray) -> Any:
    """The only element of an array of rank 0."""
    return array[()]


CONSTRUCTORS = (array_of_bytes, array_of_items, scalar_of)
"""What pickles of these name; they build data and nothing else."""
