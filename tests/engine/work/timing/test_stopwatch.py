"""Timings of one machine wait for each other."""

from __future__ import annotations

import subprocess
import sys

from optvet.engine.work.timing.stopwatch import exclusive_timing

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
