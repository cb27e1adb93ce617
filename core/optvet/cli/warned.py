"""Warnings of optimizer and runtime on the screen: a line of the new ones, a table of all."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from optvet.cli.fitted_table import FittedTable
from optvet.cli.terminal import one_line
from optvet.spec.records import WarningRecord
from optvet.spec.words import printable

_LISTED = 2
_LINE_CHARS = 80
_TABLE_CHARS = 500


def warnings_text(records: Sequence[WarningRecord], *, in_table: bool) -> str:
    """Describe the warnings that are new after optimization; empty if there are none.

    Args:
        records: All warnings.
        in_table: Whether a table of all was asked for.
    """
    new = [w for w in records if w.new]
    if not new:
        return ("none is new" if records else "none") if in_table else ""
    amounts: dict[str, int] = {}
    for record in new:
        amounts[_who(record)] = amounts.get(_who(record), 0) + record.new
    head = "; ".join(f"{amount:,} new {who}" for who, amount in amounts.items())
    messages = [_quote(record) for record in new[:_LISTED]] + ["…"] * (len(new) > _LISTED)
    line = f"{head}: {', '.join(messages)}"
    return line if in_table else f"{line} (--warnings shows all)"


def _quote(record: WarningRecord) -> str:
    times = f" ({record.new:,}×)" if record.new > 1 else ""
    return f'"{one_line(record.message, _LINE_CHARS)}"{times}'


def _who(record: WarningRecord) -> str:
    if record.stage == "build":
        return f"while {record.by} optimized"
    return f"after optimization, by {record.by}"


def warnings_table(records: Sequence[WarningRecord]) -> FittedTable:
    """Every warning, and how often it came for the original and for the optimized model."""
    table = FittedTable()
    table.add_column("stage", no_wrap=True)
    table.add_column("warning", overflow="fold")
    table.add_column("by", overflow="fold")
    table.add_column("original", justify="right", no_wrap=True)
    table.add_column("optimized", justify="right", no_wrap=True)
    for w in records:
        message = Text(printable(one_line(w.message, _TABLE_CHARS)))
        before = "?" if w.reference is None else f"{w.reference:,}"
        after = Text(f"{w.candidate:,}", "yellow" if w.new else "")
        table.add_row(w.stage, message, Text(printable(w.by)), before, after)
    return table
