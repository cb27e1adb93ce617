"""How many distinct causes ``docs/finds.md`` lists, by program and severity.

Each line of a table whose last column is ``severity`` is a cause. A line of onnxsim whose pass is
one of ONNX Optimizer's that has a line itself is not counted twice. Exit status 1 if a line has no
known severity, or stands before a graver one, or if not each line has a case of its own, and each
case a line: the files of ``benchmarks/finds`` name the case that shows a line.

    python benchmarks/finds.py [--show [FILE…]] [--python PYTHON]

``--show`` runs the cases, of all files or of some (``onnxslim``), by their scripts, and prints what
each says; then how many of the lines showed. Exit status 1 if one does not.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
FINDS = HERE.parent / "docs" / "finds.md"
SEVERITIES = ("wrong", "ends", "unusable", "error", "note")
"""The gravest first, as ``optvet hunt`` sorts them."""
MISSED = ("does not show", "needs")
"""What scripts say of a case that shows nothing, or cannot be run here."""
SHARED = {"onnxsim": "ONNX Optimizer"}
"""Programs that run the passes of another one."""


@dataclass(frozen=True)
class Cause:
    """A line: its program, first cell, model or source, severity, and whether it is contrived."""

    program: str
    place: str
    model: str
    severity: str
    contrived: bool

    @property
    def rank(self) -> tuple[bool, int]:
        """By which the lines of a table are sorted."""
        return self.contrived, SEVERITIES.index(self.severity)


def tables(text: str) -> Iterator[list[Cause]]:
    """The causes of each table."""
    title, causes, column = "", list[Cause](), -1
    for line in [*text.splitlines(), ""]:
        if line.startswith("## "):
            title = line[3:]
        cells = [c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            if causes:
                yield causes
            causes, column = [], -1
        elif cells[-1] == "severity":
            column = next(n for n, c in enumerate(cells) if c in ("smallest model", "source"))
        elif column >= 0 and set(line) - set("|- "):
            severity, _, rest = cells[-1].partition(", ")
            if severity not in SEVERITIES or rest not in ("", "contrived"):
                raise SystemExit(f"this line has no known severity: {line}")
            model = cells[column].removesuffix(" *")
            causes.append(Cause(_program(title, cells), cells[0], model, severity, bool(rest)))


def _program(title: str, cells: list[str]) -> str:
    """Without its version; a table of several programs has them in the first column."""
    if title == "Runtimes and importers":
        title = cells[0]
    return re.sub(r" \d.*", "", title)


def distinct(causes: list[Cause]) -> list[Cause]:
    """Without those that another program has by a pass that it shares."""
    places = {(c.program, c.place) for c in causes}
    return [c for c in causes if (SHARED.get(c.program, ""), c.place) not in places]


def row(name: str, causes: list[Cause]) -> str:
    """A program in numbers."""
    plain = Counter(c.severity for c in causes if not c.contrived)
    counts: Mapping[str, int] = {s: plain[s] for s in SEVERITIES}
    contrived = sum(c.contrived for c in causes)
    return (
        f"{name:40} {len(causes):4}   "
        + " ".join(f"{n:3} {s}" for s, n in counts.items())
        + f" {contrived:3} contrived"
    )


@dataclass(frozen=True)
class Shown:
    """A file of ``benchmarks/finds``: the cases that show the lines of a program."""

    file: str
    program: str
    script: str
    arguments: Sequence[str]
    lines: Mapping[str, str]

    def command(self, python: str) -> list[str]:
        """Runs the cases; those that optvet vets take the Python of their bundles' scripts."""
        script = str(HERE / self.script)
        if self.script == "rewrite_faults.py":
            return [sys.executable, script, self.file, "--python", python]
        return [python, script, *self.arguments, *self.lines.values()]


def read_shown() -> list[Shown]:
    """All files of ``benchmarks/finds``."""
    files = [(f, tomllib.loads(f.read_text())) for f in sorted((HERE / "finds").glob("*.toml"))]
    return [
        Shown(f.stem, t["program"], t["script"], t.get("arguments", []), t["lines"])
        for f, t in files
    ]


def unmatched(causes: Sequence[Cause], shown: Sequence[Shown]) -> Iterator[str]:
    """The lines that have no case, or several, and the cases without a line, in words."""
    alike = Counter((c.program, c.model) for c in causes)
    cases = Counter[Cause]()
    for one in shown:
        for line, case in one.lines.items():
            named = [
                c
                for c in causes
                if c.program == one.program
                and (
                    f"{c.place}: {c.model}" == line
                    or (c.model == line and alike[c.program, line] == 1)
                )
            ]
            cases.update(named[:1])
            if not named:
                yield f"{one.file}: no line, or several, of {case}: {line}"
        for case, number in Counter(one.lines.values()).items():
            if number > 1:
                yield f"{one.file}: {case} is to show {number} lines"
    for cause in causes:
        if cases[cause] != 1:
            yield f"{cases[cause]} cases show {cause.program}, {cause.place}: {cause.model}"


def show(shown: Sequence[Shown], python: str) -> int:
    """Run the cases; how many did not show."""
    missing = 0
    for one in shown:
        done = subprocess.run(one.command(python), stdout=subprocess.PIPE, text=True, check=False)
        said = (line.partition(": ") for line in done.stdout.splitlines())
        told = {name.rpartition(" ")[2]: words for name, _, words in said}
        showed = sum(not told.get(n, "needs").startswith(MISSED) for n in one.lines.values())
        print(done.stdout, end="")
        print(f"{one.file}: {showed} of {len(one.lines)} show", flush=True)
        missing += len(one.lines) - showed
    return missing


def main() -> int:
    """Print a row for each program, and one for all; or what each case says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--show", nargs="*", metavar="FILE", help="run the cases of these files")
    parser.add_argument("--python", default=sys.executable, help="with released wheels")
    options = parser.parse_args()
    found, shown = list(tables(FINDS.read_text())), read_shown()
    if options.show is not None:
        wanted = options.show or [s.file for s in shown]
        return int(show([s for s in shown if s.file in wanted], options.python) > 0)
    causes = [cause for table in found for cause in table]
    counted = distinct(causes)
    for program in sorted({c.program for c in counted}):
        print(row(program, [c for c in counted if c.program == program]))
    print(row("all", counted))
    problems = [
        f"the lines of {table[0].program} are not sorted by severity"
        for table in found
        if [c.rank for c in table] != sorted(c.rank for c in table)
    ]
    problems += unmatched(causes, shown)
    print(*problems, sep="\n", end="\n" if problems else "")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
