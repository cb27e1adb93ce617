"""Runs the scripts of bundles, confined as workers are: they apply the faulty optimizer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from optvet.engine.work.sandbox.landlock import confine_command
from optvet.spec.scratch import temporary_folder


class Ended(NamedTuple):
    """How a script ended: its exit code, None if it did not end in time; and what it printed."""

    code: int | None
    printed: str = ""
    errors: str = ""


def try_script(script: Path, timeout_s: float) -> Ended:
    """Run a script in its folder."""
    with temporary_folder("optvet-try-") as folder:
        command = confine_command([sys.executable, str(script.resolve())], [folder])
        try:
            done = subprocess.run(
                command,
                cwd=script.parent,
                env={**os.environ, "TMPDIR": folder},
                capture_output=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Ended(None)
    texts = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    return Ended(done.returncode, *texts)
