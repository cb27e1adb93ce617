"""Finding plugins: sorted by name, each loaded on its own, failures and duplicates reported.

pluggy's own entry-point loader stops at the first plugin that fails to import, and silently drops
duplicate names.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, Literal

from optvet.engine import processes
from optvet.engine.contract import checked_calls, optimizer_returns
from optvet.engine.hook_calls import call_hooks, find_slips
from optvet.engine.plugin_form import describe_missing, describe_wrong_attribute
from optvet.engine.processes import LocalExecutor
from optvet.engine.signatures import describe_unsendable, describe_wrong_signature
from optvet.spec.converters import Converter
from optvet.spec.errors import (
    MissingLibrary,
    OptvetError,
    PluginError,
    UnknownName,
    UsageError,
    absence_of,
)
from optvet.spec.executor import Executor
from optvet.spec.generators import Generator, Mutator, Pool
from optvet.spec.protocols import (
    Comparator,
    Dataset,
    Evaluates,
    ModelSource,
    Optimizer,
    Preferred,
    Reporter,
    Runtime,
    SetsEnvironment,
    Wants,
)
from optvet.spec.pythons import NeedsPython
from optvet.spec.studies import Study
from optvet.spec.user_model import UserModel

Family = Literal[
    "optimizer",
    "runtime",
    "comparator",
    "dataset",
    "model source",
    "executor",
    "reporter",
    "generator",
    "converter",
    "study",
    "user model",
]

_HOOKS: dict[Family, tuple[str, type]] = {
    "optimizer": ("optvet_optimizers", Optimizer),
    "runtime": ("optvet_runtimes", Runtime),
    "comparator": ("optvet_comparators", Comparator),
    "dataset": ("optvet_datasets", Dataset),
    "model source": ("optvet_model_sources", ModelSource),
    "executor": ("optvet_executors", Executor),
    "reporter": ("optvet_reporters", Reporter),
    "generator": ("optvet_generators", Generator),
    "converter": ("optvet_converters", Converter),
    "study": ("optvet_studies", Study),
    "user model": ("optvet_user_models", UserModel),
}


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
    distribution: str = SELF


class Plugins:
    """All plugins that were found."""

    def __init__(self, found: Iterable[EntryPoint] | None = None) -> None:
        """Load every plugin of ``found`` (default: all entry points of group "optvet")."""
        points = entry_points(group="optvet") if found is None else found
        self.installed = found is None
        """Whether these are the plugins that are installed, no more and no less."""
        self._entries: list[Loaded] = []
        self._checked: set[str] = set()
        # Built-in plugins first: they turn off the telemetry of libraries, which a third party's
        # module may import at its top.
        for point in sorted(points, key=lambda p: (not _is_built_in(p), p.name, p.value)):
            self._load(point)
        if found is None:
            # The engine's own: whatever is not installed, campaigns can be run.
            own = Loaded(None, "", f"{processes.__name__} ({SELF})", built_in=True)
            self._entries.append(_entry("executor", Executor, LocalExecutor(), own))
        self._entries = _without_clashes(self._entries)

    def _load(self, point: EntryPoint) -> None:
        """Take the plugins of one module: what fails costs no more than itself."""
        base = Loaded(
            None,
            point.name,
            _origin(point),
            built_in=_is_built_in(point),
            distribution=_name_and_version(point.dist)[0] if point.dist else SELF,
        )
        try:
            module = point.load()
        except (Exception, SystemExit) as error:
            problem = f"its import raised {_words(error)}"
            self._entries.append(replace(base, problem=problem, absent=absence_of(error)))
            return
        calls = call_hooks(module, {family: hook for family, (hook, _) in _HOOKS.items()})
        for family, plugin in ((c.family, plugin) for c in calls for plugin in c.plugins):
            entry = _entry(family, _HOOKS[family][1], plugin, base)
            if not base.built_in and entry.problem is None:
                entry = replace(entry, problem=describe_unsendable(family, plugin))
            self._entries.append(entry)
        hooks_known = [hook for hook, _ in _HOOKS.values()]
        problems = [c.problem for c in calls if c.problem] + find_slips(module, hooks_known)
        if problems:
            absent = next((c.absent for c in calls if c.absent), None)
            self._entries.append(replace(base, problem="; ".join(problems), absent=absent))
        elif not any(c.plugins for c in calls):
            self._entries.append(replace(base, problem=_nothing_from(module), idle=True))

    def register(self, family: Family, plugin: Any) -> Plugins:
        """Add a plugin object without an entry point, for tests; returns this registry."""
        base = Loaded(None, "", f"{type(plugin).__module__} (registered by hand)")
        entry = _entry(family, _HOOKS[family][1], plugin, base)
        self._entries = _without_clashes([*self._entries, entry])
        self.installed = False
        return self

    def extend(self, family: Family, plugin: Any) -> Plugins:
        """A copy of this registry with one more plugin object."""
        other = copy.copy(self)
        return other.register(family, plugin)

    def with_environments(self, names: AbstractSet[str]) -> Plugins:
        """A copy of this registry in which plugins of these environments can be used."""
        other = copy.copy(self)
        other._entries = [
            replace(e, problem=None, absent=None) if e.elsewhere in names and e.elsewhere else e
            for e in self._entries
        ]
        return other

    def home_of(self, plugin: object) -> str:
        """The environment of its own that a plugin is used in; empty for optvet's."""
        return next((e.elsewhere for e in self._entries if e.plugin is plugin), "")

    def all(self) -> list[Loaded]:
        """Every plugin object and every failure, sorted by family and name."""
        order = [*_HOOKS, None]
        return sorted(self._entries, key=lambda e: (order.index(e.family), e.name))

    def _of(self, family: Family) -> Mapping[str, Loaded]:
        """Plugins of one family by name; if several have one name, the usable one, if any."""
        return {e.name: e for e in self._entries if e.family == family and not e.displaced}

    def names(self, family: Family) -> list[str]:
        """Names of the usable plugins of a family, sorted."""
        return sorted(n for n, e in self._of(family).items() if e.problem is None)

    def default(self, family: Family) -> str:
        """Name of the plugin that is used if the user names none; see ``Preferred``.

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
            if format in e.plugin.accepts and isinstance(e.plugin, Evaluates) and e.plugin.evaluates
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
        broken = [e for e in self._entries if e.family is None and not e.idle and e.name == name]
        if broken:
            origin, problem = broken[0].origin, broken[0].problem
            return PluginError(f"there is no {kind} {name!r}, since {origin} is broken: {problem}")
        return UnknownName(kind, name, known, "(see: optvet plugins)")

    def optimizer(self, name: str) -> Optimizer:
        """The optimizer of that name; UnknownName or PluginError if there is none."""
        plugin: Optimizer = self._get("optimizer", name)
        return plugin

    def optimizer_without_passes(self, name: str) -> Optimizer:
        """As ``optimizer``, for whoever does not ask for passes: these are not checked.

        A library is imported to tell its passes, which may take seconds.
        """
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
        if entry is None or isinstance(entry.plugin, Mutator):
            raise self._unknown("pool", name, self.pools())
        plugin = self._get("generator", name)
        found: Pool = plugin
        return found

    def pools(self) -> list[str]:
        """Names of the usable pools, sorted."""
        of = self._of("generator")
        return [n for n in self.names("generator") if isinstance(of[n].plugin, Pool)]

    def mutators(self) -> list[Mutator]:
        """All usable mutators, sorted by name."""
        of = self._of("generator")
        found = [of[n].plugin for n in self.names("generator")]
        return [m for m in found if isinstance(m, Mutator)]


def _find_preferred(family: Family, entries: Iterable[Loaded]) -> str:
    if not (ranked := sorted((-_preference(e), e.name) for e in entries)):
        raise PluginError(f"there is no {family}; see: optvet plugins")
    return ranked[0][1]


def _preference(entry: Loaded) -> int:
    return entry.plugin.preference if isinstance(entry.plugin, Preferred) else 0


# --- one module ----------------------------------------------------------------------------------


def _entry(family: Family, protocol: type, plugin: Any, module: Loaded) -> Loaded:
    """One plugin object of ``module``, with the problem if it cannot be used."""
    name = getattr(plugin, "name", type(plugin).__name__)
    lacks: tuple[str, ...] = ()
    problem = version = absent = None
    elsewhere = ""
    if not isinstance(plugin, protocol):
        problem = describe_missing(protocol, plugin)
    else:
        problem = describe_wrong_attribute(family, plugin) or describe_wrong_signature(
            family, protocol, plugin
        )
    if problem is None and isinstance(plugin, Wants):
        lacks = tuple(m for m in plugin.wants if find_spec(m) is None)
    if problem is None:
        set_environment(plugin)
    if problem is None and hasattr(plugin, "version"):
        try:
            version = plugin.version()
        except Exception as error:
            raised = "" if isinstance(error, ImportError) else "version() raised "
            problem, absent = raised + _words(error), absence_of(error)
            if isinstance(error, ImportError) and isinstance(plugin, NeedsPython):
                elsewhere, absent = plugin.python_environment.name, None
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
    )


def set_environment(*plugins: Any) -> None:
    """Set the variables that ``plugins`` declare, for this process and its children.

    Variables that are already set are kept, since the user has set them.
    """
    for plugin in plugins:
        if isinstance(plugin, SetsEnvironment):
            for name, value in plugin.environment.items():
                os.environ.setdefault(name, value)


def _nothing_from(module: Any) -> str:
    known = [hook for hook, _ in _HOOKS.values()]
    empty = [name for name in known if hasattr(module, name)]
    if empty:
        return f"gives no plugin: {' and '.join(f'{n}()' for n in empty)} returned none"
    return f"gives no plugin: it has no hook of optvet, such as {known[0]}"


# --- several modules -----------------------------------------------------------------------------


def _without_clashes(entries: Sequence[Loaded]) -> list[Loaded]:
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


def _words(error: BaseException) -> str:
    if isinstance(error, MissingLibrary):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _is_built_in(point: EntryPoint) -> bool:
    return point.dist is not None and _name_and_version(point.dist)[0] == SELF


def _origin(point: EntryPoint) -> str:
    return (
        f"{point.value} ({' '.join(_name_and_version(point.dist))})" if point.dist else point.value
    )


@lru_cache(maxsize=64)
def _name_and_version(distribution: Distribution) -> tuple[str, str]:
    """Kept, since either parses the whole metadata, and a distribution has many entry points."""
    return distribution.name, distribution.version
