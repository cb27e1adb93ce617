"""The answer of ``bisect`` as a picture: releases across, below them what each shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from optvet.report.plot import COLOURS, SETTINGS, check_plot, encoded, short
from optvet.spec.files import write_file
from optvet.spec.records.bisect import BisectResult
from optvet.spec.records.charts import Tone
from optvet.spec.words import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TONES: Mapping[str, Tone] = {
    "good": "good",
    "gone": "good",
    "no such pass": "good",
    "bad": "bad",
    "shows": "bad",
    "skipped": "unsure",
    "changed": "unsure",
}
_CELL, _LINE, _NAMES, _FRAME = 0.95, 0.35, 3.6, 1.2
"""Inches: width and height of a cell, of the names on the left, and of what is around all cells."""


def write_releases(result: BisectResult, file: Path) -> None:
    """Draw each release that was tried, its state and what it shows of each bundle.

    Raises:
        UsageError: As ``check_plot``.
        InfrastructureError: The file cannot be written.
    """
    check_plot(file)
    advice = "make room or choose another file, then run again"
    write_file(file, _drawn(result, file.suffix.lower().removeprefix(".")), advice=advice)


def _drawn(result: BisectResult, form: str) -> bytes:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    lines = _lines(result)
    size = (_NAMES + _CELL * len(result.tried), _FRAME + _LINE * len(lines))
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=size, layout="constrained")
        axis = figure.subplots()
        axis.set_title(short(result.headline(), 120), loc="left", fontweight="bold")
        for height, words in enumerate(lines.values()):
            for place, word in enumerate(words):
                _cell(axis, place, height, word)
        axis.set_xticks(range(len(result.tried)), [printable(r.version) for r in result.tried])
        axis.set_yticks(range(len(lines)), [short(n) for n in lines])
        axis.set_xlim(-0.5, len(result.tried) - 0.5)
        axis.set_ylim(len(lines) - 0.5, -0.5)  # the first is on top
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
        return encoded(figure, form)


def _lines(result: BisectResult) -> Mapping[str, Sequence[str]]:
    """What each release that was tried shows, by what is looked at; empty where nothing was."""
    bundles = result.at_fault.bundles if result.at_fault else []
    shown = [r.bundles for r in result.tried]
    lines: dict[str, Sequence[str]] = {"the whole model": [r.state for r in result.tried]}
    for number, name in enumerate(bundles):
        if any(number < len(each) for each in shown):
            lines[name] = [each[number] if number < len(each) else "" for each in shown]
    return lines


def _cell(axis: Axes, place: int, height: int, word: str) -> None:
    if not word:
        return
    colour = COLOURS[_TONES.get(word, "plain")]
    axis.bar([place], [0.86], width=0.94, bottom=height - 0.43, color=colour)
    axis.text(place, height, word, ha="center", va="center", color="white", fontsize="small")
