"""``optvet precision``: which nodes must keep their precision for the rest to be converted."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from optvet.cli.errors import CLEAN, FINDINGS, UNDECIDED
from optvet.cli.options import Debug, cache_folder
from optvet.cli.output import Json, check_file, write_document
from optvet.cli.picture import check_picture, draw_charts
from optvet.cli.render import count, number, table_of, text, timing_line
from optvet.cli.request import takes
from optvet.cli.terminal import Terminal, one_line
from optvet.cli.vet_facts import MADE_UP, are_inputs_made_up
from optvet.cli.vet_screen import code_lines, saved_lines
from optvet.report.charts import curves_of
from optvet.spec.precision import PrecisionRequest
from optvet.spec.records.verified import verified_parts

if TYPE_CHECKING:
    from optvet.spec.records.precision import PrecisionReading, PrecisionResult

_COLOURS = {"found": "green", "nothing-to-keep": "green", "unmet": "red", "undecided": "yellow"}
_CODES = {
    "found": CLEAN,
    "nothing-to-keep": CLEAN,
    "unmet": FINDINGS,
    "undecided": UNDECIDED,
}
_STATES = {True: ("met", "green"), False: ("not met", "red"), None: ("not measured", "yellow")}
_SHOWN = 20
_RANKED = 12
_LINE_CHARS = 240


Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="FILE",
        callback=check_picture,
        help="Draw what is measured with more and more nodes kept into an SVG or PNG file.",
        show_default=False,
        rich_help_panel="The answer",
    ),
]


@takes(PrecisionRequest, "model")
def command(
    context: typer.Context,
    request: PrecisionRequest,
    plot: Plot = None,
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """Find the fewest nodes to keep as they are while the rest becomes less precise."""
    from optvet.engine.discovery import Plugins
    from optvet.engine.precision.run import find_precision

    terminal = context.ensure_object(Terminal)
    if request.out is not None:
        check_file("--out", str(request.out), "model")
    with terminal.progress() as progress:
        result = find_precision(request, Plugins(), progress=progress)
    if json_to is not None:
        write_document(terminal, json_to, result.to_json())
    if json_to != "-" and request.recipe is not None:
        _show_recipe(terminal, result, request.recipe)
    elif json_to != "-":
        terminal.show(headline(result), soft_wrap=True)
        terminal.show(*pasted(result, terminal.width), soft_wrap=True)
        terminal.show(*screen(result))
    if plot is not None and (charts := curves_of(result)):
        draw_charts(charts, plot, cache_folder(request.cache_dir))
        if json_to != "-":
            terminal.show(f"wrote {plot}", soft_wrap=True)
    unsaved = result.saved is not None and not result.saved.path
    raise typer.Exit(FINDINGS if unsaved else _CODES[result.verdict])


def _show_recipe(terminal: Terminal, result: PrecisionResult, name: str) -> None:
    """One form of the list alone, ready to be written to a file."""
    if name in result.recipes:
        terminal.show(text(result.recipes[name].rstrip("\n")), soft_wrap=True)
        if result.unnamed:
            words = f"{count(result.unnamed, 'node')} of {result.model.source} had no name"
            terminal.complain(f"{words} of their own: name them before other tools read the model")
    else:
        terminal.complain(result.headline())


def headline(result: PrecisionResult) -> Text:
    """The answer in one line: how many parts to keep, of which model, by which optimizer."""
    words = {
        "found": f"KEEP {len(result.kept)} OF {result.parts}",
        "nothing-to-keep": "KEEP NOTHING",
        "unmet": "NOT MET",
        "undecided": "UNDECIDED",
    }[result.verdict]
    line = Text(f"{words}  ", style=f"bold {_COLOURS[result.verdict]}")
    about = f"{result.model.source} → {result.precision} by {result.optimizer.name}"
    return line.append_text(text(f"{about} {result.optimizer.version}", "not bold default"))


def screen(result: PrecisionResult) -> Iterator[RenderableType]:
    """What the answer rests on: requirement, kept parts, what was measured, curve and ranking."""
    for line in _about(result):
        yield text(line, "yellow" if line == MADE_UP else "dim")
    if result.reason:
        yield text(one_line(f"because {result.reason}", _LINE_CHARS), "yellow")
    if result.kept:
        yield Padding(_kept_table(result), (1, 0, 1, 0))
    yield from _effect(result)
    if result.curve:
        yield Padding(_curve_table(result), (1, 0, 1, 0))
    if result.ranking:
        yield Padding(_ranking_table(result), (0, 0, 1, 0))


def pasted(result: PrecisionResult, width: int) -> Iterator[Text]:
    """What is pasted into a call, whose names are never broken; and where the model lies."""
    yield from _recipes(result, width)
    if result.recipes and result.unnamed:
        words = f"{count(result.unnamed, 'node')} had no name of their own and got one in --out"
        yield text(words, "yellow")
    found = verified_parts(result)
    yield from saved_lines(found.saved)
    if result.saved is not None and result.saved.path:
        yield text(f"wrote {', '.join(result.files)}")
    yield from code_lines(found.code)


def _a_line_each(code: str) -> str:
    """A list in Python with a line for each element; anything else as it is."""
    with suppress(ValueError, SyntaxError):
        if isinstance(elements := ast.literal_eval(code), list):
            lines = (f"    {element!r},\n" for element in elements)
            return f"[\n{''.join(lines)}]"
    return code


def _about(result: PrecisionResult) -> Iterator[str]:
    requirement = " and ".join(result.requirements)
    own = " (none was given: these are the optimizer's own)"
    default = own if result.default_requirement else ""
    yield f"required: {requirement}{default}"
    runtime = f"{result.runtime.name} {result.runtime.version}"
    yield f"judged by {runtime} on {count(result.samples, 'sample')}"
    if are_inputs_made_up(result):
        yield MADE_UP
    if result.emulated:
        why = f"{result.runtime.name} does not round each {result.precision} value here, so "
        why = why if result.sum_block is None else ""
        yield f"{why}rounding is emulated: each value is rounded to the type, " + (
            _accumulation(result)
        )


def _recipes(result: PrecisionResult, width: int) -> Iterator[Text]:
    """What to paste into a call of the library; the names of other tools' forms."""
    calls = {name: code for name, code in result.recipes.items() if not code.endswith("\n")}
    for name, code in calls.items():
        line = f"{name}={code}"
        yield text(line if len(line) <= width else f"{name}={_a_line_each(code)}")
    if others := [name for name in result.recipes if name not in calls]:
        yield text(f"for other tools: --recipe {' or '.join(others)}", "dim")


def _accumulation(result: PrecisionResult) -> str:
    """How sums are accumulated in what is emulated."""
    kind, block = result.accumulate, result.sum_block
    if block is None:
        return "sums are accumulated in float32"
    each = "each product" if block == 1 else f"each {block} products"
    words = f"no sum is accumulated in {kind}"
    if result.short_sums:
        words = f"sums of {_counted(result.short_sums)} are rounded to {kind} after {each}"
    if result.float32_sums:
        words += f"; those inside of {_counted(result.float32_sums)} are accumulated in float32"
    return words


def _counted(nodes: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {operator}" for operator, number in sorted(nodes.items()))


def _kept_table(result: PrecisionResult) -> Table:
    table = table_of(("keep", ""), ("operator", ""), ("because", ""))
    table.columns[0].no_wrap = False
    for part in result.kept[:_SHOWN]:
        words = ", ".join(part.operators[:3])
        nodes = f" ({part.nodes} nodes)" if part.nodes > 1 else ""
        table.add_row(text(part.name), text(words + nodes), text(part.reason))
    if len(result.kept) > _SHOWN:
        table.add_row(text(f"… {len(result.kept) - _SHOWN} more"), text(""), text(""))
    return table


def _effect(result: PrecisionResult) -> Iterator[RenderableType]:
    """What was measured with nothing kept, with the list, and with everything kept."""
    yield from _readings("all converted", result.whole)
    if result.kept:
        yield from _readings("with the list kept", result.chosen)
    yield from _readings("none converted", result.none if result.verdict == "unmet" else [])
    yield from _readings(f"as {result.runtime.name} computes it", result.computed)
    if result.timing is not None:
        yield text(f"time: {timing_line(result.timing)}")
    if result.not_timed:
        yield text(one_line(f"not timed: {result.not_timed}", _LINE_CHARS), "yellow")
    if result.kept:
        yield text(
            "measured again in new processes; no part can be left out"
            if result.minimal
            else "measured again in new processes; a part might be left out",
            "green" if result.minimal else "yellow",
        )
    size = ""
    if result.mixed_size_bytes is not None:
        share = result.mixed_size_bytes / max(result.model.size_bytes, 1)
        size = f", {result.mixed_size_bytes:,} bytes, {share:.0%} of the original"
    inferences = count(result.inferences, "inference")
    yield text(f"{count(result.trials, 'list')} tried, {inferences}{size}", "dim")


def _readings(label: str, readings: list[PrecisionReading]) -> Iterator[RenderableType]:
    """One line: whether all requirements are met, and what was measured; nothing of nothing."""
    if not readings:
        return
    states = [reading.met for reading in readings]
    met = False if False in states else None if None in states else True
    words, colour = _STATES[met]
    line = text(f"{label}: ")
    line.append(words, colour)
    details = "; ".join(reading.detail for reading in readings)
    yield line.append_text(text(one_line(f", {details}", _LINE_CHARS)))


def _curve_table(result: PrecisionResult) -> Table:
    table = table_of(("kept", ""))
    for requirement in result.requirements:
        table.add_column(requirement, justify="right")
        table.add_column("", no_wrap=True)
    for point in result.curve:
        cells = [text(f"{point.kept:,} of {result.parts:,}")]
        for reading in point.readings:
            cells.append(text("–" if reading.measured is None else number(reading.measured)))
            cells.append(text(*_STATES[reading.met]))
        table.add_row(*cells)
    return table


def _ranking_table(result: PrecisionResult) -> Table:
    table = table_of(("converted alone", ""), ("operator", ""))
    table.columns[0].no_wrap = False
    table.add_column("loss", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for part in result.ranking[:_RANKED]:
        loss = "not finite" if part.loss is None else number(part.loss)
        operators = ", ".join(part.operators[:3])
        table.add_row(text(part.name), text(operators), text(loss), text(*_STATES[part.met]))
    if len(result.ranking) > _RANKED:
        left = len(result.ranking) - _RANKED
        table.add_row(text(f"… {left} more, in --json"), text(""), text(""), text(""))
    return table
