"""``optvet replay``: bundles, judged again under the installed versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from optvet.cli.errors import CLEAN, FINDINGS, UNDECIDED, worst
from optvet.cli.options import Debug, Trust
from optvet.cli.output import Json, write_document
from optvet.cli.render import count, table_of, text
from optvet.cli.terminal import Terminal, one_line
from optvet.spec.records import ErrorRecord

if TYPE_CHECKING:
    from optvet.spec.records import Replayed, ReplayOutcome

_CODES: dict[ReplayOutcome, int] = {"fixed": CLEAN, "still there": FINDINGS, "changed": UNDECIDED}
_COLOURS: dict[ReplayOutcome, str] = {"fixed": "green", "still there": "red", "changed": "yellow"}


def command(
    context: typer.Context,
    bundles: Annotated[
        list[Path],
        typer.Argument(
            metavar="BUNDLE…",
            help="Folders that `optvet vet --out` wrote, or that hold such folders.",
            show_default=False,
        ),
    ],
    trust: Trust = False,
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """Judge findings again under the installed versions: fixed, still there, or changed.

    No file of a bundle is executed; options that name code, commands or files need --trust.
    """
    from optvet.engine.bundle.replay import bundles_in

    terminal = context.ensure_object(Terminal)
    found = list(dict.fromkeys(path for folder in bundles for path in bundles_in(folder)))
    if len(found) == 1:
        raise typer.Exit(_one(terminal, found[0], json_to, trust=trust))
    raise typer.Exit(_several(terminal, found, json_to, trust=trust))


def _one(terminal: Terminal, bundle: Path, json_to: str | None, *, trust: bool) -> int:
    """Replay one bundle; the exit code."""
    from optvet.engine.bundle import replay_bundle
    from optvet.engine.discovery import Plugins

    with terminal.progress() as progress:
        progress("judging again", 0, None)
        found = replay_bundle(bundle, Plugins(), trust=trust)
    if json_to is not None:
        write_document(terminal, json_to, found.to_json())
    if json_to != "-":
        terminal.show(*_screen(found), soft_wrap=True)
    return _CODES[found.outcome]


def _several(terminal: Terminal, bundles: list[Path], json_to: str | None, *, trust: bool) -> int:
    """Replay bundles one after the other, with a table at the end; the exit code of the worst."""
    from optvet.engine.bundle.replay import replay_each
    from optvet.engine.discovery import Plugins
    from optvet.spec.records import Replays

    replayed: list[Replayed | ErrorRecord] = []
    with terminal.progress() as progress:
        progress(f"judging {bundles[0].name} again", 0, len(bundles))
        for number, found in enumerate(replay_each(bundles, Plugins(), trust=trust), 1):
            replayed.append(found)
            progress("judging again", number, len(bundles))
    if json_to is not None:
        document = Replays(schema="optvet.replays/1", results=replayed)
        write_document(terminal, json_to, document.to_json())
    if json_to != "-":
        terminal.show(_table(list(zip(bundles, replayed, strict=True))), _totals(replayed))
    codes = [r.exit_code if isinstance(r, ErrorRecord) else _CODES[r.outcome] for r in replayed]
    return worst(codes)


def _table(rows: Sequence[tuple[Path, Replayed | ErrorRecord]]) -> Table:
    table = table_of(("outcome", ""), ("bundle", ""), ("finding", ""))
    for path, found in rows:
        if isinstance(found, ErrorRecord):
            cells = (Text("error", "magenta"), text(path.name), text(one_line(found.message, 200)))
        else:
            blame = " then ".join(found.was.culprit) or "import and export alone"
            outcome = Text(found.outcome, _COLOURS[found.outcome])
            cells = (outcome, text(path.name), text(f"{found.was.symptom}: {blame}"))
        table.add_row(*cells)
    return table


def _totals(results: Sequence[Replayed | ErrorRecord]) -> Text:
    outcomes = Counter("error" if isinstance(r, ErrorRecord) else r.outcome for r in results)
    parts = ", ".join(f"{amount} {name}" for name, amount in outcomes.most_common())
    return text(f"\n{count(len(results), 'bundle')}: {parts}", "bold")


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
