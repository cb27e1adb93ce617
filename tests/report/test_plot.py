"""Pictures of charts as files; what they show is read from the SVG."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from optvet import UsageError
from optvet.report.plot import check_plot, write_plot
from optvet.spec.records import (
    Bar,
    BarChart,
    Chart,
    Interval,
    IntervalChart,
    Point,
    PointChart,
)

SVG = "{http://www.w3.org/2000/svg}"
NAME = r"a $\frac{1}{2}$ model_<b>&</b> 名"

CHARTS: list[Chart] = [
    IntervalChart(
        title="Speed",
        axis="ratio",
        origin=1.0,
        intervals=[
            Interval(label=NAME, value=1.2, low=1.1, high=1.4, tone="bad"),
            Interval(label="no interval", value=1.0),
        ],
    ),
    BarChart(title="Nodes", axis="nodes", names=["Conv", NAME], bars=[Bar(label="o", parts={})]),
    PointChart(
        title="Error",
        axis="error",
        up="seconds",
        points=[Point(label="exact", x=0.0, y=1.0), Point(label="near", x=1e-6, y=2.0)],
    ),
]


def test_a_format_that_is_not_known_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a picture's name ends in \.svg or \.png"):
        check_plot(tmp_path / "plot.pdf")


def test_a_missing_library_is_told_with_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"install optvet\[plots\]"):
        check_plot(tmp_path / "plot.svg")


def written(tmp_path: Path, charts: list[Chart], name: str = "plot.svg") -> bytes:
    pytest.importorskip("matplotlib", reason="needs optvet[plots]")
    file = tmp_path / name
    write_plot(charts, file)
    return file.read_bytes()


def test_all_charts_are_in_one_picture_with_their_labels(tmp_path: Path) -> None:
    root = ET.fromstring(written(tmp_path, CHARTS))
    comments = written(tmp_path, CHARTS).decode()
    # Letters are drawn as paths; what they say stands in comments.
    for words in ("Speed", "Nodes", "Error", "no interval", "near"):
        assert f"<!-- {words} -->" in comments
    assert len(root.findall(f".//{SVG}g[@id]")) > 10


def test_a_name_with_a_formula_in_it_is_shown_as_it_is(tmp_path: Path) -> None:
    assert r"$\frac{1}{2}$" in written(tmp_path, CHARTS).decode()


def test_equal_charts_give_equal_files(tmp_path: Path) -> None:
    for name in ("a.svg", "b.png"):
        assert written(tmp_path, CHARTS, name) == written(tmp_path, CHARTS, name)


def test_a_png_is_a_png(tmp_path: Path) -> None:
    assert written(tmp_path, CHARTS, "plot.PNG").startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "chart",
    [
        IntervalChart(title="t", axis="a", origin=1, intervals=[]),
        BarChart(title="t", axis="a", names=[], bars=[]),
        PointChart(title="t", axis="a", up="u", points=[]),
        PointChart(title="t", axis="a", up="u", points=[Point(label="l", x=0, y=0)]),
    ],
    ids=lambda chart: chart.kind,
)
def test_a_chart_of_nothing_is_drawn(chart: Chart, tmp_path: Path) -> None:
    assert b"<svg" in written(tmp_path, [chart])


def test_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs optvet[plots]")
    with pytest.raises(UsageError, match="nothing was measured"):
        write_plot([], tmp_path / "plot.svg")
    assert list(tmp_path.iterdir()) == []


def test_points_that_lie_on_each_other_are_named_in_one_line(tmp_path: Path) -> None:
    places = (("all", 1e-7, 1.0), ("layout", 1.1e-7, 1.01), ("basic", 1e-5, 1.0), ("off", 0.0, 2.0))
    points = [Point(label=name, x=x, y=y) for name, x, y in places]
    chart = PointChart(title="t", axis="error", up="latency", points=points)
    comments = written(tmp_path, [chart]).decode()
    for words in ("all, layout", "basic", "off"):
        assert f"<!-- {words} -->" in comments
