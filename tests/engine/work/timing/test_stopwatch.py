"""Timings of one machine wait for each other."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from optvet.engine.work.timing.paired_runs import Repeat
from optvet.engine.work.timing.stopwatch import PairTimer, exclusive_timing

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


@dataclass(frozen=True)
class Simulated(PairTimer):
    """Repeats whose log ratios are given; nothing is run."""

    ratios: Any = ()

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
    spread: float, more_s: float, expected: int, call: str
) -> None:
    nothing: Any = None
    ratios = itertools.cycle((spread, -spread, 0.0))
    timer = Simulated(nothing, (), 0.05, 3, 60.0, more_s=more_s, ratios=ratios)
    timed = timer.time(nothing, nothing)
    assert (len(timed.repeats), timed.call) == (expected, call)
    assert timed.confidence == pytest.approx(0.99 if not more_s else 1 - 0.01 / 3)
