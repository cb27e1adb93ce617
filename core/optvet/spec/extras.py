"""Optional members of plugins: which of them a plugin gives, and what holds where it gives none.

Each family has a class of members that a plugin may give, such as ``OptimizerExtras``, with the
value of each attribute and the result of each method of a plugin that lacks it. A method that
raises NotImplementedError has no such result: ask with ``given`` whether it is there. A plugin
gives a member by having one of the same name; inheriting from the class is allowed, not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import isfunction
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from optvet.spec.pythons import PythonEnvironment
from optvet.spec.types import LogFormat

if TYPE_CHECKING:
    # Documents take a fifth of a second to import, which workers would spend for nothing.
    from optvet.spec.environment import Installation
    from optvet.spec.records.doctor import Check

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E")


def given(plugin: object, member: Callable[Concatenate[Any, P], R]) -> Callable[P, R] | None:
    """The plugin's own method for ``member``, such as ``OptimizerExtras.snippet``; else None."""
    own = getattr(plugin, member.__name__, None)
    # Who inherits from the class of extras has all of them, and gives those that are overridden.
    return None if getattr(own, "__func__", None) is member else own


def extras(plugin: object, kind: type[E]) -> E:
    """``plugin`` with the defaults of ``kind``, a class of extras, for what it lacks."""
    return cast(E, _WithDefaults(plugin, kind))


class _WithDefaults:
    def __init__(self, plugin: object, kind: type) -> None:
        self._plugin, self._kind = plugin, kind

    def __getattr__(self, name: str) -> Any:
        default = getattr(self._kind, name)
        own = getattr(self._plugin, name, None)
        if own is None and isfunction(default):
            return MethodType(default, self._plugin)
        return default if own is None else own


class PluginExtras:
    """Optional members of every plugin."""

    preference: int = 0
    """Priority as the default of its family: the highest wins, then the first by name.

    Built-in defaults have 100. A plugin with more becomes the default for everybody who installs
    it. Defaults are used where the user names no plugin: the default optimizer is vetted; the
    default runtime runs the models, among the runtimes that accept their format; the default
    dataset makes inputs; the default comparator is used where no other one matches; the default
    model source opens paths; of several converters to ONNX that fit a source, the one with the
    highest preference is taken.
    """

    wants: Sequence[str] = ()
    """Modules that add features: ``optvet plugins`` shows the extra that installs a missing one."""

    libraries: Mapping[str, str] = {}
    """The libraries that it needs, as modules by distribution: ``{"Pillow": "PIL"}``.

    ``optvet doctor`` lists their versions, imports each in a worker, and warns of a folder in the
    working directory that Python would import in place of one.
    """

    imports: Mapping[str, Sequence[str]] = {}
    """What its libraries import without requiring it: ``{"acme": ("torch",)}``.

    ``optvet doctor`` imports these distributions in one process, a large library once.
    """

    environment: Mapping[str, str] = {}
    """Environment variables of its libraries, such as the switches that turn telemetry off.

    They are set when plugins are discovered, before ``version`` is called and so before a library
    is imported, for this process and its children; and at the top of ``repro.py``. Variables that
    the user has set are kept. Most libraries read such variables once, when they are imported.
    """

    def diagnose(self, installation: Installation) -> Iterable[Check]:
        """Checks for ``optvet doctor``: a release that crashes, hardware that is not used.

        Called in the doctor's process, even if the library is absent or cannot be imported. Import
        native code by ``installation.run`` only. ``installation`` has what the doctor found so far;
        ``installation.pip`` is the command for cures (``pip`` or ``uv pip``).

        A check with the same ``name`` and ``about`` as one of the engine's replaces it. The
        engine's checks are "packages", about the two names of a collision, or about name and
        requirement of an unmet requirement; "libraries", about a distribution that cannot be
        imported; and "working directory", about a module that a file there would hide.
        """
        return ()


class WorkerExtras:
    """Optional members of an optimizer or a runtime, whose library runs in workers."""

    log_format: LogFormat | None = None
    """Format of its library's log, for the warnings on stderr.

    An example: ``LogFormat(r"(?P<severity>WARN|INFO): (?P<text>.*)", frozenset({"WARN"}))``. Lines
    of these severities are warnings, other lines of this form are not; only ``errors`` may explain
    a crash that follows. Without it every line is a warning, except for continuations, progress
    bars and lines of a common level such as ``INFO``. Do not silence warnings in the plugin.
    """

    def check_options(self, options: Any) -> None:
        """Refuse options early by UsageError, such as a device that is absent.

        Called once in a worker, before any work; for the defaults, once per version of plugin and
        library. The message names the option and its value. Ranges of values belong in the options'
        model, such as ``Field(ge=0)``.
        """


class EnvironmentExtras:
    """Optional members of a runtime or a converter whose library needs its own packages."""

    python_environment: PythonEnvironment | None = None
    """A Python environment of its own, made by ``optvet env make``, if its library needs one.

    Whatever the plugin does is done in worker processes of that environment's interpreter. If
    ``version`` finds the library in optvet's own environment, it is used from there.
    """

    other_environments: Sequence[str] = ()
    """Further environments that have its library: the first that is made replaces its own."""
