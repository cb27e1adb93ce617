"""The register of evil passes: what each does, and which answers about it are true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Rewrite = Callable[[bytes], object]


@dataclass(frozen=True)
class Returns:
    """What an optimizer hands back at once, in place of an artifact."""

    value: object


@dataclass(frozen=True)
class Kind:
    """One evil pass.

    ``answers`` are the symptoms that may be reported, with this pass as the culprit; "clean",
    "drift" and "undecided" are verdicts without any, and "refused" is an error that names the
    plugin, since what is handed back breaks its contract. ``waits`` tells that the time limit is
    used up.
    """

    name: str
    rewrite: Rewrite
    answers: frozenset[str]
    waits: bool


KINDS: dict[str, Kind] = {}


def kind(*answers: str, waits: bool = False) -> Callable[[Rewrite], Rewrite]:
    """Register a function as an evil pass of its own name."""

    def register(rewrite: Rewrite) -> Rewrite:
        name = rewrite.__name__
        assert name not in KINDS
        KINDS[name] = Kind(name, rewrite, frozenset(answers), waits)
        return rewrite

    return register


def destroyed(data: bytes) -> bytes:
    """The model with every Relu turned into Tanh: it computes something else."""
    assert b"Relu" in data
    return data.replace(b"Relu", b"Tanh")
