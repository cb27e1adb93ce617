"""Everything that the four papers' tools can do, each typed as a command.

    python benchmarks/features.py SHARED [--only WORDS] [--seconds N] [--into FOLDER]

SHARED is the folder of real models, data and known faults. ``features.toml`` holds the features by
paper, each with its command, the exit codes that are right, and what must stand in the answer. The
commands run one after another in FOLDER, a new one by default: later ones use what earlier ones
wrote. A Markdown table tells, for each, what was typed, how it ended, and the line that shows it.
Exit status 1 if a feature did not work.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import machine

HERE = Path(__file__).resolve().parent
FEATURES = HERE / "features.toml"


class Feature(NamedTuple):
    """A row of ``features.toml``."""

    paper: str
    name: str
    command: str
    codes: list[int]
    pattern: str


class Shown(NamedTuple):
    """How a command ended: its exit code, None if it did not end in time; and what it printed."""

    code: int | None
    printed: str
    seconds: float


def features(shared: Path) -> Iterator[Feature]:
    """All features, with paths in their commands."""
    for paper, rows in tomllib.loads(FEATURES.read_text("utf-8")).items():
        for name, (command, codes, pattern) in rows.items():
            text = command.format(shared=shared, repository=HERE.parent)
            yield Feature(paper, name, text, codes, pattern)


def run(command: str, folder: Path, seconds: float) -> Shown:
    """One command in a process of its own."""
    started = time.monotonic()
    words = [sys.executable, "-m", "optvet_start", *shlex.split(command)]
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        printed = (error.stdout or b"").decode("utf-8", "replace")
        return Shown(None, printed, time.monotonic() - started)
    return Shown(done.returncode, done.stdout, time.monotonic() - started)


def line_that_shows(feature: Feature, shown: Shown) -> str:
    """The line of the answer that shows the feature; empty if it did not work."""
    if shown.code not in feature.codes:
        return ""
    lines = (" ".join(line.split()) for line in shown.printed.splitlines())
    return next((line for line in lines if re.search(feature.pattern, line)), "")


def main() -> int:
    """Run all features, and print a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shared", type=Path, metavar="SHARED")
    parser.add_argument("--only", default="", help="features whose name or paper has these words")
    parser.add_argument("--seconds", type=float, default=900, help="limit for one command")
    parser.add_argument("--into", type=Path, help="folder that the commands run in")
    options = parser.parse_args()
    folder = options.into or Path(tempfile.mkdtemp(prefix="features-"))
    folder.mkdir(parents=True, exist_ok=True)
    shared = options.shared.resolve()
    chosen = [f for f in features(shared) if options.only in f"{f.paper}: {f.name}"]
    if not chosen:
        parser.error(f"no feature has the words {options.only!r}")
    print(machine.describe(machine.environment()), "", sep="\n")
    print("| feature | `optvet …` | exit | it printed | s |", "|---|---|---|---|---|", sep="\n")
    worked = 0
    for feature in chosen:
        shown = run(feature.command, folder, options.seconds)
        words = line_that_shows(feature, shown)
        worked += bool(words)
        # What did not work is told whole, on stderr.
        if not words:
            print(f"--- {feature.name}\n{shown.printed}", file=sys.stderr, flush=True)
        command = feature.command.replace(f"{shared}/", "").replace(f"{HERE.parent}/", "")
        cells = (feature.name, f"`{command}`", shown.code, words[:120] or "**not shown**")
        row = " | ".join(str(cell).replace("|", "\\|") for cell in cells)
        print(f"| {feature.paper}: {row} | {shown.seconds:.0f} |", flush=True)
    print("", f"{worked} of {len(chosen)} features work", sep="\n")
    return int(worked < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
