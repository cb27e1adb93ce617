"""``optvet bench``. Nothing here depends on how fast a machine is: thresholds are far from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optvet.spec.records import BenchResult

Run = Callable[..., Any]
FAR = ("--repeats", "3", "--threshold", "50")
"""Only a factor of 51 counts, which no noise makes between equal models."""


def test_a_variant_is_timed_beside_the_original(run: Run, clean: Path) -> None:
    ran = run("bench", clean, *FAR, "--json", "-")
    result = BenchResult.model_validate(json.loads(ran.out))
    (variant,) = result.variants
    assert (ran.code, variant.failure) == (0, None)
    timing = variant.timing
    assert timing is not None
    assert (timing.verdict, timing.baseline, timing.repeats) == ("no-difference", "original", 3)
    assert timing.low is not None
    assert timing.ratio is not None
    assert timing.high is not None
    assert timing.low <= timing.ratio <= timing.high
    assert len(timing.ratios) == 3
    assert timing.difference == 0
    for side in (timing.reference, timing.candidate):
        assert side is not None
        assert side.latency_s > 0
        assert side.load_s > 0
        assert side.memory_bytes is not None
        assert side.memory_bytes > 0
    assert variant.optimization_s is not None
    # Under the defaults of the runtime in production, not those of a vet.
    assert variant.runtime.options["optimization"] == "all"


def test_every_pipeline_of_every_optimizer_is_a_row_that_fits_the_screen(
    run: Run, clean: Path
) -> None:
    wanted = ("--optimizer", "onnxruntime", "--optimizer", "onnxoptimizer", "--pipeline")
    ran = run("bench", clean, *wanted, "default", "--pipeline", "all", *FAR)
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line.split("  ")[0] for line in lines if line.startswith("onnx")]
    names = ["onnxruntime default", "onnxoptimizer default", "onnxoptimizer all"]
    assert rows == names * 2
    assert any(line.startswith("load ") for line in lines)


def test_a_variant_that_crashes_says_so_in_its_row(run: Run, faulty: Path) -> None:
    ran = run("bench", faulty, "--pipeline", "default", "--pipeline", "nop", *FAR)
    assert ran.code == 1
    assert "optimizer-error (build)" in ran.out
    rows = [line.split() for line in ran.out.splitlines() if line.startswith("onnxoptimizer")]
    assert ["onnxoptimizer", "default", "failed"] == rows[0][:3]
    assert rows[1][:2] == ["onnxoptimizer", "nop"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--optimizer", "onnxoptimiser"), "onnxoptimizer"),
        (("--pipeline", "no_such_pass"), "no_such_pass"),
        (("--runtime", "abacus"), "abacus"),
        (("--runtime-option", "speed=9"), "speed"),
        (("--provider", "SpeedProvider"), "SpeedProvider"),
        (("--repeats", "2"), "--repeats"),
        (("--threshold", "0"), "--threshold"),
        (("--option", "fixed_point=perhaps"), "fixed_point"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_timed(
    run: Run, clean: Path, options: tuple[str, ...], words: str
) -> None:
    ran = run("bench", clean, *options)
    assert ran.code == 2
    assert words in ran.err
    assert ran.out == ""


@pytest.mark.parametrize("pipeline", ["nop", "default"])
def test_an_original_that_does_not_run_is_nothing_tested(
    run: Run, write: Callable[..., Path], pipeline: str
) -> None:
    head = '<ir_version: 8, opset_import: ["" : 17]>\n'
    indices = "<int64[1] far = {9}>"
    broken = write(
        "b.onnx", head + f"g (float[2] x) => (float[1] y) {indices} {{ y = Gather(x, far) }}"
    )
    ran = run("bench", broken, "--pipeline", pipeline, *FAR)
    assert ran.code == 5
    assert "the original cannot be timed" in ran.err
