"""A constant that the converted model asks its callers for becomes a weight again."""

from __future__ import annotations

import numpy as np
import onnx.parser

from optvet.engine.repair.edits import apply_edits
from optvet.engine.repair.propose.lost_constants import lost_constants
from optvet.spec.converters import SourceInside, SourceValue

MODEL = """
<ir_version: 8, opset_import: ["" : 18]>
g (float[2,3] given, float[1,3] "net/norm/Sub/y:0", float[1,3] shift) => (float[2,3] y)
{
  a = Sub(given, "net/norm/Sub/y:0")
  y = Add(a, shift)
}
"""
MEAN, SHIFT = np.array([[1, 2, 3]], np.float32), np.array([[4, 5, 6]], np.float32)
INSIDE = SourceInside(
    (
        SourceValue("Const", MEAN, constant=True, module="net/norm/Sub"),
        SourceValue("Const", np.array([[7, 8, 9]], np.float32), constant=True, module="net/norm"),
        SourceValue("Sub", np.ones((2, 3), np.float32), reads=(0,), module="net/norm"),
    ),
    parameters={"shift": SHIFT},
)


def test_inputs_that_nobody_gives_become_weights() -> None:
    model = onnx.parser.parse_model(MODEL)
    (candidate,) = lost_constants(model, INSIDE, ["x"])
    mended = apply_edits(model, candidate.edits)
    assert [i.name for i in mended.graph.input] == ["given"]
    weights = {t.name: onnx.numpy_helper.to_array(t).tolist() for t in mended.graph.initializer}
    assert weights == {"net/norm/Sub/y:0": MEAN.tolist(), "shift": SHIFT.tolist()}


def test_inputs_that_the_source_has_stay() -> None:
    model = onnx.parser.parse_model(MODEL)
    names = ["given", "net/norm/Sub/y:0", "shift"]
    assert list(lost_constants(model, INSIDE, names)) == []


def test_an_input_without_a_constant_of_its_own_leaves_the_model_as_it_is() -> None:
    model = onnx.parser.parse_model(MODEL.replace("shift", "other"))
    assert list(lost_constants(model, INSIDE, ["x"])) == []
