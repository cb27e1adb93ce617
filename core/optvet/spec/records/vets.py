"""Answers about several models: document ``optvet.vets/1``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from optvet.spec.records.base import Record
from optvet.spec.records.error import ErrorRecord
from optvet.spec.records.vet import VetResult


class VetResults(Record):
    """One answer per model, in the order in which they were vetted."""

    schema_: Literal["optvet.vets/1"] = Field("optvet.vets/1", alias="schema")
    results: list[VetResult | ErrorRecord]
