"""``optvet campaign tables``: what a stored campaign found over many models, as tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

import optvet.cli.campaign  # noqa: F401  (its commands are listed first)
from optvet.cli.campaign_options import StoreArgument, Which, app
from optvet.cli.commands import add
from optvet.cli.options import Debug
from optvet.cli.output import Json, write_document
from optvet.cli.tables import cell_text, shown_table
from optvet.cli.terminal import Terminal, one_line
from optvet.spec.errors import UsageError
from optvet.spec.foreign import files_in
from optvet.spec.records.report_table import ReportTable
from optvet.spec.records.tables import CampaignTables
from optvet.spec.words import csv_cell, latex_text, markdown_text

if TYPE_CHECKING:
    from optvet.engine.discovery import Plugins
    from optvet.spec.studies import Study


StudyOption = Annotated[
    str | None,
    typer.Option(
        "--study",
        metavar="NAME",
        help="Whose tables: a study of `optvet plugins`; without it, what the findings are.",
        show_default=False,
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
    LATEX = "latex"


@add(app, "tables")
def command(
    context: typer.Context,
    store: StoreArgument,
    study: StudyOption = None,
    known: Known = None,
    which: Which = "",
    answers: Annotated[
        list[Path] | None,
        typer.Option(
            "--answers",
            metavar="DIR",
            help="A folder with what `--json` of convert, repair, compare and bench wrote, for "
            "`--study`, or that of precision.",
            show_default=False,
        ),
    ] = None,
    format: Annotated[TableFormat, typer.Option(help="How to write them.")] = TableFormat.SCREEN,
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """Show what a campaign found over many models, or the tables of a published study.

    STORE may be a folder of answers as `--answers` takes them: with `--study`, or with answers of
    `optvet precision`, whose table is models × precisions.
    """
    from optvet.engine.campaign import find_campaign, open_store
    from optvet.engine.campaign.store import DATABASE
    from optvet.engine.campaign.tables import (
        read_answers,
        read_tracked,
        tables_of,
        tables_of_answers,
    )
    from optvet.engine.convert.chain import reachable_formats
    from optvet.engine.discovery import Plugins
    from optvet.engine.models.selectors import models_with_tag

    terminal = context.ensure_object(Terminal)
    entries = None if known is None else read_tracked(known)
    plugins = Plugins()
    chosen_study = study_of(study, plugins)
    theirs = [] if study is None else models_with_tag(plugins, study)
    folders = list(answers or ())
    reach = partial(reachable_formats, plugins)
    name, number = str(store), 0
    alone = store.is_dir() and not (store / DATABASE).is_file()
    alone = alone and (chosen_study is not None or bool(files_in(store, _is_answer)))
    kept = read_answers(folders := [store, *folders] if alone else folders)
    if chosen_study is None and folders and not kept.precisions:
        raise UsageError(
            "without --study, only answers of precision have a table; say --study NAME, or write "
            f"one with: optvet precision MODEL --json {folders[0]}/NAME.json"
        )
    if alone:
        tables = tables_of_answers(chosen_study, kept, theirs=theirs, reach=reach)
    else:
        with open_store(store, to_read=True) as opened:
            campaign = find_campaign(opened, which)
            name, number = campaign.name, campaign.id
            tables = tables_of(
                opened,
                campaign,
                study=chosen_study,
                known=entries,
                theirs=theirs,
                reach=reach,
                kept=kept,
            )
    if json_to is not None:
        write_document(terminal, json_to, _document(name, number, study, tables).to_json())
    if json_to == "-":
        return
    if format == TableFormat.SCREEN:
        terminal.show(*_screen(tables))
    else:
        terminal.write("\n".join(map(_WRITERS[format], tables)))


@add(app, "rate")
def _rate(
    context: typer.Context,
    store: StoreArgument,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="The sheet with a person's ratings; without it, an empty one."
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="FILE",
            help="The ratings of a second person.",
            show_default="what optvet says",
        ),
    ] = None,
    which: Which = "",
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """Tell how far a person's ratings of findings agree with optvet's, by Cohen's kappa.

    Without FILE, print a sheet of the faults as CSV: columns for symptom, stage and cause are to be
    filled. What is left empty is not compared.
    """
    from optvet.engine.campaign import find_campaign, open_store, trials
    from optvet.engine.campaign.ratings import own_ratings, rating_tables, read_ratings, sheet
    from optvet.engine.campaign.tables import row_of

    terminal = context.ensure_object(Terminal)
    if file is None and against is not None:
        raise UsageError("--against needs the FILE of a first person")
    first = None if file is None else read_ratings(file)
    second = None if against is None else read_ratings(against)
    with open_store(store, to_read=True) as opened:
        campaign = find_campaign(opened, which)
        rows = [row_of(t) for t in trials(opened, campaign) if t.kind != "precision"]
    if first is None:
        terminal.write(sheet(rows))
        return
    names = ("FILE", "optvet" if second is None else "--against")
    tables = rating_tables(first, own_ratings(rows) if second is None else second, names)
    if json_to is not None:
        document = _document(campaign.name, campaign.id, None, tables)
        write_document(terminal, json_to, document.to_json())
    if json_to != "-":
        terminal.show(*_screen(tables))


def _document(
    name: str, number: int, study: str | None, tables: list[ReportTable]
) -> CampaignTables:
    return CampaignTables(
        schema="optvet.campaign-tables/1",
        campaign=name,
        number=number,
        study=study,
        tables=tables,
    )


def study_of(name: str | None, plugins: Plugins) -> Study | None:
    """What ``--study`` means; UnknownName for another name."""
    return None if name is None else plugins.study(name)


def _screen(tables: Sequence[ReportTable]) -> Iterator[RenderableType]:
    for number, table in enumerate(tables):
        if number:
            yield ""
        yield from shown_table(table)


# --- for other programs --------------------------------------------------------------------------


def _csv(table: ReportTable) -> str:
    """A line with the title, the columns, the rows; numbers as they are."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([f"# {csv_cell(one_line(table.title))}"])
    writer.writerow([csv_cell(one_line(name)) for name in table.columns])
    for row in table.rows:
        writer.writerow([csv_cell(one_line(v)) if isinstance(v, str) else v for v in row])
    return out.getvalue()


def _markdown(table: ReportTable) -> str:
    """A heading, a table and the remark; what models contain is escaped."""
    lines = [f"## {markdown_text(table.title)}", ""]
    in_cell = partial(markdown_text, in_table=True)
    cells = [[in_cell(name) for name in table.columns], ["---"] * len(table.columns)]
    cells += [[in_cell(cell_text(value)) for value in row] for row in table.rows]
    lines += [f"| {' | '.join(row)} |" for row in cells]
    if table.note:
        lines += ["", markdown_text(table.note)]
    return "\n".join([*lines, ""])


def _latex(table: ReportTable) -> str:
    """A float that needs no package; numbers stand at the right, the remark below the rows."""
    columns = ["r" if _is_numeric(table, index) else "l" for index in range(len(table.columns))]
    lines = [
        "\\begin{table}",
        f"\\caption{{{latex_text(table.title)}}}",
        f"\\begin{{tabular}}{{{''.join(columns)}}}",
        "\\hline",
        " & ".join(map(latex_text, table.columns)) + r" \\ \hline",
        *(" & ".join(latex_text(cell_text(v)) for v in row) + r" \\" for row in table.rows),
        "\\hline",
        "\\end{tabular}",
    ]
    if table.note:
        lines.append(f"\\par {latex_text(table.note)}")
    return "\n".join([*lines, "\\end{table}", ""])


def _is_numeric(table: ReportTable, index: int) -> bool:
    return all(not isinstance(row[index], str) for row in table.rows)


_WRITERS: Mapping[TableFormat, Callable[[ReportTable], str]] = {
    TableFormat.CSV: _csv,
    TableFormat.MARKDOWN: _markdown,
    TableFormat.LATEX: _latex,
}


def _is_answer(file: Path) -> bool:
    return file.suffix == ".json"
