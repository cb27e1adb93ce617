"""Calling the hooks of one plugin module: each on its own, what it raises and returns checked.

pluggy would look at everything in the module, refuse all of it for one wrong signature, and ignore
functions that only look like hooks.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, TypeVar

import pluggy

from optvet.engine.contract.checked_calls import kind_of
from optvet.spec import hooks
from optvet.spec.errors import MissingLibrary, absence_of

FamilyT = TypeVar("FamilyT", bound=str)


@dataclass(frozen=True)
class HookCall(Generic[FamilyT]):
    """What one hook gave: plugin objects, or the problem in words, and the absent module."""

    family: FamilyT
    plugins: Sequence[Any] = ()
    problem: str = ""
    absent: ModuleNotFoundError | MissingLibrary | None = None


def call_hooks(module: Any, known: Mapping[FamilyT, str]) -> list[HookCall[FamilyT]]:
    """Call each hook of ``module`` that is marked as one.

    Args:
        module: The plugin's module.
        known: Names of hooks by family.
    """
    return [
        _call(family, hook, function)
        for family, hook in known.items()
        if hasattr(function := getattr(module, hook, None), "optvet_impl")
    ]


def _call(family: FamilyT, hook: str, function: Any) -> HookCall[FamilyT]:
    wrong = _find_parameters(hook, function)
    if wrong:
        return HookCall(family, problem=wrong)
    try:
        groups = _call_by_pluggy(hook, function)
        return HookCall(family, [plugin for group in groups for plugin in group])
    except (Exception, SystemExit) as error:
        if isinstance(error, _WrongGroup):
            return HookCall(family, problem=str(error))
        words = f"{hook}() raised {type(error).__name__}: {error}"
        return HookCall(family, problem=words, absent=absence_of(error))


class _WrongGroup(TypeError):
    """A hook returned something else than a list of plugin objects."""


def _call_by_pluggy(hook: str, function: Any) -> list[list[Any]]:
    """What pluggy gets from the hook: wrappers and other options of its marker are pluggy's."""
    manager = pluggy.PluginManager("optvet")
    # Of this hook alone, since pluggy looks at every name it is given.
    specification = ModuleType("hooks")
    setattr(specification, hook, getattr(hooks, hook))
    manager.add_hookspecs(specification)
    holder = ModuleType("hooks")
    setattr(holder, hook, function)
    manager.register(holder)
    return [_objects(hook, group) for group in getattr(manager.hook, hook)()]


def _objects(hook: str, group: Any) -> list[Any]:
    if not isinstance(group, Iterable) or isinstance(group, str | bytes | Mapping):
        raise _WrongGroup(f"{hook}() returned {kind_of(group)}, expected a list of plugin objects")
    return list(group)


def _find_parameters(hook: str, function: Any) -> str:
    """What is wrong with the parameters of a hook, which has none; empty if nothing."""
    try:
        signature = inspect.signature(function)
        signature.bind()
    except TypeError:
        return f"{hook}() takes {', '.join(signature.parameters)}; expected no parameters"
    except ValueError:
        return ""  # a function without a signature
    return ""


def find_slips(module: Any, known: Sequence[str]) -> list[str]:
    """Functions that look like hooks of optvet but are not, which pluggy ignores."""
    slips = []
    for name, function in vars(module).items():
        if not inspect.isfunction(function) or function.__module__ != module.__name__:
            continue
        marked = hasattr(function, "optvet_impl")
        if not (marked or name in known or name.startswith("optvet_")):
            continue
        if name in known and marked:
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        if name in known:
            slips.append(f"{name} has no @hookimpl above it; import it from optvet.plugin")
        elif marked:
            advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            slips.append(f"{name} is no hook of optvet; {advice}")
        elif near:
            slips.append(f"{name} is no hook of optvet; did you mean {near[0]}? (with @hookimpl)")
    return slips
