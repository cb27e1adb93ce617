"""Values are paired by what they are; faults planted in a small graph are found at their node."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx import ModelProto

from optvet.engine.convert.align import (
    Tolerances,
    broken_operators,
    broken_region,
    differing_weights,
    equal_up_to_layout,
    known_values,
)
from optvet.engine.convert.other_attributes import differing_attributes
from optvet.plugin import SourceInside, SourceValue

HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'
X = np.array([[1.0, -2, 3], [-4, 5, 6]], np.float32)
RELU = np.maximum(X, 0)


def model(text: str) -> ModelProto:
    return onnx.parser.parse_model(HEAD + text)


def value(operator: str, array: np.ndarray, *reads: int) -> SourceValue:
    return SourceValue(operator, np.asarray(array), reads)


SOURCE = SourceInside(
    (value("relu", RELU), value("double", RELU * 2, 0), value("sum", (RELU * 2).sum(1), 1)), (2,)
)


def region(text: str, values: dict[str, np.ndarray]) -> tuple[list[str], str | None, str | None]:
    """Nodes of the region, its entry, and the first operator that the converted model lacks."""
    proto = model(text)
    known = known_values(proto, values, SOURCE, Tolerances([1e-6] * 3))
    found = broken_region(proto, SOURCE, known, "y", 2)
    names = [n.op_type for n in proto.graph.node]
    entry = None if found.entry is None else names[found.entry]
    first = None if found.first is None else SOURCE.values[found.first].operator
    return [names[i] for i in found.nodes], entry, first


WRONG = RELU * 3
TEXT = """g (float[2,3] x) => (float[2] y) <float k = {3}, int64[1] a = {1}>
{ r = Relu(x)  d = Mul(r, k)  y = ReduceSum <keepdims=0> (d, a) }"""


def test_the_first_operator_is_blamed_where_values_alone_are_known() -> None:
    target = SourceInside(
        (value("RELU", RELU.T), value("MUL", WRONG, 0), value("SUM", WRONG.sum(1), 1)), (2,)
    )
    found = broken_operators(target, SOURCE, Tolerances([1e-6] * 3), [X], 2, 2)
    assert (found.nodes, found.entry, found.first) == ((1, 2), 1, 1)


def test_a_computed_constant_that_the_source_lacks_is_part_of_the_region() -> None:
    unpacked = SourceValue("DEQUANTIZE", np.array([3.0], np.float32), constant=True)
    target = SourceInside(
        (value("RELU", RELU), unpacked, value("MUL", WRONG, 0, 1), value("SUM", WRONG.sum(1), 2)),
        (3,),
    )
    found = broken_operators(target, SOURCE, Tolerances([1e-6] * 3), [X], 2, 3)
    assert (found.nodes, found.entry) == ((1, 2, 3), 1)


def test_the_first_operator_that_is_lacking_is_blamed() -> None:
    found = region(TEXT, {"x": X, "r": RELU, "d": WRONG, "y": WRONG.sum(1)})
    assert found == (["Mul", "ReduceSum"], "Mul", "double")


def test_the_last_operator_is_blamed_if_all_before_are_right() -> None:
    found = region(TEXT, {"x": X, "r": RELU, "d": RELU * 2, "y": np.zeros(2, np.float32)})
    assert found == (["ReduceSum"], "ReduceSum", "sum")


def test_a_node_that_the_source_does_not_have_is_the_entry() -> None:
    text = """g (float[2,3] x) => (float[2] y) <float k = {2}, int64[1] a = {1}>
    { r = Relu(x)  e = Neg(r)  d = Mul(e, k)  y = ReduceSum <keepdims=0> (d, a) }"""
    values = {"x": X, "r": RELU, "e": -RELU, "d": -2 * RELU, "y": -2 * RELU.sum(1)}
    nodes, entry, first = region(text, values)
    assert (nodes[0], entry, first) == ("Neg", "Neg", "double")


def test_a_layout_is_no_difference() -> None:
    image = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert equal_up_to_layout(image, image.transpose(0, 2, 1), 0.0)
    assert equal_up_to_layout(image, image.reshape(6, 4), 0.0)
    assert not equal_up_to_layout(image, image[::-1], 0.0)
    assert not equal_up_to_layout(image, image + 1, 0.5)


def test_noise_is_measured_for_each_value() -> None:
    moved = SourceInside((value("relu", RELU + np.float32(1e-3)), *SOURCE.values[1:]), (2,))
    allowed = Tolerances.of(SOURCE, [moved]).values
    assert allowed[0] == pytest.approx(0.032, rel=0.01)
    assert 0 < allowed[1] < 1e-5


def test_a_weight_is_compared_with_the_parameter_of_its_name() -> None:
    parameters = {"a": np.eye(3, dtype=np.float32), "b": np.arange(6.0).reshape(2, 3)}
    turned = parameters["b"].T.astype(np.float32)
    changed = parameters["a"].copy()
    changed[0, 1] = 0.5
    assert differing_weights({"a": parameters["a"], "b": turned, "c": changed}, parameters) == []
    (found,) = differing_weights({"a": changed, "b": turned}, parameters)
    assert (found.name, found.error) == ("a", 0.5)


def test_an_attribute_counts_with_its_default() -> None:
    proto = model(
        "g (float[1,1,4,4] x) => (float[1,1,4,4] y) "
        "{ y = MaxPool <kernel_shape = [3, 3], pads = [0, 0, 2, 2]> (x) }"
    )
    wanted = {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1], "ceil_mode": 0}
    source = SourceValue("max_pool2d", np.zeros(1), attributes=wanted)
    found = differing_attributes(proto, proto.graph.node[0], source)
    assert found == {"pads": ("[0, 0, 2, 2]", "[1, 1, 1, 1]")}


def test_an_attribute_that_the_source_leaves_unset_counts() -> None:
    proto = model(
        "g (float[1,1,4,4] x) => (float[1,1,3,3] y) "
        "{ y = MaxPool <kernel_shape = [2, 2], pads = [0, 0, 0, 0], ceil_mode = 1> (x) }"
    )
    wanted = {"kernel_shape": [2, 2]}
    unset = frozenset({"pads", "ceil_mode", "strides"})
    source = SourceValue("MaxPool", np.zeros(1), attributes=wanted, unset=unset)
    found = differing_attributes(proto, proto.graph.node[0], source)
    assert found == {"ceil_mode": ("1", "0")}


@pytest.mark.parametrize(
    ("given", "differ"),
    [
        ("", {"output_padding", "pads"}),
        ('auto_pad = "SAME_UPPER"', {"output_padding"}),
        ("pads = [1, 1, 1, 1], output_padding = [1, 1]", set()),
    ],
)
def test_a_list_that_is_not_set_is_ones_or_zeros(given: str, differ: set[str]) -> None:
    proto = model(
        "g (float[1,1,4,4] x, float[1,1,3,3] w) => (float[1,1,N,M] y) "
        f"{{ y = ConvTranspose <{given or 'group = 1'}> (x, w) }}"
    )
    wanted = {"strides": [1, 1], "pads": [1, 1, 1, 1], "output_padding": [1, 1], "group": 1}
    source = SourceValue("conv_transpose2d", np.zeros(1), attributes=wanted)
    assert set(differing_attributes(proto, proto.graph.node[0], source)) == differ
