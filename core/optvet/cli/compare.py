"""``optvet compare``: where two models begin to compute different things."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from optvet.cli.compare_decoding import refuse_unsuited, show_decoding
from optvet.cli.errors import CLEAN, FINDINGS, UNDECIDED
from optvet.cli.options import CacheDir, Debug, Trust, cache_folder, mapping_of
from optvet.cli.output import Json, write_document
from optvet.cli.render import count, node_line, number, table_of, text
from optvet.cli.terminal import Terminal, one_line
from optvet.spec.errors import UsageError
from optvet.spec.request import VetRequest

if TYPE_CHECKING:
    from optvet.spec.records import AnswerContrast, Layer, LayerSummary, ModelComparison
    from optvet.spec.records.compare import RecordedOn, ShippedComparison

_NODES = 12
_COLOURS = {"same": "dim", "drift": "green", "fault": "red"}


def command(
    context: typer.Context,
    a: Annotated[
        str,
        typer.Argument(
            metavar="A", help="An ONNX file, `zoo:NAME`, or a folder.", show_default=False
        ),
    ],
    b: Annotated[
        str, typer.Argument(metavar="B", help="The model to compare with A.", show_default=False)
    ],
    layers: Annotated[
        bool,
        typer.Option("--layers", help="Show every shared value, and sums by operator and type."),
    ] = False,
    dataset: Annotated[
        str | None,
        typer.Option(metavar="NAME[:PATH]", help="Where the input comes from.", show_default=False),
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Runtime of both models.", show_default=False),
    ] = None,
    runtime_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Option of the session in which B is run as shipped, beside its defaults.",
            show_default=False,
        ),
    ] = None,
    clean: Annotated[
        bool,
        typer.Option("--clean", help="Compare in the clean room alone, not as shipped."),
    ] = False,
    tolerance: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Beside a recording: error of the device's arithmetic, as a share of a value's "
            "largest magnitude; about 0.01 for float16.",
        ),
    ] = 0.0,
    limit: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of samples; with several, show which layers explain different answers.",
        ),
    ] = 1,
    comparator: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With several samples: comparator that says whether two answers are equal.",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of tokens to decode, if A and B are folders. [default: 8]",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random choices.")] = 0,
    trust: Trust = False,
    cache_dir: CacheDir = None,
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """Compare two models value by value, and show where they first differ."""
    from optvet.engine.compare import compare_files
    from optvet.engine.decoding.files import is_decoding_folder
    from optvet.engine.discovery import Plugins

    terminal = context.ensure_object(Terminal)
    if is_decoding_folder(a):
        unsuited = {
            "--layers": layers,
            "--runtime-option": runtime_option,
            "--clean": clean,
            "--tolerance": tolerance,
            "--limit": limit > 1,
            "--comparator": comparator,
        }
        refuse_unsuited(a, unsuited)
        given = (dataset,) if dataset else ()
        request = VetRequest(model=a, dataset=given, runtime=runtime, seed=seed, trust=trust)
        show_decoding(terminal, b, request, tokens or 8, cache_folder(cache_dir), json_to)
    if tokens is not None:
        raise UsageError(f"--tokens: {a} is no folder of an exported decoder; leave it out")
    with terminal.progress() as progress:
        found = compare_files(
            a,
            b,
            Plugins(),
            dataset=dataset,
            runtime=runtime,
            comparator=comparator,
            limit=limit,
            seed=seed,
            cache_dir=cache_folder(cache_dir),
            trust=trust,
            runtime_options=mapping_of("--runtime-option", runtime_option or ()),
            clean=clean,
            tolerance=tolerance,
            progress=progress,
        )
    if json_to is not None:
        write_document(terminal, json_to, found.to_json())
    if json_to != "-":
        terminal.show(*_screen(found, layers))
        if found.recording is not None:
            terminal.show(*_recorded(found, found.recording, a, b))
    raise typer.Exit(_code(found))


def _recorded(found: ModelComparison, by: RecordedOn, a: str, b: str) -> Iterator[RenderableType]:
    """Where the values come from, and what to record next."""
    options = f" ({', '.join(by.options)})" if by.options else ""
    about = f"{', '.join(by.providers)}{options}, {by.runtime}, {by.client}, {by.system}"
    yield text(node_line(f"recorded by {about}, {count(by.samples, 'sample')}"), "dim")
    if by.failure:
        yield text(node_line(f"the device failed: {by.failure}"), "bold red")
    if len(found.before) > 1:
        yield text(f"next  optvet record {a} --after {b} --out kit-2", "dim")


def _code(found: ModelComparison) -> int:
    if found.recording is not None and found.recording.failure:
        return FINDINGS
    shipped = found.as_shipped.verdict if found.as_shipped is not None else "agrees"
    if found.diverges_at is not None or shipped == "differs":
        return FINDINGS
    return UNDECIDED if shipped == "undecided" else CLEAN


def _screen(found: ModelComparison, layers: bool) -> Iterator[RenderableType]:
    if layers:
        yield Padding(_table(found.layers), (0, 0, 1, 0))
        for what, sums in (("operator", found.operators), ("type", found.dtypes)):
            if sums:
                yield Padding(_sums(what, sums), (0, 0, 1, 0))
        differing = [la for la in found.layers if _differences(la)]
        if differing:
            yield text("differs in the nodes that make them", "dim")
            lines = [f"{la.name}: {'; '.join(_differences(la))}" for la in differing]
            yield Padding(text("\n".join(map(node_line, lines))), (0, 0, 1, 2))
    if found.contrast is not None:
        yield from _contrast(found.contrast, layers)
    was, now = found.nodes
    shared = count(len(found.layers), "shared value")
    yield text(f"{count(was, 'node')} and {now:,}, {shared}", "dim")
    if not found.layers:
        yield text("the models share no value, so nothing was compared", "yellow")
        return
    if found.diverges_at is None:
        yield from _agreement(found.as_shipped)
        return
    layer = next(la for la in found.layers if la.name == found.diverges_at)
    line = Text("first difference at ", "bold red")
    yield line.append_text(text(one_line(found.diverges_at)))
    yield text(_layer_words(layer))
    if found.agreeing:
        yield text(node_line(f"still the same before: {', '.join(found.agreeing)}"), "dim")
    sides = [("A", found.before), ("B", found.after)]
    if found.recording is not None:
        one = len(found.before) == 1
        sides = [("wrong is the node" if one else "one of these nodes is wrong", found.before)]
    for label, nodes in sides:
        yield text(label, "dim")
        shown = [node_line(node) for node in nodes[:_NODES]]
        more = [f"… {count(len(nodes) - _NODES, 'more node')}"] if len(nodes) > _NODES else []
        yield Padding(text("\n".join([*shown, *more]) or "–"), (0, 0, 0, 2))


_BLAMED = {
    "runtime": "the runtime: its defaults are wrong on an unchanged model too",
    "both": "both together: A is right in such a session, B in the clean room",
}


def _agreement(shipped: ShippedComparison | None) -> Iterator[RenderableType]:
    """What is said of models that agree in the clean room."""
    words = "no value differs by more than rounding"
    if shipped is None or shipped.verdict == "agrees":
        yield Text(words, "bold green")
        if shipped is not None:
            yield text(f"nor does B as shipped, in {shipped.runtime} with its defaults", "dim")
            if shipped.message:
                yield text(node_line(shipped.message), "dim")
        return
    yield text(f"{words} in the clean room")
    if shipped.verdict == "not-judged":
        yield text(node_line(f"not compared as shipped: {shipped.message}"), "yellow")
    elif shipped.verdict == "undecided":
        yield text(node_line(f"undecided as shipped: {shipped.message}"), "bold yellow")
    else:
        head = f"B differs as shipped, in {shipped.runtime} with its defaults"
        yield text(head, "bold red")
        yield Padding(text(node_line(shipped.message)), (0, 0, 0, 2))
        yield text(f"to blame: {_BLAMED[shipped.blamed or 'both']}")
        if shipped.runtime_parts:
            parts = ", ".join(shipped.runtime_parts)
            yield text(node_line(f"the session's part: {parts}"))


def _contrast(found: AnswerContrast, every: bool) -> Iterator[RenderableType]:
    """Layers by how far they differ where the answers do; a few of them unless ``every``."""
    alike, other = len(found.similar), len(found.dissimilar)
    yield text(
        f"{count(alike + other, 'sample')}, by {found.comparator}: {alike} with the same answer, "
        f"{other} with another",
        "dim",
    )
    table = _names("value", "operator")
    for header in ("rms same", "rms other", "F", "p", "rank p"):
        table.add_column(header, justify="right", no_wrap=True)
    for layer in found.layers if every else found.layers[:_NODES]:
        numbers = (layer.similar, layer.dissimilar, layer.f, layer.p, layer.rank_p)
        table.add_row(text(layer.name), text(layer.operator), *map(number, numbers))
    yield Padding(table, (0, 0, 1, 0))


def _names(*headers: str) -> Table:
    """A table whose first columns are names, which fold where they are long."""
    table = table_of(*((header, "") for header in headers))
    table.columns[0].no_wrap = False
    return table


def _sums(what: str, sums: Sequence[LayerSummary]) -> Table:
    table = _names(what)
    for header in ("values", "differ", "error", "noise", "rms"):
        table.add_column(header, justify="right", no_wrap=True)
    for each in sums:
        table.add_row(
            text(each.key),
            f"{each.layers:,}",
            Text(f"{each.differing:,}", "red" if each.differing else "dim"),
            *map(number, (each.error, each.noise, each.rms_difference)),
        )
    return table


def _layer_words(layer: Layer) -> str:
    """Describe the difference."""
    words = [layer.detail] if layer.detail else []
    if layer.error is not None:
        words.append(f"error {number(layer.error)}, noise {number(layer.noise)}")
    words += _differences(layer)
    return "; ".join(words)


def _differences(layer: Layer) -> list[str]:
    words = [f"attribute {k}: {v}" for k, v in layer.attributes.items()]
    for weight in layer.parameters:
        if weight.differs:
            size = number(weight.max_difference) if weight.max_difference else "another shape"
            mean = number(weight.mean_difference)
            more = f", mean absolute difference {mean}" if weight.mean_difference else ""
            words.append(f"weight {weight.name}: {size}{more}")
    return words


def _table(layers: list[Layer]) -> Table:
    table = _names("value", "operator", "")
    for header in ("error", "noise", "rms", "cosine"):
        table.add_column(header, justify="right", no_wrap=True)
    for layer in layers:
        operator = layer.op_a if layer.op_a == layer.op_b else f"{layer.op_a} → {layer.op_b}"
        activation = layer.activation
        cosine = None if activation is None else activation.cosine
        table.add_row(
            text(layer.name),
            text(operator),
            Text(layer.call, _COLOURS.get(layer.call, "yellow")),
            number(layer.error),
            number(layer.noise),
            number(None if activation is None else activation.rms_difference),
            "–" if cosine is None else f"{cosine:.4f}",
        )
    return table
