# ruff: noqa: INP001 -- a script, in no package
"""Draws the causes of docs/finds.md by program: docs/images/finds.svg.

Run it again whenever that page changes: python docs/images/draw_finds.py
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(DOCS.parent / "benchmarks"))

from finds import Cause, distinct, tables  # noqa: E402 -- found by the line above

KINDS = (
    ("wrong", "silently wrong"),
    ("ends", "process ends"),
    ("unusable", "unusable model"),
    ("other", "error, loss"),
    ("contrived", "on a contrived model"),
)
WIDTH, ROW, LEFT, TOP, RIGHT = 760, 24, 270, 44, 44
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.wrong { fill: #cf222e } .ends { fill: #6639ba } .unusable { fill: #d4a72c }
.other { fill: #7d8590 }
.contrived { fill: #c9d1d9 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .wrong { fill: #f85149 }
.ends { fill: #a371f7 } .unusable { fill: #e3b341 } .other { fill: #8b949e }
.contrived { fill: #484f58 } }
"""


def main() -> None:
    """Write the picture."""
    page = (DOCS / "finds.md").read_text("utf-8")
    (DOCS / "images" / "finds.svg").write_text(picture(page), "utf-8")


def picture(page: str) -> str:
    """Bars of a page's causes by program, the most first, divided by what happens."""
    found = distinct([cause for table in tables(page) for cause in table])
    programs: dict[str, Counter[str]] = {}
    for cause in found:
        programs.setdefault(cause.program, Counter())[_kind(cause)] += 1
    rows = sorted(programs.items(), key=lambda row: (-row[1].total(), row[0]))
    height = TOP + ROW * len(rows)
    words = f"{len(found)} causes in {len(rows)} programs"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{words}</title>",
        f"<style>{STYLE}</style>",
        *_legend(),
        *(line for number, row in enumerate(rows) for line in _bar(number, *row, rows)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _kind(cause: Cause) -> str:
    if cause.contrived:
        return "contrived"
    return cause.severity if cause.severity in dict(KINDS) else "other"


def _legend() -> Iterator[str]:
    x = 0
    for kind, words in KINDS:
        yield f'<rect class="{kind}" x="{x}" y="8" width="12" height="12"/>'
        yield f'<text x="{x + 17}" y="19">{words}</text>'
        x += 34 + 7 * len(words)


def _bar(
    number: int,
    program: str,
    counts: Mapping[str, int],
    rows: Sequence[tuple[str, Counter[str]]],
) -> Iterator[str]:
    y, x = TOP + ROW * number, float(LEFT)
    scale = (WIDTH - LEFT - RIGHT) / rows[0][1].total()
    yield f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(program)}</text>'
    for kind, _ in KINDS:
        width = scale * counts.get(kind, 0)
        if width:
            place = f'x="{x:.1f}" y="{y + 2}" width="{width:.1f}" height="{ROW - 7}"'
            yield f'<rect class="{kind}" {place}/>'
        x += width
    yield f'<text x="{x + 6:.1f}" y="{y + 14}">{sum(counts.values())}</text>'


if __name__ == "__main__":
    main()
