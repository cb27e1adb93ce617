"""``optvet known``: faults of optimizers that are known, one document each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optvet.cli.commands import Group, add
from optvet.cli.options import Debug
from optvet.cli.output import Json, check_file, write_document
from optvet.cli.render import count, table_of, text
from optvet.cli.terminal import Terminal
from optvet.spec.errors import UsageError
from optvet.spec.files import write_file
from optvet.spec.records.known import KnownFaults

app = typer.Typer(
    cls=Group,
    help="List known faults of optimizers, and add one.",
    no_args_is_help=True,
)

Documents = Annotated[
    list[Path] | None,
    typer.Option(
        "--known",
        metavar="PATH",
        help="Documents, or folders of them, in addition to those that come with optvet.",
        show_default=False,
    ),
]


@add(app, "list")
def _list(
    context: typer.Context,
    package: Annotated[
        str | None, typer.Option(metavar="PACKAGE", help="Faults of this package alone.")
    ] = None,
    known: Documents = None,
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """List known faults: the package, the passes, the releases that have them."""
    from optvet.engine.known.documents import faults_of

    terminal = context.ensure_object(Terminal)
    faults = [f for f in faults_of(known) if package in (None, f.package)]
    if json_to is not None:
        document = KnownFaults(schema="optvet.known-faults/1", faults=faults)
        write_document(terminal, json_to, document.to_json())
    if json_to == "-":
        return
    table = table_of(("fault", ""), ("symptom", ""), ("releases", ""))
    for fault in faults:
        table.add_row(text(fault.id), text(fault.symptom), text(fault.when))
    terminal.show(table, text(f"\n{count(len(faults), 'known fault')}", "bold"))


@add(app, "show")
def _show(
    context: typer.Context,
    fault: Annotated[str, typer.Argument(metavar="FAULT", show_default=False)],
    known: Documents = None,
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """Show a known fault: what triggers it, what avoids it, the smallest model."""
    from optvet.engine.known.documents import fault_named, faults_of

    terminal = context.ensure_object(Terminal)
    found = fault_named(fault, faults_of(known))
    if json_to is not None:
        write_document(terminal, json_to, found.to_json())
    if json_to == "-":
        return
    passes = " then ".join(found.pipeline) or " or ".join(found.passes) or "import and export"
    rows = {
        "package": f"{found.package}: {passes}",
        "symptom": found.symptom,
        "releases": f"{found.when} (checked {found.checked})",
        "upstream": ", ".join(found.upstream),
        "edit": found.edit,
    }
    terminal.show(text(found.title, "bold"))
    for label, words in rows.items():
        if words:
            terminal.show(text(f"{label:<10}{words}"), soft_wrap=True)
    for label, block in (("trigger", found.trigger), ("model", found.model)):
        terminal.show(text(f"\n{label}", "dim"), text(block.strip("\n")), soft_wrap=True)


@add(app, "add")
def _add(
    context: typer.Context,
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", show_default=False)],
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder for the document.", show_default=False),
    ],
    answer: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What `optvet bisect --json` wrote about it: dates the fault.",
            show_default=False,
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Make the document of a fault from its bundle, to be completed by hand."""
    import datetime

    from optvet.engine.discovery import Plugins
    from optvet.engine.known.add import fault_from_bundle
    from optvet.engine.known.documents import to_toml
    from optvet.spec.records import BisectResult
    from optvet.spec.records.reading import read_document_in

    terminal = context.ensure_object(Terminal)
    terminal.keeps = False
    advice = "give what optvet bisect --json wrote"
    dated = None if answer is None else read_document_in(BisectResult, answer, advice=advice)
    today = datetime.date.today()
    fault = fault_from_bundle(bundle, Plugins(), answer=dated, today=today)
    file = out / f"{fault.id}.toml"
    if file.exists():
        raise UsageError(f"{file} exists; remove it, or give another folder with --out")
    write_file(file, to_toml(fault), advice="make room or choose another folder, then run again")
    terminal.show(text(f"wrote {file}: complete title, trigger and edit by hand"), soft_wrap=True)


@add(app, "check")
def _check(
    context: typer.Context,
    documents: Annotated[
        list[Path], typer.Argument(metavar="PATH…", help="Documents, or folders of them.")
    ],
    debug: Debug = False,
) -> None:
    """Check documents: their form, that their models are valid, that their triggers fit these."""
    from optvet.engine.known.documents import read_faults

    terminal = context.ensure_object(Terminal)
    terminal.keeps = False
    for place in documents:
        if not place.exists():
            raise UsageError(f"{place}: there is no such file or folder; check the path")
    found = read_faults(documents)
    terminal.show(text(f"{count(len(found), 'document')}, nothing is wrong"))


@add(app, "page")
def _page(
    context: typer.Context,
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write.", show_default=False)],
    known: Documents = None,
    debug: Debug = False,
) -> None:
    """Write a page about all known faults, in Markdown."""
    from optvet.engine.known.documents import faults_of
    from optvet.engine.known.page import page_of

    terminal = context.ensure_object(Terminal)
    terminal.keeps = False
    check_file("--out", str(out), "text")
    faults = faults_of(known)
    write_file(out, page_of(faults), advice="make room or choose another file, then run again")
    terminal.show(text(f"{out}: {count(len(faults), 'known fault')}"), soft_wrap=True)
