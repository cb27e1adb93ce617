"""The code of passes that are in Python, and which of its lines run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from optvet.engine.contract.optimizer_returns import modules_of
from optvet.spec.optimizer_protocols import Optimizer


def files_of_passes(optimizer: Optimizer, passes: Iterable[str], options: Any) -> dict[str, str]:
    """Files with the code of the passes, and the names of their modules. Called in a worker."""
    names = [name for p in passes for name in modules_of(optimizer, p, options)]
    return {path: name for name in names if (path := importlib.import_module(name).__file__)}


@contextmanager
def tracing(files: Iterable[str], note: Callable[[CodeType, int], None]) -> Iterator[None]:
    """Call ``note`` with each line of ``files`` that runs, and the code that it is of."""
    before = sys.gettrace()

    def at_line(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            note(frame.f_code, frame.f_lineno)
        return at_line

    wanted = dict.fromkeys(files, at_line)

    # Called for whatever function runs: it must do little.
    def at_call(frame: FrameType, event: str, argument: object) -> Any:
        return wanted.get(frame.f_code.co_filename)

    sys.settrace(at_call)
    try:
        yield
    finally:
        sys.settrace(before)
