"""Gives arrays the names and the types of a model's inputs.

A value is cast only if every element survives.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from optvet.graph import numpy_dtype
from optvet.plugin import ValueInfo
from optvet_files.errors import bad_file, check_bytes
from optvet_files.read_arrays import Arrays

_POSITIONAL = re.compile(r"^(?:arr_|input[_-]?)?(\d+)$")


_BLOCK = 1 << 20


def _describe(info: ValueInfo) -> str:
    """An input's type as ONNX text writes it: ``float[N,3]``."""
    if info.shape is None:
        return f"{info.dtype}[...]"
    return f"{info.dtype}[{','.join('?' if d is None else str(d) for d in info.shape)}]"


def name_inputs(arrays: Arrays, inputs: Sequence[ValueInfo], where: str) -> Arrays:
    """The same arrays under the names of the inputs.

    Raises:
        InputError: A key is no input, or an input is missing.
    """
    known = {i.name: i for i in inputs}
    unknown = [k for k in arrays if k not in known]
    missing = [n for n in known if n not in arrays]
    if len(unknown) == len(arrays) == len(inputs):
        numbers = [_POSITIONAL.match(k) for k in arrays]
        if all(numbers):
            ordered = sorted(arrays, key=lambda k: int(_POSITIONAL.sub(r"\1", k)))
            return {i.name: arrays[k] for i, k in zip(inputs, ordered, strict=True)}
    listing = ", ".join(f"{i.name!r} {_describe(i)}" for i in inputs)
    if unknown:
        near = difflib.get_close_matches(unknown[0], missing or known, n=1)
        advice = f"did you mean {near[0]!r}? " if near else ""
        raise bad_file(
            where, f"key {unknown[0]!r} is no input of the model; {advice}expected {listing}"
        )
    if missing:
        raise bad_file(where, f"input {missing[0]!r} is missing; expected {listing}")
    return {name: arrays[name] for name in known}


def split_batch(
    id: str, arrays: Arrays, inputs: Sequence[ValueInfo]
) -> Iterator[tuple[str, Arrays]]:
    """One sample, or one for each row where all arrays have one leading axis too many."""
    batched = all(i.shape is not None and arrays[i.name].ndim == len(i.shape) + 1 for i in inputs)
    counts = {a.shape[0] for a in arrays.values() if a.ndim}
    if not (batched and len(counts) == 1):
        yield id, arrays
        return
    for row in range(counts.pop()):
        yield f"{id}#{row}", {n: a[row, ...] for n, a in arrays.items()}


def _has_shape(array: np.ndarray, info: ValueInfo) -> bool:
    """Whether rank and known dimensions agree; a negative dimension is an unknown one."""
    if info.shape is None:
        return True
    return array.ndim == len(info.shape) and all(
        not isinstance(expected, int) or expected < 0 or expected == size
        for expected, size in zip(info.shape, array.shape, strict=True)
    )


def fit_array(array: np.ndarray, info: ValueInfo, where: str) -> np.ndarray:
    """``array`` in the dtype of its input.

    Raises:
        InputError: Its shape differs, or a cast would change a value.
    """
    where = f"{where}, input {info.name!r}"
    if not _has_shape(array, info):
        found = ",".join(map(str, array.shape))
        raise bad_file(where, f"has shape [{found}], expected {_describe(info)}; reshape the array")
    if info.dtype == "optional":
        return array
    if info.dtype == "string" or array.dtype.kind in "USO":
        return _fit_strings(array, info, where)
    expected = numpy_dtype(info)
    if array.dtype.kind == "V" and array.dtype.itemsize == expected.itemsize:
        # A file keeps only the bytes of bfloat16 and float8.
        return array if array.dtype == expected else array.view(expected)
    if array.dtype == expected:
        return array.astype(expected, copy=False)
    return _cast(array, expected, info, where)


def _fit_strings(array: np.ndarray, info: ValueInfo, where: str) -> np.ndarray:
    if info.dtype != "string" or array.dtype.kind not in "USO":
        raise bad_file(
            where, f"has dtype {array.dtype}, expected {info.dtype}; store another dtype"
        )
    found = np.empty(array.shape, object)
    for position, text in np.ndenumerate(array):
        try:
            found[position] = text.decode() if isinstance(text, bytes) else str(text)
        except UnicodeDecodeError as error:
            raise bad_file(where, f"has bytes that are no UTF-8 ({error}); store str") from error
    return found


def _cast(array: np.ndarray, expected: np.dtype[Any], info: ValueInfo, where: str) -> np.ndarray:
    check_bytes(where, array.nbytes + array.size * expected.itemsize)
    # Dates and durations are no numbers, although numpy casts them.
    exact = array.dtype.kind not in "cmM" or expected.kind == array.dtype.kind
    if exact:
        with np.errstate(all="ignore"):
            cast = array.astype(expected)
        exact = _survives_cast(array, cast)
    if not exact:
        raise bad_file(
            where,
            f"has dtype {array.dtype}, expected {info.dtype} ({expected}), and some values would "
            f"change; store array.astype({str(expected)!r}) if that is meant",
        )
    return cast


def _survives_cast(array: np.ndarray, cast: np.ndarray) -> bool:
    """Whether a cast changed no value; compared in blocks, which need little memory."""
    numbers = array.dtype.kind in "iuf" and cast.dtype.kind in "iuf"
    flat, flat_cast = array.reshape(-1), cast.reshape(-1)
    for start in range(0, array.size, _BLOCK):
        before, after = flat[start : start + _BLOCK], flat_cast[start : start + _BLOCK]
        with np.errstate(all="ignore"):
            back = after.astype(array.dtype)
        same = (back == before) | ((back != back) & (before != before))
        if numbers:
            # Wrapping survives a round trip (-1 as uint64 and back), so signs must agree too.
            same &= (after < 0) == (before < 0)
        if not np.all(same):
            return False
    return True
