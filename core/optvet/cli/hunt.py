"""``optvet hunt``: looks for faults of an optimizer on models that it makes itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from optvet import InputError
from optvet.cli.commands import Group as CommandGroup
from optvet.cli.commands import add
from optvet.cli.errors import CLEAN, FINDINGS, Interrupted
from optvet.cli.options import Debug, cache_folder
from optvet.cli.output import Json, check_file, check_folder, write_document
from optvet.cli.render import count, table_of, text
from optvet.cli.request import takes
from optvet.cli.terminal import Terminal, one_line
from optvet.spec.hunt import CONVERTER, OPERATORS_CONVERTED, HuntRequest
from optvet.spec.records import HuntFinding, HuntSummary

if TYPE_CHECKING:
    from optvet.engine.hunt.summary import HuntProgress
    from optvet.engine.hunt.versions import Environment

app = typer.Typer(
    cls=CommandGroup,
    help="Look for faults of an optimizer on models aimed at its passes.",
    invoke_without_command=True,
    no_args_is_help=True,
)


@app.callback()
@takes(HuntRequest)
def _hunt(
    context: typer.Context,
    request: HuntRequest,
    json_to: Json = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    debug: Debug = False,
) -> None:
    """Make models directed at the passes of an optimizer, and report what `optvet vet` confirms."""
    check_folder("--out", request.folder)
    request = request.model_copy(update={"cache_dir": cache_folder(request.cache_dir)})
    terminal = context.ensure_object(Terminal)
    summary = _run(terminal, request, quiet=quiet)
    if json_to is not None:
        write_document(terminal, json_to, summary.to_json())
    if json_to != "-":
        terminal.show(*_screen(summary, request.folder))
    faults = [f for f in summary.findings if f.severity == "fault"]
    raise typer.Exit(FINDINGS if faults else CLEAN)


def _run(terminal: Terminal, request: HuntRequest, *, quiet: bool) -> HuntSummary:
    from optvet.engine.discovery import Plugins
    from optvet.engine.hunt.run import hunt
    from optvet.report.graph_svg import draw

    try:
        with _following(terminal, quiet=quiet) as progress:
            return hunt(request, Plugins(), draw=draw, progress=progress)
    except KeyboardInterrupt:
        words = f"findings are in {request.folder}; run the same command with --resume to continue"
        raise Interrupted(words) from None


# --- progress ------------------------------------------------------------------------------------


@contextmanager
def _following(terminal: Terminal, *, quiet: bool) -> Iterator[Callable[[HuntProgress], None]]:
    """Shows how far a hunt is: a view for a person, lines for a log."""
    if quiet:
        yield lambda event: None
        return
    console = terminal.messages
    if console.is_terminal and not console.is_dumb_terminal:
        view = _HuntView()
        with Live(view, console=console, refresh_per_second=4, transient=True) as live:
            yield lambda event: view.take(event, live.console)
        return
    yield _HuntLines(terminal).take


class _HuntLines:
    """A line per tenth of the budget and per finding."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal, self._tenths = terminal, -1

    def take(self, event: HuntProgress) -> None:
        """Print what is new."""
        if event.found is not None:
            self._terminal.complain(f"found: {_headline(event.found)}")
        tenths = int(10 * event.share)
        if event.doing == "hunting" and tenths > self._tenths:
            self._tenths = tenths
            self._terminal.complain(f"[{event.share:4.0%}] {_numbers(event)}")


class _HuntView:
    """A bar, the numbers, and what is being done."""

    def __init__(self) -> None:
        self._event: HuntProgress | None = None

    def take(self, event: HuntProgress, console: Console) -> None:
        """Update the view; findings are printed above it."""
        self._event = event
        if event.found is not None:
            console.print(text(f"found: {_headline(event.found)}"), soft_wrap=True)

    def __rich__(self) -> RenderableType:
        event = self._event
        if event is None:
            return text("starting", "dim")
        top = Table.grid(padding=(0, 1))
        top.add_row(
            ProgressBar(total=1.0, completed=event.share, width=30), text(f"{event.share:.0%}")
        )
        return Group(top, text(_numbers(event)), text(one_line(event.doing, 76), "dim"))


def _numbers(event: HuntProgress) -> str:
    rate = f"{event.valid / event.seconds:.0f} valid models/s, " if event.seconds else ""
    share = f" ({event.valid / event.candidates:.0%} valid)" if event.candidates else ""
    changes = f"{event.changed} of {event.passes} {event.unit}"
    changes = changes if event.passes else f"{count(event.signatures, 'kind')} of changes"
    waiting = f", {event.pending} not vetted yet" if event.pending else ""
    return (
        f"{count(event.candidates, 'model')}{share}, {rate}{changes}, "
        f"{count(event.findings, 'finding')}{waiting}"
    )


def _headline(finding: HuntFinding) -> str:
    culprit = ", ".join(finding.culprit) or "import and export"
    return f"{finding.symptom}: {culprit} ({count(finding.nodes, 'node')}, {finding.bundle})"


_MESSAGE_CHARS = 120


# --- the answer ----------------------------------------------------------------------------------


def _screen(summary: HuntSummary, folder: Path) -> list[RenderableType]:
    """Findings, the gravest first, then the numbers."""
    parts: list[RenderableType] = []
    if summary.findings:
        table = table_of(("pass", "bold"), ("finding", ""))
        for finding in sorted(summary.findings, key=lambda f: (f.gravity, f.culprit)):
            contrived = "contrived" if finding.contrived else ""
            note = contrived if finding.severity == "fault" else finding.severity
            note = f" ({note})" if note else ""
            size = f"{count(finding.nodes, 'node')}, in {count(finding.models, 'model')}"
            words = text(f"{finding.symptom}{note}, {size}\n")
            words.append_text(text(one_line(finding.message, _MESSAGE_CHARS), "dim"))
            table.add_row(text(",\n".join(finding.culprit) or "import and export"), words)
        parts.append(table)
    share = summary.valid / summary.candidates if summary.candidates else 0.0
    rate = summary.valid / summary.seconds if summary.seconds else 0.0
    passes = len(summary.fired) + len(summary.unfired)
    more = [
        f"{len(summary.known)} known found again" if summary.known else "",
        f"{count(summary.refuted, 'suspicion')} not confirmed" if summary.refuted else "",
        f"{count(summary.deaths, 'worker')} killed" if summary.deaths else "",
        *(f"{name} tried on few, having killed {n}" for name, n in summary.left_out.items()),
        f"{summary.refused:,} models refused" if summary.refused else "",
        f"{summary.pending} not vetted yet" if summary.pending else "",
    ]
    ways = f"{count(summary.signatures, 'kind')} of changes"
    changes = f"{len(summary.fired)} of {passes} passes changed a model, {ways}" if passes else ways
    if summary.optimizer.startswith(CONVERTER):
        changes = f"{len(summary.fired)} of {passes} {OPERATORS_CONVERTED}"
    numbers = (
        f"{count(summary.candidates, 'model')}, {share:.0%} valid, {rate:.0f} valid/s of CPU time; "
        f"{changes}"
    )
    parts.append(text("; ".join([numbers, *(m for m in more if m)]), "dim"))
    parts += [text(f"{words}; tell its author", "yellow") for words in summary.complaints]
    found = count(len(summary.findings), "finding")
    if 0 < len(summary.causes) < len(summary.findings):
        found += f", probably of {count(len(summary.causes), 'cause')},"
    where = f", in {folder / 'findings'}" if summary.findings else ""
    parts.append(text(f"{found} in {summary.optimizer} {summary.version}{where}", "bold"))
    return parts


HuntFolder = Annotated[
    Path, typer.Argument(metavar="DIR", help="The folder of a hunt.", show_default=False)
]
Pythons = Annotated[
    list[Path] | None,
    typer.Option(
        "--python",
        metavar="PYTHON",
        help="A Python interpreter with other versions, such as that of a virtual environment: "
        "it runs `repro.py` of each bundle, and a table says which findings it shows. "
        "May be given several times. Only for your own hunts: it runs code of the folder.",
        show_default=False,
    ),
]


@add(app, "report")
def _report(
    context: typer.Context,
    folder: HuntFolder,
    out: Annotated[
        str, typer.Option("--out", metavar="FILE|-", help="Where to write it; `-` is stdout.")
    ] = "-",
    python: Pythons = None,
    debug: Debug = False,
) -> None:
    """Write the findings of a hunt as Markdown, by pass, ready to file."""
    from optvet.engine.hunt.findings_report import report_of

    check_file("--out", out, "text")
    summary, environments = _read_hunt(folder, python)
    document = report_of(summary, folder, environments)
    write_document(context.ensure_object(Terminal), out, document.removesuffix("\n"))


@add(app, "file")
def _file(
    context: typer.Context,
    folder: HuntFolder,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder to make.", show_default="issues in DIR"),
    ] = None,
    python: Pythons = None,
    debug: Debug = False,
) -> None:
    """Write one folder per probable cause of the faults, each ready to be filed as an issue.

    The gravest cause comes first. With --python a cause is written only if it shows there.
    """
    from optvet.engine.hunt.file_issues import file_issues

    summary, environments = _read_hunt(folder, python)
    target = out or folder / "issues"
    terminal = context.ensure_object(Terminal)
    with terminal.progress() as progress:
        filed = file_issues(
            summary,
            folder,
            target,
            environments,
            lambda done, total: progress("running scripts", done, total),
        )
    table = table_of(("issue", "bold"), ("pass", ""), ("finding", ""))
    for issue in filed:
        finding = issue.finding
        words = text(f"{finding.symptom}: {finding.gravity_in_words()}")
        where = ", ".join(dict.fromkeys(issue.shown))
        words.append_text(text(f"\n{where}" if where else "", "dim"))
        passes = text(",\n".join(finding.culprit) or "import and export")
        table.add_row(issue.folder[:2] or "–", passes, words)
    written = sum(bool(issue.folder) for issue in filed)
    total = text(f"{count(written, 'issue')} of {count(len(filed), 'cause')}, in {target}", "bold")
    terminal.show(*([table, total] if filed else [total]))


def _read_hunt(
    folder: Path, python: Sequence[Path] | None
) -> tuple[HuntSummary, list[Environment]]:
    """The summary of a hunt, and the interpreters with the versions that its bundles need."""
    from optvet.engine.hunt.findings_report import packages_of, read_summary
    from optvet.engine.hunt.versions import environment_of

    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the --out of a hunt")
    summary = read_summary(folder)
    packages = packages_of(summary, folder) if python else set[str]()
    return summary, [environment_of(path, packages) for path in python or ()]
