"""Where a model has no defined result: in which of its parts, and by which values.

The rules themselves are tested in ``test_cases``.
"""

import warnings
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

from optvet.engine.standard.defined import needs_inner_values, undefined_in
from optvet.engine.standard.rules import wanted_values
from optvet.engine.standard.shapes import describe_wrong_shape


def model(body: str, opset: int = 17) -> ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{body}')


def kinds(body: str, opset: int = 17, /, **feeds: Any) -> list[str]:
    arrays = {name: np.asarray(value) for name, value in feeds.items()}
    return [u.kind for u in undefined_in(model(body, opset), arrays)]


NORM = (
    "g (float[1,2,4] x, float[2] s, float[2] b) => (float[1,2,4] y) "
    "{ y = InstanceNormalization<epsilon: float = %s>(x, s, b) }"
)


WEIGHT = "g (float[2] x) => (float[2] y) <float[2] w = {1, %s}> { y = %s(x, w) }"


@pytest.mark.parametrize(
    ("value", "operator", "expected"),
    [
        ("2.5", "Mul", []),
        ("-inf", "Add", []),
        ("inf", "Div", ["weight: infinity"]),
        ("nan", "Add", ["weight: NaN"]),
    ],
)
def test_weights_are_numbers_or_infinity_of_a_mask(
    value: str, operator: str, expected: list[str]
) -> None:
    assert kinds(WEIGHT % (value, operator)) == expected


def test_a_declaration_that_the_run_contradicts_is_told_with_both() -> None:
    proto = model("g (float[2] x) => (float[3] y) { y = Relu(x) }")
    (found,) = undefined_in(proto, {}, {"y": np.zeros(2, np.float32)})
    assert found.words() == "value 'y': is declared as [3] and has the shape [2]"
    (found,) = undefined_in(proto, {}, {"y": np.zeros(3, np.float64)})
    assert found.words() == "value 'y': is declared as float32 and is float64"


def test_inner_values_are_asked_for_only_where_a_rule_needs_them() -> None:
    floats = model("g (float[2] x) => (float[2] z) { y = Relu(x) z = Add(y, y) }")
    whole = model("g (int8[2] x) => (int8[2] z) { y = Neg(x) z = Add(y, y) }")
    scaled = model(
        "g (float[2] x, float s) => (uint8[2] z) { y = Abs(s) z = QuantizeLinear(x, y) }"
    )
    feeds = {"x": np.zeros(2), "s": np.zeros(())}
    assert [needs_inner_values(m, feeds) for m in (floats, whole, scaled)] == [False, True, True]
    assert len(undefined_in(scaled, feeds, {"y": np.array(0, np.float32)})) == 1


@pytest.mark.parametrize(
    ("node", "wanted"),
    [
        ("y = Cast<to = 6>(f)", {"f"}),
        ("y = Cast<to = 1>(f)", set()),
        ("y = Div(f, f)", set()),
        ("y = Div(i, i)", {"i"}),
        ("y = QLinearAdd(i, f, i, i, f, i, f, i)", {"f"}),
        ("y = Squeeze(f, i)", {"f", "i"}),
        ("y = Squeeze<axes = [0]>(f)", set()),
        ("y = Squeeze<axes = [0, 1]>(f)", {"f"}),
        ("y = ReduceSum<axes = [0, 1]>(f)", set()),
        ("y = ReduceSum(i)", {"i"}),
        ("y = Gather(f, i)", set()),
    ],
)
def test_values_are_recorded_where_a_rule_may_depend_on_them(node: str, wanted: set[str]) -> None:
    proto = model(f"g (float[1] f, int32[1] i) => (float[1] y) {{ {node} }}")
    types = {"f": TensorProto.FLOAT, "i": TensorProto.INT32}
    assert {*wanted_values(proto.graph.node[0], types)} == wanted


@pytest.mark.long
def test_nothing_is_open_of_the_cases_by_which_the_standard_is_tested() -> None:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    wrong = {}
    for case in cases:
        assert case.data_sets is not None
        assert case.model is not None
        inputs, outputs = case.data_sets[0]
        named = zip(
            (*case.model.graph.input, *case.model.graph.output), (*inputs, *outputs), strict=False
        )
        arrays = {
            value.name: numpy_helper.to_array(given) if isinstance(given, TensorProto) else given
            for value, given in named
            if isinstance(given, TensorProto | np.ndarray)
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = [u.words() for u in undefined_in(case.model, arrays, arrays)]
            found += filter(None, [describe_wrong_shape(case.model, arrays)])
        if found:
            wrong[case.name] = found
    assert len(cases) > 1000
    assert wrong == {}


def test_an_epsilon_of_0_has_an_answer_where_no_variance_is_0() -> None:
    proto = model(NORM % "0")
    assert undefined_in(proto, {}, {"y": np.ones((1, 2, 4), np.float32)}) == []
    assert len(undefined_in(proto, {}, {"y": np.full((1, 2, 4), np.nan, np.float32)})) == 1
    proto = model(NORM % "-0.1")
    assert len(undefined_in(proto, {}, {"y": np.ones((1, 2, 4), np.float32)})) == 1


def test_a_size_of_minus_1_is_declared_as_unknown() -> None:
    proto = model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert undefined_in(proto, {}, {"y": np.zeros(2, np.float32)}) == []


def test_local_functions_and_bodies_are_looked_into() -> None:
    text = (
        '<ir_version: 9, opset_import: ["" : 10, "own" : 1]>\n'
        "g (float[2,3] x) => (float[2,3] y) { y = own.f(x) }\n"
        '<domain: "own", opset_import: ["" : 10]>\n'
        "f (x) => (y) { y = Softmax<axis: int = %d>(x) }"
    )
    assert undefined_in(onnx.parser.parse_model(text % 1), {}) == []
    (found,) = undefined_in(onnx.parser.parse_model(text % -2), {})
    assert found.kind == "Softmax: negative axis"
    other = text.replace('["" : 10, "own"', '["" : 17, "own"')
    (found,) = undefined_in(onnx.parser.parse_model(other % -2), {})
    assert found.kind == "Softmax: negative axis"
    passed = text.replace("f (x)", "f<axis>(x)").replace("axis: int = %d", "axis: int = @axis")
    passed = passed.replace("own.f(x)", "own.f<axis = 1>(x)")
    assert undefined_in(onnx.parser.parse_model(passed), {}) == []
    called = (
        '<ir_version: 9, opset_import: ["" : 13, "own" : 1]>\n'
        "g (float[2] x) => (uint8[2] y) <float s = {%s}> { y = own.f(x, s) }\n"
        '<domain: "own", opset_import: ["" : 13]> f (x, s) => (y) { y = QuantizeLinear(x, s) }'
    )
    assert undefined_in(onnx.parser.parse_model(called % 0.5), {}) == []
    (found,) = undefined_in(onnx.parser.parse_model(called % -0.5), {})
    assert (found.kind, found.values) == ("QuantizeLinear: scale", ("y",))
    divided = """g (bool c, int32[2] x) => (int32[2] y) { y = If(c) <
        then_branch = t () => (int32[2] a) {
            n = Constant<value = int32[2] {1, %d}>() a = Div(x, n)
        },
        else_branch = e () => (int32[2] b) { b = Neg(x) }> }"""
    assert kinds(divided % 2) == []
    assert kinds(divided % 0) == ["Div: divisor"]


def test_no_model_lists_an_output_twice_but_a_body_may() -> None:
    assert kinds("g (float[2] x) => (float[2] y, float[2] y) { y = Neg(x) }") == [
        "output: listed twice"
    ]
    branched = """g (bool c, float[2] x) => (float[2] y, float[2] z) { y, z = If(c) <
        then_branch = t () => (float[2] a, float[2] %s) { a = Neg(x) b = Relu(x) },
        else_branch = e () => (float[2] d, float[2] f) { d = Abs(x) f = Neg(x) }> }"""
    assert kinds(branched % "b") == []
    assert kinds(branched % "a") == []


def test_narrow_floats_are_looked_at_too() -> None:
    import ml_dtypes

    text = "g (int8[2] x, bfloat16 s) => (bfloat16[2] y) { y = DequantizeLinear(x, s) }"
    for scale, open_ in ((0.5, []), (0.0, ["DequantizeLinear: scale"])):
        assert (
            kinds(text, 19, x=np.array([1, 2], np.int8), s=np.array(scale, ml_dtypes.bfloat16))
            == open_
        )
    cast = "g (bfloat16[1] x) => (int8[1] y) { y = Cast<to: int = 3>(x) }"
    assert kinds(cast, x=np.array([300], ml_dtypes.bfloat16)) == ["Cast: cast"]


def test_a_branch_that_is_not_taken_leaves_nothing_open() -> None:
    text = """g (bool c, int32[2] x) => (int32[2] y) <int32[2] zero = {0, 0}> {
      y = If (c) <then_branch = t () => (a) { a = Identity(x) },
                  else_branch = e () => (b) { b = Div(x, zero) }> }"""
    assert kinds(text, c=np.array(True), x=np.array([1, 2], np.int32)) == []
    assert kinds(text, c=np.array(False), x=np.array([1, 2], np.int32)) == ["Div: divisor"]


def test_an_attribute_of_another_form_is_left_to_the_checker() -> None:
    x = np.zeros(3, np.float32)
    for body in (
        "g (float[3] x) => (float[a] y) { y = ReduceMax<axes: int = 0>(x) }",
        "g (float[3] x) => (float[a] y) { y = Unsqueeze<axes: int = 0>(x) }",
        "g (float[3] x) => (float[a] y) { y = ReduceSum<axes: floats = [0.5]>(x) }",
        "g (float[3] x) => (float[a] y) { y = Upsample<scales: float = 2.0>(x) }",
    ):
        assert kinds(body, 9, x=x) == []
        assert not needs_inner_values(model(body, 9), {"x": x})
