"""Charts as shapes of an inline SVG, which the template writes and the style sheet colours.

Lengths are in pixels of a picture that is 760 wide; the page scales it. What a chart shows stands
below it as a table too, for readers who cannot see it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from optvet.plugin import BarChart, Chart, IntervalChart, PointChart, ReportTable

_WIDTH, _LEFT, _RIGHT, _TOP, _FOOT = 760.0, 210.0, 20.0, 10.0, 44.0
_LINE, _THICK = 24.0, 14.0
_POINTS_HEIGHT = 300.0
_LABEL_CHARS = 30
COLOURS = 12
"""Classes of colours for parts of bars, ``c0`` to ``c11``; more parts repeat them."""


@dataclass(frozen=True)
class Shape:
    """A rectangle, line, circle or text; ``places`` are its attributes that are lengths."""

    kind: str
    style: str
    places: dict[str, float]
    words: str = ""
    tip: str = ""


@dataclass(frozen=True)
class Drawing:
    """A chart as it is drawn, and the same as a table."""

    title: str
    note: str
    height: float
    shapes: list[Shape]
    table: ReportTable
    legend: list[tuple[str, str]] = field(default_factory=list)
    width: float = _WIDTH


def drawing_of(chart: Chart) -> Drawing:
    """The drawing of ``chart``."""
    if isinstance(chart, IntervalChart):
        return _intervals(chart)
    return _bars(chart) if isinstance(chart, BarChart) else _points(chart)


def _intervals(chart: IntervalChart) -> Drawing:
    ends = [chart.origin, *(e.value for e in chart.intervals)]
    ends += [v for e in chart.intervals for v in (e.low, e.high) if v is not None]
    across, ticks = _scale(min(ends), max(ends))
    height = _height(len(chart.intervals))
    shapes = [*_frame(chart.axis, ticks, across, height)]
    shapes.append(_upright("origin", across(chart.origin), height))
    for line, each in enumerate(chart.intervals):
        y = _middle(line)
        tip = f"{each.label}: {_number(each.value)}"
        if each.low is not None and each.high is not None:
            tip += f", from {_number(each.low)} to {_number(each.high)}"
            places = {"x1": across(each.low), "x2": across(each.high), "y1": y, "y2": y}
            shapes.append(Shape("line", f"span t-{each.tone}", places))
        places = {"cx": across(each.value), "cy": y, "r": 4.5}
        shapes.append(Shape("circle", f"t-{each.tone}", places, tip=tip))
        shapes.append(_label(each.label, y))
    return Drawing(
        chart.title,
        chart.note,
        height,
        shapes,
        ReportTable(
            title=chart.title,
            columns=["", chart.axis, "low", "high"],
            rows=[[e.label, e.value, e.low, e.high] for e in chart.intervals],
        ),
    )


def _bars(chart: BarChart) -> Drawing:
    longest = max((sum(bar.parts.values()) for bar in chart.bars), default=0.0)
    across, ticks = _scale(0.0, longest)
    height = _height(len(chart.bars))
    shapes = [*_frame(chart.axis, ticks, across, height)]
    for line, bar in enumerate(chart.bars):
        start = 0.0
        for number, name in enumerate(chart.names):
            part = bar.parts.get(name, 0.0)
            if part > 0:
                places = {
                    "x": across(start),
                    "y": _middle(line) - _THICK / 2,
                    "width": across(start + part) - across(start),
                    "height": _THICK,
                }
                tip = f"{bar.label}: {name} {_number(part)}"
                shapes.append(Shape("rect", f"c{number % COLOURS}", places, tip=tip))
                start += part
        shapes.append(_label(bar.label, _middle(line)))
    return Drawing(
        chart.title,
        chart.note,
        height,
        shapes,
        ReportTable(
            title=chart.title,
            columns=["", *chart.names],
            rows=[[b.label, *(b.parts.get(n, 0.0) for n in chart.names)] for b in chart.bars],
        ),
        [(f"c{number % COLOURS}", name) for number, name in enumerate(chart.names)],
    )


def _points(chart: PointChart) -> Drawing:
    known = [math.log10(p.x) for p in chart.points if p.x > 0 and math.isfinite(p.x)]
    low, high = math.floor(min(known, default=-9)), math.ceil(max(known, default=0))
    high = max(high, low + 1)
    zero = any(p.x <= 0 for p in chart.points)
    left = low - 1 if zero else low  # zero stands one power of ten before the rest
    step = max(1, (high - low) // 6)

    def across(x: float) -> float:
        power = math.log10(x) if x > 0 else left
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (min(power, high) - left) / (high - left)

    top = max((p.y for p in chart.points), default=1.0) or 1.0
    height = _POINTS_HEIGHT + _FOOT

    def up(y: float) -> float:
        return _POINTS_HEIGHT - (_POINTS_HEIGHT - _TOP - 14) * y / top

    ticks = [(10.0**n, f"1e{n}") for n in range(low, high + 1, step)]
    shapes = [*_frame(chart.axis, [*([(0.0, "0")] if zero else []), *ticks], across, height)]
    for value, words in _scale(0.0, top)[1]:
        y = up(value)
        shapes.append(Shape("line", "grid", {"x1": _LEFT, "x2": _WIDTH - _RIGHT, "y1": y, "y2": y}))
        shapes.append(Shape("text", "end", {"x": _LEFT - 8, "y": y + 4}, words))
    shapes.append(Shape("text", "end axis", {"x": _LEFT - 8, "y": _TOP + 2}, chart.up))
    for point in chart.points:
        x, y = across(point.x), up(point.y)
        tip = f"{point.label}: {_number(point.x)}, {_number(point.y)}"
        shapes.append(Shape("circle", "t-plain", {"cx": x, "cy": y, "r": 4.5}, tip=tip))
        late = x > _WIDTH - 150
        place = {"x": x - 8 if late else x + 8, "y": y - 5}
        shapes.append(Shape("text", "end" if late else "start", place, _short(point.label)))
    return Drawing(
        chart.title,
        chart.note,
        height,
        shapes,
        ReportTable(
            title=chart.title,
            columns=["", chart.axis, chart.up],
            rows=[[p.label, p.x, p.y] for p in chart.points],
        ),
    )


# --- parts ---------------------------------------------------------------------------------------

_Across = Callable[[float], float]


def _height(lines: int) -> float:
    return _TOP + lines * _LINE + _FOOT


def _middle(line: int) -> float:
    return _TOP + (line + 0.5) * _LINE


def _frame(
    axis: str, ticks: Sequence[tuple[float, str]], across: _Across, height: float
) -> Iterator[Shape]:
    """The lines of the scale, its numbers, and what it measures."""
    for value, words in ticks:
        yield _upright("grid", across(value), height)
        places = {"x": across(value), "y": height - _FOOT + 16}
        yield Shape("text", "middle", places, words)
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    yield Shape("text", "middle axis", {"x": middle, "y": height - 8}, axis)


def _upright(style: str, x: float, height: float) -> Shape:
    return Shape("line", style, {"x1": x, "x2": x, "y1": _TOP, "y2": height - _FOOT})


def _label(label: str, y: float) -> Shape:
    return Shape("text", "end", {"x": _LEFT - 8, "y": y + 4}, _short(label), tip=label)


def _scale(low: float, high: float) -> tuple[_Across, list[tuple[float, str]]]:
    """From values to pixels, and the values with numbers: 1, 2 or 5 times a power of ten apart."""
    if not math.isfinite(high - low) or high <= low:
        high = low + 1.0
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    first, last = math.floor(low / step), math.ceil(high / step)
    begin, end = first * step, last * step

    def across(value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (value - begin) / (end - begin)

    return across, [(n * step, _number(n * step)) for n in range(first, last + 1)]


def _number(value: float) -> str:
    return f"{value:.3g}"


def _short(label: str) -> str:
    line = " ".join(label.split())
    return line if len(line) <= _LABEL_CHARS else f"{line[: _LABEL_CHARS - 1]}…"
