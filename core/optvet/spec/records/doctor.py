"""The answer of ``optvet doctor`` as it is written to JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from optvet.spec.records.base import Record

Status = Literal["ok", "absent", "warning", "broken"]
STATUSES: tuple[Status, ...] = ("broken", "warning", "absent", "ok")
"""From the most to the least serious."""


class Check(Record):
    """The result of one check.

    ``cure`` is what to do, a command if there is one; empty if all is well. ``about`` names the
    distributions, or the module, that the check is about. If a plugin and the engine make checks
    with the same ``name`` and ``about``, the plugin's is used.
    """

    name: str
    status: Status
    message: str
    cure: str = ""
    about: tuple[str, ...] = ()


class Diagnosis(Record):
    """All checks; ``libraries`` maps distributions to versions, None if absent."""

    schema_: Literal["optvet.doctor/1"] = Field("optvet.doctor/1", alias="schema")
    environment: dict[str, str]
    libraries: dict[str, str | None]
    checks: list[Check]

    @property
    def broken(self) -> bool:
        """Whether a check has the status "broken"."""
        return any(c.status == "broken" for c in self.checks)
