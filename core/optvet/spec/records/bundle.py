"""A finding in a bundle, its replay, and the replays of several bundles."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from optvet.spec.records.base import Record, Result
from optvet.spec.records.error import ErrorRecord
from optvet.spec.records.vet import Finding
from optvet.spec.symptoms import Symptom


class Reproduction(Record):
    """``finding.json``: what a bundle shows, and everything that a replay needs.

    ``finding`` was observed on the model of the bundle; ``nodes`` are the numbers of nodes before
    and after reducing. ``normalized_message`` is a failure's message without names and numbers.
    ``passes`` are applied: the culprit and the required passes. ``inputs`` and ``outputs`` name the
    arrays of ``inputs.npz`` and ``expected.npz``, in order. ``script_exit`` is the exit code of
    ``repro.py`` when the bundle was written; None if it did not end. ``timeout_s`` and
    ``memory_bytes`` are the limits of one step. Of a requirement on a metric, ``comparator`` with
    ``comparator_options`` measures it, and ``noise`` is the absolute noise of each sample's
    outputs, where known. Of several ``samples``, ``inputs.npz`` and ``expected.npz`` have one after
    the other.
    """

    schema_: Literal["optvet.finding/3"] = Field("optvet.finding/3", alias="schema")
    fingerprint: str
    finding: Finding
    normalized_message: str = ""
    model: str
    nodes: tuple[int, int]
    optimizer: str
    optimizer_options: dict[str, Any]
    passes: list[str]
    runtime: str
    runtime_options: dict[str, Any]
    inputs: list[str]
    outputs: list[str]
    versions: dict[str, str]
    timeout_s: float
    memory_bytes: int = 8 << 30
    script_exit: int | None = None
    comparator: str | None = None
    comparator_options: dict[str, Any] = Field(default_factory=dict)
    noise: list[dict[str, float]] = Field(default_factory=list)
    samples: int = 1


ReplayOutcome = Literal["fixed", "still there", "changed"]


class Replayed(Result):
    """The outcome of a replay: what a bundle shows under the installed versions."""

    schema_: Literal["optvet.replay/2"] = Field("optvet.replay/2", alias="schema")
    bundle: str
    outcome: ReplayOutcome
    was: Finding
    now: Symptom | None
    message: str = ""
    versions_then: dict[str, str]
    versions_now: dict[str, str]

    def headline(self) -> str:
        """The bundle and the outcome."""
        return f"{self.outcome}: {self.bundle}{f' ({self.message})' if self.message else ''}"

    def rows(self) -> list[dict[str, Any]]:
        """One row per library whose version may matter."""
        names = sorted({*self.versions_then, *self.versions_now})
        then, now = self.versions_then, self.versions_now
        return [{"library": n, "then": then.get(n), "now": now.get(n)} for n in names]


class Replays(Record):
    """The outcome of several replays, in the order in which they were made."""

    schema_: Literal["optvet.replays/1"] = Field("optvet.replays/1", alias="schema")
    results: list[Replayed | ErrorRecord]
