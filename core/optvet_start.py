"""The entry point of the command ``optvet``: Ctrl-C during its imports ends it without a traceback.

Not part of the package ``optvet``, whose import takes longer.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ERROR, _INTERRUPTED = 3, 130
_ALLOCATIONS = 300_000
"""Imports make so many objects that stay that looking for garbage among them every 700 allocations,
which is Python's habit, takes an eighth of what a short command takes. A vet's make 200,000."""


def main() -> int:
    """Run the command line; returns the exit code."""
    gc.set_threshold(_ALLOCATIONS)
    try:
        with leaving_at_once():
            from optvet.cli import main as run
    except Exception as error:  # a broken installation; Python's own exit code is 1, "findings"
        print(f"error: optvet cannot be imported: {error!r}; install it again", file=sys.stderr)
        return _ERROR

    try:
        code = run()
    except KeyboardInterrupt:  # while the command sets up its folders, or clears them away
        os.write(2, b"interrupted\n")
        code = _INTERRUPTED
    # The command has ended: Ctrl-C while Python exits is not to change its exit code.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # An interrupt of an exec() of a text, as of a dataclass, makes ``python -m`` end by SIGINT even
    # where it was heeded; the next such call forgets it.
    exec("")
    gc.freeze()  # Else Python looks for garbage among all modules, once more: 0.1 s.
    return code


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """Within the block, which imports, Ctrl-C ends this process.

    KeyboardInterrupt would not do: native modules turn it into errors of their own.
    """
    before = signal.getsignal(signal.SIGINT)
    # A shell has it ignored for what runs in the background; that stays so.
    ours = before is signal.default_int_handler
    if not ours or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
