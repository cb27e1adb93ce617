"""``optvet models``: what can be vetted by name."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import typer

from optvet.cli.options import AsJson, Debug
from optvet.cli.render import size, table_of, text
from optvet.cli.terminal import Terminal
from optvet.engine.discovery import Plugins

app = typer.Typer(help="Models that can be vetted by name.", invoke_without_command=True)


@app.callback()
def _models(context: typer.Context, as_json: AsJson = False, debug: Debug = False) -> None:
    """List the models of all sources; `optvet vet zoo:NAME` vets one."""
    if context.invoked_subcommand is None:
        _list(context.ensure_object(Terminal), as_json)


@app.command("list")
def _models_list(context: typer.Context, as_json: AsJson = False, debug: Debug = False) -> None:
    """The same as `optvet models`."""
    _list(context.ensure_object(Terminal), as_json)


def _list(terminal: Terminal, as_json: bool) -> None:
    plugins = Plugins()
    cards: list[dict[str, Any]] = [
        {"model": f"{source}:{card.name}", **asdict(card)}
        for source in plugins.names("model source")
        for card in plugins.model_source(source).models()
    ]
    if as_json:
        terminal.write(f"{json.dumps(cards, indent=2)}\n")
        return
    table = table_of(("model", "bold"), ("size", ""), ("", "dim"))
    table.columns[1].justify = "right"
    table.columns[1].no_wrap = True
    for card in cards:
        bytes_ = "–" if card["size_bytes"] is None else size(card["size_bytes"])
        table.add_row(text(card["model"]), text(bytes_), text(card["description"]))
    terminal.show(table)
