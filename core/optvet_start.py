"""The entry point of the command ``optvet``: Ctrl-C during its imports ends it without a traceback.

Not part of the package ``optvet``, whose import takes longer.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Run the command line; returns the exit code."""
    before = signal.getsignal(signal.SIGINT)
    # A shell has it ignored for what runs in the background; that stays so.
    if before is signal.default_int_handler:
        # Not by KeyboardInterrupt: native modules turn that into errors of their own.
        signal.signal(signal.SIGINT, _leave)
    from optvet.cli import main as run

    signal.signal(signal.SIGINT, before)
    code = run()
    # The command has ended: Ctrl-C while Python exits is not to change its exit code.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
