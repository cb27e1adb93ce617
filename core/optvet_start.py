"""Where the command ``optvet`` begins: Ctrl-C ends it without a traceback while it is loading, too.

Outside of the package ``optvet``, for importing anything of that imports half of its libraries.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Run the command line; the exit code."""
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
