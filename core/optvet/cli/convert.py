"""``optvet convert``: whether a conversion keeps a model intact, and which stage does not."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from optvet.cli.errors import CLEAN, FINDINGS, NOTHING, UNDECIDED
from optvet.cli.options import Debug, cache_folder, was_typed
from optvet.cli.output import (
    Json,
    check_folder,
    refuse_inputs_in,
    refuse_modules_in,
    write_document,
)
from optvet.cli.render import LABEL_COLUMNS, count, node_line, number, table_of, text
from optvet.cli.request import takes
from optvet.cli.terminal import Terminal, one_line
from optvet.cli.vet_facts import append_unmet, labelled_grid, metrics_words, task_rows
from optvet.engine.convert.kept_answer import recall_conversion
from optvet.spec.convert import ConvertRequest
from optvet.spec.repair import RepairRequest
from optvet.spec.request import arguments_of

if TYPE_CHECKING:
    from optvet.spec.records.convert import ConversionFinding, ConversionResult, ReducedSource

_COLOURS = {"right": "green", "faulty": "red", "refused": "yellow", "undecided": "yellow"}
_STATES = {"same": "dim", "drift": "green", "fault": "red", "fails": "red"}
_CODES = {"right": CLEAN, "faulty": FINDINGS, "refused": NOTHING, "undecided": UNDECIDED}
_LINE_CHARS = 240
_WARNINGS = 5
_NODES = 4
_LEAST_WIDTH = 5
_NO_SIZE = "NaN/inf"
"""In place of an error: what is no number where it should be one differs by no size."""


@takes(ConvertRequest, "model")
def command(
    context: typer.Context,
    request: ConvertRequest,
    reduce_to: Annotated[
        Path | None,
        typer.Option(
            "--reduce",
            metavar="DIR",
            help="Write the smallest part of the source that still shows the fault to this folder.",
            show_default=False,
        ),
    ] = None,
    json_to: Json = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the verdict alone, no progress.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Say whether converters keep a model intact, and which of their stages is to blame."""
    terminal = context.ensure_object(Terminal)
    terminal.keeps = False
    shown = request
    if not was_typed(context, "cache_dir"):
        shown = request.model_copy(update={"cache_dir": None})
    request = request.model_copy(update={"cache_dir": cache_folder(request.cache_dir)})
    if request.out is not None:
        check_folder("--out", request.out)
        refuse_inputs_in("--out", request.out, r"\d+-.*", request.model)
    if reduce_to is not None:
        check_folder("--reduce", reduce_to)
        refuse_inputs_in("--reduce", reduce_to, ".*", request.model)
        refuse_modules_in("--reduce", reduce_to)
    result = recall_conversion(request)
    if result is None or (reduce_to is not None and result.verdict == "faulty"):
        result = _convert(request, result, reduce_to, terminal, quiet=quiet)
    if json_to is not None:
        write_document(terminal, json_to, result.to_json())
    if json_to != "-":
        terminal.show(headline(result), soft_wrap=True)
        if not quiet:
            terminal.show(*screen(result, fixed=request.fixed_tolerances))
            if (command := _next_command(result, shown)) is not None:
                terminal.show(command, soft_wrap=True)
    unmet = any(f.severity == "requirement" for f in result.findings)
    raise typer.Exit(FINDINGS if unmet else _CODES[result.verdict])


def _convert(
    request: ConvertRequest,
    known: ConversionResult | None,
    reduce_to: Path | None,
    terminal: Terminal,
    *,
    quiet: bool,
) -> ConversionResult:
    """The answer, unless it is ``known``; with the reduced source if that is asked for."""
    from optvet.engine.convert.run import convert_model
    from optvet.engine.discovery import Plugins
    from optvet.engine.reduce.converted_source import reduced_or_why_not
    from optvet.engine.work.sandbox import keep_servers

    if reduce_to is not None:
        keep_servers()  # Each part is converted like a source of its own.
    with terminal.progress(quiet) as progress:
        result = known or convert_model(request, Plugins(), progress=progress)
        if reduce_to is not None and result.verdict == "faulty":
            about = (request, result, Plugins(), reduce_to)
            reduced = reduced_or_why_not(*about, progress=progress)
            result = result.model_copy(update={"reduced": reduced})
    return result


def _next_command(result: ConversionResult, request: ConvertRequest) -> Text | None:
    """The command that leads on from a fault, on one line; None where none does."""
    faults = [f for f in result.findings if f.severity == "fault"]
    if all(f.kind == "target-runtime" for f in faults):
        return None  # There is nothing to mend in the model, or no fault.
    own = {"out"} | (ConvertRequest.model_fields.keys() - RepairRequest.model_fields.keys())
    words = ["optvet", "repair", *arguments_of(request, request.model, own)]
    if result.stages[-1].format != "onnx":
        words = ["optvet", "convert", *arguments_of(request, request.model), "--reduce", "part"]
    line = Text(f"{'next':<{LABEL_COLUMNS}}", style="dim")
    return line.append_text(text(shlex.join(words), "not dim bold"))


def headline(result: ConversionResult) -> Text:
    """The verdict, the source and the chain."""
    chain = " → ".join(c.name for c in result.converters)
    line = Text(f"{result.verdict.upper():<9} ", style=f"bold {_COLOURS[result.verdict]}")
    line.append_text(text(f"{result.source.source} → {chain}", "not bold default"))
    append_unmet(line, result.requirements)
    return line


def screen(result: ConversionResult, *, fixed: bool = False) -> Iterator[RenderableType]:
    """Stages, findings and what the answer rests on; ``fixed`` tolerances if they are asked."""
    versions = ", ".join(f"{c.name} {c.version}" for c in result.converters)
    judged = f"judged by {result.source.runtime} {result.source.version}"
    yield text(f"{versions}; {judged} on {count(result.samples, 'input')}", "dim")
    yield Padding(_stages(result), (1, 0, 1, 0))
    for finding in result.findings:
        yield Padding(_finding(finding), (0, 0, 1, 0))
    if result.reduced is not None:
        yield _show_reduction(result.reduced)
    if result.reason:
        yield text(f"because {result.reason}", "yellow")
    for control in result.controls:
        if control.state != "passed":
            yield text(one_line(f"{control.name}: {control.detail}", _LINE_CHARS), "yellow")
    yield labelled_grid([*_task_rows(result, fixed=fixed)])
    if result.notes:
        yield text(one_line("notes: " + "; ".join(result.notes), _LINE_CHARS), "dim")
    if result.skipped:
        first = result.skipped[0]
        words = f"{first.sample}: {first.reason}"
        left = f"{count(len(result.skipped), 'input')} left out"
        yield text(one_line(f"{left}; the first {words}", _LINE_CHARS), "dim")
    for line in result.warnings[:_WARNINGS]:
        yield text(one_line(f"warned: {line}", _LINE_CHARS), "dim")
    if len(result.warnings) > _WARNINGS:
        yield text(f"… {count(len(result.warnings) - _WARNINGS, 'more warning')}", "dim")


def _task_rows(result: ConversionResult, *, fixed: bool) -> Iterator[tuple[str, RenderableType]]:
    """What differences mean for the task, if there are any, and what was required."""
    impact = result.impact
    if impact is not None and (impact.changed or impact.sensitive):
        if impact.headline not in (f.consequence for f in result.findings):
            yield "impact", text(impact.headline)
    if impact is not None and (impact.changed or impact.sensitive or result.datasets):
        yield "metrics", text(metrics_words(impact), "dim")
    yield from task_rows(result, fixed=fixed)


def _show_reduction(found: ReducedSource) -> Text:
    if found.note:
        return text(one_line(f"not reduced: {found.note}", _LINE_CHARS), "yellow")
    shows = {True: "; its script shows the fault", False: "; its script does not show the fault"}
    words = f"reduced to {found.part or 'the whole source'}, {found.size} of {found.size_before}"
    suffix = "" if found.reproduces is None else shows[found.reproduces]
    style = "yellow" if found.reproduces is False else ""
    return text(f"{words}: {', '.join(found.files)}{suffix}", style)


def _stages(result: ConversionResult) -> Table:
    table = table_of(("stage", ""))
    # The line above the table names a converter that is the only one.
    alone = len({s.converter for s in result.stages}) == 1
    for header, style in (("format", "dim"), ("runs on", "dim"), ("", "")):
        table.add_column(
            header, style=style, min_width=_LEAST_WIDTH, no_wrap=alone, overflow="fold"
        )
    edges = any(s.edge_error is not None or s.edge_places for s in result.stages)
    counted = any(s.quantized is not None for s in result.stages)
    headers = ["error", "noise", *["edge\nerror", "edge\nnoise"] * edges, *["quantized"] * counted]
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    for stage in result.stages:
        edge_error = _NO_SIZE if stage.edge_places else number(stage.edge_error)
        more = [edge_error, number(stage.edge_noise)] if edges else []
        nodes = "" if stage.quantized is None else count(stage.quantized, "node")
        table.add_row(
            text(stage.name if alone else f"{stage.converter}/{stage.name}"),
            text(stage.format),
            text(stage.runtime),
            Text(stage.state, _STATES.get(stage.state, "yellow")),
            _NO_SIZE if stage.places else number(stage.error),
            number(stage.noise),
            *more,
            *[nodes] * counted,
        )
    return table


def _finding(finding: ConversionFinding) -> Table:
    grid = Table.grid(padding=(0, 0))
    grid.add_column(width=10, style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    style = "red" if finding.severity in ("fault", "requirement") else "yellow"
    label = "note" if finding.severity == "note" else "finding"
    grid.add_row(label, Text(finding.symptom, style))
    where = " or ".join(finding.stages)
    if finding.kind == "target-runtime":
        where = f"runtime {finding.culprit}, on the result of {where}"
    grid.add_row("culprit", text(f"{where} ({finding.kind})"))
    grid.add_row("", text(one_line(finding.message, _LINE_CHARS)))
    if finding.consequence:
        grid.add_row("impact", text(one_line(finding.consequence, _LINE_CHARS)))
    if finding.place is not None and (words := finding.place.words()):
        grid.add_row("inside", text(one_line(words, _LINE_CHARS)))
        parts = dict.fromkeys((finding.place.module, finding.place.line, finding.place.inside))
        where = ", ".join(part for part in parts if part)
        if where:
            grid.add_row("", text(one_line(where, _LINE_CHARS), "dim"))
        if finding.place.preprocessing:
            grid.add_row("", text("preprocessing: all weights come after it", "dim"))
        for name, (now, wanted) in finding.place.attributes.items():
            grid.add_row("", text(f"{name} is {now}, in the source {wanted}"))
        for weight in finding.place.parameters[:_WARNINGS]:
            how = f"differs by {number(weight.error)}" if weight.error else f"is {weight.how}"
            grid.add_row("", text(f"{weight.name} {how}"))
        for node in finding.place.nodes[:_NODES]:
            grid.add_row("", text(node_line(node), "dim"))
    if finding.witness is not None:
        seen = finding.witness
        about = f" ({seen.about})" if seen.about else ""
        many = f", {count(finding.samples, 'input')}" if finding.samples else ""
        grid.add_row("sample", text(f"{seen.sample}{about}{many}"))
    for check in finding.cross_check:
        words = f"{check.runtime}: {check.outcome}; {check.detail}".rstrip("; ")
        grid.add_row("also on", text(one_line(words, _LINE_CHARS), "dim"))
    return grid
