"""Simplifying a graph: smaller, and concrete, dimensions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from onnx import AttributeProto, NodeProto, TensorProto, TypeProto, numpy_helper

from optvet.engine.reduce.graph import Feed, Graph, Node, Weight, with_constant
from optvet.graph.types import is_cuttable

# --- dimensions -----------------------------------------------------------------------------------


def smaller_dimensions(graph: Graph) -> Iterator[Graph | None]:
    """Size d → 1, 2, d/2: wherever a dimension, shape or attribute is d; then on one axis only.

    ``x[d] → x[:1]`` for inputs, initializers and feeds. Integers in shapes and attributes that
    equal d are replaced too, so that a Reshape to [n, d] or a Conv of d groups still fits; then
    also multiples of d, for flattened dimensions. The result may be invalid; running it shows that.
    """
    for size in sorted(_sizes(graph), reverse=True):
        for new in dict.fromkeys((1, 2, size // 2)):
            if 0 < new < size:
                yield _resize(graph, size, new, None)
                yield _resize(graph, size, new, None, multiples=True)
    for name in (*graph.inputs, *graph.weights):
        for axis, size in enumerate(_shape(graph, name) or ()):
            for new in dict.fromkeys((1, 2, size // 2)):
                if 0 < new < size:
                    yield _resize(graph, size, new, (name, axis))
                    yield _last(graph, name, axis, new)


def _last(graph: Graph, name: str, axis: int, count: int) -> Graph | None:
    """Keep the last elements of one axis of an input: these may be the ones that matter."""
    if graph.feeds is None or name not in graph.feeds:
        return None
    array = graph.feeds[name].array
    window = tuple(slice(-count if a == axis else None, None) for a in range(array.ndim))
    small = np.ascontiguousarray(array[window]).reshape(array[window].shape)
    kind = _with_shape(graph.inputs[name], small.shape, keep_open=True)
    return graph.with_(
        inputs={**graph.inputs, name: kind}, feeds={**graph.feeds, name: Feed(small)}
    )


def concrete_dimensions(graph: Graph) -> Iterator[Graph | None]:
    """[N, 3] → [1, 3]: unknown dimensions of inputs become the size that is fed, else 1."""
    inputs = dict(graph.inputs)
    for name, kind in graph.inputs.items():
        if not is_cuttable(kind):
            continue
        if graph.feeds is None:
            shape = tuple(d.dim_value or 1 for d in kind.tensor_type.shape.dim)
        elif name in graph.feeds:
            shape = tuple(graph.feeds[name].array.shape)
        else:
            continue
        inputs[name] = _with_shape(kind, shape, keep_open=False)
    yield graph.with_(inputs=inputs)


def _shape(graph: Graph, name: str) -> tuple[int, ...] | None:
    if name in graph.weights:
        return tuple(graph.weights[name].proto.dims)
    if graph.feeds is not None and name in graph.feeds:
        return tuple(graph.feeds[name].array.shape)
    kind = graph.inputs.get(name)
    if kind is None or not is_cuttable(kind):
        return None
    return tuple(d.dim_value for d in kind.tensor_type.shape.dim)


def _sizes(graph: Graph) -> set[int]:
    shapes = [_shape(graph, name) or () for name in (*graph.inputs, *graph.weights)]
    return {size for shape in shapes for size in shape if size > 1}


def _resize(
    graph: Graph, old: int, new: int, only: tuple[str, int] | None, *, multiples: bool = False
) -> Graph | None:
    """``graph`` with size ``old`` replaced by ``new``: on one axis of one value, or everywhere."""
    shapes = {n: s for n in (*graph.inputs, *graph.weights) if (s := _shape(graph, n)) is not None}
    power = max([s.count(old) for s in shapes.values()], default=1)

    def scale(value: int) -> int:
        if value == old:
            return new
        for n in range(power if multiples else 0, 0, -1):
            if value > old and value % old**n == 0:
                return int(value // old**n * new**n)
        return value

    inputs, weights = dict(graph.inputs), dict(graph.weights)
    feeds = None if graph.feeds is None else dict(graph.feeds)
    for name, shape in shapes.items():
        if only is not None and only[0] != name:
            continue
        small = tuple(scale(d) if only in (None, (name, a)) else d for a, d in enumerate(shape))
        if name in weights:
            weight = _slice_weight(weights[name], small, scale if only is None else None)
            if weight is None:
                return None
            weights[name] = weight
        elif small != shape:
            inputs[name] = _with_shape(inputs[name], small, keep_open=True)
            if feeds is not None and name in feeds:
                window = tuple(slice(0, d) for d in small)
                small_array = feeds[name].array[window]
                feeds[name] = Feed(np.ascontiguousarray(small_array).reshape(small))
    nodes = graph.nodes
    if only is None:
        nodes = tuple(_resize_constant(_with_numbers(node, scale), scale) for node in nodes)
    return graph.with_(nodes=nodes, inputs=inputs, weights=weights, feeds=feeds)


def _resize_constant(node: Node, scaled: Callable[[int], int]) -> Node:
    if node.constant is None:
        return node
    shape = tuple(scaled(d) for d in node.constant.proto.dims)
    small = _slice_weight(node.constant, shape, scaled)
    return node if small is None or small is node.constant else with_constant(node, small.proto)


def _slice_weight(
    weight: Weight, shape: tuple[int, ...], scaled: Callable[[int], int] | None
) -> Weight | None:
    """The first elements of ``weight``; sizes are scaled if it is a shape. None if unreadable."""
    is_shape = (
        scaled is not None
        and weight.proto.data_type == TensorProto.INT64
        and len(weight.proto.dims) == 1
        and weight.elements <= 16
    )
    if tuple(weight.proto.dims) == shape and not is_shape:
        return weight
    try:
        array = weight.array[tuple(slice(0, d) for d in shape)]
    except (ValueError, TypeError):
        return None
    if scaled is not None and is_shape:
        array = np.array([scaled(int(v)) for v in array], np.int64)
    if array.shape == weight.array.shape and np.array_equal(array, weight.array):
        return weight
    proto = numpy_helper.from_array(np.array(array), weight.proto.name)
    return Weight(proto) if proto.data_type == weight.proto.data_type else None


def _with_shape(kind: TypeProto, shape: Sequence[int], *, keep_open: bool) -> TypeProto:
    if not is_cuttable(kind) or len(kind.tensor_type.shape.dim) != len(shape):
        return kind
    copy = TypeProto()
    copy.CopyFrom(kind)
    for dim, size in zip(copy.tensor_type.shape.dim, shape, strict=True):
        if dim.HasField("dim_value") or not keep_open:
            dim.dim_value = size
    return copy


_NO_SIZES = frozenset({"axis", "axes", "perm", "to", "allowzero", "keepdims"})


def _with_numbers(node: Node, scaled: Callable[[int], int]) -> Node:
    """``node`` with the sizes among its attributes scaled."""
    proto = NodeProto()
    proto.CopyFrom(node.proto)
    for attribute in proto.attribute:
        if attribute.name in _NO_SIZES:
            continue
        if attribute.type == AttributeProto.INT:
            attribute.i = scaled(attribute.i)
        elif attribute.type == AttributeProto.INTS:
            attribute.ints[:] = [scaled(i) for i in attribute.ints]
    return node if proto == node.proto else Node(proto)
