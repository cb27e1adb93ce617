"""``optvet models generate``: synthetic models, and what they cover."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import RenderableType

from optvet.cli.commands import add
from optvet.cli.errors import Interrupted
from optvet.cli.models import app
from optvet.cli.options import Debug, cache_folder
from optvet.cli.output import Json, check_folder, write_document
from optvet.cli.render import count, table_of, text
from optvet.cli.request import takes
from optvet.cli.terminal import Terminal, one_line
from optvet.spec.generate import GenerateRequest
from optvet.spec.records import Coverage, GeneratedModels, OperatorSequence

_LISTED = 5
_REASON = 90


@add(app, "generate")
@takes(GenerateRequest)
def _generate(
    context: typer.Context,
    request: GenerateRequest,
    json_to: Json = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    debug: Debug = False,
) -> None:
    """Make synthetic models, check and run them, and list their operators.

    The least used operators come first. Equal options, seed and count make equal files.
    """
    from optvet.engine.discovery import Plugins
    from optvet.engine.generate.run import generate

    check_folder("--out", request.out.expanduser())
    request = request.model_copy(update={"cache_dir": cache_folder(request.cache_dir)})
    terminal = context.ensure_object(Terminal)
    try:
        if quiet:
            generated = generate(request, Plugins())
        else:
            with terminal.progress() as progress:
                generated = generate(request, Plugins(), progress=progress)
    except KeyboardInterrupt:
        words = f"the finished models are in {request.out}"
        raise Interrupted(words) from None
    if json_to is not None:
        write_document(terminal, json_to, generated.to_json())
    if json_to != "-":
        terminal.show(*_screen(generated))


def _screen(generated: GeneratedModels) -> Iterator[RenderableType]:
    coverage = generated.coverage
    own = len(coverage.operators) - sum("::" in name for name in coverage.operators)
    table = table_of(("coverage", "bold"), ("", ""))
    table.show_header = False
    every = own + len(coverage.missing)
    table.add_row("operators", f"{own:,} of {every:,} of opset {coverage.opset}")
    if coverage.older:
        table.add_row("", text(_older(coverage)))
    table.add_row("attributes", text(_attributes(coverage)))
    table.add_row("pairs", text(_sequences(coverage.pairs)))
    table.add_row("triples", text(_sequences(coverage.triples)))
    lengths = (f"{found:,} of {length}" for length, found in coverage.sequences.items())
    table.add_row("sequences", text(f"different ones: {', '.join(lengths)} operators"))
    yield table
    if coverage.missing:
        missing = table_of(("operator without a model", "bold"), ("why", "dim"))
        for name, why in coverage.missing.items():
            missing.add_row(text(name), text(one_line(why, _REASON)))
        yield missing
    nodes = [model.nodes for model in generated.models]
    killers = f" at {', '.join(generated.deaths)}" if generated.deaths else ""
    dropped = f", {generated.dropped:,} dropped ({generated.killed:,} ended their worker{killers})"
    least, most = min(nodes), max(nodes)
    size = f"{least} nodes" if least == most else f"{least} to {most} nodes"
    yield text(
        f"{count(len(nodes), 'model')} of {size} "
        f"in {generated.folder}, each checked, and run twice with equal results "
        f"by {generated.runtime} {generated.version}"
        f"{dropped if generated.dropped else ''}",
        "bold",
    )


def _older(coverage: Coverage) -> str:
    """Operators that the runtime has in older versions alone, by version."""
    names: dict[int, list[str]] = {}
    for name, opset in coverage.older.items():
        names.setdefault(opset, []).append(name)
    parts = (f"{', '.join(names[v])} of opset {v}" for v in sorted(names, reverse=True))
    return f"of these, only in models of older operator sets: {'; '.join(parts)}"


def _attributes(coverage: Coverage) -> str:
    attributes = [values for of in coverage.attributes.values() for values in of.values()]
    values = sum(map(len, attributes))
    return f"{count(len(attributes), 'attribute')} with {count(values, 'value')}"


def _sequences(found: list[OperatorSequence]) -> str:
    most = ", ".join(f"{' → '.join(s.operators)} ({s.models:,})" for s in found[:_LISTED])
    return f"{len(found):,} different ones; most often {most}" if found else "none"
