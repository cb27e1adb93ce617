"""Planted faults: functions that crash, hang or exhaust their process, as broken code does.

Call them in a worker of the sandbox only: they do
the same to any other process.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

from optvet.engine.work.sandbox import enter
from optvet.spec.symptoms import Stage
from optvet.testing.optimizers import abort, hog_memory, raise_error, segfault

__all__ = ["abort", "hog_memory", "raise_error", "segfault"]

_memory: dict[str, object] = {}


def nothing() -> None:
    """Return at once."""


def process_id() -> int:
    """The number of the process that runs this."""
    return os.getpid()


def echo(value: object) -> object:
    """``value`` itself."""
    return value


class UnpicklableError(Exception):
    """An exception that cannot leave its process."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")
        self.lock = threading.Lock()


def raise_unpicklable() -> NoReturn:
    """Raise an exception that pickle refuses."""
    raise UnpicklableError("not", "picklable")


def return_unpicklable() -> object:
    """Return a lock, which pickle refuses."""
    return threading.Lock()


class Poison:
    """Calls a function where it is unpickled, as a malicious answer does."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return raise_error, ("poisoned",)


def return_poison() -> Poison:
    """Return what calls a function where it is unpickled."""
    return Poison()


def leave(status: int) -> NoReturn:
    """End the process by ``sys.exit``."""
    sys.exit(status)


def leave_at_once(status: int) -> NoReturn:
    """End the process without any clean-up."""
    os._exit(status)


def hang(seconds: float = 3600.0) -> None:
    """Sleep; an hour unless told otherwise."""
    time.sleep(seconds)


def _start_child(note: str) -> None:
    child = subprocess.Popen(["sleep", "3600"])
    Path(note).write_text(str(child.pid))


def hang_with_child(note: str) -> None:
    """Start a child process, write its number to the file ``note``, and hang."""
    _start_child(note)
    time.sleep(3600)


def abort_with_child(note: str) -> NoReturn:
    """Start a child process, write its number to the file ``note``, and abort."""
    _start_child(note)
    os.abort()


def compute(seconds: float, core: int) -> None:
    """Use so many seconds of one core, on that core."""
    os.sched_setaffinity(0, {core})
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def return_bytes(size: int) -> bytes:
    """So many zero bytes."""
    return bytes(size)


def print_and_return(text: str) -> str:
    """Write ``text`` to stdout and stderr, through Python and natively, and return it."""
    print(text)
    print(text, file=sys.stderr)
    os.write(1, text.encode())
    os.write(2, text.encode())
    return text


def print_and_raise(native: str, text: str) -> NoReturn:
    """Write ``native`` to file descriptor 2 and raise a ValueError that says ``text``."""
    os.write(2, native.encode())
    raise ValueError(text)


def print_forever() -> NoReturn:
    """Write to stderr without end."""
    while True:
        os.write(2, b"x" * 65536)


def enter_and_abort(stage: Stage) -> NoReturn:
    """Announce ``stage`` and abort in it."""
    enter(stage)
    os.abort()


def enter_and_hang(stage: Stage) -> None:
    """Announce ``stage`` and hang in it."""
    enter(stage)
    time.sleep(3600)


def enter_and_raise(stage: Stage) -> NoReturn:
    """Announce ``stage`` and raise a ValueError in it."""
    enter(stage)
    raise ValueError(stage)


def import_module(name: str) -> None:
    """Import a module, which may be what kills the process."""
    importlib.import_module(name)


def remember(key: str, value: object) -> object:
    """Set a global of the worker and return what it was."""
    before = _memory.get(key)
    _memory[key] = value
    return before
