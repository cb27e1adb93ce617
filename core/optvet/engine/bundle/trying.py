"""Runs the scripts of bundles, confined as workers are: they apply the faulty optimizer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from optvet.engine.work.sandbox.landlock import confined
from optvet.spec.scratch import temporary_folder


def try_script(script: Path, timeout_s: float) -> tuple[int | None, str]:
    """The exit code of a script, None if it does not end in time; and what it printed."""
    with temporary_folder("optvet-try-") as folder:
        command = confined([sys.executable, str(script.resolve())], [folder])
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
            return None, ""
    return done.returncode, done.stdout.decode("utf-8", "replace")
