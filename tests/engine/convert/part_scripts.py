"""Scripts of parts, run in a Python that does not see optvet."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from optvet.engine.scripts.parts import PART_SCRIPT, part_files
from optvet.spec.converters import PartScript

_SIGHTLESS = """
import runpy
import sys

sys.modules["optvet"] = None
sys.path.insert(0, ".")
"""
BLIND = f'{_SIGHTLESS}runpy.run_path("{PART_SCRIPT}", run_name="__main__")\n'
_EACH = f"""{_SIGHTLESS}
for name in sys.argv[1:]:
    try:
        runpy.run_path(name, run_name="__main__")
    except SystemExit as end:
        print(end.code)
"""


def last_lines(
    folder: Path, script: PartScript, snippets: Sequence[str], tolerances: Sequence[float]
) -> list[tuple[str, str]]:
    """The last line and the exit code of a script with each tolerance.

    In one process: each of its own would import the libraries anew.
    """
    names = []
    for number, tolerance in enumerate(tolerances):
        for name, text in part_files(script, snippets, tolerance).items():
            (folder / name).write_text(text)
        names.append((folder / PART_SCRIPT).rename(folder / f"{number}.py").name)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-c", _EACH, *names]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    lines = ran.stdout.splitlines()
    ends = [i for i, line in enumerate(lines) if line in ("0", "1")]
    assert len(ends) == len(names), ran.stderr
    return [(lines[i - 1], lines[i]) for i in ends]
