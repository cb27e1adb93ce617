"""Environments of their own for plugins whose libraries do not fit into that of optvet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class PythonEnvironment:
    """A virtual environment that several plugins may share.

    Attributes:
        name: ``optvet env make NAME``; lower case.
        requirements: What pip installs there, pinned. What worker processes of optvet need
            themselves is added.
        modules: What can be imported there if it is whole.
    """

    name: str
    requirements: tuple[str, ...]
    modules: tuple[str, ...] = ()


@runtime_checkable
class NeedsPython(Protocol):
    """Optional part of a converter or runtime: its library lives in an environment of its own.

    Whatever it does is done in worker processes of that environment's interpreter. If ``version``
    finds the library in optvet's own environment, it is used from there.

    Attributes:
        python_environment: The environment.
    """

    python_environment: PythonEnvironment


@runtime_checkable
class FitsOtherPythons(Protocol):
    """Optional part of a plugin with ``NeedsPython``: other environments have its library too.

    It is used in its own environment if that is made, else in the first of these that is.

    Attributes:
        other_environments: Their names.
    """

    other_environments: Sequence[str]
