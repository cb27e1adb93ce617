"""``optvet schema``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from optvet import UnknownName
from optvet.cli.options import Debug
from optvet.cli.render import table_of
from optvet.cli.terminal import Terminal
from optvet.spec.records import DOCUMENTS


def command(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="A document; without it, a list of all."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Print the JSON Schema of a document that optvet writes, or list the documents."""
    terminal = context.ensure_object(Terminal)
    if name is None:
        table = table_of(("document", ""), ("schema", ""), ("what it is", "dim"))
        for key, kind in DOCUMENTS.items():
            version = kind.model_fields["schema_"].default
            table.add_row(key, str(version), (kind.__doc__ or "").partition("\n")[0])
        terminal.show(table)
        return
    if name not in DOCUMENTS:
        raise UnknownName("document", name, DOCUMENTS, "(see: optvet schema)")
    text = json.dumps(DOCUMENTS[name].model_json_schema(by_alias=True), indent=2)
    terminal.write(f"{text}\n")
