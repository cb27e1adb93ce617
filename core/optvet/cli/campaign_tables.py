"""``optvet campaign tables``: what a stored campaign found over many models, as tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from optvet.cli.campaign import StoreArgument, Which, app
from optvet.cli.commands import add
from optvet.cli.options import Debug
from optvet.cli.output import Json, write_document
from optvet.cli.render import text
from optvet.cli.terminal import Terminal, one_line
from optvet.spec.records.report import ReportTable
from optvet.spec.records.tables import CampaignTables, Study
from optvet.spec.words import printable


class StudyName(StrEnum):
    """Studies whose tables can be made."""

    DITOX = "ditox"
    OTX = "otx"


STUDIES: Mapping[StudyName, Study] = {StudyName.DITOX: "ditox", StudyName.OTX: "otx"}
"""Studies by the name that is typed."""


StudyOption = Annotated[
    StudyName | None,
    typer.Option(
        "--study", help="Whose tables; without it, what the findings are.", show_default=False
    ),
]
Known = Annotated[
    Path | None,
    typer.Option(
        "--known",
        metavar="FILE",
        help="A TOML file of findings that are tracked elsewhere, with links.",
        show_default=False,
    ),
]


class TableFormat(StrEnum):
    """What tables can be written as on stdout."""

    SCREEN = "screen"
    CSV = "csv"
    MARKDOWN = "markdown"


@add(app, "tables")
def command(
    context: typer.Context,
    store: StoreArgument,
    study: StudyOption = None,
    known: Known = None,
    which: Which = "",
    format: Annotated[TableFormat, typer.Option(help="How to write them.")] = TableFormat.SCREEN,
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """Show what a campaign found over many models, or the tables of a published study."""
    from optvet.engine.campaign import find_campaign, open_store
    from optvet.engine.campaign.tables import read_known, tables_of
    from optvet.engine.discovery import Plugins
    from optvet.engine.models.selectors import models_tagged

    terminal = context.ensure_object(Terminal)
    entries = None if known is None else read_known(known)
    asked = None if study is None else STUDIES[study]
    theirs = [] if asked is None else models_tagged(Plugins(), asked)
    with open_store(store) as opened:
        campaign = find_campaign(opened, which)
        tables = tables_of(
            opened,
            campaign,
            study=asked,
            known=entries,
            theirs=theirs,
        )
    if json_to is not None:
        document = CampaignTables(
            schema="optvet.campaign-tables/1",
            campaign=campaign.name,
            number=campaign.id,
            study=asked,
            tables=tables,
        )
        write_document(terminal, json_to, document.to_json())
    if json_to == "-":
        return
    if format == TableFormat.SCREEN:
        terminal.show(*_screen(tables, terminal.width))
    else:
        write = _csv if format == TableFormat.CSV else _markdown
        terminal.write("\n".join(map(write, tables)))


# --- on the screen -------------------------------------------------------------------------------

_LONGEST_WORD, _GAP = 16, 2


def _screen(tables: Sequence[ReportTable], width: int) -> Iterator[RenderableType]:
    for number, table in enumerate(tables):
        yield Padding(text(table.title, "bold"), (1 if number else 0, 0, 0, 0))
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
    texts = [table.columns[index], *(_cell(row[index]) for row in table.rows)]
    if any("://" in text for text in texts):
        return max(map(len, texts))
    longest = max((len(word) for text in texts for word in text.split()), default=0)
    return min(longest, _LONGEST_WORD)


def _part(table: ReportTable, columns: Sequence[int], width: int) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for index in columns:
        values = [row[index] for row in table.rows]
        numeric = all(not isinstance(value, str) for value in values)
        links = any("://" in _cell(value) for value in values)
        short = index == 0 and max(len(_cell(value)) for value in values) <= width // 3
        made.add_column(
            text(table.columns[index]),
            justify="right" if numeric else "left",
            overflow="fold",
            # Names and links are searched for and copied.
            no_wrap=links or short,
        )
    for row in table.rows:
        made.add_row(*(text(_cell(row[index])) for index in columns))
    return made


def _cell(value: str | int | float | None) -> str:
    """A value as it is read; a dash where there is none."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return "inf" if value > 1e300 else f"{value:.3g}"
    return value if isinstance(value, str) else f"{value:,}"


# --- for other programs --------------------------------------------------------------------------


def _csv(table: ReportTable) -> str:
    """A line with the title, the columns, the rows; numbers as they are."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([f"# {_harmless(table.title)}"])
    writer.writerow([_harmless(name) for name in table.columns])
    for row in table.rows:
        writer.writerow([_harmless(v) if isinstance(v, str) else v for v in row])
    return out.getvalue()


def _harmless(value: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    line = one_line(printable(value))
    return f"'{line}" if line[:1] in ("=", "+", "-", "@") else line


_MARKUP = str.maketrans({c: f"\\{c}" for c in "\\`*_[]<>|#!"})


def _markdown(table: ReportTable) -> str:
    """A heading, a table and the remark; what models contain is escaped."""
    lines = [f"## {_escaped(table.title)}", ""]
    cells = [[_escaped(name) for name in table.columns], ["---"] * len(table.columns)]
    cells += [[_escaped(_cell(value)) for value in row] for row in table.rows]
    lines += [f"| {' | '.join(row)} |" for row in cells]
    if table.note:
        lines += ["", _escaped(table.note)]
    return "\n".join([*lines, ""])


def _escaped(words: str) -> str:
    return one_line(printable(words)).translate(_MARKUP)
