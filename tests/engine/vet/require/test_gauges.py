"""What is measured of a requirement, and how it is told."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from optvet.engine.models.opening import open_model
from optvet.engine.vet.require.gauges import Chunk, RequirementReading, gauge_of
from optvet.spec.requirement import parse_requirement, tolerances_of
from optvet.spec.types import Sample
from optvet_classification import ClassificationComparator
from optvet_tensor import TensorComparator

MODEL = '<ir_version: 8, opset_import: ["" : 17]> g (float[1,3] x) => (float[1,3] y) {y=Relu(x)}'


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        (0.0, "top1_agreement is 0.5"),
        (0.5, "top1_agreement is 0.5; what is undecided counts as it came out, without it: 1"),
    ],
    ids=["decided", "undecided"],
)
def test_a_metric_tells_what_undecided_samples_count_as(
    tmp_path: Path, noise: float, words: str
) -> None:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "m.onnx")
    model = open_model(tmp_path / "m.onnx", "m.onnx", tmp_path / "cache")
    samples = [Sample(name, {}) for name in ("clear", "close")]
    scores = {
        "clear": np.array([[9.0, 1.0, 0.0]], np.float32),
        "close": np.array([[1.0, 1.1, 0.0]], np.float32),
    }
    flipped = np.array([[1.1, 1.0, 0.0]], np.float32)
    comparator = ClassificationComparator()
    gauge = gauge_of(parse_requirement("top1_agreement>=0.99"), [(comparator, comparator.options)])
    gauge.add(
        Chunk(
            model,
            samples,
            {name: {"y": value} for name, value in scores.items()},
            {"clear": {"y": scores["clear"]}, "close": {"y": flipped}},
            levels={name: {"y": noise} for name in scores},
        )
    )
    reading = gauge.reading()
    assert (reading.met, reading.value, reading.words) == (False, 0.5, words)


def test_a_reading_tells_which_part_of_an_output_lost_its_values(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "m.onnx")
    model = open_model(tmp_path / "m.onnx", "m.onnx", tmp_path / "cache")
    both = np.concatenate(
        [np.arange(64).reshape(1, 2, 32) * 9, np.arange(32.0)[None, None] / 32], 1
    )
    wrong = both.copy()
    wrong[:, 2:] = 0

    def read(text: str) -> RequirementReading:
        comparator = TensorComparator()
        options = comparator.calibrated(model, [{"y": both}], comparator.options)
        gauge = gauge_of(parse_requirement(text), [(comparator, options)])
        gauge.add(Chunk(model, [Sample("1", {})], {"1": {"y": both}}, {"1": {"y": wrong}}))
        return gauge.reading()

    reading = read("max_abs<=1")
    lost = "y[:, 2:3] became constant: 0 where it was 0 to 0.969"
    assert (reading.met, reading.words) == (True, f"max_abs is 0.96875; {lost}")
    assert (read("max_change<=0.5").met, read("y[:, :2]:max_change<=0").met) == (False, True)
    reading = read("y[:, 2:]:max_abs<=0.5")
    lost = "y[:, 2:] became constant: 0 where it was 0 to 0.969"
    assert (reading.met, reading.words) == (False, f"max_abs is 0.96875; {lost}")
    reading = read("y[:, 9:]:max_abs<=0.5")
    assert (reading.met, reading.words) == (
        None,
        "output 'y' has the shape [1, 3, 32], and no part y[:, 9:]",
    )


def test_a_tolerance_of_a_part_holds_there_and_the_general_one_elsewhere(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "m.onnx")
    model = open_model(tmp_path / "m.onnx", "m.onnx", tmp_path / "cache")
    both = np.concatenate([np.full((1, 2, 4), 640.0), np.full((1, 1, 4), 0.5)], 1)
    came = both + np.array([1.0, 1.0, 0.01]).reshape(1, 3, 1)

    def read(*atol: str) -> list[tuple[bool | None, str]]:
        readings = []
        for tolerance in tolerances_of((), atol):
            gauge = gauge_of(tolerance, [])
            gauge.add(Chunk(model, [Sample("1", {})], {"1": {"y": both}}, {"1": {"y": came}}))
            readings.append((gauge.reading().met, gauge.reading().words))
        return readings

    scores, rest = read("y[:, 2:]:1e-3", "2")
    assert scores[0] is False
    assert scores[1].startswith("output 'y[:, 2:]': 4 of 4 elements exceed it, by up to 10 times")
    assert "--atol y[:, 2:]:0.01" in scores[1]
    assert rest == (True, "the largest difference is 0.5 of the allowed one")
    assert [met for met, _ in read("y[:, 2:]:0.1", "y:1e-3")] == [True, False]
    assert [met for met, _ in read("y[:, :2]:2", "1e-3")] == [True, False]
