"""Exit codes, and messages for exceptions."""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Iterable
from typing import TYPE_CHECKING

from optvet.cli.terminal import Terminal, one_line
from optvet.spec.errors import (
    InfrastructureError,
    MissingLibrary,
    NoneTried,
    NothingTested,
    OptvetError,
    PluginError,
    SeveralFit,
    Unsupported,
    absence_of,
)
from optvet.spec.shortage import shortage, shortage_in

if TYPE_CHECKING:
    from optvet import VetResult

CLEAN, FINDINGS, USAGE, ERROR, UNDECIDED, NOTHING = range(6)
INTERRUPTED = 130

SEVERITY = (ERROR, USAGE, FINDINGS, UNDECIDED, NOTHING, CLEAN)
"""Exit codes from the most serious; for several models, the first of these that occurred."""


class Interrupted(Exception):
    """Ctrl-C; an ``Exception``, so that typer does not handle it.

    Its message, if any, says what was kept of the work.
    """


def exit_code(result: VetResult, fail_on: Iterable[str] = ()) -> int:
    """The exit code for ``result``; notes of the kinds ``fail_on`` count as findings.

    So does a model that was to be saved, and is not right as a file.
    """
    counted = set(fail_on)
    unmet = any(f.severity == "requirement" or f.symptom in counted for f in result.findings)
    if result.verdict == "faulty" or unmet:
        return FINDINGS
    unsaved = result.saved is not None and not result.saved.path
    return UNDECIDED if result.verdict == "undecided" else FINDINGS if unsaved else CLEAN


def worst(codes: Iterable[int]) -> int:
    """The exit code that stands for several."""
    return min(codes, key=SEVERITY.index, default=CLEAN)


def report(error: Exception, terminal: Terminal) -> int:
    """Print a message for ``error`` to stderr; returns the exit code."""
    if terminal.debug and not isinstance(error, Interrupted):
        terminal.complain("".join(traceback.format_exception(error)))
    if isinstance(error, Interrupted):
        kept = "what was computed is kept; run the same command again to continue"
        lost = "nothing is kept"
        words = str(error) or (kept if terminal.keeps else lost)
        terminal.error(f"interrupted; {words}", label="")
        return INTERRUPTED
    if isinstance(error, SeveralFit):
        terminal.error(f"{error.text}:")
        terminal.complain("\n".join(f"  {command}" for command in error.commands))
        return error.exit_code
    if isinstance(error, NoneTried):
        terminal.error(f"{error.text}:")
        terminal.complain("\n".join(f"  {one_line(reason)}" for reason in error.reasons))
        return error.exit_code
    if isinstance(error, OptvetError):
        label = "refused: " if isinstance(error, Unsupported) else "error: "
        terminal.error(f"{error}{_advice(error)}", label)
        return error.exit_code
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        terminal.error(f"{error.filename}: no file can have so long a name; check it")
        return USAGE
    if isinstance(error, FileNotFoundError) and not _has_folder():
        terminal.error("the current folder was removed; change to another one")
        return USAGE
    if isinstance(error, (OSError, MemoryError)):
        advice = shortage(error) or "check that path and its permissions"
        terminal.error(f"{str(error) or 'no memory is left'}; {advice}, then run again")
        return ERROR
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        # Such as the current folder, whose name is part of a path in a store.
        words = f"{ascii(error.object)[:300]} is not in UTF-8, as texts in stores and documents are"
        terminal.error(f"{words}; rename the file or the folder")
        return USAGE
    name = type(error).__name__
    terminal.error(
        f"{name}: {one_line(str(error), 300)}; this is a bug in optvet"
        + ("" if terminal.debug else ": run again with --debug and report what it prints")
    )
    return ERROR


def _has_folder() -> bool:
    try:
        return bool(os.getcwd())
    except FileNotFoundError:
        return False


def _advice(error: OptvetError) -> str:
    """Advice in terms of the command's options, which the engine does not know."""
    text = str(error)
    if isinstance(error, Unsupported):
        return ""
    if words := shortage(error) or shortage_in(text):
        told = words in text or ("make room" in words and "make room" in text)
        return "" if told else f"; {words}, then run again"
    if isinstance(error, NothingTested) and "--dataset" not in text:
        return "; supply inputs with --dataset files:PATH"
    if isinstance(error, PluginError):
        from optvet.engine.environment.extras import extra_for

        absent = absence_of(error)
        # The message of a MissingLibrary names the extra.
        if absent is not None and not isinstance(absent, MissingLibrary):
            return f"; install {extra}" if (extra := extra_for(absent)) else ""
    if isinstance(error, InfrastructureError) and ";" not in text:
        return "; run again with --debug for the details"
    return ""
