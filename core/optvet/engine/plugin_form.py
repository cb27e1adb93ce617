"""Whether plugin objects have what their protocols say: all members, of the right types.

It is asked when plugins are discovered, so an author learns of a mistake before a model is vetted.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Set
from typing import Any

from pydantic import BaseModel

from optvet.engine.contract.checked_calls import kind_of, mismatch
from optvet.spec.generators import Mutator, Pool
from optvet.spec.protocols import (
    Logs,
    NeedsNetwork,
    Preferred,
    Ragged,
    RunsCode,
    SetsEnvironment,
    TakesSuggestions,
    Wants,
)
from optvet.spec.provides import members_of, provides
from optvet.spec.runtime_protocols import TellsWhatItReads
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


def describe_wrong_attribute(family: str, plugin: Any) -> str | None:
    """What is wrong with the attributes of a plugin that has all of them; None if nothing is."""
    options = "a pydantic model with the defaults"
    expected: dict[str, tuple[type | tuple[type, ...], str]] = {"name": (str, "a text")}
    if family not in ("model source", "reporter", "generator", "study", "user model"):
        expected["options"] = (BaseModel, options)
    if family == "reporter":
        expected["suffix"] = (str, "a text")
    if family == "study":
        expected["description"] = (str, "a text")
    if family == "optimizer":
        expected["traits"] = (Traits, "Traits")
    if family == "runtime":
        expected["deployed"] = (BaseModel, options)
        expected["accepts"] = (Set, "a frozenset of formats")
    if family == "generator":
        if wrong := _no_generator(plugin):
            return wrong
        numbers = {"needs_argument": (bool, "True or False")}
        expected |= numbers if provides(plugin, Pool) else {"weight": ((int, float), "a number")}
    if family == "executor":
        expected["shares_disk"] = (bool, "True or False")
    if family == "converter":
        expected["consumes"] = (Set, "a frozenset of formats")
        expected["produces"] = (str, "a text")
    if family in ("optimizer", "runtime", "converter"):
        expected["preload"] = ((list, tuple), "a list of modules")
    if provides(plugin, Preferred):
        expected["preference"] = (int, "a whole number")
    if provides(plugin, Wants):
        expected["wants"] = ((list, tuple), "a list of modules")
    if provides(plugin, Ragged):
        expected["ragged"] = (bool, "True or False")
    if provides(plugin, TakesSuggestions):
        expected["suggestions"] = ((list, tuple), "a list of Suggestion")
    if provides(plugin, NeedsNetwork):
        expected["needs_network"] = (bool, "True or False")
    if provides(plugin, RunsCode):
        expected["runs_code"] = (bool, "True or False")
    if provides(plugin, SetsEnvironment):
        expected["environment"] = (Mapping, "a mapping to texts")
    if provides(plugin, Logs):
        expected["log_format"] = (LogFormat, "LogFormat")
    if provides(plugin, TellsWhatItReads):
        expected["reads"] = (Set, "a frozenset of parts of a model")
    for name, (types, words) in expected.items():
        wrong = mismatch(f"attribute {name!r}", getattr(plugin, name), types, words)
        if wrong is not None:
            return wrong.replace(" gave ", " is ", 1)
    if provides(plugin, TakesSuggestions):
        for item in plugin.suggestions:
            if wrong := mismatch("attribute 'suggestions'", item, Suggestion, "Suggestion"):
                return wrong.replace(" gave ", " holds ", 1)
    if provides(plugin, TellsWhatItReads) and (unknown := sorted(plugin.reads - MODEL_PARTS)):
        return f"attribute 'reads' holds {unknown[0]!r}, expected some of {sorted(MODEL_PARTS)}"
    if provides(plugin, SetsEnvironment) and (wrong := _variables(plugin.environment)):
        return wrong
    return _describe_outdated(plugin) if family == "optimizer" else None


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
    if callable(getattr(optimizer, "touched", None)):
        return (
            "it has touched(), which is called changing_passes() now: the contract has changed, "
            "see docs/plugins.md#changes-of-the-contracts"
        )
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
