"""The modules of plugins, each imported when a family is requested that it may provide.

One command needs a few families, and an import of all modules takes half a second. Which families
a module provides is read off its source: a hook's name stands in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from types import ModuleType

from optvet.engine.hook_calls import HookCall, call_hooks, find_slips
from optvet.engine.plugin_entries import (
    SELF,
    Loaded,
    entry_of,
    is_built_in,
    name_and_version,
    no_plugin_from,
    origin_of,
    words_of_error,
)
from optvet.engine.signatures import describe_unsendable
from optvet.spec.contract import CONTRACTS, Family
from optvet.spec.errors import absence_of

_IN_WORKERS: tuple[Family, ...] = ("optimizer", "runtime", "comparator", "dataset")
"""Families that workers run. They load together, since a worker started in between would lack the
variables that the later ones set."""

_HOOKS_FROM_ELSEWHERE = ("import *", "setattr", "globals(", "def __getattr__", "exec(")


class PluginModules:
    """The modules of some entry points, and what their hooks returned so far."""

    def __init__(self, points: Iterable[EntryPoint]) -> None:
        """Import nothing yet."""
        # Built-in plugins first: they turn off the telemetry of libraries, which a third party's
        # module may import at its top.
        self._points = sorted(points, key=lambda p: (not is_built_in(p), p.name, p.value))
        self._families = [_families_of(point) for point in self._points]
        self._modules: dict[int, ModuleType | Loaded] = {}
        self._calls: dict[tuple[int, Family], list[HookCall[Family]]] = {}
        self._plugins: dict[tuple[int, Family], list[Loaded]] = {}

    def entries(self, family: Family) -> list[Loaded]:
        """Every plugin object of a family."""
        together = _IN_WORKERS if family in _IN_WORKERS else (family,)
        if any(not is_built_in(self._points[n]) for f in together for n in self._providers(f)):
            self._load_built_in()
        for other in together:
            for number in self._providers(other):
                self._load(number, other)
        return [e for number in self._providers(family) for e in self._load(number, family)]

    def failures(self) -> list[Loaded]:
        """Every module that gives no plugin, or has a hook that fails, with the reason.

        All modules are imported, and all their hooks called.
        """
        for family in CONTRACTS:
            self.entries(family)
        return [e for number in range(len(self._points)) for e in self._failures_of(number)]

    def _providers(self, family: Family) -> list[int]:
        return [n for n, families in enumerate(self._families) if family in families]

    def _load_built_in(self) -> None:
        for number in filter(lambda n: is_built_in(self._points[n]), range(len(self._points))):
            for family in self._families[number]:
                self._load(number, family)

    def _load(self, number: int, family: Family) -> list[Loaded]:
        """The plugins of one family of one module: a failure costs no more than itself."""
        if (number, family) not in self._plugins:
            self._plugins[number, family] = self._call(number, family)
        return self._plugins[number, family]

    def _call(self, number: int, family: Family) -> list[Loaded]:
        module, base = self._module(number), _base_of(self._points[number])
        if isinstance(module, Loaded):
            return []
        calls = call_hooks(module, {family: CONTRACTS[family].hook})
        self._calls[number, family] = calls
        entries = [entry_of(family, plugin, base) for c in calls for plugin in c.plugins]
        return [
            replace(e, problem=describe_unsendable(family, e.plugin))
            if not e.built_in and e.problem is None
            else e
            for e in entries
        ]

    def _module(self, number: int) -> ModuleType | Loaded:
        """The module, or why its import failed."""
        if number not in self._modules:
            point = self._points[number]
            try:
                self._modules[number] = point.load()
            except (Exception, SystemExit) as error:
                problem = f"its import raised {words_of_error(error)}"
                self._modules[number] = replace(
                    _base_of(point), problem=problem, absent=absence_of(error)
                )
        return self._modules[number]

    def _failures_of(self, number: int) -> list[Loaded]:
        module, base = self._module(number), _base_of(self._points[number])
        if isinstance(module, Loaded):
            return [module]
        calls = [c for f in CONTRACTS for c in self._calls.get((number, f), ())]
        hooks_known = [contract.hook for contract in CONTRACTS.values()]
        problems = [c.problem for c in calls if c.problem] + find_slips(module, hooks_known)
        if problems:
            absent = next((c.absent for c in calls if c.absent), None)
            return [replace(base, problem="; ".join(problems), absent=absent)]
        if not any(c.plugins for c in calls):
            return [replace(base, problem=no_plugin_from(module), idle=True)]
        return []


def _base_of(point: EntryPoint) -> Loaded:
    """What all entries of one module share."""
    return Loaded(
        None,
        point.name,
        origin_of(point),
        built_in=is_built_in(point),
        distribution=name_and_version(point.dist)[0] if point.dist else SELF,
    )


def _families_of(point: EntryPoint) -> frozenset[Family]:
    """The families that a module may provide: all of them where its source does not tell.

    A hook may also come from another module by ``import *``, or be set at run time.
    """
    source = _source_of(point.module)
    if any(words in source for words in _HOOKS_FROM_ELSEWHERE):
        return frozenset(CONTRACTS)
    named = {f for f, contract in CONTRACTS.items() if contract.hook in source}
    return frozenset(named or CONTRACTS)


def _source_of(module: str) -> str:
    """The source of a module; empty if it cannot be read without importing anything."""
    if "." in module:  # to find it, its package would be imported
        return ""
    try:
        spec = find_spec(module)
        loader = spec.loader if spec is not None else None
        found = loader.get_source(module) if isinstance(loader, SourceFileLoader) else None
    except (ImportError, SyntaxError, ValueError):  # the import says what is wrong with it
        return ""
    return found or ""
