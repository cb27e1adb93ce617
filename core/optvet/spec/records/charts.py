"""Charts: what is drawn, without how. The terminal's files and reports draw the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from optvet.spec.records.base import Record
from optvet.spec.records.timing import Timing

Tone = Literal["good", "bad", "unsure", "plain"]


class Interval(Record):
    """A value with the ends of its interval; both are None where there is none."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    tone: Tone = "plain"


class Bar(Record):
    """A bar of parts, by name, that are laid end to end."""

    label: str
    parts: dict[str, float]


class Point(Record):
    """A point; an ``x`` of 0 lies at the end of a logarithmic axis."""

    label: str
    x: float
    y: float


class _DrawnChart(Record):
    title: str
    note: str = ""
    axis: str
    """What is measured, with its unit."""


class IntervalChart(_DrawnChart):
    """Values with intervals, one per line, beside a line at ``origin``."""

    kind: Literal["intervals"] = "intervals"
    origin: float
    intervals: list[Interval]

    @classmethod
    def of(cls, timings: Mapping[str, Timing]) -> IntervalChart | None:
        """Ratios of timings by label; None if nothing was timed."""
        intervals = [
            Interval(
                label=label,
                value=timing.ratio,
                low=timing.low,
                high=timing.high,
                tone=_TONES.get(timing.verdict, "plain"),
            )
            for label, timing in timings.items()
            if timing.ratio is not None
        ]
        if not intervals:
            return None
        return cls(
            title="Speed",
            note="The line spans the confidence interval.",
            axis="latency over the reference's; below 1 is faster",
            origin=1.0,
            intervals=intervals,
        )


_TONES: Mapping[str, Tone] = {"faster": "good", "slower": "bad", "undecided": "unsure"}


class BarChart(_DrawnChart):
    """Bars of parts, one per line; ``names`` orders the parts."""

    kind: Literal["bars"] = "bars"
    names: list[str]
    bars: list[Bar]

    @classmethod
    def of(
        cls, counts: Mapping[str, Mapping[str, float]], title: str, axis: str, *, note: str = ""
    ) -> BarChart | None:
        """Bars by label: the ten most frequent names, and the sum of the others as one part.

        None if there is no bar.
        """
        total = Counter[str]()
        for parts in counts.values():
            total.update(parts)
        names = [name for name, _ in total.most_common(_PARTS)]
        rest = len(total) - len(names)
        others = f"{rest} others"
        bars = []
        for label, parts in counts.items():
            shown = {name: float(parts[name]) for name in names if name in parts}
            left = sum(amount for name, amount in parts.items() if name not in shown)
            bars.append(Bar(label=label, parts={**shown, others: left} if left else shown))
        if not bars:
            return None
        every = [*names, *([others] if rest else [])]
        return cls(title=title, note=note, axis=axis, names=every, bars=bars)


_PARTS = 10


class PointChart(_DrawnChart):
    """Points, with ``axis`` across on a logarithmic scale and ``up`` upwards from 0."""

    kind: Literal["points"] = "points"
    up: str
    points: list[Point]

    @classmethod
    def of(cls, timings: Mapping[str, Timing]) -> PointChart | None:
        """Ratio of each timing over the difference of outputs; None if neither is known of any."""
        points = [
            Point(label=label, x=timing.difference, y=timing.ratio)
            for label, timing in timings.items()
            if timing.ratio is not None and timing.difference is not None
        ]
        if not points:
            return None
        return cls(
            title="Latency against error",
            note="The largest difference of an output, relative to its largest magnitude.",
            axis="relative difference",
            up="latency over the reference's",
            points=points,
        )


Chart = Annotated[IntervalChart | BarChart | PointChart, Field(discriminator="kind")]
