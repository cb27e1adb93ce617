"""``optvet doctor``: what optvet runs in, what is wrong with it, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from optvet.cli.env import pythons_of
from optvet.cli.errors import CLEAN, FINDINGS
from optvet.cli.options import CacheDir, Debug, Environments, cache_folder
from optvet.cli.output import Json, write_document
from optvet.cli.render import count, table_of, text
from optvet.cli.terminal import Terminal, one_line
from optvet.engine.discovery import Plugins
from optvet.engine.environment.doctor import diagnose
from optvet.engine.environment.security import examine
from optvet.spec.records import Diagnosis

_COLOURS = {"ok": "green", "absent": "dim", "warning": "yellow", "broken": "red"}


def command(
    context: typer.Context,
    cache_dir: CacheDir = None,
    environments: Environments = None,
    security: Annotated[
        bool,
        typer.Option(
            "--security",
            help="Report instead what runs in which process, under which limits, what protection "
            "works here, and what is not protected.",
        ),
    ] = False,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            help="Import each library in a process of its own, which takes a minute: finds one "
            "that works only after another was imported.",
        ),
    ] = False,
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """Check the environment: packages, providers, plugins, sandbox, cache; say what to do."""
    terminal = context.ensure_object(Terminal)
    with terminal.progress() as progress:
        if security:
            progress("confinement", 0, None)
            found = examine()
        else:
            found = diagnose(
                Plugins().all(),
                cache_folder(cache_dir),
                Path.cwd(),
                pythons=pythons_of(environments),
                deep=deep,
                progress=progress,
            )
    if json_to is not None:
        write_document(terminal, json_to, found.to_json())
    if json_to != "-":
        terminal.show(*_screen(found))
    raise typer.Exit(FINDINGS if found.broken else CLEAN)


def _screen(found: Diagnosis) -> Iterator[RenderableType]:
    environment = table_of(("", "dim"), ("", ""))
    environment.show_header = False
    for key, value in found.environment.items():
        environment.add_row(text(key), text(value))
    present = [f"{n} {v}" for n, v in found.libraries.items() if v is not None]
    if present:
        environment.add_row("libraries", text(", ".join(present)))
    yield Padding(environment, (0, 0, 1, 0))
    # Two columns leave a command of pip the room to stay on one line of 80 columns.
    checks = table_of(("", ""), ("", ""))
    checks.show_header = False
    for check in found.checks:
        words = text(f"{check.name}: ", "dim").append_text(text(one_line(check.message)))
        if check.cure:
            words.append_text(text(f"\n{check.cure}", "bold"))
        checks.add_row(Text(check.status, _COLOURS[check.status]), words)
    yield Padding(checks, (0, 0, 1, 0))
    yield _summary(found)


def _summary(found: Diagnosis) -> Text:
    amounts = {s: sum(c.status == s for c in found.checks) for s in ("broken", "warning")}
    if amounts["broken"]:
        return text(f"{count(amounts['broken'], 'thing')} broken", "bold red")
    if amounts["warning"]:
        return text(f"{count(amounts['warning'], 'warning')}; the rest is well", "bold yellow")
    return text("all is well", "bold green")
