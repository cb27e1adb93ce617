"""Constants of a model, and copies of a model without large constants.

Callers set the size from which on a constant is large, since that depends on the purpose.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    helper,
    numpy_helper,
)

from optvet.graph.walk import graphs, is_onnx, reads


def constants_of(model: ModelProto) -> dict[str, TensorProto]:
    """Initializers and tensors of ``Constant`` nodes, by the name of the value."""
    found = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        tensor = held_tensor(node)
        if tensor is not None:
            found[node.output[0]] = tensor
    return found


def unused_weights(model: ModelProto) -> int:
    """How many initializers no node of their graph, or below it, reads and no output is."""
    count = 0
    for graph in graphs(model.graph):
        used = {name for node in graph.node for name in reads(node)}
        used |= {value.name for value in graph.output}
        tensors = (*graph.initializer, *(each.values for each in graph.sparse_initializer))
        count += sum(tensor.name not in used for tensor in tensors)
    return count


def held_tensor(node: NodeProto) -> TensorProto | None:
    """The tensor of a ``Constant`` node; None for other nodes and other constants."""
    if node.op_type != "Constant" or not is_onnx(node):
        return None
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, TensorProto):
            return value
        if attribute.name in ("value_float", "value_floats"):
            return numpy_helper.from_array(np.array(value, np.float32))
        if attribute.name in ("value_int", "value_ints"):
            return numpy_helper.from_array(np.array(value, np.int64))
    return None


def constant_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Tensors of ``Constant`` nodes, without contents, named after the node's output."""
    for node in graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.type == AttributeProto.TENSOR:
                    named = TensorProto(data_type=attribute.t.data_type, dims=attribute.t.dims)
                    named.name = node.output[0]
                    yield named


SHAPE_ELEMENTS = 64
"""Limit for shape inference, which reads only the values of shapes and axes."""


def large_weights(model: ModelProto, limit: int) -> list[TensorProto]:
    """Initializers of more than ``limit`` elements, and those whose data is in another file."""
    return [
        tensor
        for tensor in model.graph.initializer
        if math.prod(tensor.dims) > limit or tensor.data_location == TensorProto.EXTERNAL
    ]


def without_large_weights(model: ModelProto, limit: int) -> ModelProto:
    """A copy in which large weights are inputs of the same type, so that they are not copied.

    Nodes and types are unchanged, so it can be used for shape inference and for printing. If there
    are no large weights, the result is ``model`` itself.
    """
    large = {tensor.name: tensor for tensor in large_weights(model, limit)}
    if not large:
        return model
    light = ModelProto()
    for descriptor, value in model.ListFields():
        if descriptor.name != "graph":
            _copy_field(light, descriptor.name, value)
    for descriptor, value in model.graph.ListFields():
        if descriptor.name != "initializer":
            _copy_field(light.graph, descriptor.name, value)
    light.graph.initializer.extend(t for t in model.graph.initializer if t.name not in large)
    listed = {value.name for value in model.graph.input}
    light.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in large.values()
        if tensor.name not in listed
    )
    return light


def _copy_field(target: ModelProto | GraphProto, name: str, value: Any) -> None:
    if isinstance(value, (int, str)):
        setattr(target, name, value)
    else:
        getattr(target, name).extend(value)


def clear_large_weights(model: ModelProto, limit: int) -> None:
    """Remove the contents of initializers of more than ``limit`` elements, in place."""
    for tensor in large_weights(model, limit):
        bare = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        tensor.CopyFrom(bare)


def tensors_of_nodes(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor but the initializers of the outermost graph."""
    return itertools.islice(tensors_of(model), len(model.graph.initializer), None)


def tensors_of(proto: ModelProto) -> Iterator[TensorProto]:
    """Every tensor of the model: in subgraphs, attributes, functions and training info too.

    The initializers of the outermost graph come first.
    """
    yield from _graph_tensors(proto.graph)
    for function in proto.functions:
        yield from _attribute_tensors(function.attribute_proto)
        for node in function.node:
            yield from _attribute_tensors(node.attribute)
    for info in proto.training_info:
        yield from _graph_tensors(info.initialization)
        yield from _graph_tensors(info.algorithm)


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    yield from _sparse_tensors(graph.sparse_initializer)
    for node in graph.node:
        yield from _attribute_tensors(node.attribute)


def _attribute_tensors(attributes: Iterable[AttributeProto]) -> Iterator[TensorProto]:
    for attribute in attributes:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("sparse_tensor"):
            yield from _sparse_tensors([attribute.sparse_tensor])
        yield from _sparse_tensors(attribute.sparse_tensors)
        if attribute.HasField("g"):
            yield from _graph_tensors(attribute.g)
        for graph in attribute.graphs:
            yield from _graph_tensors(graph)


def _sparse_tensors(sparse: Iterable[SparseTensorProto]) -> Iterator[TensorProto]:
    for tensor in sparse:
        yield tensor.values
        yield tensor.indices
