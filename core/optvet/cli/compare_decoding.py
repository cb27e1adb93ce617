"""``optvet compare`` of two exported encoder-decoders or decoders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from optvet.cli.errors import CLEAN, FINDINGS, UNDECIDED
from optvet.cli.output import write_document
from optvet.cli.render import count, node_line, number, table_of, text
from optvet.cli.terminal import Terminal
from optvet.spec.errors import UsageError
from optvet.spec.request import VetRequest

if TYPE_CHECKING:
    from optvet.spec.records.compare import DecodingComparison

_CODES = {"agrees": CLEAN, "differs": FINDINGS, "undecided": UNDECIDED}
_NODES = 12


def refuse_unsuited(folder: str, given: Mapping[str, object]) -> None:
    """Refuse options that do not apply to folders.

    Raises:
        UsageError: One is given.
    """
    if named := [option for option, value in given.items() if value]:
        raise UsageError(f"{named[0]}: {folder} is a folder of an exported decoder; leave it out")


def show_decoding(
    terminal: Terminal,
    b: str,
    request: VetRequest,
    tokens: int,
    cache_dir: Path,
    json_to: str | None,
) -> None:
    """Compare the folder of ``request`` with ``b``, show the answer, and exit with its code."""
    from optvet.engine.decoding.compare import compare_decoding
    from optvet.engine.discovery import Plugins

    with terminal.progress() as progress:
        found = compare_decoding(
            b, Plugins(), request, cache_dir=cache_dir, tokens=tokens, progress=progress
        )
    if json_to is not None:
        write_document(terminal, json_to, found.to_json())
    if json_to != "-":
        terminal.show(*_screen(found))
    raise typer.Exit(_CODES[found.verdict])


def _screen(found: DecodingComparison) -> Iterator[RenderableType]:
    table = table_of(("token", "dim"), ("file", ""), ("", ""), ("output", ""))
    for header in ("error", "noise"):
        table.add_column(header, justify="right", no_wrap=True)
    colours = {"same": "green", "differs": "red", "undecided": "yellow"}
    for step in found.steps:
        call = Text(step.call, colours[step.call])
        about = (text(step.output or "–"), number(step.error), number(step.noise))
        table.add_row(str(step.token), text(step.file), call, *about)
    yield Padding(table, (0, 0, 1, 0))
    if found.not_compared:
        yield text(node_line(f"not compared: {', '.join(found.not_compared)}"), "yellow")
    if found.verdict == "differs":
        yield from _difference(found)
    elif found.verdict == "undecided":
        yield text(node_line(f"undecided: {found.message}"), "bold yellow")
    else:
        sequences = count(len(found.tokens[0]), "sequence")
        written = count(len(found.tokens[0][0]), "token")
        yield Text(f"both decode the same: {written} of {sequences}", "bold green")
        if found.message:
            yield text(node_line(found.message), "dim")
        yield text("compared in the clean room, on seeded inputs", "dim")


def _difference(found: DecodingComparison) -> Iterator[RenderableType]:
    line = Text("first difference in ", "bold red")
    yield line.append_text(text(f"{found.file}, at token {found.token}"))
    yield text(node_line(found.message))
    if found.layer is not None:
        yield text(node_line(f"first value: {found.layer}"))
    if found.cache_entries:
        yield text(node_line(f"cache: {', '.join(found.cache_entries)}"))
    if found.other_token_at is not None:
        yield text(f"first different token: {found.other_token_at}")
    elif found.comparison is not None:
        yield text("the decoded tokens are the same", "dim")
    if found.comparison is None or found.comparison.diverges_at != found.layer:
        return
    for label, nodes in (("A", found.comparison.before), ("B", found.comparison.after)):
        yield text(label, "dim")
        shown = [node_line(node) for node in nodes[:_NODES]]
        more = [f"… {count(len(nodes) - _NODES, 'more node')}"] if len(nodes) > _NODES else []
        yield Padding(text("\n".join([*shown, *more]) or "–"), (0, 0, 0, 2))
