"""Commands that end with this process, with everything that they have started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

_DIES_WITH_PARENT = """\
import ctypes, os, signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG
os.getppid() == int(sys.argv[1]) or sys.exit(1)
status = subprocess.call(sys.argv[2:])
sys.exit(status if status >= 0 else 128 - status)
"""
"""Runs the command in its arguments, and kills it, with all that it has started, when the process
ends that started this one."""


@dataclass(frozen=True)
class ChildEnd:
    """How a command ended; 128 and more is the number of the signal that killed it.

    ``status`` is None if the command ran out of time.
    """

    status: int | None
    printed: str
    errors: str

    def last_lines(self, count: int) -> str:
        """The last lines of stderr that are not blank, on one line."""
        return " ".join([line for line in self.errors.splitlines() if line.strip()][-count:])


def run_below(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    timeout_s: float | None = None,
    given: str | None = None,
) -> ChildEnd:
    """Run a command that ends with this process, with all of its group.

    Args:
        command: The program and its arguments.
        environment: All of its variables.
        timeout_s: Wall-clock limit.
        given: What it reads from stdin.
    """
    stdin = subprocess.DEVNULL if given is None else subprocess.PIPE
    printed, errors, in_time = "", "", True
    with started_below(command, environment, stdin=stdin, stderr=subprocess.PIPE) as process:
        try:
            printed, errors = process.communicate(given, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            in_time = False
    return ChildEnd(status_of(process) if in_time else None, printed, errors)


@contextlib.contextmanager
def started_below(
    command: Sequence[str], environment: Mapping[str, str], *, stdin: int, stderr: int | IO[str]
) -> Iterator[subprocess.Popen[str]]:
    """A command whose stdout is a pipe; with all of its group it ends with the block.

    It also ends with the thread that starts it.
    """
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _DIES_WITH_PARENT, str(os.getpid()), *command],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        errors="replace",
        env=dict(environment),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        # What it started is of its group; after a Ctrl-C it goes on otherwise.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # It ended before it read everything.
                    stream.close()


def status_of(process: subprocess.Popen[str]) -> int:
    """How a process ended that was waited for, as ``ChildEnd`` has it."""
    return process.returncode if process.returncode >= 0 else 128 - process.returncode
