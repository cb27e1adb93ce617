"""``optvet replay``: a bundle, judged again under the installed versions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from optvet.cli.errors import CLEAN, FINDINGS, UNDECIDED
from optvet.cli.options import Debug, Trust
from optvet.cli.output import Json, write_document
from optvet.cli.render import text
from optvet.cli.terminal import Terminal, one_line

if TYPE_CHECKING:
    from optvet.spec.records import Replayed, ReplayOutcome

_CODES: dict[ReplayOutcome, int] = {"fixed": CLEAN, "still there": FINDINGS, "changed": UNDECIDED}
_COLOURS: dict[ReplayOutcome, str] = {"fixed": "green", "still there": "red", "changed": "yellow"}


def command(
    context: typer.Context,
    bundle: Annotated[
        Path,
        typer.Argument(
            metavar="BUNDLE", help="A folder that `optvet vet --out` wrote.", show_default=False
        ),
    ],
    trust: Trust = False,
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """Judge a finding again under the installed versions: fixed, still there, or changed.

    No file of the bundle is executed; options that name code, commands or files need --trust.
    """
    from optvet.engine.bundle import replay_bundle
    from optvet.engine.discovery import Plugins

    terminal = context.ensure_object(Terminal)
    with terminal.progress() as progress:
        progress("judging again", 0, None)
        found = replay_bundle(bundle, Plugins(), trust=trust)
    if json_to is not None:
        write_document(terminal, json_to, found.to_json())
    if json_to != "-":
        terminal.show(*_screen(found), soft_wrap=True)
    raise typer.Exit(_CODES[found.outcome])


def _screen(found: Replayed) -> list[Text]:
    line = Text(f"{found.outcome.upper()}  ", style=f"bold {_COLOURS[found.outcome]}")
    line.append_text(text(found.bundle, "not bold default"))
    blame = " then ".join(found.was.culprit) or "import and export alone"
    lines = [line, text(f"was   {found.was.symptom}: {blame}")]
    if found.now is not None:
        lines.append(text(f"now   {found.now}: {one_line(found.message, 300)}"))
    then, now = found.versions_then, found.versions_now
    moved = [f"{n} {then.get(n, '–')} → {v}" for n, v in now.items() if then.get(n) != v]
    lines.append(text(f"since {', '.join(moved) or 'then, no version has changed'}", "dim"))
    return lines
