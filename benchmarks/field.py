"""Whether the cases of a folder of field reports are answered as they should be.

    python benchmarks/field.py [--folder FOLDER] [--only CASE,…] [--keep FOLDER] [--json FILE]

Every case of ``manifest.json`` is asked as a user would type it: ``vet MODEL --optimizer NAME``,
``convert SOURCE --via CONVERTER``, ``repair``, ``precision``, ``bisect``; a case of kind "damage"
by ``damage.py``. What is expected is read from the manifest (``field_expectations.py``), and each
row says whether the answer has all of it, what the answer was, and how long it took. Where the case
names releases that are not installed, they are put before what is installed, in folders of their
own, and the row is of that release. A case that is expected to be clean or right is a control: if
it is not met, it is a false alarm.

Exit status 1 unless all are as expected.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import machine
from field_expectations import Answer, Ask, asks_of, unmet
from versions import install, overlaid

SHARED = Path(__file__).parents[2] / "shared"
STOPPED = 124


@dataclass(frozen=True)
class Row:
    """One question: whether it is answered as expected, and else what is missing."""

    case: str
    command: str
    expected: str
    answered: str
    missing: tuple[str, ...]
    control: bool
    seconds: float

    @property
    def met(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing


def answer_of(ask: Ask, folder: Path, scratch: Path, overlay: Path | None, limit: float) -> Answer:
    """What the command answers: its document, its screen, its exit status."""
    file = scratch / "answer.json"
    file.unlink(missing_ok=True)
    arguments = [a.replace("{out}", str(scratch / "out")) for a in ask.arguments]
    program = str(Path(sys.executable).with_name("optvet"))
    command = [program, *arguments, "--json", str(file)]
    if ask.script:
        script = Path(__file__).with_name(ask.script)
        command = [sys.executable, str(script), *arguments, "--json", str(file)]
    environment = overlaid(overlay) | {"COLUMNS": "100"}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Answer({}, f"no answer after {limit:g} s", STOPPED, scratch / "out", folder)
    document = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return Answer(document, done.stdout + done.stderr, done.returncode, scratch / "out", folder)


def release_of(ask: Ask, keep: Path) -> tuple[Path | None, str]:
    """The folder with the release that is asked for, if it is not installed; else why not."""
    if not ask.release:
        return None, ""
    package, _, version = ask.release.partition("==")
    target = keep / f"{package}-{version}"
    if target.exists():
        return target, ""
    wanted = ask.release if version.count(".") > 1 else f"{package}=={version}.*"
    return target, install(wanted, target)


def rows_of(case: dict[str, Any], options: argparse.Namespace, keep: Path) -> Iterator[Row]:
    """The rows of one case, as they come."""
    folder = options.folder / case["id"]
    for ask in asks_of(case, folder):
        row = Row(case["id"], ask.words, ask.expected, "", (), ask.control, 0.0)
        overlay, problem = release_of(ask, keep)
        if problem:
            yield replace(row, missing=(f"cannot be installed: {problem}",))
            continue
        started = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="optvet-field-") as scratch:
            answer = answer_of(ask, folder, Path(scratch), overlay, options.timeout)
            missing = tuple(unmet(ask, answer))
        seconds = round(time.perf_counter() - started, 1)
        yield replace(row, answered=answer.words(), missing=missing, seconds=seconds)


def line_of(row: Row) -> str:
    """One row on the screen."""
    state = "as expected" if row.met else "FALSE ALARM" if row.control else "NOT"
    lines = [f"{row.case:20} {state:12} {row.seconds:6.1f} s  {row.command}"]
    lines.append(f"{'':20} answered: {row.answered}")
    if not row.met:
        lines.append(f"{'':20} expected: {row.expected}")
        lines += [f"{'':20} missing:  {words}" for words in row.missing]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask; 1 unless all are as expected."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    shared = Path(os.environ.get("OPTVET_TEST_DATA", SHARED)) / "bugs" / "field"
    parser.add_argument("--folder", type=Path, default=shared, help="cases, with a manifest.json")
    parser.add_argument("--only", default="", help="only these cases")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one command")
    parser.add_argument("--keep", type=Path, help="folder for old releases, to use them again")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    cases = json.loads((options.folder / "manifest.json").read_text(encoding="utf-8"))
    only = [n for n in options.only.split(",") if n]
    if unknown := set(only) - {c["id"] for c in cases}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    print(machine.describe(machine.environment()), flush=True)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="optvet-releases-") as scratch:
        for case in cases:
            if only and case["id"] not in only:
                continue
            for row in rows_of(case, options, options.keep or Path(scratch)):
                rows.append(row)
                print(line_of(row), flush=True)
    met, alarms = sum(r.met for r in rows), [r for r in rows if r.control and not r.met]
    print(f"\n{met} of {len(rows)} as expected; {len(alarms)} false alarms")
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    return int(met < len(rows) or not rows)


if __name__ == "__main__":
    sys.exit(main())
