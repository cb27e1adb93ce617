"""The answer of ``optvet doctor`` as it is written to JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from optvet.spec.records.base import Record

Status = Literal["ok", "absent", "warning", "broken"]
STATUSES: tuple[Status, ...] = ("broken", "warning", "absent", "ok")
"""From the worst."""


class Check(Record):
    """One thing that was looked at.

    ``cure`` is what to do, a command where there is one; empty if all is well. ``about`` names the
    distributions, or the module, that the check is about; of two checks with one ``name`` that are
    about the same, a plugin's takes the place of the engine's.
    """

    name: str
    status: Status
    message: str
    cure: str = ""
    about: tuple[str, ...] = ()


class Diagnosis(Record):
    """All that was found out; ``libraries`` maps distributions to versions, None if absent."""

    schema_: Literal["optvet.doctor/1"] = Field("optvet.doctor/1", alias="schema")
    environment: dict[str, str]
    libraries: dict[str, str | None]
    checks: list[Check]

    @property
    def broken(self) -> bool:
        """Whether something does not work that should."""
        return any(c.status == "broken" for c in self.checks)
