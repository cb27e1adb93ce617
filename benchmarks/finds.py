"""How many distinct causes ``docs/finds.md`` lists, by program and severity.

Each line of a table whose last column is ``severity`` is a cause. A line of onnxsim whose pass is
one of ONNX Optimizer's that has a line itself is not counted twice. Exit status 1 if a line has no
known severity, or stands before a graver one.

    python benchmarks/finds.py
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

FINDS = Path(__file__).parents[1] / "docs" / "finds.md"
SEVERITIES = ("wrong", "ends", "unusable", "error", "note")
"""The gravest first, as ``optvet hunt`` sorts them."""
SHARED = {"onnxsim": "ONNX Optimizer"}
"""Programs that run the passes of another one."""


@dataclass(frozen=True)
class Cause:
    """A line: its program, its first cell, how grave it is, and whether its model is contrived."""

    program: str
    place: str
    severity: str
    contrived: bool

    @property
    def rank(self) -> tuple[bool, int]:
        """By which the lines of a table are sorted."""
        return self.contrived, SEVERITIES.index(self.severity)


def tables(text: str) -> Iterator[list[Cause]]:
    """The causes of each table."""
    title, causes, inside = "", list[Cause](), False
    for line in [*text.splitlines(), ""]:
        if line.startswith("## "):
            title = line[3:]
        cells = [c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            if causes:
                yield causes
            causes, inside = [], False
        elif cells[-1] == "severity":
            inside = True
        elif inside and set(line) - set("|- "):
            severity, _, rest = cells[-1].partition(", ")
            if severity not in SEVERITIES or rest not in ("", "contrived"):
                raise SystemExit(f"this line has no known severity: {line}")
            causes.append(Cause(_program(title, cells), cells[0], severity, bool(rest)))


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


def main() -> None:
    """Print a row for each program, and one for all."""
    found = list(tables(FINDS.read_text()))
    unsorted = [t for t in found if [c.rank for c in t] != sorted(c.rank for c in t)]
    causes = distinct([cause for table in found for cause in table])
    for program in sorted({c.program for c in causes}):
        print(row(program, [c for c in causes if c.program == program]))
    print(row("all", causes))
    for table in unsorted:
        print(f"the lines of {table[0].program} are not sorted by severity")
    sys.exit(1 if unsorted else 0)


if __name__ == "__main__":
    main()
