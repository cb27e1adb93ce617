"""Timings of one machine wait for each other."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optvet.engine.work.timing.paired_runs import Repeat
from optvet.engine.work.timing.stopwatch import Stopwatch, exclusive_timing

TIMER = """
from optvet.engine.work.timing.stopwatch import exclusive_timing
with exclusive_timing(lambda text, done, total: print(text, flush=True)):
    print("alone")
"""


def test_timings_of_two_processes_wait_for_each_other() -> None:
    with exclusive_timing(lambda text, done, total: None):
        other = subprocess.Popen([sys.executable, "-c", TIMER], stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        assert other.stdout.readline() == "waiting: another process is timing\n"
    assert other.communicate(timeout=60)[0] == "alone\n"


class Simulated(Stopwatch):
    """Repeats whose log ratios are given; nothing is built or run."""

    ratios: Any = ()

    def _facts_of(self, product: Any) -> None:
        return None

    def _side(self, product: Any) -> Any:
        return SimpleNamespace(alignment=None)

    def _repeat(self, *_: Any) -> Repeat:
        uses: Any = ()
        return Repeat(((1.0,), (math.exp(next(self.ratios)),)), (0, 0), 0, None, uses)


@pytest.mark.parametrize(
    ("spread", "more_s", "expected", "call"),
    [
        (0.0001, 60.0, 3, "no-difference"),
        (0.02, 60.0, 6, "no-difference"),
        (1.0, 60.0, 12, "undecided"),
        (1.0, 0.0, 3, "undecided"),
        (1.0, 1e-9, 3, "undecided"),
    ],
)
def test_repeats_are_added_until_the_interval_tells(
    tmp_path: Path, spread: float, more_s: float, expected: int, call: str
) -> None:
    nothing: Any = None
    watch = Simulated(nothing, nothing, (), tmp_path, 0.05, 3, more_s=more_s)
    watch.ratios = itertools.cycle((spread, -spread, 0.0))
    timed = watch._time_pair((), nothing, nothing, sequential=False)
    assert (len(timed.repeats), timed.call) == (expected, call)
    assert timed.confidence == pytest.approx(0.99 if not more_s else 1 - 0.01 / 3)
