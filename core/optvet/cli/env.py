"""``optvet env``: environments of their own for plugins."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optvet.cli.commands import Group, add
from optvet.cli.options import Debug, Environments, mapping_of
from optvet.cli.output import Json, write_document
from optvet.cli.render import count, table_of, text
from optvet.cli.terminal import Terminal
from optvet.engine.discovery import Plugins
from optvet.engine.environment.environments import (
    Pythons,
    environment_of,
    environments_root,
    list_environments,
    make,
)
from optvet.spec.records import EnvironmentList

app = typer.Typer(
    cls=Group,
    help="Make and list environments for plugins whose libraries conflict with optvet's.",
    no_args_is_help=True,
)


def pythons_of(values: list[str] | None) -> Pythons:
    """Where environments are, as the options say."""
    chosen = mapping_of("environment", values or [])
    return Pythons({name: Path(str(place)) for name, place in chosen.items()}, environments_root())


@add(app, "make")
def _make(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    into: Annotated[
        Path | None,
        typer.Option(
            "--into", metavar="DIR", help="Folder to make.", show_default="the user's data folder"
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the one that exists.")] = False,
    debug: Debug = False,
) -> None:
    """Make an environment: a virtual environment with what its plugins require, by pip."""
    terminal = context.ensure_object(Terminal)
    terminal.keeps = False
    environment = environment_of(name, Plugins())
    target = environments_root() / name if into is None else into.expanduser()
    with terminal.progress() as progress:
        python = make(environment, target, force=force, say=lambda words: progress(words, 0, None))
    terminal.show(text(str(python)), soft_wrap=True)
    if into is not None:
        terminal.show(text(f"use it with: --environment {name}={target}"), soft_wrap=True)


@add(app, "list")
def _list(
    context: typer.Context,
    environments: Environments = None,
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """List the environments that plugins declare: what they are for, and whether they are made."""
    terminal = context.ensure_object(Terminal)
    entries = list_environments(Plugins().all(), pythons_of(environments))
    if json_to is not None:
        document = EnvironmentList(
            schema="optvet.environments/1", root=str(environments_root()), environments=entries
        )
        write_document(terminal, json_to, document.to_json())
    if json_to == "-":
        return
    table = table_of(("environment", ""), ("plugins", ""), ("python", "dim"), ("", ""))
    for e in entries:
        state = (
            text("ready", "green") if not e.problem else text(f"{e.problem}; {e.cure}", "yellow")
        )
        table.add_row(text(e.name), text(", ".join(e.plugins)), text(e.python or ""), state)
    terminal.show(table)
    terminal.show(text(f"{count(len(entries), 'environment')}, in {environments_root()}", "dim"))
