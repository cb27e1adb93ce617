"""A campaign as it runs: bars and workers for a person, lines for a log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from optvet.cli.campaign_screen import duration
from optvet.cli.render import text
from optvet.cli.terminal import Terminal, one_line
from optvet.engine.campaign.display_names import short_model
from optvet.engine.campaign.documents import summary_of_trial
from optvet.engine.campaign.results import JobResult
from optvet.engine.campaign.run import Event

OnEvent = Callable[[Event], None]
_COLOURS = {
    "clean": "green",
    "drift": "green",
    "faulty": "red",
    "undecided": "yellow",
    "right": "green",
    "refused": "yellow",
}


@contextmanager
def following(terminal: Terminal, total: int, *, quiet: bool) -> Iterator[OnEvent]:
    """Shows the progress of a campaign of ``total`` jobs; the function takes its events."""
    if quiet:
        yield lambda event: None
        return
    console = terminal.messages
    if console.is_terminal and not console.is_dumb_terminal:
        view = _CampaignView(total)
        with Live(view, console=console, refresh_per_second=4, transient=True) as live:
            yield lambda event: view.take(event, live.console)
        return
    yield _CampaignLines(terminal, total).take


class _CampaignLines:
    """One line per answer, without any control characters."""

    def __init__(self, terminal: Terminal, total: int) -> None:
        self._terminal, self._total, self._waits = terminal, total, False

    def take(self, event: Event) -> None:
        """Print answers, lost workers, and the beginning of waiting."""
        if event.kind == "answered" and event.trial is not None:
            place = f"[{self._total - event.left}/{self._total}"
            if event.eta_s is not None and event.left:
                place += f", {duration(event.eta_s)} left"
            self._terminal.complain(f"{place}] {_line(event.trial).plain}")
        elif event.kind == "lost" and event.trial is not None:
            words = f"{_about(event.trial)}: {event.text}; running it again"
            self._terminal.complain(words)
        elif event.kind == "waiting" and not self._waits:
            self._terminal.complain(event.text)
        self._waits = event.kind == "waiting"


class _CampaignView:
    """A bar for the whole, and a line for each worker; drawn anew several times a second."""

    def __init__(self, total: int) -> None:
        self._total, self._left, self._note = total, total, ""
        self._eta_s: float | None = None
        self._slots: dict[int, tuple[str, str]] = {}
        self._faulty = 0
        self._lock = threading.Lock()

    def take(self, event: Event, console: Console) -> None:
        """Update the view; jobs with faults are printed above it."""
        with self._lock:
            if event.trial is not None and event.kind in ("started", "progress"):
                self._slots[event.slot] = (_about(event.trial), event.text)
            else:
                self._slots.pop(event.slot, None)
            self._note = event.text if event.kind == "waiting" else ""
            if event.kind != "progress":
                self._left, self._eta_s = event.left, event.eta_s
            if event.kind == "answered" and event.trial is not None:
                self._faulty += event.trial.verdict == "faulty"
        if event.kind == "answered" and event.trial is not None:
            if event.trial.verdict not in ("clean", "drift", "right"):
                console.print(_line(event.trial), soft_wrap=True)

    def __rich__(self) -> RenderableType:
        with self._lock:
            done = self._total - self._left
            words = f"{done}/{self._total}"
            if self._faulty:
                words += f", {self._faulty} faulty"
            if self._eta_s is not None and self._left:
                words += f", {duration(self._eta_s)} left"
            top = Table.grid(padding=(0, 1))
            top.add_row(ProgressBar(total=self._total, completed=done, width=30), text(words))
            lines: list[RenderableType] = [top]
            for slot, (about, doing) in sorted(self._slots.items()):
                line = text(f"{slot + 1:>3}  {one_line(about, 50)}  ")
                lines.append(line.append_text(text(one_line(doing, 40), "dim")))
            if self._note:
                lines.append(text(self._note, "dim"))
            return Group(*lines)


def _about(trial: JobResult) -> str:
    return f"{trial.optimizer} on {short_model(trial.model)}"


def _line(trial: JobResult) -> Text:
    """``FAULTY  onnx-thing on model.onnx  3.2 s  wrong-output: pass``."""
    short = summary_of_trial(trial)
    verdict = short.verdict or short.state
    line = Text(f"{verdict.upper():<9} ", style=f"bold {_COLOURS.get(verdict, 'magenta')}")
    result = one_line(short.error or short.reason or "; ".join(short.faults), 200)
    words = f"{_about(trial)}  {short.wall_s or 0.0:.1f} s{result and f'  {result}'}"
    return line.append_text(text(words, "not bold default"))
