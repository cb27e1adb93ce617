"""Size and cost of a model: nodes, multiplications, lengths of sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto, helper

from optvet.graph.types import infer_types
from optvet.graph.walk import graphs, inner_nodes
from optvet.graph.weights import SHAPE_ELEMENTS, constant_tensors, without_large_weights

Shapes = Mapping[str, Sequence[int]]
"""Shapes of values by name."""


def count_nodes(bodies: Iterable[GraphProto | FunctionProto]) -> int:
    """Number of nodes of graphs or functions, including those of nested graphs."""
    return sum(1 + sum(1 for _ in inner_nodes(node)) for body in bodies for node in body.node)


def total_nodes(model: ModelProto) -> int:
    """Number of nodes of a model, including those of nested graphs and of functions."""
    return count_nodes([model.graph, *model.functions])


def longest_reduction(model: ModelProto) -> int:
    """Number of terms of the longest sum with a weight as a factor; at least 64."""
    longest = 64
    for graph in graphs(model.graph):
        shapes = {t.name: tuple(t.dims) for t in graph.initializer}
        for node in graph.node:
            shape = shapes.get(node.input[1]) if len(node.input) > 1 else None
            if not shape:
                continue
            if node.op_type in ("Conv", "ConvInteger", "QLinearConv"):
                longest = max(longest, math.prod(shape[1:]))
            elif node.op_type in ("MatMul", "Gemm", "MatMulInteger"):
                longest = max(longest, shape[-2] if len(shape) > 1 else shape[0], shape[-1])
    return longest


def macs(model: ModelProto, shapes: Shapes | None = None) -> int | None:
    """Multiply-accumulates of all convolutions and matrix products, each subgraph counted once.

    Args:
        model: Any model; only the shapes of its weights are read.
        shapes: Shapes of graph inputs, in place of the declared ones.

    Returns:
        The count, or None if shape inference does not give the shapes of such an operator.
    """
    inferred = infer_types(fed_shapes(model, shapes or {}))
    if inferred is None:
        return None
    known = static_shapes(inferred)
    total = 0
    for graph in graphs(inferred.graph):
        for node in graph.node:
            if node.op_type not in MACS:
                continue
            try:
                total += MACS[node.op_type](known, node)
            except KeyError:
                return None
    return total


def fed_shapes(model: ModelProto, shapes: Shapes) -> ModelProto:
    """``model`` without large weights, with inputs of the given shapes."""
    light = ModelProto()
    light.CopyFrom(without_large_weights(model, SHAPE_ELEMENTS))
    for value in light.graph.input:
        if value.name in shapes:
            kind = value.type.tensor_type.elem_type
            dims = list(shapes[value.name])
            value.CopyFrom(helper.make_tensor_value_info(value.name, kind, dims))
    return light


def static_shapes(model: ModelProto) -> dict[str, list[int]]:
    """The declared shapes of all values that have one without unknown dimensions."""
    known: dict[str, list[int]] = {}
    for graph in graphs(model.graph):
        for value in (*graph.input, *graph.value_info, *graph.output):
            if (dims := _static_shape(value.type)) is not None:
                known[value.name] = dims
        known.update((tensor.name, list(tensor.dims)) for tensor in graph.initializer)
        known.update((tensor.name, list(tensor.dims)) for tensor in constant_tensors(graph))
    return known


def _static_shape(kind: TypeProto) -> list[int] | None:
    if not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    return [d.dim_value for d in dims] if all(d.HasField("dim_value") for d in dims) else None


def _conv_macs(shapes: Shapes, node: NodeProto) -> int:
    return math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[1]][1:])


def _conv_transpose_macs(shapes: Shapes, node: NodeProto) -> int:
    return math.prod(shapes[node.input[0]]) * math.prod(shapes[node.input[1]][1:])


def _matmul_macs(shapes: Shapes, node: NodeProto) -> int:
    return math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]


def _gemm_macs(shapes: Shapes, node: NodeProto) -> int:
    a = shapes[node.input[0]]
    transposed = any(each.name == "transA" and each.i for each in node.attribute)
    return math.prod(shapes[node.output[0]]) * a[0 if transposed else 1]


Rule = Callable[[Shapes, NodeProto], int]
MACS: Mapping[str, Rule] = {
    "Conv": _conv_macs,
    "ConvTranspose": _conv_transpose_macs,
    "Gemm": _gemm_macs,
    "MatMul": _matmul_macs,
}
"""Multiply-accumulates of a node of these operators; KeyError where a shape is not known."""
