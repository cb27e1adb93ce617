"""The command line: options in, one engine call, rendered value out.

A command parses its arguments, calls the engine once, and turns the result into text and an exit
code; ``main`` turns exceptions into messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from optvet.cli.app import app
from optvet.cli.errors import ERROR, Interrupted, report
from optvet.cli.terminal import Terminal

__all__ = ["app", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code.

    Args:
        arguments: The arguments after ``optvet``; by default those of the process.
    """
    terminal = Terminal()
    try:
        app(arguments if arguments is None else list(arguments), prog_name="optvet", obj=terminal)
    except SystemExit as end:
        # What typer itself says (help, usage) may be a message for sys.exit to print; ours is not.
        return end.code if isinstance(end.code, int) else ERROR * bool(end.code)
    except KeyboardInterrupt:
        return report(Interrupted(), terminal)
    except Exception as error:
        return report(error, terminal)
    return 0
