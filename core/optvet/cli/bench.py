"""``optvet bench``: what optimizers cost and gain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from optvet.cli.errors import CLEAN, FINDINGS, UNDECIDED, Interrupted, worst
from optvet.cli.options import Debug, cache_folder
from optvet.cli.output import Json, write_document
from optvet.cli.picture import check_picture, draw_charts
from optvet.cli.render import count, ratio_of, seconds, size, table_of, text, warm_up_words
from optvet.cli.request import takes
from optvet.cli.tables import shown_table
from optvet.cli.terminal import Terminal, one_line
from optvet.report.bench_tables import operator_tables, summary_tables
from optvet.report.charts import charts_of, name_of
from optvet.spec.bench import BenchRequest

if TYPE_CHECKING:
    from optvet.spec.records.bench import BenchResult, BenchVariant
    from optvet.spec.records.timing import TimedSide, Timing

_COLOURS = {"slower": "red", "faster": "green", "no-difference": "", "undecided": "yellow"}
_DETAIL_CHARS = 300


Operators = Annotated[
    bool,
    typer.Option(
        "--operators",
        help="Show operators, their times, and the slowest nodes.",
        rich_help_panel="The answer",
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="FILE",
        callback=check_picture,
        help="Draw speed, operators, placement and error into an SVG or PNG file.",
        show_default=False,
        rich_help_panel="The answer",
    ),
]


@takes(BenchRequest, "model")
def command(
    context: typer.Context,
    request: BenchRequest,
    operators: Operators = False,
    plot: Plot = None,
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """Time optimized models beside the original."""
    from optvet.engine.bench import bench
    from optvet.engine.discovery import Plugins

    terminal = context.ensure_object(Terminal)
    folder = cache_folder(request.cache_dir)
    request = request.model_copy(update={"cache_dir": folder})
    try:
        with terminal.progress() as progress:
            result = bench(request, Plugins(), progress=progress)
    except KeyboardInterrupt:
        raise Interrupted("nothing is kept, since timings are not") from None
    if json_to is not None:
        write_document(terminal, json_to, result.to_json())
    if json_to != "-":
        terminal.show(*screen(result, terminal.width, operators=operators))
    if plot is not None:
        draw_charts(charts_of(result), plot, folder)
        if json_to != "-":
            terminal.show(f"wrote {plot}", soft_wrap=True)
    raise typer.Exit(exit_code(result))


def exit_code(result: BenchResult) -> int:
    """1 if a variant failed or is slower, else 4 if one is undecided, else 0."""
    return worst(_code(variant) for variant in result.variants)


def _code(variant: BenchVariant) -> int:
    timing = variant.timing
    if timing is None or timing.verdict == "slower":
        return FINDINGS
    return UNDECIDED if timing.verdict == "undecided" else CLEAN


def screen(
    result: BenchResult, width: int = 80, *, operators: bool = False
) -> Iterator[RenderableType]:
    """All parts of the screen, in order; ``operators`` says whether these are shown."""
    yield text("\n".join(one_line(words, width) for words in _subject(result)), "dim")
    yield Padding(_speeds(result), (1, 0))
    costs = _costs(result)
    if costs.row_count:
        yield Padding(costs, (0, 0, 1, 0))
    tables = summary_tables(result) + (operator_tables(result) if operators else [])
    for table in tables:
        yield from shown_table(table)
        yield ""
    for variant in result.variants:
        timing, failure = variant.timing, variant.failure
        if failure is not None:
            words = f"{name_of(variant)}: {failure.symptom} ({failure.stage}): {failure.message}"
            yield text(one_line(words, _DETAIL_CHARS), "red")
        elif timing is not None and timing.detail:
            yield text(one_line(f"{name_of(variant)}: {timing.detail}", _DETAIL_CHARS), "yellow")
        for what, why in variant.unknown.items():
            words = f"{name_of(variant)}: {what} is not known: {why}"
            yield text(one_line(words, _DETAIL_CHARS), "dim")
        if variant.slowdowns or variant.blame_undecided:
            yield Padding(_blame(variant), (0, 0, 1, 0))
    for words in result.skipped:
        yield text(one_line(words, _DETAIL_CHARS), "dim")
    yield text(_noise(result), "dim")


def _subject(result: BenchResult) -> tuple[str, str]:
    """The model, and what runs it where: a line each."""
    machine, model = result.machine, result.model
    first = result.variants[0].runtime
    return (
        f"{model.source}: {count(model.nodes, 'node')}, {size(model.size_bytes)}; "
        f"{count(result.samples, 'sample')}",
        f"{first.name} {first.version}; {machine.processor}",
    )


def _speeds(result: BenchResult) -> Table:
    """Latency of each variant beside that of what it was compared with."""
    table = table_of(
        ("variant", ""),
        ("verdict", ""),
        ("ratio", ""),
        ("interval", "dim"),
        ("latency", ""),
        ("reference", "dim"),
    )
    for variant in result.variants:
        timing = variant.timing
        name = text(name_of(variant))
        if timing is None:
            table.add_row(name, text("failed", "red"), *["–"] * 4)
            continue
        verdict = text(timing.verdict, _COLOURS[timing.verdict])
        if timing.candidate is None or timing.reference is None:
            table.add_row(name, verdict, "1", *["–"] * 3)
            continue
        table.add_row(
            name,
            verdict,
            f"{timing.ratio:.3f}",
            f"{timing.low:.3f}–{timing.high:.3f}",
            seconds(timing.candidate.latency_s),
            seconds(timing.reference.latency_s),
        )
    return table


def _costs(result: BenchResult) -> Table:
    """Show throughput, time to create a session and to optimize, memory, and CPUs."""
    names = ("variant", "runs/s", "samples/s", "session", "optimizing", "memory", "CPUs")
    table = table_of(*((name, "") for name in names))
    shown: set[str] = set()
    for variant in result.variants:
        timing = variant.timing
        if timing is None or timing.candidate is None or timing.reference is None:
            continue
        if timing.baseline not in shown:
            table.add_row(timing.baseline, *_side(timing.reference, None))
            shown.add(timing.baseline)
        table.add_row(text(name_of(variant)), *_side(timing.candidate, variant.optimization_s))
    return table


def _side(side: TimedSide, optimization_s: float | None) -> list[str]:
    memory = "–" if side.memory_bytes is None else size(side.memory_bytes)
    busy = "–" if side.cpu_utilization is None else f"{side.cpu_utilization:.1f}"
    rates = [side.throughput, side.samples_per_s]
    shown = ["–" if rate is None else f"{rate:,.0f}" for rate in rates]
    return [*shown, seconds(side.load_s), seconds(optimization_s), memory, busy]


def _blame(variant: BenchVariant) -> Text:
    """Show the passes that make a variant slower, why, and the time without them."""
    lines = text(f"{name_of(variant)} is slower because of", "")
    for slowdown in variant.slowdowns:
        names = " → ".join(slowdown.culprit) or "import and export alone"
        lines.append_text(text(f"\n  {names}", "bold"))
        lines.append_text(text(f"  {ratio_of(slowdown.timing)}"))
        for reason in slowdown.reasons:
            lines.append_text(text(f"\n    {one_line(reason, _DETAIL_CHARS)}"))
    if variant.blame_undecided:
        lines.append_text(text(f"\n  undecided: {variant.blame_undecided}", "yellow"))
    if variant.fast_timing is not None:
        words = f"\n  without it: --pipeline {variant.fast_option}: {ratio_of(variant.fast_timing)}"
        lines.append_text(text(words))
    return lines


def _noise(result: BenchResult) -> str:
    """How steady the machine was."""
    machine = result.machine
    timings: list[Timing] = [v.timing for v in result.variants if v.timing is not None]
    spreads = [t.spread for t in timings if t.spread is not None]
    redone = sum(t.redone for t in timings)
    words = (
        f"load {machine.load_before:g} before and {machine.load_after:g} after, on "
        f"{count(machine.cores, 'core')}"
    )
    if spreads:
        words += f"; ratios vary by at most {max(spreads):.1%} between processes"
    warm = warm_up_words(timings)
    return f"{words}; {count(redone, 'round')} repeated{'; ' if warm else ''}{warm}"
