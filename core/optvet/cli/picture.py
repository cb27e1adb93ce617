"""Charts of an answer in a file: checked before the work, drawn after it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from optvet.cli.output import check_file
from optvet.report.plot import check_plot, write_plot
from optvet.report.release_plot import write_releases
from optvet.spec.records.bisect import BisectResult
from optvet.spec.records.charts import Chart


def check_picture(file: Path | None) -> Path | None:
    """``file``, if a picture can be written there.

    Raises:
        UsageError: It cannot.
    """
    if file is not None:
        check_plot(file)
        check_file("--plot", str(file), "picture")
    return file


def draw_charts(charts: Sequence[Chart], file: Path, cache: Path) -> None:
    """Write ``charts`` to ``file``; ``cache`` is the folder of the cache."""
    _keep_fonts_in(cache)
    write_plot(charts, file)


def draw_releases(result: BisectResult, file: Path, cache: Path) -> None:
    """Write what each release shows to ``file``; ``cache`` is the folder of the cache."""
    _keep_fonts_in(cache)
    write_releases(result, file)


def _keep_fonts_in(cache: Path) -> None:
    """Else matplotlib keeps its index of fonts in folders of its own."""
    os.environ.setdefault("MPLCONFIGDIR", str(cache / "matplotlib"))
