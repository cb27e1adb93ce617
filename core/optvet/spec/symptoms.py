"""What can go wrong, and where in a trial."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

Stage = Literal["build", "check", "load", "run", "compare"]
"""Where in a trial something happened, in the order in which a trial goes through them."""


class Symptom(StrEnum):
    """What went wrong. Members are ordered from the earliest stage to the latest."""

    OPTIMIZER_ERROR = "optimizer-error"
    OPTIMIZER_ABORT = "optimizer-abort"
    CRASH = "crash"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out-of-memory"
    INVALID_MODEL = "invalid-model"
    LOAD_FAILURE = "load-failure"
    RUN_FAILURE = "run-failure"
    INTERFACE_CHANGE = "interface-change"
    WRONG_OUTPUT = "wrong-output"
    REQUIREMENT = "requirement"
    SENSITIVITY = "sensitivity"
    SLOWDOWN = "slowdown"
    BLOAT = "bloat"
    METADATA_CHANGE = "metadata-change"
    PORTABILITY = "portability"


NOTES = frozenset(
    {
        Symptom.SENSITIVITY,
        Symptom.SLOWDOWN,
        Symptom.BLOAT,
        Symptom.METADATA_CHANGE,
        Symptom.PORTABILITY,
    }
)
"""Symptoms that are reported but do not make the verdict "faulty"."""
