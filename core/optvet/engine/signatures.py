"""Whether plugin objects can be used as optvet uses them: called by their protocols, and pickled.

A method with other parameters would fail on every model when it is called, and look like a fault of
the model or of the library. A plugin that cannot be pickled fails where it is sent to a worker.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from functools import lru_cache
from types import FunctionType, MethodType
from typing import Any

from optvet.spec.contract import CONTRACTS, Family
from optvet.spec.extras import PluginExtras, given
from optvet.spec.provides import provides

_SENT = ("optimizer", "runtime", "comparator", "dataset", "generator", "converter", "user model")
"""Families whose objects are sent to workers."""


def describe_wrong_signature(family: Family, plugin: Any) -> str | None:
    """Which method of ``plugin`` cannot be called as its contract says; None if all can."""
    contract = CONTRACTS[family]
    for kind in (contract.must, *(s for s in contract.sets if provides(plugin, s))):
        for name, expected in _methods(kind):
            if wrong := _compare(name, getattr(plugin, name), expected):
                return wrong
    for kind in (PluginExtras, *contract.may):
        for name, expected in _methods(kind):
            own = given(plugin, getattr(kind, name))
            if own is not None and (wrong := _compare(name, own, expected)):
                return wrong
    return None


@lru_cache(maxsize=128)
def _methods(protocol: type) -> tuple[tuple[str, tuple[inspect.Parameter, ...]], ...]:
    """Methods of a protocol with their parameters after ``self``."""
    functions = {n: f for n, f in vars(protocol).items() if inspect.isfunction(f) and n[0] != "_"}
    return tuple(
        (name, tuple(inspect.signature(function).parameters.values())[1:])
        for name, function in functions.items()
    )


def _compare(name: str, method: Any, expected: tuple[inspect.Parameter, ...]) -> str | None:
    if not callable(method):
        return f"attribute {name!r} is {type(method).__qualname__}, expected a method"
    try:
        own = _signature(method)
    except (TypeError, ValueError):
        return None  # of a compiled library, which tells no signature
    named = [p.name for p in expected if p.kind is p.KEYWORD_ONLY]
    try:
        own.bind(*[None] * (len(expected) - len(named)), **dict.fromkeys(named))
    except TypeError:
        takes, wanted = (_words(s) for s in (tuple(own.parameters.values()), expected))
        return f"{name}() takes {takes}, expected {wanted}"
    return None


def _signature(method: Any) -> inspect.Signature:
    """The signature of a method, for several objects of one class looked up once."""
    function = getattr(method, "__func__", None)
    if not inspect.ismethod(method) or not inspect.isfunction(function):
        return inspect.signature(method)
    return _signature_of_bound(function)


@lru_cache(maxsize=1024)
def _signature_of_bound(function: FunctionType) -> inspect.Signature:
    return inspect.signature(MethodType(function, object()))


def _words(parameters: tuple[inspect.Parameter, ...]) -> str:
    """Parameters without their types, which may be long."""
    plain = [
        p.replace(annotation=inspect.Parameter.empty, default=inspect.Parameter.empty)
        for p in parameters
    ]
    return str(inspect.Signature(plain))


def describe_unsendable(family: str, plugin: Any) -> str | None:
    """Why ``plugin`` cannot be sent to a worker; None if it can, or need not be."""
    if family not in _SENT:
        return None
    return find_unsendable(plugin)


def find_unsendable(value: Any) -> str | None:
    """Which part of ``value`` pickle refuses, and why; None if it refuses none."""
    try:
        pickle.dumps(value)
    except Exception as error:
        path = "".join(_path(value))
        where = f"its attribute {path[1:]!r}" if path else "it"
        words = f"{type(error).__name__}: {error}"
        return (
            f"{where} cannot be sent to a worker process ({words}); plugins are pickled: make it "
            "where it is used"
        )
    return None


def _path(value: Any, depth: int = 3) -> Iterator[str]:
    """Names of the attributes that lead to what pickle refuses."""
    for name, part in getattr(value, "__dict__", {}).items() if depth else ():
        if not _is_sendable(part):
            yield f".{name}"
            yield from _path(part, depth - 1)
            return


def _is_sendable(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True
