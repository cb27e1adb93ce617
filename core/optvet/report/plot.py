"""Charts as PNG or SVG files, by matplotlib."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optvet.spec.errors import UsageError
from optvet.spec.files import write_file
from optvet.spec.records.charts import BarChart, Chart, IntervalChart, Point, PointChart, Tone
from optvet.spec.words import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png")
COLOURS: Mapping[Tone, str] = {
    "good": "#1a7f37",
    "bad": "#b3202b",
    "unsure": "#9a6700",
    "plain": "#57606a",
}
_WIDTH, _LINE, _FRAME = 9.0, 0.32, 1.5
"""Inches: of the picture, of one line of a chart, and of what is around a chart."""
_POINTS_HEIGHT = 4.0
_LABEL_CHARS = 40
_HIGH, _NEAR = 0.04, 0.5
"""Parts of the height, and of the value across, within which names would cover each other."""
# Names of models may hold dollars, which would be read as formulas.
SETTINGS = {"text.parse_math": False, "svg.hashsalt": "optvet", "font.size": 9}


def check_plot(file: Path) -> None:
    """Refuse, before the work, a file that no picture can be written to.

    Raises:
        UsageError: Its name ends in no known format, or matplotlib is missing.
    """
    if file.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot {file}: a picture's name ends in {' or '.join(SUFFIXES)}")
    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib; install optvet[plots]")


def write_plot(charts: Sequence[Chart], file: Path) -> None:
    """Draw ``charts`` below each other into ``file``, whose name says in which format.

    Equal charts give equal files.

    Raises:
        UsageError: As ``check_plot``; or there is no chart to draw.
        InfrastructureError: The file cannot be written.
    """
    check_plot(file)
    if not charts:
        raise UsageError(f"--plot {file}: nothing was measured that could be drawn")
    advice = "make room or choose another file, then run again"
    write_file(file, _drawn(charts, file.suffix.lower().removeprefix(".")), advice=advice)


def _drawn(charts: Sequence[Chart], form: str) -> bytes:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    heights = [_height(chart) for chart in charts]
    with mpl.rc_context(SETTINGS), warnings.catch_warnings():
        # A name may have characters that the font lacks; they are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph")
        figure = Figure(figsize=(_WIDTH, sum(heights)), layout="constrained")
        axes = figure.subplots(len(charts), 1, squeeze=False, height_ratios=heights)
        for chart, (axis,) in zip(charts, axes, strict=True):
            _draw(axis, chart)
        return encoded(figure, form)


def encoded(figure: Figure, form: str) -> bytes:
    """A figure as SVG or PNG, without the date, so that equal ones give equal files."""
    out = BytesIO()
    stamp: dict[str, Any] = {"Date": None} if form == "svg" else {"Software": None}
    figure.savefig(out, format=form, dpi=150, metadata=stamp)
    return out.getvalue()


def _height(chart: Chart) -> float:
    if isinstance(chart, PointChart):
        return _POINTS_HEIGHT
    lines = chart.intervals if isinstance(chart, IntervalChart) else chart.bars
    return _FRAME + _LINE * len(lines)


def _draw(axis: Axes, chart: Chart) -> None:
    axis.set_title(short(chart.title, 90), loc="left", fontweight="bold")
    axis.set_xlabel(chart.axis)
    axis.spines[["top", "right"]].set_visible(False)
    if isinstance(chart, IntervalChart):
        _draw_intervals(axis, chart)
    elif isinstance(chart, BarChart):
        _draw_bars(axis, chart)
    else:
        _draw_points(axis, chart)


def _draw_intervals(axis: Axes, chart: IntervalChart) -> None:
    axis.axvline(chart.origin, color="#8c959f", linewidth=1, linestyle="--")
    for line, each in enumerate(chart.intervals):
        colour = COLOURS[each.tone]
        if each.low is not None and each.high is not None:
            axis.plot([each.low, each.high], [line, line], color=colour, linewidth=2)
        axis.plot([each.value], [line], "o", color=colour, markersize=5)
    _label_lines(axis, [each.label for each in chart.intervals])


def _draw_bars(axis: Axes, chart: BarChart) -> None:
    import matplotlib as mpl

    colours = mpl.colormaps["tab20"]
    starts = [0.0] * len(chart.bars)
    for number, name in enumerate(chart.names):
        widths = [bar.parts.get(name, 0.0) for bar in chart.bars]
        label = short(name)
        axis.barh(range(len(starts)), widths, left=starts, color=colours(number % 20), label=label)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    _label_lines(axis, [bar.label for bar in chart.bars])
    if chart.names:
        axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize="small", frameon=False)


def _label_lines(axis: Axes, labels: Sequence[str]) -> None:
    axis.set_yticks(range(len(labels)), [short(label) for label in labels])
    axis.set_ylim(max(len(labels), 1) - 0.5, -0.5)  # the first is on top


def _draw_points(axis: Axes, chart: PointChart) -> None:
    least = min((p.x for p in chart.points if p.x > 0), default=1e-9)
    axis.set_xscale("symlog", linthresh=least)
    # matplotlib's own are formulas.
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0e}" if value else "0")
    axis.set_ylabel(chart.up)
    for point in chart.points:
        axis.plot([point.x], [point.y], "o", color=COLOURS["plain"], markersize=5)
    for at, names in _named_places(chart.points).items():
        words = short(", ".join(names))
        axis.annotate(words, at, xytext=(6, 3), textcoords="offset points")
    # Room for names beside the points.
    axis.margins(x=0.2)
    axis.set_ylim(0, 1.15 * max((p.y for p in chart.points), default=1.0) or 1.0)


def _named_places(points: Sequence[Point]) -> dict[tuple[float, float], list[str]]:
    """Names by place; those of points that lie on each other stand in one line."""
    high = max((p.y for p in points), default=1.0) or 1.0
    places: dict[tuple[float, float], list[str]] = {}
    for point in points:
        near = (
            (x, y)
            for x, y in places
            if abs(y - point.y) <= _HIGH * high and abs(x - point.x) <= _NEAR * max(x, point.x)
        )
        places.setdefault(next(near, (point.x, point.y)), []).append(point.label)
    return places


def short(label: str, chars: int = _LABEL_CHARS) -> str:
    """A label on one line, cut where it is long."""
    line = " ".join(printable(label).split())
    return line if len(line) <= chars else f"{line[: chars - 1]}…"
