"""Runs written scripts, confined as workers are: they apply the faulty optimizer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from optvet.engine.work.sandbox.landlock import confine_command
from optvet.spec.scratch import temporary_folder

_OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
"""Settings of this interpreter, which are not for another one."""


class Ended(NamedTuple):
    """How a script ended: its exit code, None if it did not end in time; and what it printed."""

    code: int | None
    printed: str = ""
    errors: str = ""


def try_script(
    script: Path, timeout_s: float, python: str = sys.executable, *, writable: bool = False
) -> Ended:
    """Run a script in its folder, where it writes if that is ``writable``."""
    place = script.parent.resolve()
    command = [python, "-B", str(place / script.name)]
    return run_confined(command, timeout_s, place, [str(place)] if writable else [])


def run_confined(
    command: Sequence[str],
    timeout_s: float,
    cwd: Path | None = None,
    writable: Sequence[str] = (),
    *,
    foreign: bool = False,
) -> Ended:
    """Run a command that writes in a temporary folder, and in the folders ``writable``.

    ``foreign``: it is another interpreter, without the settings of this one.
    """
    settings = {k: v for k, v in os.environ.items() if not (foreign and k in _OURS)}
    with temporary_folder("optvet-try-") as scratch:
        try:
            done = subprocess.run(
                confine_command(command, [*writable, scratch]),
                cwd=cwd,
                env={**settings, "TMPDIR": scratch},
                capture_output=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Ended(None)
    texts = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    return Ended(done.returncode, *texts)
