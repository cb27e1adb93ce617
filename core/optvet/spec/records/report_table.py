"""A table of a report or of an answer; every study imports it, and few the rest of reports."""

from __future__ import annotations

from optvet.spec.records.base import Record


class ReportTable(Record):
    """A table that stands in a report as it is: a title, a remark, and rows below columns.

    ``brief`` ones stand in summaries too.
    """

    title: str
    note: str = ""
    brief: bool = False
    columns: list[str]
    rows: list[list[str | int | float | None]]
