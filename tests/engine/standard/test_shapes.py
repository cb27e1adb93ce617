"""Shapes of values inside of a graph; the shapes that operands must have are in ``test_cases``."""

import numpy as np
import onnx.parser

from optvet.engine.standard.shapes import describe_wrong_shape


def test_values_inside_of_the_graph_have_known_shapes_where_they_were_recorded() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y)'
        "{ a = Neg(x)  y = Clip(x, a) }"
    )
    feeds = {"x": np.zeros(2, np.float32)}
    assert describe_wrong_shape(model, feeds) == ""
    assert "a scalar" in describe_wrong_shape(model, feeds, {"a": feeds["x"]})
