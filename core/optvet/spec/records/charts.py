"""Charts: what is drawn, without how. The terminal's files and reports draw the same."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from optvet.spec.records.base import Record

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


class _Drawn(Record):
    title: str
    note: str = ""
    axis: str
    """What is measured, with its unit."""


class IntervalChart(_Drawn):
    """Values with intervals, one per line, beside a line at ``origin``."""

    kind: Literal["intervals"] = "intervals"
    origin: float
    intervals: list[Interval]


class BarChart(_Drawn):
    """Bars of parts, one per line; ``names`` orders the parts."""

    kind: Literal["bars"] = "bars"
    names: list[str]
    bars: list[Bar]


class PointChart(_Drawn):
    """Points, with ``axis`` across on a logarithmic scale and ``up`` upwards from 0."""

    kind: Literal["points"] = "points"
    up: str
    points: list[Point]


Chart = Annotated[IntervalChart | BarChart | PointChart, Field(discriminator="kind")]
