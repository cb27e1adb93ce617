"""What is measured of a requirement, and how it is told."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from optvet.engine.models.opening import open_model
from optvet.engine.vet.require.gauges import Chunk, gauge_of
from optvet.spec.requirement import parse_requirement
from optvet.spec.types import Sample
from optvet_classification import ClassificationComparator

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
