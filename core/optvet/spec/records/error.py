"""Why there is no answer for one of several models: document ``optvet.error/1``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from optvet.spec.records.base import Record
from optvet.spec.symptoms import Symptom


class ErrorSource(Record):
    """The model that was asked for."""

    source: str


class ErrorRecord(Record):
    """An error in place of a result; ``exit_code`` is what the model alone would have given.

    ``symptom`` is "refused" if the program under test does not take the model, as of conversions.
    """

    schema_: Literal["optvet.error/1"] = Field("optvet.error/1", alias="schema")
    model: ErrorSource
    error: str
    message: str
    exit_code: int
    symptom: Symptom | None = None
