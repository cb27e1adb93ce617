"""``optvet bench``. Nothing here depends on how fast a machine is: thresholds are far from it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.commands import WRITER, quick_timing

from optvet.spec.records import BenchResult

__all__ = ["quick_timing"]

pytestmark = pytest.mark.usefixtures("quick_timing")
Run = Callable[..., Any]
Write = Callable[[str, str], Path]
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
        assert side.samples_per_s is not None
        assert side.samples_per_s >= side.throughput > 0
        # Two rounds at least before the timed ones, and a run before each of their blocks.
        assert side.warm_ups >= 3 * (2 * 2 + 5 * 2)
        assert side.warm_up_s > 0
    assert variant.optimization_s is not None
    # Under the defaults of the runtime in production, not those of a vet.
    assert variant.runtime.options["optimization"] == "all"


@pytest.mark.long
def test_every_pipeline_of_every_optimizer_is_a_row_that_fits_the_screen(
    run: Run, clean: Path
) -> None:
    wanted = ("--optimizer", "onnxruntime", "--optimizer", "onnxoptimizer", "--pipeline")
    ran = run("bench", clean, *wanted, "default", "--pipeline", "all", *FAR)
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= 80
    named = [line for line in lines if line.startswith("onnx") and ";" not in line]
    rows = [line.split("  ")[0] for line in named]  # the heading names the runtime, too
    names = ["onnxruntime default", "onnxoptimizer default", "onnxoptimizer all"]
    # Speed, and what it cost; further tables have further rows.
    assert rows[: 2 * len(names)] == names * 2
    assert any(line.startswith("load ") for line in lines)


@pytest.mark.long
def test_of_a_model_that_writes_the_first_token_and_the_others_are_timed(
    run: Run, write: Write
) -> None:
    writer = write("writer.onnx", WRITER)
    ran = run(
        "bench",
        writer,
        "--comparator",
        "text",
        *FAR,
        "--json",
        answer := writer.with_suffix(".json"),
    )
    assert ran.code == 0, ran.err
    result = BenchResult.model_validate_json(answer.read_text())
    paces = [result.variants[0].pace, *result.paces.values()]
    assert len(paces) == 2
    for pace in paces:
        assert pace is not None
        assert pace.tokens > 1
        assert pace.first_token_s > 0
        assert pace.per_token_s > 0
    assert "first token, ms" in ran.out
    assert "first token" not in run("bench", writer, "--comparator", "tensor", *FAR).out


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


# --- structure, placement, pictures --------------------------------------------------------------

NORMALIZED = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1,2,4,4] x) => (float[1,2,4,4] y)
<float[2,2,1,1] w = {1, 2, 3, 4}, float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {0, 1},
 float[2] v = {1, 2}, float[3] idle = {1, 2, 3}>
{ c = Conv(x, w)  n = BatchNormalization(c, s, b, m, v)  r = Relu(n)  y = Identity(r) }"""


def timed(run: Run, *arguments: object) -> BenchResult:
    ran = run("bench", *arguments, *FAR, "--json", "-")
    assert ran.code in (0, 1, 4), ran.err
    return BenchResult.model_validate(json.loads(ran.out))


@pytest.mark.long
def test_each_variant_tells_what_it_is_made_of_and_where_it_runs(
    run: Run, write: Callable[..., Path]
) -> None:
    path = write("m.onnx", NORMALIZED)
    levels = ("--pipeline", "basic", "--pipeline", "extended")
    result = timed(run, path, "--optimizer", "onnxruntime", *levels)
    assert result.original is not None
    assert (result.original.nodes, result.original.unused_initializers) == (4, 1)
    # Convolution, scale and shift, comparison: of 32 elements.
    assert result.original.flops == 2 * 32 * 2 + 2 * 32 + 32
    (reference,) = result.placements
    assert reference == "onnxruntime without passes"
    assert result.placements[reference].providers == {"CPUExecutionProvider": 4}
    basic, extended = result.variants
    assert basic.inventory is not None
    assert basic.inventory.operators == {"Conv": 1, "Relu": 1}
    assert basic.change is not None
    assert (basic.change.nodes, basic.change.flops) == (-2, -2 * 32)
    assert extended.inventory is not None
    assert extended.inventory.operators == {"com.microsoft::FusedConv": 1}
    assert extended.placement is not None
    assert [o.operator for o in extended.placement.operators] == ["FusedConv"]
    assert extended.unknown == {}


@pytest.mark.long
def test_bloat_is_seen_in_the_structure(run: Run, write: Callable[..., Path]) -> None:
    result = timed(run, write("m.onnx", NORMALIZED), "--pipeline", "fuse_bn_into_conv")
    (variant,) = result.variants
    assert variant.change is not None
    assert variant.change.nodes > 0
    assert variant.change.operators["BatchNormalization"] == -1
    assert {"Sqrt", "Div"} <= variant.change.operators.keys()


@pytest.mark.long
def test_operators_are_shown_on_demand_within_the_screen(
    run: Run, write: Callable[..., Path]
) -> None:
    path = write("m.onnx", NORMALIZED)
    plain = run("bench", path, "--optimizer", "onnxruntime", *FAR).out
    assert "Structure" in plain
    assert "Placement" in plain
    assert "Slowest nodes" not in plain
    ran = run("bench", path, "--optimizer", "onnxruntime", *FAR, "--operators")
    assert max(map(len, ran.out.splitlines())) <= 80
    assert "Operators" in ran.out
    assert re.search(r"^Conv +1 \(25%\)", ran.out, re.MULTILINE)
    assert "Slowest nodes" in ran.out


@pytest.mark.long
def test_a_runtime_that_tells_no_placement_is_told_as_such(run: Run, clean: Path) -> None:
    ran = run("bench", clean, "--runtime", "onnx_reference", *FAR)
    assert "placement is not known: runtime onnx_reference does not report" in " ".join(
        ran.out.split()
    )
    assert "Placement" not in ran.out


def test_a_variant_that_crashes_has_no_structure_and_the_others_have(
    run: Run, faulty: Path
) -> None:
    result = timed(run, faulty, "--pipeline", "default", "--pipeline", "nop")
    crashed, other = result.variants
    assert (crashed.inventory, crashed.placement) == (None, None)
    assert other.inventory is not None
    assert result.original is not None


@pytest.mark.long
def test_the_picture_has_every_chart(run: Run, clean: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs optvet[plots]")
    picture = tmp_path / "bench.svg"
    ran = run("bench", clean, *FAR, "--plot", picture)
    assert f"wrote {picture}" in ran.out
    drawn = picture.read_text()
    for title in ("Speed", "Operators", "Placement", "Latency against error"):
        assert f"<!-- {title} -->" in drawn


@pytest.mark.parametrize(
    ("file", "words"), [("bench.pdf", "ends in .svg or .png"), ("nowhere/bench.svg", "--plot")]
)
def test_a_picture_that_cannot_be_written_is_refused_before_the_work(
    run: Run, clean: Path, tmp_path: Path, file: str, words: str
) -> None:
    ran = run("bench", clean, "--plot", tmp_path / file)
    assert ran.code == 2
    assert words in ran.err
    assert ran.out == ""
