"""Arrays as bytes, and as parts of cache keys."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

JSON = Any
_MAGIC = b"optvet-arrays-1\n"
_LENGTH = struct.Struct("<Q")


def about_array(array: np.ndarray) -> tuple[JSON, ...]:
    """A key that equal arrays share: dtype, shape and every bit, or shape and objects."""
    if array.dtype.hasobject:
        return tuple(array.shape), array.ravel().tolist()
    native = _native(array)
    return _dtype_name(native.dtype), native.shape, hashlib.sha256(native.tobytes()).hexdigest()


def dump_arrays(arrays: Mapping[str, np.ndarray], meta: JSON) -> bytes:
    """Arrays and ``meta`` as bytes that ``load_arrays`` reads; every bit of a NaN is kept.

    Args:
        arrays: Of any numeric dtype, including ml_dtypes', or dtype object with str or bytes.
        meta: Any JSON value.

    Raises:
        TypeError: An array holds other objects.
    """
    entries: list[JSON] = []
    chunks: list[bytes] = []
    for name, value in arrays.items():
        array = _native(np.asarray(value))
        entry: dict[str, JSON] = {"name": name, "shape": array.shape}
        if array.dtype.hasobject:
            entry["strings"] = [_string(name, item) for item in array.ravel().tolist()]
        else:
            entry["dtype"] = _dtype_name(array.dtype)
            chunks.append(array.tobytes())
        entries.append(entry)
    header = json.dumps({"arrays": entries, "meta": meta}).encode("ascii")
    return b"".join([_MAGIC, _LENGTH.pack(len(header)), header, *chunks])


def load_arrays(data: bytes) -> tuple[dict[str, np.ndarray], JSON]:
    """Arrays, writable and in C order, and the ``meta`` that were given to ``dump_arrays``.

    Raises:
        ValueError: ``data`` was not made by ``dump_arrays``.
    """
    start = len(_MAGIC) + _LENGTH.size
    if data[: len(_MAGIC)] != _MAGIC or len(data) < start:
        raise ValueError("these bytes are not arrays written by dump_arrays")
    offset = start + _LENGTH.unpack_from(data, len(_MAGIC))[0]
    header = json.loads(data[start:offset])
    arrays: dict[str, np.ndarray] = {}
    for entry in header["arrays"]:
        shape = tuple(entry["shape"])
        if "strings" in entry:
            flat = np.empty(len(entry["strings"]), dtype=object)
            flat[:] = [_unstring(item) for item in entry["strings"]]
        else:
            dtype = _dtype_from_name(entry["dtype"])
            count = int(np.prod(shape, dtype=np.int64))
            raw = np.frombuffer(data, np.uint8, count * dtype.itemsize, offset)
            offset += raw.nbytes
            # As bytes first: ml_dtypes of sub-byte width offer no buffer of their own.
            flat = raw.copy().view(dtype) if count else np.empty(0, dtype)
        arrays[entry["name"]] = flat.reshape(shape)
    return arrays, header["meta"]


def _native(array: np.ndarray) -> np.ndarray:
    """``array`` in this machine's byte order; the same array if it has that order."""
    if array.dtype.isnative:
        return array
    return array.astype(array.dtype.newbyteorder("="))


def _dtype_name(dtype: np.dtype[Any]) -> str:
    # "bfloat16" has the str "<V2", which is any two bytes; "<U5" has the name "str160", which
    # numpy does not read back.
    return dtype.str if dtype.kind in "SU" or type(dtype).__name__ == "VoidDType" else dtype.name


def _dtype_from_name(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # Comes with onnx; adds bfloat16, float8 and the like to numpy.

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found


def _string(name: str, item: object) -> JSON:
    if isinstance(item, str):
        return str(item)
    if isinstance(item, bytes):
        return {"bytes": base64.b64encode(item).decode("ascii")}
    raise TypeError(
        f"array {name!r} holds an object of type {type(item).__qualname__}; "
        "expected numbers, str or bytes"
    )


def _unstring(item: JSON) -> str | bytes:
    return base64.b64decode(item["bytes"]) if isinstance(item, dict) else str(item)
