"""Keys of the cache: a digest of all that a result depends on."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

JSON = Any


def key(*parts: object) -> str:
    """sha256, hexadecimal, over ``parts`` in canonical form.

    Numbers, strings, paths, enumerations, sequences, sets, mappings, dataclasses, pydantic
    models, bytes and arrays; equal parts have equal keys in every process and on every machine.

    Raises:
        TypeError: A part is of another type.
    """
    text = json.dumps(_canonical(list(parts)), separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _canonical(part: object) -> JSON:
    """``part`` as JSON in which objects are used for typed values only."""
    if isinstance(part, enum.Enum):
        return {type(part).__qualname__: _canonical(part.value)}
    if part is None or isinstance(part, (bool, int, float, str)):
        return str(part) if isinstance(part, str) else part
    if isinstance(part, (bytes, bytearray, memoryview)):
        return {"bytes": hashlib.sha256(part).hexdigest()}
    if isinstance(part, os.PathLike):
        return {"path": os.fspath(part)}
    if isinstance(part, BaseModel):
        fields = {name: getattr(part, name) for name in type(part).model_fields}
        fields |= part.model_extra or {}
        return {type(part).__qualname__: _canonical(fields)}
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        values = {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}
        return {type(part).__qualname__: _canonical(values)}
    if isinstance(part, Mapping):
        pairs = [[_canonical(k), _canonical(v)] for k, v in part.items()]
        # Keys differ, so values decide nothing; writing them at each level would cost more.
        return {"mapping": sorted(pairs, key=lambda pair: json.dumps(pair[0]))}
    if isinstance(part, (set, frozenset)):
        return {"set": sorted(map(_canonical, part), key=json.dumps)}
    if isinstance(part, (list, tuple)):
        return [_canonical(item) for item in part]
    if (array := sys.modules.get("numpy")) and isinstance(part, (array.ndarray, array.generic)):
        # Not at the top: whoever only reads what is kept shall not wait for numpy.
        from optvet.engine.work.cache.array_bytes import about_array

        return {"array": [_canonical(item) for item in about_array(array.asarray(part))]}
    raise TypeError(f"{type(part).__qualname__} cannot be part of a cache key; give its fields")
