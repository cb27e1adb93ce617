from __future__ import annotations

import base64
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from optvet.engine.scripts.literals import arrays_code, model_code


def made_by_helpers() -> onnx.ModelProto:
    """What no parser made: nodes without a domain, and weights as raw bytes."""
    weight = numpy_helper.from_array(np.array([0.1, 1e-20, -0.0], np.float32), "1")
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in ("x", "y")]
    nodes = [
        helper.make_node("Add", ["x", "1"], ["/a/b.c"]),
        helper.make_node("Relu", ["/a/b.c"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [weight])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 18)])


def run(code: str) -> Any:
    space: dict[str, Any] = {"onnx": onnx, "np": np, "base64": base64}
    exec(code, space)
    return space["model"]


def test_a_model_is_written_as_text_that_makes_the_same_model() -> None:
    model = made_by_helpers()
    code = model_code(model)
    assert "parse_model" in code
    made = run(code)
    (was,), (now,) = (list(m.graph.initializer) for m in (model, made))
    assert numpy_helper.to_array(was).tobytes() == numpy_helper.to_array(now).tobytes()
    assert [(n.op_type, n.input, n.output) for n in made.graph.node] == [
        (n.op_type, n.input, n.output) for n in model.graph.node
    ]


def test_texts_that_are_set_and_empty_are_left_out() -> None:
    model = made_by_helpers()
    for value in (*model.graph.input, *model.graph.output):
        value.type.denotation = ""
        value.type.tensor_type.shape.dim[0].denotation = ""
    model.graph.node[0].domain = ""
    assert "parse_model" in model_code(model)


def test_a_model_that_text_cannot_hold_is_written_as_bytes() -> None:
    model = made_by_helpers()
    model.training_info.add().algorithm.name = "kept"
    code = model_code(model)
    assert "parse_model" not in code
    assert run(code) == model


@pytest.mark.parametrize(
    "array",
    [
        np.array([[0.1, np.nan], [np.inf, -np.inf]], np.float32),
        np.array([1e-7, 65504], np.float16),
        np.array(-0.0, np.float64),
        np.array([True, False]),
        np.array([2**63 - 1, -(2**63)], np.int64),
        np.zeros((0, 3), np.uint8),
        np.full((2, 3), 7, np.int8),
        np.array([["a'b", "ü\n"]], object),
        np.array([1 + 2j, -3j], np.complex64),
    ],
    ids=lambda a: f"{a.dtype}{list(a.shape)}",
)
def test_an_array_is_written_as_code_that_makes_the_same_bits(array: np.ndarray) -> None:
    made = run(f"model = {arrays_code({'x': array})}")["x"]
    assert (made.dtype, made.shape) == (array.dtype, array.shape)
    if array.dtype == object:
        assert made.tolist() == array.tolist()
    else:
        assert made.tobytes() == array.tobytes()
