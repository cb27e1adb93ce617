"""Limits of a task, and its outcome."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Generic, Literal, TypeVar

from optvet.engine.judge.failures import in_words
from optvet.spec.symptoms import Stage
from optvet.spec.types import Failure

T = TypeVar("T")

Role = Literal["tested", "judging"]
"""Whether a task runs code under test ("tested") or not ("judging"); fixed for each worker."""


@dataclass(frozen=True)
class Limits:
    """Limits of one task.

    Attributes:
        timeout_s: Wall clock of one task, seconds.
        memory_bytes: Address space that a task may add to its worker's.
        single_task: A worker ends after one task: used for tasks that take gigabytes.
        keeps_memory: A worker keeps the memory that it frees, to use it again: quicker, but it may
            take more of it.
        writable: Folders in which a task may write beside those for temporary files; None if it
            may write everywhere, and connect.
    """

    timeout_s: float = 120.0
    memory_bytes: int = 8 << 30
    _: KW_ONLY
    single_task: bool = False
    keeps_memory: bool = True
    writable: tuple[str, ...] | None = ()


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What a task returned, or how it failed: ``failure`` is None if it returned ``value``.

    ``stderr`` is what a task that returned has written there: one text per stage that it entered,
    in order; empty if it wrote nothing.
    """

    value: T | None
    failure: Failure | None
    stderr: tuple[tuple[Stage, str], ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the task returned a value."""
        return self.failure is None


def describe(failure: Failure) -> str:
    """One failure in words: what failed, how, and its message."""
    return in_words(failure)
