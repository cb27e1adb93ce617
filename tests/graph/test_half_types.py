"""Models of half types, and the models of float32 that round as they do."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.checker
import onnx.parser
import pytest
from onnx import ModelProto

from optvet.graph import (
    group_nodes,
    half_nodes,
    join_casts,
    name_nodes,
    round_half_types,
    tidy,
    to_bfloat16,
)
from optvet.graph.half_nodes import constants_beside

onnxruntime = pytest.importorskip("onnxruntime", reason="needs optvet[onnxruntime]")

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
SQUARE = (
    HEAD
    + """g (float[4] x) => (float[4] y)
{ h = Cast<to = 10>(x)  s = Mul(h, h)  r = Sqrt(s)  y = Cast<to = 1>(r) }"""
)
BRANCHES = (
    HEAD
    + """g (bool c, float16[2] x, float16[2] v) => (float16[2] y)
{ w = Identity(v)  y = If(c) <
    then_branch = a () => (float16[2] p) { q = Mul(x, x)  p = Mul(q, w) },
    else_branch = b () => (float16[2] r) { r = Add(x, w) }
> }"""
)


def model_of(text: str) -> ModelProto:
    return onnx.parser.parse_model(text)


def run(model: ModelProto, **feeds: np.ndarray) -> np.ndarray:
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return np.asarray(session.run(None, feeds)[0])


def test_each_value_is_rounded_where_the_runtime_computes_in_float32() -> None:
    x = np.array([1, 300, 1e-4, 3.3333], np.float32)
    half = x.astype(np.float16)
    with np.errstate(over="ignore"):
        expected = np.sqrt(half * half).astype(np.float32)
    model = model_of(SQUARE)
    assert np.isfinite(run(model, x=x)).all(), "the overflow shows; no emulation is needed"
    assert np.array_equal(run(round_half_types(model), x=x), expected)


@pytest.mark.parametrize("condition", [True, False])
def test_nested_graphs_and_half_inputs_are_rounded_too(condition: bool) -> None:
    model = model_of(BRANCHES)
    x = np.array([300, 0.3], np.float16)
    rounded = round_half_types(model)
    w = np.array([3, 0.1], np.float16)
    given = run(rounded, c=np.array(condition), x=x, v=w)
    with np.errstate(over="ignore"):
        expected = x * x * w if condition else x + w
    assert given.dtype == np.float16
    assert np.array_equal(given, expected)
    assert {i.name for i in rounded.graph.input} == {"c", "x", "v"}


def test_bfloat16_loses_more_digits() -> None:
    model = model_of(SQUARE.replace("to = 10", "to = 16"))
    given = run(round_half_types(model), x=np.array([3.3333, 300, 1, 2], np.float32))
    assert given[1] == 300
    assert 1e-4 < abs(given[0] - 3.3333) < 0.02


def test_bfloat16_in_place_of_float16_has_the_weights_of_the_original() -> None:
    text = HEAD + """g (float[2] x) => (float[2] y) <float big = {1000000}> { y = Mul(x, big) }"""
    original = model_of(text)
    name_nodes(original)
    transformers = pytest.importorskip("onnxruntime.transformers.float16")
    half = transformers.convert_float_to_float16(model_of(text), keep_io_types=True)
    (cut,) = (onnx.numpy_helper.to_array(t) for t in half.graph.initializer)
    assert cut == 65504
    short = to_bfloat16(half, original)
    assert short.graph.initializer[0].data_type == onnx.TensorProto.BFLOAT16
    given = run(round_half_types(tidy(short)), x=np.array([1, 3], np.float32))
    assert np.allclose(given, [1e6, 3e6], rtol=1e-2)


def test_a_model_without_half_types_computes_the_same() -> None:
    model = model_of(HEAD + "g (float[4] x) => (float[4] y) { y = Exp(x) }")
    x = np.linspace(-1, 1, 4, dtype=np.float32)
    assert np.array_equal(run(round_half_types(model), x=x), run(model, x=x))


def test_nodes_that_the_standard_has_no_half_type_for_are_left_out() -> None:
    text = (
        HEAD
        + """g (float[4] x) => (float[4] y, int64[1] z)
<float s = {0.5}, int8 o = {0}>
{ q = QuantizeLinear(x, s, o)  d = DequantizeLinear(q, s, o)  y = Relu(d)  z = Shape(x) }"""
    )
    model = model_of(text)
    name_nodes(model)
    assert [node.op_type for node in half_nodes(model)] == ["Relu"]
    assert half_nodes(model, ["Relu"]) == []


def test_nodes_get_names_that_are_not_taken() -> None:
    model = model_of(HEAD + "g (float[4] x) => (float[4] y) { a = Relu(x) b = Relu(a) y = Exp(b) }")
    model.graph.node[1].name = "Relu_0"
    assert name_nodes(model) == ["Relu_1", "Exp_0"]
    assert name_nodes(model) == []


def test_parts_are_nodes_operators_or_layers() -> None:
    model = model_of(HEAD + "g (float[4] x) => (float[4] y) { a = Relu(x) b = Relu(a) y = Exp(b) }")
    for node, name in zip(model.graph.node, ("one/a", "one/b", "last"), strict=True):
        node.name = name
    assert group_nodes(model.graph.node, "operator") == {
        "Relu": ("one/a", "one/b"),
        "Exp": ("last",),
    }
    assert group_nodes(model.graph.node, "layer") == {"one": ("one/a", "one/b"), "last": ("last",)}


def test_a_block_ends_at_the_first_numbered_part_of_a_layer() -> None:
    model = model_of(HEAD + "g (float[4] x) => (float[4] y) { a = Relu(x) b = Relu(a) y = Exp(b) }")
    names = ("/encoder/layer.0/output.1/dense/MatMul", "/encoder/layer.0/Add", "/pooler/dense/Gemm")
    for node, name in zip(model.graph.node, names, strict=True):
        node.name = name
    assert group_nodes(model.graph.node, "block") == {
        "/encoder/layer.0": names[:2],
        "/pooler/dense": names[2:],
    }


def test_a_constant_stays_beside_the_node_that_is_kept() -> None:
    text = (
        HEAD
        + """g (float[4] x) => (float[4] y)
{ c = Constant<value_float = 100000.0>()  a = Mul(x, c)  y = Relu(a) }"""
    )
    model = model_of(text)
    name_nodes(model)
    assert constants_beside(model, ["Mul_0"]) == ["Constant_0"]
    assert constants_beside(model, ["Relu_0"]) == []


def test_joining_casts_keeps_what_is_beyond_the_half_type() -> None:
    text = (
        HEAD
        + """g (float[2] x) => (float[2] y)
{ s = Mul(x, x)  h = Cast<to = 10>(s)  f = Cast<to = 1>(h)  r = Sqrt(f)
  i = Cast<to = 7>(r)  y = Cast<to = 1>(i) }"""
    )
    model = model_of(text)
    x = np.array([300.5, 2], np.float32)
    joined = join_casts(model)
    assert np.array_equal(run(joined, x=x), [300, 2]), "the cast to integers is not one to join"
    assert [node.op_type for node in joined.graph.node] == ["Mul", "Sqrt", "Cast", "Cast"]
