"""``optvet compare``: where two models begin to compute different things."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from optvet.cli.errors import CLEAN, FINDINGS
from optvet.cli.options import AsJson, CacheDir, Debug, cache_folder
from optvet.cli.render import count, number, table_of, text
from optvet.cli.terminal import Terminal

if TYPE_CHECKING:
    from optvet.engine.divergence import Comparison, Layer

_COLOURS = {"same": "dim", "drift": "green", "fault": "red"}


def command(
    context: typer.Context,
    a: Annotated[
        str, typer.Argument(metavar="A", help="An ONNX file, or `zoo:NAME`.", show_default=False)
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="What was made of it.", show_default=False)],
    layers: Annotated[bool, typer.Option("--layers", help="Show every shared value.")] = False,
    dataset: Annotated[
        str, typer.Option(metavar="NAME[:PATH]", help="Where the input comes from.")
    ] = "random",
    runtime: Annotated[
        str, typer.Option(metavar="NAME", help="What runs both models.")
    ] = "onnxruntime",
    seed: Annotated[int, typer.Option(min=0, help="Seeds everything random.")] = 0,
    cache_dir: CacheDir = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare two models value by value on one input, and show where they part."""
    from optvet.engine.compare import compare_files
    from optvet.engine.discovery import Plugins

    terminal = context.ensure_object(Terminal)
    with terminal.progress() as progress:
        found = compare_files(
            a,
            b,
            Plugins(),
            dataset=dataset,
            runtime=runtime,
            seed=seed,
            cache_dir=cache_folder(cache_dir),
            progress=progress,
        )
    if as_json:
        terminal.write(f"{found.model_dump_json(by_alias=True, indent=2)}\n")
    else:
        terminal.show(*_screen(found, layers))
    raise typer.Exit(CLEAN if found.diverges_at is None else FINDINGS)


def _screen(found: Comparison, layers: bool) -> Iterator[RenderableType]:
    if layers:
        yield Padding(_table(found.layers), (0, 0, 1, 0))
    was, now = found.nodes
    shared = count(len(found.layers), "shared value")
    yield text(f"{count(was, 'node')} and {now:,}, {shared}", "dim")
    if found.diverges_at is None:
        yield Text("no value differs by more than rounding", "bold green")
        return
    line = Text("first difference at ", "bold red")
    yield line.append_text(text(found.diverges_at))
    if found.agreeing:
        yield text(f"still the same before: {', '.join(found.agreeing)}", "dim")
    for label, nodes in (("A", found.before), ("B", found.after)):
        yield text(label, "dim")
        yield Padding(text("\n".join(nodes)), (0, 0, 0, 2))


def _table(layers: list[Layer]) -> Table:
    table = table_of(("value", ""), ("A", ""), ("B", ""), ("", ""))
    for header in ("error", "noise"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("differs", overflow="fold")
    for layer in layers:
        name = layer.name if layer.name == layer.name_in_b else f"{layer.name} = {layer.name_in_b}"
        differs = [layer.detail] if layer.detail else []
        differs += [f"{k}: {v}" for k, v in layer.attributes.items()]
        differs += [f"{k}: {number(v) if v else 'shape'}" for k, v in layer.parameters.items()]
        table.add_row(
            text(name),
            text(layer.op_a),
            text(layer.op_b),
            Text(layer.call, _COLOURS.get(layer.call, "yellow")),
            number(layer.error),
            number(layer.noise),
            text("; ".join(differs)),
        )
    return table
