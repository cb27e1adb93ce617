"""Reads what confined workers send: pickles that may hold data alone.

A worker runs foreign code, which can send any pickle in its place. A pickle names whatever is
called to build its objects; here these are constructors of data, and nothing else is looked up.
"""

from __future__ import annotations

import importlib
import io
import mmap
import pickle
import sys
from collections.abc import Mapping
from dataclasses import is_dataclass
from datetime import date, timedelta
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel

from optvet.engine.work.sandbox.portable import CONSTRUCTORS

_BUILTIN = (
    bool,
    bytearray,
    complex,
    dict,
    float,
    frozenset,
    int,
    list,
    range,
    set,
    slice,
    str,
    tuple,
)
_BASES = (Enum, BaseModel, BaseException, PurePath, date, timedelta, np.generic, np.dtype)
_PORTABLE = {(function.__module__, function.__name__): function for function in CONSTRUCTORS}


def read_answer(data: bytes | mmap.mmap) -> Any:
    """The object in ``data``, which a worker has pickled.

    Raises:
        pickle.UnpicklingError: It holds other things than data, or is no pickle.
        Exception: What a constructor of data raises on what it does not take.
    """
    reader = _DataUnpickler(data if isinstance(data, mmap.mmap) else io.BytesIO(data))
    try:
        answer = reader.load()
    finally:
        changed = _restore(reader.shared)
    if changed:
        raise pickle.UnpicklingError(f"it changes {changed}, which every answer shares")
    return answer


class _DataUnpickler(pickle.Unpickler):
    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.shared: dict[int, _Shared] = {}
        """Classes that the pickle names and members of enumerations, by their ids."""

    def find_class(self, module: str, name: str) -> Any:
        """What a pickle names, if it is a constructor of data."""
        found = _find(module, name)
        if found is None:
            raise pickle.UnpicklingError(f"{module}.{name} is no class of data")
        for one in _alterable(found):
            self.shared.setdefault(id(one), _Shared(one, dict(vars(one))))
        return found


class _Shared(NamedTuple):
    what: Any
    attributes: dict[str, Any]


def _alterable(found: Any) -> tuple[Any, ...]:
    """What outlives an answer that names this, and whose attributes a pickle could set."""
    if not isinstance(found, type) or hasattr(found, "__setstate__"):
        return ()  # Called on the class itself, that method lacks an argument.
    return (found, *found.__members__.values()) if issubclass(found, Enum) else (found,)


def _restore(shared: Mapping[int, _Shared]) -> str:
    """Gives these the attributes back that they had; the name of one that had others, or ""."""
    changed = ""
    for what, before in shared.values():
        now = dict(vars(what))
        for name in now.keys() - before.keys():
            delattr(what, name)
        other = [name for name, value in before.items() if now.get(name, shared) is not value]
        for name in other:
            setattr(what, name, before[name])
        if other or now.keys() != before.keys():
            changed = repr(what)
    return changed


@cache
def _find(module: str, name: str) -> Any:
    """The constructor of data with this name, or None."""
    if (module, name) in _PORTABLE:
        return _PORTABLE[module, name]
    known = module in sys.modules or module.partition(".")[0] in sys.modules
    if not known and not module.startswith("optvet"):
        return None
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, SystemExit):  # The last: a script that is no module.
        return None
    if not isinstance(found, type) or (found.__module__, found.__qualname__) != (module, name):
        return None
    return found if _is_data(found) else None


def _is_data(found: type) -> bool:
    """Whether objects of this class are nothing but their values."""
    if found is np.ndarray or found in _BUILTIN:  # A memmap, which is an array, opens a file.
        return True
    is_named_tuple = issubclass(found, tuple) and hasattr(found, "_fields")
    # Protobuf, which takes a while to import, has been if there is a class of a message.
    protobuf = sys.modules.get("google.protobuf.message")
    is_message = protobuf is not None and issubclass(found, protobuf.Message)
    return is_dataclass(found) or is_named_tuple or is_message or issubclass(found, _BASES)
