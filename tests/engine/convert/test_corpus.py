"""The benchmark of conversions on some of its own: faults are placed, the rest is right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.needs import needs

needs("torch", reason="the sources are PyTorch's")

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
FAULTS = ("dilation_lost", "mask_inverted", "required_attribute_lost", "rotary_pairs_interleaved")
RIGHT = ("argmax_of_ties", "rms_norm_in_pieces")


@pytest.mark.release
def test_conversions_of_the_benchmark_are_judged_as_they_are_labelled() -> None:
    script = [sys.executable, str(BENCHMARKS / "conversion.py"), str(BENCHMARKS / "conversions")]
    run = subprocess.run(
        [*script, "--no-repair", "--only", *FAULTS, *RIGHT], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]
    (line,) = (line for line in run.stdout.splitlines() if line.startswith("all: 4 of 4"))
    assert line == (
        "all: 4 of 4 faults found, 4 with the right symptom, 4 with the right stage, 4 with the "
        "right operator or parameter; 0 of 2 controls reported"
    )
