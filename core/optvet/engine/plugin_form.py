"""Whether plugin objects have what their protocols say: all members, of the right types.

It is asked when plugins are discovered, so an author learns of a mistake before a model is vetted.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Set
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from optvet.engine.contract.checked_calls import kind_of, mismatch
from optvet.spec.comparators import ComparatorExtras
from optvet.spec.contract import CONTRACTS, Family
from optvet.spec.extras import PluginExtras, extras
from optvet.spec.generators import Mutator, Pool
from optvet.spec.provides import members_of, provides
from optvet.spec.pythons import PythonEnvironment
from optvet.spec.releases import ReleasedPackage
from optvet.spec.runtime_protocols import RuntimeExtras
from optvet.spec.types import MODEL_PARTS, LogFormat, Suggestion, Traits


def describe_missing(protocol: type, plugin: Any) -> str:
    """Which members of ``protocol`` a plugin lacks, and which near names it has instead."""
    members = members_of(protocol)
    missing = [m for m in sorted(members) if not hasattr(plugin, m)]
    if not getattr(protocol, "_is_protocol", False):
        return f"is {kind_of(plugin)}, expected an instance of {protocol.__name__}: inherit from it"
    own = [n for n in dir(plugin) if not n.startswith("_") and n not in members]
    near = [n for m in missing for n in difflib.get_close_matches(m, own, n=1, cutoff=0.7)]
    advice = f"; did you mean {missing[0]} by {near[0]}?" if near else ""
    return f"does not provide {', '.join(missing)}{advice}"


def describe_wrong_attribute(family: Family, plugin: Any) -> str | None:
    """What is wrong with the attributes of a plugin that has all of them; None if nothing is."""
    if family == "generator" and (wrong := _no_generator(plugin)):
        return wrong
    contract = CONTRACTS[family]
    kinds = [contract.must, *(s for s in contract.sets if family == "generator")]
    for kind in (*kinds, *contract.may, PluginExtras):
        for name, form in _attributes(kind):
            if not hasattr(plugin, name):
                continue
            types, words = _FORMS[form]
            if wrong := mismatch(f"attribute {name!r}", getattr(plugin, name), types, words):
                return wrong.replace(" gave ", " is ", 1)
    return _wrong_items(plugin) or (_describe_outdated(plugin) if family == "optimizer" else None)


_TEXTS = ((list, tuple), "a list of texts")
_OPTIONS = (BaseModel, "a pydantic model with the defaults")
_FORMS: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "str": (str, "a text"),
    "bool": (bool, "True or False"),
    "int": (int, "a whole number"),
    "float": ((int, float), "a number"),
    "OptionsT": _OPTIONS,
    "BaseModel": _OPTIONS,
    "Traits": (Traits, "Traits"),
    "Sequence[str]": _TEXTS,
    "Sequence[Suggestion]": ((list, tuple), "a list of Suggestion"),
    "frozenset[str]": (Set, "a frozenset of texts"),
    "frozenset[ModelPart]": (Set, "a frozenset of parts of a model"),
    "Mapping[str, str]": (Mapping, "a mapping to texts"),
    "Mapping[str, Sequence[str]]": (Mapping, "a mapping to lists of texts"),
    "Mapping[str, Any]": (Mapping, "a mapping"),
    "LogFormat | None": ((LogFormat, type(None)), "LogFormat"),
    "PythonEnvironment | None": ((PythonEnvironment, type(None)), "PythonEnvironment"),
    "ReleasedPackage | None": ((ReleasedPackage, type(None)), "ReleasedPackage"),
}
"""What is asked of an attribute, by its annotation."""


@lru_cache(maxsize=64)
def _attributes(kind: type) -> tuple[tuple[str, str], ...]:
    """Attributes of a protocol or a class of extras with their annotations, as they are written."""
    bases = [vars(base).get("__annotations__", {}) for base in reversed(kind.__mro__)]
    return tuple((name, form) for own in bases for name, form in own.items() if name[0] != "_")


def _wrong_items(plugin: Any) -> str | None:
    """What is wrong inside of attributes that are of the right type."""
    for item in extras(plugin, ComparatorExtras).suggestions:
        if wrong := mismatch("attribute 'suggestions'", item, Suggestion, "Suggestion"):
            return wrong.replace(" gave ", " holds ", 1)
    if unknown := sorted(extras(plugin, RuntimeExtras).reads - MODEL_PARTS):
        return f"attribute 'reads' holds {unknown[0]!r}, expected some of {sorted(MODEL_PARTS)}"
    return _variables(extras(plugin, PluginExtras).environment)


def _no_generator(plugin: Any) -> str | None:
    if provides(plugin, Pool) == provides(plugin, Mutator):
        nearer = Pool if hasattr(plugin, "needs_argument") else Mutator
        lacks = "" if provides(plugin, nearer) else f"{describe_missing(nearer, plugin)}; "
        return f"{lacks}it must be a pool (fragments, needs_argument) or a mutator (mutate, weight)"
    return None


def _variables(environment: Mapping[Any, Any]) -> str | None:
    for name, value in environment.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            return f"attribute 'environment' names {name!r}, no name of a variable"
        if not isinstance(value, str) or "\0" in value:
            return f"attribute 'environment' sets {name} to {kind_of(value)}, expected a text"
    return None


def _describe_outdated(optimizer: Any) -> str | None:
    """What ``optimizer`` has of an earlier contract, in words; None if nothing.

    A method that takes the model as bytes would fail on every model when it is called with an
    artifact, and each failure would be a finding.
    """
    for method in ("apply", "saved"):
        try:
            parameters = inspect.signature(getattr(optimizer, method)).parameters
        except (AttributeError, TypeError, ValueError):
            continue  # it has no such method, or one without a signature
        first = next(iter(parameters.values()), None)
        if first is None:
            continue
        untyped = first.annotation is inspect.Parameter.empty
        if first.annotation in (bytes, "bytes") or (untyped and first.name == "model"):
            return (
                f"{method}() takes {first.name!r}, a serialized model, expected 'source', an "
                "Artifact: the contract has changed, see docs/plugins.md#changes-of-the-contracts"
            )
    return None
