"""Sums that are rounded as they grow, against the same sums in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.checker
import pytest
from onnx import ModelProto, TensorProto, helper

from optvet.graph import round_half_types
from optvet.graph.half_types import half_sums

onnxruntime = pytest.importorskip("onnxruntime", reason="needs optvet[onnxruntime]")

RNG = np.random.default_rng(0)


def node_of_half(
    operator: str, shapes: Sequence[Sequence[int]], opset: int = 17, **attributes: Any
) -> ModelProto:
    """A model of one node of float16 with the inputs x0, x1, …"""
    half = TensorProto.FLOAT16
    inputs = [
        helper.make_tensor_value_info(f"x{index}", half, shape)
        for index, shape in enumerate(shapes)
    ]
    node = helper.make_node(operator, [i.name for i in inputs], ["y"], "node", **attributes)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", half, None)])
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def run(model: ModelProto, *inputs: np.ndarray) -> np.ndarray:
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    feeds = {f"x{index}": value for index, value in enumerate(inputs)}
    return np.asarray(session.run(None, feeds)[0], np.float32)


def halves(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float16)


def rounded(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float16).astype(np.float32)


def product(a: np.ndarray, b: np.ndarray, block: int) -> np.ndarray:
    """The product of two matrices by the definition: rounded after each block."""
    a, b = a.astype(np.float32), b.astype(np.float32)
    total = np.zeros(np.matmul(a[..., :1], b[..., :1, :]).shape, np.float32)
    for k in range(0, a.shape[-1], block):
        total = rounded(total + np.matmul(a[..., k : k + block], b[..., k : k + block, :]))
    return total


@pytest.mark.parametrize("block", [1, 8])
@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize(
    ("first", "second"),
    [((3, 37), (37, 5)), ((2, 3, 37), (37, 5)), ((2, 4, 3, 64), (2, 4, 64, 7)), ((3, 4), (4, 5))],
)
def test_a_product_is_rounded_after_each_block(
    first: tuple[int, ...], second: tuple[int, ...], opset: int, block: int
) -> None:
    a, b = halves(*first), halves(*second)
    model = round_half_types(node_of_half("MatMul", [first, second], opset), block)
    np.testing.assert_array_equal(run(model, a, b), product(a, b, block))


def test_gemm_scales_and_adds_after_the_sum() -> None:
    a, b, c = halves(37, 3), halves(5, 37), halves(5)
    model = node_of_half(
        "Gemm", [a.shape, b.shape, c.shape], transA=1, transB=1, alpha=0.5, beta=2.0
    )
    expected = rounded(0.5 * product(a.T, b.T, 1) + 2 * c.astype(np.float32))
    np.testing.assert_array_equal(run(round_half_types(model, 1), a, b, c), expected)


@pytest.mark.parametrize(
    ("operator", "one", "eight"),
    [
        ("ReduceSum", 2048, 4096),  # the 2,049th one is lost: float16 has 11 bits
        ("ReduceL1", 2048, 4096),
        ("ReduceSumSquare", 2048, 4096),
        ("ReduceMean", 0.5, 1),
        ("ReduceL2", 45.25, 64),
    ],
)
def test_a_sum_of_ones_stops_where_ones_are_lost(operator: str, one: float, eight: float) -> None:
    model = node_of_half(operator, [(2, 4096, 3)], 12, axes=[1], keepdims=0)
    ones = np.ones((2, 4096, 3), np.float16)
    for block, expected in ((1, one), (8, eight)):
        actual = run(round_half_types(model, block), ones)
        np.testing.assert_array_equal(actual, np.full((2, 3), expected, np.float32))
    assert half_sums(model) == ({operator: 1}, {})


def test_a_pool_over_all_places_keeps_its_dimensions() -> None:
    ones = np.ones((1, 2, 64, 64), np.float16)
    model = node_of_half("GlobalAveragePool", [ones.shape])
    actual = run(round_half_types(model, 1), ones)
    np.testing.assert_array_equal(actual, np.full((1, 2, 1, 1), 0.5, np.float32))


@pytest.mark.parametrize(
    ("channels", "outputs", "group", "kernel", "strides", "dilations", "pads"),
    [
        (3, 8, 1, (3, 3), (2, 2), (1, 1), (1, 1, 0, 1)),
        (8, 8, 8, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
        (16, 8, 2, (1, 1), (1, 1), (1, 1), (0, 0, 0, 0)),
        (16, 8, 4, (3, 5), (2, 1), (2, 1), (2, 2, 2, 2)),
    ],
)
def test_a_convolution_is_the_product_with_what_its_kernel_sees(
    channels: int,
    outputs: int,
    group: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    pads: tuple[int, int, int, int],
) -> None:
    x, w = halves(2, channels, 9, 10), halves(outputs, channels // group, *kernel)
    bias = halves(outputs)
    model = node_of_half(
        "Conv",
        [x.shape, w.shape, bias.shape],
        group=group,
        strides=strides,
        dilations=dilations,
        pads=pads,
    )
    top, left, bottom, right = pads
    wide = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    actual = run(round_half_types(model, 4), x, w, bias)
    expected = np.zeros_like(actual)
    each = outputs // group
    for o, i, j in np.ndindex(outputs, *actual.shape[2:]):
        c = o // each * (channels // group)
        rows = slice(i * strides[0], i * strides[0] + (kernel[0] - 1) * dilations[0] + 1)
        seen = wide[:, c : c + channels // group, rows][:, :, :: dilations[0]]
        columns = slice(j * strides[1], j * strides[1] + (kernel[1] - 1) * dilations[1] + 1)
        seen = seen[:, :, :, columns][:, :, :, :: dilations[1]]
        flat = seen.transpose(0, 2, 3, 1).reshape(2, 1, -1)  # channels vary fastest
        weights = w[o].transpose(1, 2, 0).reshape(-1, 1)
        expected[:, o, i, j] = product(flat, weights, 4)[:, 0, 0]
    expected = rounded(expected + bias.astype(np.float32)[:, None, None])
    np.testing.assert_array_equal(actual, expected)


def test_what_cannot_be_rounded_so_is_counted_and_summed_in_float32() -> None:
    model = node_of_half("Softmax", [(1, 4096)])
    zeros = np.zeros((1, 4096), np.float16)
    assert half_sums(model) == ({}, {"Softmax": 1})
    actual = run(round_half_types(model, 1), zeros)
    np.testing.assert_array_equal(actual, run(round_half_types(model), zeros))
    vector = node_of_half("MatMul", [(8,), (8, 4)])
    assert half_sums(vector) == ({}, {"MatMul": 1})
