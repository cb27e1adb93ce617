"""``optvet bisect``: which release of a package broke a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from optvet.cli.errors import CLEAN, FINDINGS, UNDECIDED
from optvet.cli.options import Debug, cache_folder
from optvet.cli.output import Json, check_folder, write_document
from optvet.cli.picture import check_picture, draw_releases
from optvet.cli.render import count, table_of, text
from optvet.cli.request import takes
from optvet.cli.terminal import Terminal, one_line
from optvet.spec.bisect import BisectRequest
from optvet.spec.records.bisect import BisectResult, ReleaseChange, TriedRelease

_COLOURS = {"good": "green", "bad": "red", "skipped": "yellow"}
_SHOWN = {
    "shows": "red",
    "gone": "green",
    "changed": "yellow",
    "no such pass": "green",
    "not judged": "dim",
}
_REASON_CHARS = 160


@takes(BisectRequest, "model")
def command(
    context: typer.Context,
    request: BisectRequest,
    json_to: Json = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            callback=check_picture,
            help="Draw which releases show the fault into an SVG or PNG file.",
            show_default=False,
            rich_help_panel="The answer",
        ),
    ] = None,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            "-q",
            help="Print the answer on one line, no progress.",
            rich_help_panel="The answer",
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """Find the release of a package that broke a model, and the pass that is to blame.

    A binary search over the releases that pip finds, each in a folder of its own.
    """
    from optvet.engine.bisect.run import bisect
    from optvet.engine.discovery import Plugins

    terminal = context.ensure_object(Terminal)
    terminal.keeps = request.cache
    if request.out is not None:
        check_folder("--out", request.out)
    with terminal.progress(quiet) as progress:
        result = bisect(request, Plugins(), progress=progress)
    if json_to is not None:
        write_document(terminal, json_to, result.to_json())
    if json_to != "-":
        if quiet:
            terminal.show(text(result.headline()), soft_wrap=True)
        else:
            _show(terminal, result, request.out)
    if plot is not None:
        draw_releases(result, plot, cache_folder(request.cache_dir))
        if json_to != "-" and not quiet:
            terminal.show(f"wrote {plot}", soft_wrap=True)
    raise typer.Exit(_code(result))


def _code(result: BisectResult) -> int:
    if not result.stable:
        return UNDECIDED
    return FINDINGS if any(r.state == "bad" for r in result.releases) else CLEAN


def _show(terminal: Terminal, result: BisectResult, out: Path | None) -> None:
    """The whole screen: releases, changes, the pass at fault, what was tried."""
    terminal.show(_releases(result.tried, len(result.at_fault.bundles) if result.at_fault else 0))
    terminal.show(text(""))
    for line in _changes(result):
        terminal.show(line, soft_wrap=True)
    for line in _fault(result, out):
        terminal.show(line, soft_wrap=True)
    tried = f"{count(result.runs, 'run')} of {count(len(result.tried), 'release')}"
    left = len(result.releases) - len(result.tried)
    words = f"{tried} in {result.seconds:.0f} s; {left} more were not needed"
    terminal.show(text(f"tried     {words}", "dim"))


def _releases(tried: Sequence[TriedRelease], bundles: int) -> Table:
    names = [(f"bundle {n + 1}" if bundles > 1 else "bundle", "") for n in range(min(bundles, 3))]
    table = table_of(("release", ""), ("", ""), *names, ("what it shows", ""))
    for release in tried:
        shown = [Text(s, _SHOWN[s]) for s in release.bundles]
        shown += [Text("")] * (len(names) - len(shown))
        said = "; ".join(release.findings) or release.verdict or ""
        words = one_line(release.reason or said, _REASON_CHARS)
        state = Text(release.state, _COLOURS[release.state])
        table.add_row(text(release.version), state, *shown, text(words))
    return table


def _changes(result: BisectResult) -> list[Text]:
    if not result.stable:
        words = "a release that was tried again gave another answer; what follows is not certain"
        notes = [text(f"unstable  {words}", "yellow")]
    else:
        notes = []
    if not result.predicate.startswith("verdict faulty"):
        notes.append(text(f"bad is    {result.predicate}"))
    if result.has_several_faults:
        words = "no pass is to blame in all bad releases; ask about one with --culprit"
        notes.append(text(f"note      {words}", "yellow"))
    if not result.changes:
        return [*notes, text(f"no change {result.headline()}", "bold")]
    lines = [_change(change, result.package) for change in result.changes]
    if len(result.changes) > 1:
        words = "the range is not monotone: the answer changes more than once"
        lines.append(text(f"note      {words}; narrow it with --good and --bad", "yellow"))
    return [*notes, *lines]


def _change(change: ReleaseChange, package: str) -> Text:
    label, colour = ("first bad", "bold red") if change.to == "bad" else ("mended in", "bold green")
    line = text(f"{label} {package} {change.first}", colour)
    old = "good" if change.to == "bad" else "bad"
    line.append_text(text(f" (the last {old} one is {change.last})", "not bold default"))
    if change.between:
        skipped = ", ".join(change.between)
        line.append_text(text(f"; or one that was skipped: {skipped}", "not bold yellow"))
    return line


def _fault(result: BisectResult, out: Path | None) -> list[Text]:
    fault = result.at_fault
    if fault is None:
        return []
    lines = [
        text(f"culprit   {f.blamed()}: {f.symptom}, in {fault.version}", "bold")
        for f in fault.findings
    ]
    if fault.note:
        lines.append(text(f"culprit   not known: {fault.note}", "yellow"))
    where = fault.bundles if out is None else [str(out / name) for name in fault.bundles]
    if where and out is None:
        lines.append(text("bundle    not kept; keep it with --out DIR", "dim"))
    elif where:
        lines += [text(f"bundle    {place}") for place in where]
    return lines
