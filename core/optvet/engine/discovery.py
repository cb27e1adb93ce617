"""Finding plugins: sorted by name, each loaded on its own, failures and duplicates reported.

pluggy's own entry-point loader gives up at the first plugin that fails to import and drops
duplicate names without a word; a framework made of plugins can afford neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, Literal

import pluggy

from optvet.spec import hooks
from optvet.spec.errors import PluginError, UnknownName
from optvet.spec.protocols import Comparator, Dataset, ModelSource, Optimizer, Runtime

Family = Literal["optimizer", "runtime", "comparator", "dataset", "model source"]

_HOOKS: dict[Family, tuple[str, type]] = {
    "optimizer": ("optvet_optimizers", Optimizer),
    "runtime": ("optvet_runtimes", Runtime),
    "comparator": ("optvet_comparators", Comparator),
    "dataset": ("optvet_datasets", Dataset),
    "model source": ("optvet_model_sources", ModelSource),
}


@dataclass(frozen=True)
class Loaded:
    """One plugin object, or the reason why there is none.

    ``origin`` names module, distribution and version; ``version`` is that of the library
    underneath, where the family has one. ``lacks`` are the modules that it ``wants``, does without,
    and that are not installed.
    """

    family: Family | None
    name: str
    origin: str
    plugin: Any = None
    version: str | None = None
    problem: str | None = None
    lacks: tuple[str, ...] = ()


class Plugins:
    """All plugins that were found; the only place that talks to pluggy."""

    def __init__(self, found: Iterable[EntryPoint] | None = None) -> None:
        """Load every plugin of ``found`` (default: all entry points of group "optvet")."""
        points = entry_points(group="optvet") if found is None else found
        self._entries: list[Loaded] = []
        for point in sorted(points, key=lambda p: (p.name, p.value)):
            self._load(point)

    def _load(self, point: EntryPoint) -> None:
        origin = _origin(point)
        manager = pluggy.PluginManager("optvet")
        manager.add_hookspecs(hooks)
        try:
            manager.register(point.load(), name=point.name)
            for family, (hook, protocol) in _HOOKS.items():
                for group in getattr(manager.hook, hook)():
                    for plugin in group:
                        self._add(family, protocol, plugin, origin)
        except Exception as error:  # a broken plugin must not take the others down
            reason = f"{type(error).__name__}: {error}"
            self._entries.append(Loaded(None, point.name, origin, problem=reason))

    def _add(self, family: Family, protocol: type, plugin: Any, origin: str) -> None:
        name = getattr(plugin, "name", type(plugin).__name__)
        problem = version = None
        if not isinstance(plugin, protocol):
            missing = [m for m in _members(protocol) if not hasattr(plugin, m)]
            problem = f"does not provide {', '.join(missing)}"
        twin = next((e for e in self._entries if (e.family, e.name) == (family, name)), None)
        if twin is not None:
            problem = f"two {family}s are named {name!r}: {twin.origin} and {origin}; rename one"
        if problem is None and hasattr(plugin, "version"):
            try:
                version = plugin.version()
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
        lacks = tuple(m for m in getattr(plugin, "wants", ()) if find_spec(m) is None)
        self._entries.append(Loaded(family, name, origin, plugin, version, problem, lacks))

    def register(self, family: Family, plugin: Any) -> Plugins:
        """Add one plugin object that no entry point names, as tests do; returns this registry."""
        origin = f"{type(plugin).__module__} (registered by hand)"
        self._add(family, _HOOKS[family][1], plugin, origin)
        return self

    def all(self) -> list[Loaded]:
        """Every plugin object and every failure, sorted by family and name."""
        order = [*_HOOKS, None]
        return sorted(self._entries, key=lambda e: (order.index(e.family), e.name))

    def _usable(self, family: Family) -> Mapping[str, Loaded]:
        usable: dict[str, Loaded] = {}
        for entry in self._entries:
            if entry.family == family:
                # The last of one name carries the complaint about all: neither is used.
                usable[entry.name] = entry
        return usable

    def names(self, family: Family) -> list[str]:
        """Names of one family that loaded, sorted."""
        return sorted(n for n, e in self._usable(family).items() if e.problem is None)

    def _get(self, family: Family, name: str) -> Any:
        entry = self._usable(family).get(name)
        if entry is None:
            raise UnknownName(family, name, self.names(family), "(see: optvet plugins)")
        if entry.problem is not None:
            raise PluginError(f"{family} {name!r} ({entry.origin}) cannot be used: {entry.problem}")
        return entry.plugin

    def optimizer(self, name: str) -> Optimizer:
        """The optimizer of that name; UnknownName or PluginError if there is none."""
        plugin: Optimizer = self._get("optimizer", name)
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


def _origin(point: EntryPoint) -> str:
    dist = point.dist
    return f"{point.value} ({dist.name} {dist.version})" if dist else point.value


def _members(protocol: type) -> list[str]:
    annotations = list(getattr(protocol, "__annotations__", {}))
    return sorted({*annotations, *(m for m in vars(protocol) if not m.startswith("_"))})
