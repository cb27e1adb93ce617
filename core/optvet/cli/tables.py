"""Tables on the screen, in as many parts as it needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from optvet.cli.render import text
from optvet.spec.records.report import ReportTable

_LONGEST_WORD, _GAP = 16, 2


def shown_table(table: ReportTable, width: int) -> Iterator[RenderableType]:
    """A table with its title and remark, in as many parts as the screen needs."""
    yield text(table.title, "bold")
    if table.rows:
        yield from (_part(table, columns, width) for columns in _parts(table, width))
    else:
        yield Text("nothing", "dim")
    if table.note:
        yield text(table.note, "dim")


def _parts(table: ReportTable, width: int) -> Iterator[list[int]]:
    """Columns of a table in parts that the screen has room for, each after the first column."""
    least = [_least(table, index) + _GAP for index in range(len(table.columns))]
    part, used = [0], least[0]
    for index in range(1, len(least)):
        if used + least[index] > width and len(part) > 1:
            yield part
            part, used = [0], least[0]
        part.append(index)
        used += least[index]
    yield part


def _least(table: ReportTable, index: int) -> int:
    """The width that a column needs at least: of its longest word, or of a whole link."""
    texts = [table.columns[index], *(cell_text(row[index]) for row in table.rows)]
    if any("://" in text for text in texts):
        return max(map(len, texts))
    longest = max((len(word) for text in texts for word in text.split()), default=0)
    return min(longest, _LONGEST_WORD)


def _part(table: ReportTable, columns: Sequence[int], width: int) -> Table:
    part = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for index in columns:
        values = [row[index] for row in table.rows]
        numeric = all(not isinstance(value, str) for value in values)
        links = any("://" in cell_text(value) for value in values)
        short = index == 0 and max(len(cell_text(value)) for value in values) <= width // 3
        part.add_column(
            text(table.columns[index]),
            justify="right" if numeric else "left",
            overflow="fold",
            # Names and links are searched for and copied.
            no_wrap=links or short,
        )
    for row in table.rows:
        part.add_row(*(text(cell_text(row[index])) for index in columns))
    return part


def cell_text(value: str | int | float | None) -> str:
    """A value as it is read; a dash where there is none."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return "inf" if value > 1e300 else f"{value:.3g}"
    return value if isinstance(value, str) else f"{value:,}"
