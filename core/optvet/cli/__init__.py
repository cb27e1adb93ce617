"""The command line: options in, one engine call, rendered value out.

A command parses its arguments, calls the engine once, and turns the result into text and an exit
code; ``main`` turns exceptions into messages.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from optvet.cli import errors
from optvet.cli.app import app
from optvet.cli.errors import ERROR, INTERRUPTED, Interrupted
from optvet.cli.terminal import Terminal
from optvet.spec.scratch import temporary_files_in_one_folder

__all__ = ["app", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code.

    Args:
        arguments: The arguments after ``optvet``; by default those of the process.
    """
    terminated: list[int] = []
    try:
        with temporary_files_in_one_folder(_tell_left), _heeding_termination(terminated):
            code = _run(arguments)
    except KeyboardInterrupt:  # a signal while the command begins, or ends because of another one
        if not terminated:
            raise
        code = INTERRUPTED
    except Exception as error:  # before or after the command: no folder for temporary files, say
        code = errors.report(error, Terminal())
    return 128 + terminated[0] if terminated and code == INTERRUPTED else code


def _tell_left(folder: Path) -> None:
    what = f"temporary files are left in {folder}, which cannot be removed"
    Terminal().error(what, label="note: ")


_ENDING = tuple(
    signal.Signals[f"SIG{name}"]
    for name in ("TERM", "HUP", "QUIT", "ALRM", "VTALRM", "PROF", "USR1", "USR2", "XCPU")
    if hasattr(signal, f"SIG{name}")
)
"""What ends a process that does not heed it, and can be heeded."""


@contextmanager
def _heeding_termination(received: list[int]) -> Iterator[None]:
    """Signals that end a process end a command as Ctrl-C does, with what it has so far.

    Batch systems and ``timeout`` send SIGTERM, a terminal that is closed SIGHUP, some queues
    SIGUSR1, the limit of processor time SIGXCPU. What is ignored, as by ``nohup``, stays so.

    Args:
        received: Lists each.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        if received and number == signal.SIGXCPU:  # It comes each second.
            return
        received.append(number)
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    ours = [s for s in _ENDING if main and signal.getsignal(s) is signal.SIG_DFL]
    for each in ours:
        signal.signal(each, leave)
    try:
        yield
    finally:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)


def _run(arguments: Sequence[str] | None) -> int:
    terminal = Terminal()
    try:
        app(arguments if arguments is None else list(arguments), prog_name="optvet", obj=terminal)
    except SystemExit as end:
        if end.code == INTERRUPTED:  # Outside of a command, typer says nothing.
            return errors.report(Interrupted(), terminal)
        if isinstance(end.__context__, BrokenPipeError):
            return 0  # Whoever reads help has read enough; typer's code of it, 1, means findings.
        # What typer itself says (help, usage) may be a message for sys.exit to print; ours is not.
        return end.code if isinstance(end.code, int) else ERROR * bool(end.code)
    except KeyboardInterrupt:
        return errors.report(Interrupted(), terminal)
    except Exception as error:
        return errors.report(error, terminal)
    return 0
