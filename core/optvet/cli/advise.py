"""``optvet advise``: which known faults a model may trigger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optvet.cli.errors import CLEAN, FINDINGS, UNDECIDED
from optvet.cli.known import Documents
from optvet.cli.options import CacheDir, Debug, Trust, cache_folder
from optvet.cli.output import Json, write_document
from optvet.cli.render import count, text
from optvet.cli.terminal import Terminal, one_line
from optvet.spec.records.known import AdviceResult, Advised

_PLACES = 3


def command(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="An ONNX file, or `zoo:NAME`.", show_default=False),
    ],
    versions: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="PACKAGE==VERSION",
            help="Version to look at; may be given several times.",
            show_default="all packages that are installed",
        ),
    ] = None,
    confirm: Annotated[
        bool | None,
        typer.Option(
            "--confirm/--no-confirm",
            help="Run the passes of each fault, and what avoids it, on the model.",
            show_default="what takes seconds",
        ),
    ] = None,
    index: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="With --confirm: folder of wheels to install a version from.",
            show_default="that of pip",
        ),
    ] = None,
    known: Documents = None,
    trust: Trust = False,
    cache_dir: CacheDir = None,
    json_to: Json = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    debug: Debug = False,
) -> None:
    """Say which known faults a model may trigger, where, and what avoids each.

    What takes seconds is tried on the model. Exit code 1 if there is advice that is not refuted,
    4 if there is none but a search took too many steps.
    """
    from optvet.engine.discovery import Plugins
    from optvet.engine.known.advise import advise_on

    terminal = context.ensure_object(Terminal)
    with terminal.progress(quiet) as progress:
        result = advise_on(
            model,
            Plugins(),
            versions=versions or (),
            confirm=confirm,
            index=index,
            known=known or (),
            trust=trust,
            cache_dir=cache_folder(cache_dir),
            progress=progress,
        )
    if json_to is not None:
        write_document(terminal, json_to, result.to_json())
    if json_to != "-":
        _show(terminal, result)
    counted = [one for one in result.advice if one.confirmed is not False]
    raise typer.Exit(FINDINGS if counted else UNDECIDED if result.unfinished else CLEAN)


def _show(terminal: Terminal, result: AdviceResult) -> None:
    for one in result.advice:
        _show_one(terminal, one)
    names = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    known = count(result.looked_for, "known fault")
    words = f"{len(result.advice)} of {known} of {names or 'no installed package'} may be triggered"
    terminal.show(text(words, "bold"), soft_wrap=True)
    if result.unfinished:
        names = ", ".join(result.unfinished)
        words = f"not looked at fully, the search takes too many steps: {names}"
        terminal.show(text(words, "bold yellow"), soft_wrap=True)


def _show_one(terminal: Terminal, one: Advised) -> None:
    state = {True: "CONFIRMED  ", False: "REFUTED  ", None: ""}[one.confirmed]
    colour = {True: "bold red", False: "dim", None: "bold yellow"}[one.confirmed]
    line = text(f"{state}{one.fault}", colour)
    line.append_text(text(f"  {one.title}", "not bold default"))
    terminal.show(line, soft_wrap=True)
    passes = ", ".join(one.passes) or "import and export"
    rows = [("by", f"{one.package} {one.version}, {passes}: {one.symptom}")]
    rows.append(("where", _where(one)))
    if not one.dated:
        rows.append(("note", "no release was tried with a trigger of this form"))
    for way in one.avoid:
        outcome = one.tried.get(way)
        rows.append(("avoid", f"{way}  ({outcome})" if outcome else way))
    rows += [("note", one_line(one.note, 300))] if one.note else []
    for label, words in rows:
        terminal.show(text(f"  {label:<8}{words}"), soft_wrap=True)


def _where(one: Advised) -> str:
    shown = "; ".join(" → ".join(place) for place in one.places[:_PLACES])
    more = len(one.places) - _PLACES
    words = f"{shown}{f'; {more} more' if more > 0 else ''}"
    return words if one.certain else f"{words} (if values are of the shapes that it takes)"
