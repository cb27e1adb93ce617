"""Versions that show findings: runs each bundle's script in other Python interpreters."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from optvet.engine.bundle.layout import SCRIPT
from optvet.engine.scripts.confined_run import run_confined
from optvet.engine.scripts.parts import PART_SCRIPT
from optvet.spec.errors import UsageError

_TIME_S = 120.0
GONE, SHOWS = "gone", "shows"
_ENDS = {0: GONE, 1: SHOWS, 2: "cannot be judged"}
_ASK = """
import sys
sys.path[:] = filter(None, sys.path)  # Without the current folder, whose modules are not asked for.
import importlib.metadata as metadata, json
found = {}
for name in json.loads(sys.argv[1]):
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Environment:
    """A Python interpreter, and the versions of some packages that it has."""

    python: Path
    versions: Mapping[str, str]

    @property
    def label(self) -> str:
        """The versions in words."""
        return ", ".join(f"{n} {v}" for n, v in self.versions.items()) or str(self.python)


def environment_of(python: Path, packages: Iterable[str]) -> Environment:
    """The interpreter with its versions of ``packages``, of those that it has.

    Raises:
        UsageError: It is no Python interpreter that can be run.
    """
    command = [str(python), "-c", _ASK, json.dumps(sorted(packages))]
    try:
        ended = run_confined(command, _TIME_S, foreign=True)
        versions = json.loads(ended.printed) if ended.code == 0 else None
    except (OSError, ValueError) as error:
        raise _unusable(python, str(error)) from error
    if not isinstance(versions, dict):
        raise _unusable(python, ended.errors.strip()[-200:])
    return Environment(python, versions)


def _unusable(python: Path, words: str) -> UsageError:
    return UsageError(
        f"--python {python}: it is no Python interpreter that runs; give the path of one, such as "
        f"that of a virtual environment ({words})"
    )


def shown_in(bundle: Path, environment: Environment) -> str:
    """Whether the finding shows there, by the exit code of the bundle's script."""
    scripts = (bundle / SCRIPT, bundle / PART_SCRIPT)
    script = next((path for path in scripts if path.is_file()), None)
    if script is None:
        return "no script"
    command = [str(environment.python), str(script.resolve())]
    # The script of a source writes the model beside itself.
    writable = [str(bundle.resolve())] * (script.name == PART_SCRIPT)
    ended = run_confined(command, _TIME_S, None, writable, foreign=True)
    return "no end" if ended.code is None else _ENDS.get(ended.code, "cannot be judged")
