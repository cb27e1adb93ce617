from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import onnx
import pytest

from optvet.engine.vetting import GivenInputs
from optvet.plugin import Artifact, Candidate, Feeds, Sample

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1, 70000] x) => (float[1, 70000] y) { t = Relu(x) y = Abs(t) }
"""
FEEDS = {"x": np.zeros((1, 70000), np.float32), "names": np.array(["a", "b"], object)}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Artifact("onnx", bytes(1_400_000)), "<Artifact: onnx, 1,400,000 bytes>"),
        (Artifact("onnx", path=Path("m.onnx")), "<Artifact: onnx, m.onnx>"),
        (Sample("s", FEEDS), "<Sample s: {x: float32[1, 70000], names: object[2]}>"),
        (Sample("s", cast("Feeds", {"q": [np.zeros(1)]})), "<Sample s: {q: list}>"),
        (
            GivenInputs((FEEDS, FEEDS)),
            "<GivenInputs: 2 samples, the first {x: float32[1, 70000], names: object[2]}>",
        ),
        (
            Candidate(onnx.parser.parse_model(MODEL), {"x": FEEDS["x"]}),
            "<Candidate: Relu Abs, {x: float32[1, 70000]}>",
        ),
    ],
    ids=["bytes", "file", "sample", "sequence", "inputs", "candidate"],
)
def test_models_and_arrays_in_memory_are_summarized(value: object, words: str) -> None:
    assert repr(value) == words
