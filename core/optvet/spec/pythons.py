"""Environments of their own for plugins whose libraries do not fit into that of optvet."""

from __future__ import annotations

from dataclasses import dataclass


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
