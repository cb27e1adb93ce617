"""``optvet repair``: edits that make a converted model compute what its source computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from optvet.cli.errors import CLEAN, FINDINGS, NOTHING, UNDECIDED
from optvet.cli.options import Debug
from optvet.cli.output import Json, check_file_in, check_folder, refuse_inputs_in, write_document
from optvet.cli.render import count, number, table_of, text
from optvet.cli.request import takes
from optvet.cli.terminal import Terminal, one_line
from optvet.spec.repair import RepairRequest

if TYPE_CHECKING:
    from optvet.spec.records.repair import InputPart, RepairNumbers, RepairResult

_COLOURS = {"right": "green", "repaired": "green", "improved": "yellow", "not-repaired": "red"}
_CODES = {
    "right": CLEAN,
    "repaired": CLEAN,
    "improved": FINDINGS,
    "not-repaired": FINDINGS,
    "refused": NOTHING,
    "undecided": UNDECIDED,
}
REPAIRED, PATCH = "repaired.onnx", "patch.json"
_WRITTEN = r"repaired\.onnx|patch\.json"
_LINE_CHARS = 240
_PARTS: dict[InputPart, str] = {
    "witnesses": "used to choose the edits",
    "held_out": "held out",
    "fresh": "drawn afterwards",
}


@takes(RepairRequest, "model")
def command(
    context: typer.Context,
    request: RepairRequest,
    json_to: Json = None,
    debug: Debug = False,
) -> None:
    """Repair a wrong conversion, and say what was wrong with it."""
    from optvet.engine.discovery import Plugins
    from optvet.engine.work.written import refuse_to_lose, remember

    terminal = context.ensure_object(Terminal)
    terminal.keeps = False
    check_folder("--out", request.out)
    read = (request.model, request.converted, request.apply)
    refuse_inputs_in("--out", request.out, _WRITTEN, *read)
    repaired, patch = request.out / REPAIRED, request.out / PATCH
    check_file_in("--out", repaired, "model")
    check_file_in("--out", patch, "patch")
    refuse_to_lose("--out", repaired)
    if request.apply is not None:
        from optvet.engine.repair.apply_patch import apply_patch

        words = apply_patch(request)
        remember([repaired])
        terminal.show(text(f"wrote {request.out / words}; vet it as a new model"))
        return
    from optvet.engine.repair.run import repair_model

    with terminal.progress() as progress:
        result = repair_model(request, Plugins(), progress=progress)
    if REPAIRED in result.files:
        remember([repaired])
    if json_to is not None:
        write_document(terminal, json_to, result.to_json())
    if json_to != "-":
        terminal.show(_headline(result), soft_wrap=True)
        terminal.show(*_screen(result, request))
    raise typer.Exit(_CODES[result.verdict])


def _headline(result: RepairResult) -> Text:
    chain = " → ".join(c.name for c in result.converters)
    style = f"bold {_COLOURS.get(result.verdict, 'yellow')}"
    line = Text(f"{result.verdict.upper():<12} ", style=style)
    return line.append_text(text(f"{result.source} → {chain}", "not bold default"))


def _screen(result: RepairResult, request: RepairRequest) -> Iterator[RenderableType]:
    if result.reason:
        yield text(f"because {result.reason}", "yellow")
    named = [words for place in result.places if (words := place.words())]
    for index, words in enumerate(named, 1):
        which = "the fault" if len(named) == 1 else f"fault {index}"
        yield text(one_line(f"{which}: {words}", _LINE_CHARS))
    for edit in result.edits:
        yield text(one_line(f"{edit.kind}: {edit.about}", _LINE_CHARS))
    if result.before.keys() & result.after.keys():
        yield Padding(_table(result), (1, 0, 1, 0))
    if result.tried:
        left = f", {count(len(result.needless), 'edit')} unnecessary and left out" * bool(
            result.needless
        )
        yield text(f"{count(result.tried, 'model')} tried{left}", "dim")
    if result.right_via:
        yield text(f"--via {','.join(result.right_via)} is right", "green")
    if result.files:
        yield text(f"wrote {', '.join(result.files)} in {request.out}")


def _table(result: RepairResult) -> Table:
    table = table_of(("inputs", ""), ("", "dim"), ("wrong before", ""), ("after", ""))
    for header in ("error before", "after", "noise"):
        table.add_column(header, justify="right", no_wrap=True)
    for part, words in _PARTS.items():
        before, after = result.before.get(part), result.after.get(part)
        if before is None or after is None:
            continue
        table.add_row(
            text(str(before.inputs)),
            text(words),
            text(str(before.wrong)),
            text(str(after.wrong)),
            _error(before),
            _error(after),
            number(after.noise),
        )
    return table


def _error(numbers: RepairNumbers) -> Text:
    return text("none" if numbers.error is None else number(numbers.error))
