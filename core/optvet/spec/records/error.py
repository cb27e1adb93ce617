"""Why there is no answer for one of several models: document ``optvet.error/1``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from optvet.spec.records.base import Record


class ErrorSource(Record):
    """The model that was asked for."""

    source: str


class ErrorRecord(Record):
    """An error in place of a result; ``exit_code`` is what the model alone would have given."""

    schema_: Literal["optvet.error/1"] = Field("optvet.error/1", alias="schema")
    model: ErrorSource
    error: str
    message: str
    exit_code: int
