"""The two streams of the terminal: results to stdout, everything else to stderr.

Results are rendered to a string first and written in one place, since that is where a stream can
fail: a reader that is gone (``| head``) is no error, a full disk is.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.text import Text

from optvet.spec.errors import InfrastructureError
from optvet.spec.words import printable, without_commands

_ASCII = str.maketrans({"→": "->", "–": "-", "…": "..."})


class _SafeConsole(Console):
    """Shows what is no control sequence of rich's own as text: names of models are data.

    This is the one place that all of the screen goes through; what builds a text need not know.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """The segments of ``renderable``, each of them printable."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


_LEAST_COLUMNS = 40
"""A table in fewer loses its cells, and in none all of it: a terminal of 0 columns wraps lines."""


def _console(*, stderr: bool) -> Console:
    console = _SafeConsole(stderr=stderr, highlight=False, emoji=False, markup=False)
    if console.width < _LEAST_COLUMNS:
        console.width = _LEAST_COLUMNS
    return console


Report = Callable[[str, int, int | None], None]


def one_line(text: str, limit: int = 0) -> str:
    """``text`` on one line, cut after ``limit`` characters if that is positive."""
    line = " ".join(text.split())
    return f"{line[: limit - 1].rstrip()}…" if 0 < limit < len(line) else line


_MESSAGE_CHARS = 2000
"""An error says what is wrong in a line or two; what is longer quotes foreign text."""


def shorten(text: str, limit: int = _MESSAGE_CHARS) -> str:
    """``text`` without its middle if it is longer than ``limit``: both ends say most."""
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]} … {text[-half:]}"


class Terminal:
    """Where a command writes to.

    Attributes:
        debug: Whether tracebacks are wanted.
        keeps: Whether results outlive the command, which matters when it is interrupted.
    """

    def __init__(self) -> None:
        self.debug = False
        self.keeps = True
        self._out, self._err = _console(stderr=False), _console(stderr=True)

    @property
    def width(self) -> int:
        """Columns of stdout."""
        return self._out.width

    @property
    def messages(self) -> Console:
        """The console on stderr, for live displays."""
        return self._err

    def show(self, *parts: RenderableType, soft_wrap: bool = False) -> None:
        """Render ``parts`` to stdout, one below the other."""
        self.write(_render(self._out, parts, soft_wrap))

    def write(self, text: str) -> None:
        """Write ``text`` to stdout as it is.

        Raises:
            InfrastructureError: It cannot be written (disk full).
        """
        stream = sys.stdout
        if stream is None:
            return
        try:
            stream.write(_encodable(text, stream))
            stream.flush()
        except BrokenPipeError:
            # Whatever is written from now on, by the interpreter's last flush too, goes nowhere.
            _silence(stream)
        except OSError as error:
            _silence(stream)
            raise InfrastructureError(
                f"cannot write to stdout: {error.strerror or error}; make room and run again"
            ) from error

    def error(self, message: str, label: str = "error: ") -> None:
        """One line about what is wrong and what to do."""
        text = Text(label, style="bold red")
        text.append(printable(shorten(one_line(message))), style="not bold default")
        self._to_stderr(text)

    def complain(self, text: str) -> None:
        """Several lines to stderr, as they are."""
        self._to_stderr(Text(printable(text).rstrip()))

    def _to_stderr(self, text: Text) -> None:
        # There is nowhere left to complain that stderr is gone.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(_encodable(_render(self._err, [text], True), sys.stderr))
            sys.stderr.flush()

    @contextlib.contextmanager
    def progress(self, quiet: bool = False) -> Iterator[Report]:
        """A callback by which the engine reports progress; shown only on a terminal."""
        if quiet or not self._err.is_terminal or self._err.is_dumb_terminal:
            yield lambda text, done, total: None
            return
        bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}", markup=False),
            TimeElapsedColumn(),
            console=self._err,
            transient=True,
        )
        with bar:
            task = bar.add_task("starting", total=None, count="")

            def report(text: str, done: int, total: int | None) -> None:
                count = f"{done}/{total}" if total else ""
                shown = printable(one_line(text, 40))
                bar.update(task, description=shown, completed=done, total=total, count=count)

            yield report


def plain(*parts: RenderableType, width: int = 80, soft_wrap: bool = False) -> str:
    """``parts`` as text without colours, for what is no terminal."""
    like = _SafeConsole(file=io.StringIO(), width=width, color_system=None)
    return _render(like, parts, soft_wrap)


def _render(like: Console, parts: Iterable[RenderableType], soft_wrap: bool) -> str:
    """``parts`` as text for the terminal of ``like``, which is not touched.

    ``Console.capture`` will not do: it writes nothing, but flushes the stream, which may fail.
    """
    text = io.StringIO()
    console = _SafeConsole(
        file=text,
        width=like.width,
        force_terminal=like.is_terminal,
        color_system=cast(Any, like.color_system),
        no_color=like.no_color,
        safe_box=like.safe_box,
        highlight=False,
        emoji=False,
        markup=False,
    )
    for part in parts:
        console.print(part, soft_wrap=soft_wrap)
    shown = without_commands(text.getvalue())
    if like.is_terminal:
        return shown
    # Columns are padded to their width; in a file that is only in the way.
    return "".join(f"{line.rstrip()}\n" for line in shown.splitlines())


def _encodable(text: str, stream: TextIO) -> str:
    """``text`` in what ``stream`` can encode; an arrow is worth no crash in an ASCII locale."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_ASCII)
    return text.encode(encoding, "replace").decode(encoding)


def _silence(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
