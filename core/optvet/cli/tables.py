"""Tables on the screen, in as many parts as it needs."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from optvet.cli.fitted_table import FittedTable
from optvet.cli.render import text
from optvet.spec.records.report_table import ReportTable


def shown_table(table: ReportTable) -> Iterator[RenderableType]:
    """A table with its title and remark."""
    yield text(table.title, "bold")
    yield _fitted(table) if table.rows else Text("nothing", "dim")
    if table.note:
        yield text(table.note, "dim")


def _fitted(table: ReportTable) -> FittedTable:
    # So many that no two rows have the same names.
    keys = 1 if len({str(row[0]) for row in table.rows}) == len(table.rows) else 2
    fitted = FittedTable(keys)
    for index, name in enumerate(table.columns):
        values = [row[index] for row in table.rows]
        numeric = all(not isinstance(value, str) for value in values)
        links = any("://" in cell_text(value) for value in values)
        fitted.add_column(
            text(name),
            justify="right" if numeric else "left",
            overflow="fold",
            # Names of rows and links are searched for and copied.
            no_wrap=links or index < keys,
        )
    for row in table.rows:
        fitted.add_row(*(text(cell_text(value)) for value in row))
    return fitted


def cell_text(value: str | int | float | None) -> str:
    """A value as it is read; a dash where there is none."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return "inf" if value > 1e300 else f"{value:.3g}"
    return value if isinstance(value, str) else f"{value:,}"
