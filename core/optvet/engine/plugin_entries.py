"""One plugin object, or why there is none; and names that several plugins have."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint
from importlib.util import find_spec
from typing import Any

from optvet.engine.contract import checked_calls
from optvet.engine.plugin_form import describe_missing, describe_wrong_attribute
from optvet.engine.signatures import describe_wrong_signature
from optvet.spec.contract import CONTRACTS, FORMER_MEMBERS, FORMER_NAMES, Family
from optvet.spec.errors import MissingLibrary, absence_of
from optvet.spec.extras import EnvironmentExtras, PluginExtras, extras
from optvet.spec.provides import provides

SELF = "optvet"
"""The distribution whose plugins are built in."""


@dataclass(frozen=True)
class Loaded:
    """One plugin object, or the reason why there is none.

    Attributes:
        family: None for a module without a plugin object.
        name: The plugin's name, or that of its entry point.
        origin: Module, distribution and version.
        distribution: What the plugin came with.
        plugin: The object.
        version: Version of the library underneath, for families that have one.
        problem: Why the plugin cannot be used.
        absent: The absent module or library, if that is the reason.
        lacks: Optional modules (``wants``) that are not installed.
        idle: The only problem is that the module has no plugin; nothing in it failed.
        built_in: Whether it comes with optvet.
        displaced: A built-in plugin has the same name, and is used instead.
        outdated: What its author should change, in words: it was written for an earlier contract.
        elsewhere: The environment of its own that it needs, and that is not at hand; else empty.
    """

    family: Family | None
    name: str
    origin: str
    plugin: Any = None
    version: str | None = None
    problem: str | None = None
    absent: ModuleNotFoundError | MissingLibrary | None = None
    lacks: tuple[str, ...] = ()
    idle: bool = False
    built_in: bool = False
    displaced: bool = False
    elsewhere: str = ""
    outdated: str = ""
    distribution: str = SELF


def entry_of(family: Family, plugin: Any, module: Loaded) -> Loaded:
    """One plugin object of ``module``, with the problem if it cannot be used."""
    name = getattr(plugin, "name", type(plugin).__name__)
    lacks: tuple[str, ...] = ()
    problem = version = absent = None
    elsewhere = ""
    if not provides(plugin, CONTRACTS[family].must):
        problem = describe_missing(CONTRACTS[family].must, plugin)
    else:
        problem = describe_wrong_attribute(family, plugin) or describe_wrong_signature(
            family, plugin
        )
    if problem is None:
        lacks = tuple(m for m in extras(plugin, PluginExtras).wants if find_spec(m) is None)
    if problem is None:
        set_environment(plugin)
    if problem is None and hasattr(plugin, "version"):
        try:
            version = plugin.version()
        except Exception as error:
            raised = "" if isinstance(error, ImportError) else "version() raised "
            problem, absent = raised + words_of_error(error), absence_of(error)
            own = extras(plugin, EnvironmentExtras).python_environment
            if isinstance(error, ImportError) and own is not None:
                elsewhere, absent = own.name, None
                problem = (
                    f"it needs the environment {elsewhere!r}, which is missing; make it: "
                    f"optvet env make {elsewhere}"
                )
        else:
            problem = checked_calls.mismatch("version()", version, str, "a text")
    return replace(
        module,
        family=family,
        name=name if isinstance(name, str) else repr(name),
        plugin=plugin,
        version=version if isinstance(version, str) else None,
        problem=problem,
        absent=absent,
        lacks=lacks,
        elsewhere=elsewhere,
        outdated="" if problem else describe_outdated(family, plugin),
    )


def describe_outdated(family: Family, plugin: Any) -> str:
    """What a plugin that works has of an earlier contract, and what to write; empty if nothing."""
    members = FORMER_MEMBERS.get(family, {})
    words = [f"{m}() is called {now} now" for m, now in members.items() if hasattr(plugin, m)]
    module = sys.modules.get(type(plugin).__module__)
    used = [n for n in FORMER_NAMES if hasattr(getattr(module, n, None), "former")]
    words += [f"{n} is a part of {FORMER_NAMES[n].__name__} now" for n in used]
    return f"{'; '.join(words)}; see {_CHANGES}" if words else ""


_CHANGES = "docs/plugins.md#changes-of-the-contracts"


def environments_of(plugin: Any) -> tuple[str, ...]:
    """The environments that a plugin can be used in, its own first."""
    may = extras(plugin, EnvironmentExtras)
    own = may.python_environment
    return () if own is None else (own.name, *may.other_environments)


def set_environment(*plugins: Any) -> None:
    """Set the variables that ``plugins`` declare, for this process and its children.

    Variables that are already set are kept, since the user has set them.
    """
    for plugin in plugins:
        for name, value in extras(plugin, PluginExtras).environment.items():
            os.environ.setdefault(name, value)


def no_plugin_from(module: Any) -> str:
    """Why ``module``, which has no plugin, has none."""
    known = [contract.hook for contract in CONTRACTS.values()]
    empty = [name for name in known if hasattr(module, name)]
    if empty:
        return f"gives no plugin: {' and '.join(f'{n}()' for n in empty)} returned none"
    return f"gives no plugin: it has no hook of optvet, such as {known[0]}"


def without_clashes(entries: Sequence[Loaded]) -> list[Loaded]:
    """``entries``, with at most one usable plugin of each name: the built-in one.

    If none of them is built in, none is usable, since it is not known which one the user means.
    """
    groups: dict[tuple[Family, str], list[Loaded]] = {}
    for entry in entries:
        if entry.family is not None:
            groups.setdefault((entry.family, entry.name), []).append(entry)
    return [e if e.family is None else _settle_name(e, groups[e.family, e.name]) for e in entries]


def _settle_name(entry: Loaded, namesakes: Sequence[Loaded]) -> Loaded:
    ours = next((e for e in namesakes if e.built_in), None)
    if len(namesakes) == 1 or entry is ours:
        return entry
    if ours is not None:
        problem = (
            f"{entry.name!r} is the name of a built-in {entry.family} ({ours.origin}), which is "
            "used; rename this one"
        )
        return replace(entry, problem=problem, absent=None, displaced=True)
    number = "two" if len(namesakes) == 2 else str(len(namesakes))
    owners = " and ".join(e.origin for e in namesakes)
    problem = f"{number} {_plural(entry.family)} are named {entry.name!r}: {owners}; rename one"
    return replace(entry, problem=problem, absent=None)


def _plural(family: Family | None) -> str:
    return "studies" if family == "study" else f"{family}s"


def words_of_error(error: BaseException) -> str:
    """An exception in words; what a plugin says of an absent library without its type."""
    if isinstance(error, MissingLibrary):
        return str(error)
    return f"{type(error).__name__}: {error}"


def is_built_in(point: EntryPoint) -> bool:
    """Whether the plugin comes with optvet."""
    return point.dist is not None and name_and_version(point.dist)[0] == SELF


def origin_of(point: EntryPoint) -> str:
    """Module, distribution and version of a plugin."""
    return (
        f"{point.value} ({' '.join(name_and_version(point.dist))})" if point.dist else point.value
    )


@lru_cache(maxsize=64)
def name_and_version(distribution: Distribution) -> tuple[str, str]:
    """Kept, since either parses the whole metadata, and a distribution has many entry points."""
    return distribution.name, distribution.version
