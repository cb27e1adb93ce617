"""Findings as they are kept, and judged again: ``optvet.finding/2`` and ``optvet.replay/2``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from optvet.spec.records.base import Record
from optvet.spec.records.vet import Finding
from optvet.spec.types import Symptom


class Reproduction(Record):
    """``finding.json``: what a bundle shows, and all that judging it again needs.

    ``finding`` is as seen on the model of the bundle; ``nodes`` counts before and after reducing.
    ``normalized_message`` are the words of a failure without names and numbers. ``passes`` are
    applied: the culprit with what the optimizer cannot do without. ``inputs`` and ``outputs`` name
    the arrays of ``inputs.npz`` and ``expected.npz`` in their order. ``script_exit`` is what
    ``repro.py`` ended with when the bundle was written; None if it did not end. ``timeout_s`` and
    ``memory_bytes`` are the limits of one step.
    """

    schema_: Literal["optvet.finding/2"] = Field("optvet.finding/2", alias="schema")
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


ReplayOutcome = Literal["fixed", "still there", "changed"]


class Replayed(Record):
    """What a bundle shows under the versions that are installed now."""

    schema_: Literal["optvet.replay/2"] = Field("optvet.replay/2", alias="schema")
    bundle: str
    outcome: ReplayOutcome
    was: Finding
    now: Symptom | None
    message: str = ""
    versions_then: dict[str, str]
    versions_now: dict[str, str]
