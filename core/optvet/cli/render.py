"""Results as rich renderables; pure functions that fit into 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from rich.text import Text

from optvet.cli.fitted_table import FittedTable
from optvet.spec.records import (
    Timing,
)
from optvet.spec.words import printable

NODE_CHARS = 70
_NODE_LINES = 6


LABEL_COLUMNS = 10
"""Columns of the labels at the left of an answer."""
VERDICT_COLOURS = {"clean": "green", "drift": "green", "faulty": "red", "undecided": "yellow"}


def text(words: str, style: str = "") -> Text:
    """Untrusted text for the screen: without markup and control characters."""
    return Text(printable(words), style=style)


def number(value: float | None) -> str:
    """A number with two digits; a dash for None."""
    if value is None:
        return "–"
    return "inf" if value > 1e300 else f"{value:.2g}"


def count(amount: int, noun: str, plural: str = "s") -> str:
    """``1 node``, ``2 nodes``; ``plural`` is the suffix for several."""
    return f"{amount:,} {noun}{'' if amount == 1 else plural}"


def size(amount: int) -> str:
    """Bytes in the unit that fits, powers of 1000."""
    value = float(amount)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def middle(words: str, limit: int) -> str:
    """``words`` with the middle left out if they are long; no word is cut that fits the half."""
    if len(words) <= limit:
        return words
    half = (limit - 3) // 2
    head, tail = words[:half], words[-half:]
    if " " in head and words[half] != " ":
        head = head[: head.rindex(" ")]
    if " " in tail and words[-half - 1] != " ":
        tail = tail[tail.index(" ") :]
    return f"{head.rstrip()} … {tail.lstrip()}"


def first_clauses(words: str, limit: int) -> str:
    """As many clauses of ``words``, which semicolons divide, as fit; at least the first one.

    >>> first_clauses("1.7 times the time; 8 weights became inputs; 2 Add take longer", 45)
    '1.7 times the time; 8 weights became inputs'
    """
    clauses = words.split("; ")
    while len(clauses) > 1 and len("; ".join(clauses)) > limit:
        clauses.pop()
    return "; ".join(clauses)


def node_line(node: str) -> str:
    """A node as text, on several lines if it is long: names are searched for, so none is cut."""
    lines = textwrap.wrap(
        " ".join(node.split()),
        NODE_CHARS,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    more = [] if len(lines) <= _NODE_LINES else [f"  … {count(len(lines), 'line')} in all"]
    return "\n".join([*lines[: _NODE_LINES - len(more)], *more])


def table_of(*columns: tuple[str, str], keys: int = 1) -> FittedTable:
    """A table without lines; columns are headers with their styles, and ``keys`` name a row."""
    table = FittedTable(keys)
    for header, style in columns:
        table.add_column(header, style=style, overflow="fold")
    # Names in the first column are searched for and copied, so they are never wrapped.
    table.columns[0].no_wrap = True
    return table


def seconds(value: float | None) -> str:
    """A duration in the unit that fits, with three digits."""
    if value is None:
        return "–"
    unit, factor = next(((u, f) for u, f in _UNITS if value * f >= 1), _UNITS[-1])
    return f"{value * factor:.3g} {unit}"


_UNITS = (("s", 1.0), ("ms", 1e3), ("µs", 1e6))


def ratio_of(timing: Timing) -> str:
    """``1.43 times the time of the original (99 %: 1.38–1.49)``."""
    if timing.ratio is None:
        return f"the same bytes as the {timing.baseline}"
    return (
        f"{_times(timing.ratio)} times the time of the {timing.baseline} "
        f"({100 * timing.confidence:.3g} %: {_times(timing.low)}–{_times(timing.high)})"
    )


def _times(ratio: float | None) -> str:
    """A ratio; a small one with two digits that are not 0."""
    value = ratio or 0.0
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def timing_line(timing: Timing) -> str:
    """Verdict, ratio, and the time of one run of both models."""
    words = f"{timing.verdict}: {ratio_of(timing)}"
    if timing.candidate is None or timing.reference is None:
        return words
    sides = timing.candidate.latency_s, timing.reference.latency_s
    return f"{words}, {seconds(sides[0])} beside {seconds(sides[1])}"


def timing_costs(timing: Timing) -> str:
    """Throughput, peak memory, busy processors and device of candidate and reference."""
    sides = [side for side in (timing.candidate, timing.reference) if side is not None]
    shown = {
        "runs per s": [f"{side.throughput:,.0f}" for side in sides],
        "added": [size(s.memory_bytes) for s in sides if s.memory_bytes is not None],
        "CPUs busy": [f"{s.cpu_utilization:.1f}" for s in sides if s.cpu_utilization is not None],
    }
    uses = [side.device for side in sides if side.device is not None]
    shown |= {
        f"of {name} busy": [f"{u.utilisation.mean:.0%}" for u in uses if u.utilisation is not None]
        for name in {use.device for use in uses}
    }
    return "; ".join(f"{' beside '.join(each)} {what}" for what, each in shown.items() if each)


def warm_up_words(timings: Iterable[Timing]) -> str:
    """How many runs were not timed, to warm up, and how long they took; empty if there are none."""
    sides = [s for t in timings for s in (t.reference, t.candidate) if s is not None]
    runs, spent = sum(s.warm_ups for s in sides), sum(s.warm_up_s for s in sides)
    return f"{count(runs, 'run')} to warm up, not timed: {seconds(spent)}" if runs else ""
