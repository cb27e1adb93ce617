"""Control flow that is laid flat keeps what a runtime asks of a model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.parser
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

from optvet.graph.unfold import unfold

LOOP = """<ir_version: 8, opset_import: ["" : 18]>
g (float[2] x) => (float[2] y) <int64 n = {3}, bool go = {1}> {
    y = Loop (n, go, x) <body = b (int64 i, bool c, float[2] h) => (bool c2, float[2] h2) {
        [keep] c2 = Identity(c)
        [wave] t = Sin(h)
        [more] h2 = Add(t, h)
    }>
}"""


def evaluate(model: ModelProto) -> Mapping[str, np.ndarray]:
    evaluator = ReferenceEvaluator(model)
    found = evaluator.run(None, {"x": np.array([1, 2], np.float32)})
    return dict(zip(evaluator.output_names, found, strict=True))


def test_nodes_of_iterations_have_names_of_their_own() -> None:
    # ONNX Runtime refuses a model in which two nodes have one name.
    model = onnx.parser.parse_model(LOOP)
    names = [node.name for node in unfold(model, evaluate).model.graph.node if node.name]
    assert "wave" in names
    assert len(names) == len(set(names))
