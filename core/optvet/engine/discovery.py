"""Finding plugins: sorted by name, each loaded on its own, failures and duplicates reported.

pluggy's own entry-point loader stops at the first plugin that fails to import, and silently drops
duplicate names.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from importlib.metadata import EntryPoint
from itertools import chain
from typing import Any

from optvet.engine import processes
from optvet.engine.contract import optimizer_returns
from optvet.engine.installed_plugins import entry_points
from optvet.engine.plugin_entries import (
    SELF,
    Loaded,
    entry_of,
    environments_of,
    without_clashes,
)
from optvet.engine.plugin_modules import PluginModules
from optvet.engine.processes import LocalExecutor
from optvet.engine.runtime_target import PREFIX, RuntimeTarget
from optvet.spec.contract import CONTRACTS, Family
from optvet.spec.converters import Converter
from optvet.spec.errors import OptvetError, PluginError, UnknownName, UsageError
from optvet.spec.executor import Executor
from optvet.spec.extras import PluginExtras, extras
from optvet.spec.generators import Mutator, Pool
from optvet.spec.optimizer_protocols import Optimizer
from optvet.spec.protocols import Comparator, Dataset, ModelSource, Reporter
from optvet.spec.provides import provides
from optvet.spec.runtime_protocols import Runtime, RuntimeExtras
from optvet.spec.studies import Study
from optvet.spec.user_model import UserModel


class Plugins:
    """All plugins that were found."""

    def __init__(self, found: Iterable[EntryPoint] | None = None) -> None:
        """Take the plugins of ``found`` (default: all entry points of group "optvet").

        A module is imported when a family is requested that it may provide.
        """
        self.installed = found is None
        """Whether these are the plugins that are installed, no more and no less."""
        self._modules = PluginModules(entry_points(group="optvet") if found is None else found)
        self._with_own = found is None
        self._loaded: dict[Family, list[Loaded]] = {}
        self._moves: tuple[Callable[[Loaded], Loaded], ...] = ()
        self._checked: set[str] = set()

    def _entries(self, family: Family) -> list[Loaded]:
        """The entries of one family, which are loaded now if they are not yet."""
        if family not in self._loaded:
            found = self._modules.entries(family)
            if family == "executor" and self._with_own:
                # The engine's own: whatever is not installed, campaigns can be run.
                own = Loaded(None, "", f"{processes.__name__} ({SELF})", built_in=True)
                found = [*found, entry_of("executor", LocalExecutor(), own)]
            for move in self._moves:
                found = [move(entry) for entry in found]
            self._loaded[family] = without_clashes(found)
        return self._loaded[family]

    def register(self, family: Family, plugin: Any) -> Plugins:
        """Add a plugin object without an entry point, for tests; returns this registry."""
        base = Loaded(None, "", f"{type(plugin).__module__} (registered by hand)")
        entry = entry_of(family, plugin, base)
        # A new mapping: a copy of this registry shares the old one.
        entries = without_clashes([*self._entries(family), entry])
        self._loaded = {**self._loaded, family: entries}
        self.installed = False
        return self

    def extend(self, family: Family, plugin: Any) -> Plugins:
        """A copy of this registry with one more plugin object."""
        other = copy.copy(self)
        return other.register(family, plugin)

    def with_environments(self, names: AbstractSet[str]) -> Plugins:
        """A copy of this registry in which plugins of these environments can be used."""
        return self._moved(lambda entry: _moved_into(names, entry))

    def nearest_to(self, names: Sequence[str]) -> Plugins:
        """A copy in which plugins are used in the first of these environments that they fit."""
        return self._moved(lambda entry: _moved_near(names, entry))

    def _moved(self, move: Callable[[Loaded], Loaded]) -> Plugins:
        other = copy.copy(self)
        other._loaded = {f: [move(e) for e in entries] for f, entries in self._loaded.items()}
        other._moves = (*self._moves, move)
        return other

    def home_of(self, plugin: object) -> str:
        """The environment of its own that a plugin is used in; empty for optvet's."""
        loaded = chain.from_iterable(self._loaded.values())
        return next((e.elsewhere for e in loaded if e.plugin is plugin), "")

    def all(self) -> list[Loaded]:
        """Every plugin object and every failure, sorted by family and name; loads all modules."""
        failures = sorted(self._modules.failures(), key=lambda e: e.name)
        families = (sorted(self._entries(family), key=lambda e: e.name) for family in CONTRACTS)
        return [*chain.from_iterable(families), *failures]

    def _of(self, family: Family) -> Mapping[str, Loaded]:
        """Plugins of one family by name; if several have one name, the usable one, if any."""
        return {e.name: e for e in self._entries(family) if not e.displaced}

    def names(self, family: Family) -> list[str]:
        """Names of the usable plugins of a family, sorted."""
        return sorted(n for n, e in self._of(family).items() if e.problem is None)

    def default(self, family: Family) -> str:
        """Name of the plugin that is used if the user names none; see ``preference``.

        A plugin whose library is absent can be the default; using it then says what to install.

        Raises:
            PluginError: There is no plugin of this family.
        """
        return _find_preferred(family, self._of(family).values())

    def reference_runtime(self, format: str = "onnx") -> Runtime:
        """The runtime for artifacts of ``format`` if the user names none.

        Raises:
            PluginError: No runtime that can be used runs ``format``.
        """
        usable = [e for e in self._of("runtime").values() if e.problem is None]
        fitting = [e for e in usable if format in e.plugin.accepts]
        if not fitting:
            raise PluginError(f"no runtime runs {format}; see: optvet plugins")
        return self.runtime(_find_preferred("runtime", fitting))

    def evaluators(self, format: str = "onnx") -> list[Runtime]:
        """Runtimes that read models as the standard does, for what others cannot load."""
        usable = [e for e in self._of("runtime").values() if e.problem is None]
        return [
            self.runtime(e.name)
            for e in sorted(usable, key=lambda e: e.name)
            if format in e.plugin.accepts and extras(e.plugin, RuntimeExtras).evaluates
        ]

    def _get(self, family: Family, name: str, *, checked: bool = True) -> Any:
        entry = self._of(family).get(name)
        if entry is None:
            raise self._unknown(family, name, self.names(family))
        if entry.problem is not None and entry.elsewhere:
            raise UsageError(f"{family} {name!r} cannot be used: {entry.problem}")
        if entry.problem is not None:
            words = f"{family} {name!r} ({entry.origin}) cannot be used: {entry.problem}"
            raise PluginError(words) from entry.absent
        if family == "optimizer" and checked and name not in self._checked:
            optimizer_returns.check_passes(entry.plugin, entry.origin)
            self._checked.add(name)
        return entry.plugin

    def _unknown(self, kind: str, name: str, known: Sequence[str]) -> OptvetError:
        """That there is no such plugin: a broken module with an entry point of its name is why."""
        broken = [e for e in self._modules.failures() if not e.idle and e.name == name]
        if broken:
            origin, problem = broken[0].origin, broken[0].problem
            return PluginError(f"there is no {kind} {name!r}, since {origin} is broken: {problem}")
        return UnknownName(kind, name, known, "(see: optvet plugins)")

    def optimizer(self, name: str) -> Optimizer:
        """The optimizer of that name; UnknownName or PluginError if there is none.

        ``runtime:NAME`` is a runtime under test, see ``RuntimeTarget``.
        """
        if name.startswith(PREFIX):
            return self._runtime_target(name.removeprefix(PREFIX))
        plugin: Optimizer = self._get("optimizer", name)
        return plugin

    def _runtime_target(self, name: str, format: str = "onnx") -> RuntimeTarget:
        runtime = self.runtime(name)
        if format not in runtime.accepts:
            fitting = [e.name for e in self._of("runtime").values() if format in e.plugin.accepts]
            raise UsageError(
                f"{PREFIX}{name}: it runs {', '.join(sorted(runtime.accepts))}, and no {format}; "
                f"these do: {', '.join(sorted(fitting))}"
            )
        judge = self.reference_runtime(format)
        if judge.name == name:
            others = [r for r in self.evaluators(format) if r.name != name]
            if not others:
                raise UsageError(f"{PREFIX}{name}: no other runtime at hand can judge it")
            judge = others[0]
        return RuntimeTarget(runtime, judge)

    def optimizer_without_passes(self, name: str) -> Optimizer:
        """As ``optimizer``, for whoever does not ask for passes: these are not checked.

        A library is imported to tell its passes, which may take seconds.
        """
        if name.startswith(PREFIX):
            return self._runtime_target(name.removeprefix(PREFIX))
        plugin: Optimizer = self._get("optimizer", name, checked=False)
        return plugin

    def runtime(self, name: str) -> Runtime:
        """The runtime of that name; UnknownName or PluginError if there is none."""
        plugin: Runtime = self._get("runtime", name)
        return plugin

    def comparator(self, name: str) -> Comparator:
        """The comparator of that name; UnknownName or PluginError if there is none."""
        plugin: Comparator = self._get("comparator", name)
        return plugin

    def dataset(self, name: str) -> Dataset:
        """The dataset of that name; UnknownName or PluginError if there is none."""
        plugin: Dataset = self._get("dataset", name)
        return plugin

    def model_source(self, name: str) -> ModelSource:
        """The model source of that name; UnknownName or PluginError if there is none."""
        plugin: ModelSource = self._get("model source", name)
        return plugin

    def executor(self, name: str) -> Executor:
        """The executor of that name; UnknownName or PluginError if there is none."""
        plugin: Executor = self._get("executor", name)
        return plugin

    def reporter(self, name: str) -> Reporter:
        """The reporter of that name; UnknownName or PluginError if there is none."""
        plugin: Reporter = self._get("reporter", name)
        return plugin

    def converter(self, name: str) -> Converter:
        """The converter of that name; UnknownName or PluginError if there is none."""
        plugin: Converter = self._get("converter", name)
        return plugin

    def study(self, name: str) -> Study:
        """The study of that name; UnknownName or PluginError if there is none."""
        plugin: Study = self._get("study", name)
        return plugin

    def user_model(self, name: str) -> UserModel:
        """The user model of that name; UnknownName or PluginError if there is none."""
        plugin: UserModel = self._get("user model", name)
        return plugin

    def pool(self, name: str) -> Pool:
        """The pool of that name; UnknownName or PluginError if there is none."""
        entry = self._of("generator").get(name)
        if entry is None or provides(entry.plugin, Mutator):
            raise self._unknown("pool", name, self.pools())
        plugin = self._get("generator", name)
        found: Pool = plugin
        return found

    def pools(self) -> list[str]:
        """Names of the usable pools, sorted."""
        of = self._of("generator")
        return [n for n in self.names("generator") if provides(of[n].plugin, Pool)]

    def mutators(self) -> list[Mutator]:
        """All usable mutators, sorted by name."""
        of = self._of("generator")
        found = [of[n].plugin for n in self.names("generator")]
        return [m for m in found if isinstance(m, Mutator)]


def _moved_into(names: AbstractSet[str], entry: Loaded) -> Loaded:
    """A plugin that is absent here, usable in the first of its environments that is at hand."""
    known = environments_of(entry.plugin) if entry.elsewhere else ()
    home = next((name for name in known if name in names), None)
    return entry if home is None else replace(entry, problem=None, absent=None, elsewhere=home)


def _moved_near(names: Sequence[str], entry: Loaded) -> Loaded:
    """A plugin that is used in another environment, in one that is used in any case."""
    if not entry.elsewhere or entry.problem is not None:
        return entry
    known = environments_of(entry.plugin)
    return replace(entry, elsewhere=next((n for n in names if n in known), entry.elsewhere))


def _find_preferred(family: Family, entries: Iterable[Loaded]) -> str:
    if not (ranked := sorted((-_preference(e), e.name) for e in entries)):
        raise PluginError(f"there is no {family}; see: optvet plugins")
    return ranked[0][1]


def _preference(entry: Loaded) -> int:
    return extras(entry.plugin, PluginExtras).preference
