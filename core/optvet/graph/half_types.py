"""Models that compute in float16 or bfloat16, and what they compute where each value is rounded.

A runtime without kernels for a half type computes several nodes in float32 before it rounds, so an
overflow between them does not show. Here every value of a half type is rounded as it is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from optvet.graph.half_sums import Shape, SumWriter, count_sums, with_known_sums
from optvet.graph.types import element_types
from optvet.graph.walk import all_names, bodies_of, graphs, is_onnx

HALF_TYPES = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
_FLOAT = TensorProto.FLOAT
_COPIES = frozenset(
    "Concat Constant ConstantOfShape DepthToSpace Expand Flatten Gather GatherElements GatherND "
    "Identity If Loop MaxPool Neg Relu Reshape Scan Slice SpaceToDepth Split Squeeze Tile "
    "Transpose Unsqueeze".split()
)
"""Operators whose results are elements of what they read: these are rounded already."""


def round_half_types(model: ModelProto, sum_block: int | None = None) -> ModelProto:
    """A model of float32 that gives what ``model`` gives where its half types are rounded.

    Every value that ``model`` has in float16 or bfloat16 is computed in float32 of the rounded
    inputs of its node, and rounded. The interface stays as it is.

    Args:
        model: A model with values of a half type.
        sum_block: None accumulates sums inside of a node in float32. Else so many products are
            added in float32, and the running sum is rounded after each such block, in the
            operators that ``half_sums`` has; the operator set may be raised for that.
    """
    shapes, integers = dict[str, Shape](), dict[str, Any]()
    if sum_block is not None:
        model, shapes, integers = with_known_sums(model)
    copy = ModelProto()
    copy.CopyFrom(model)
    types = _element_types(copy)
    halves = {name: kind for name, kind in types.items() if kind in HALF_TYPES}
    names = _FreshNames(copy)
    for graph in graphs(copy.graph):
        # Types first: a node's own attributes are read again when its values are rounded.
        _widen_tensors(graph)
        if sum_block is not None:
            _write_sums(graph, halves, SumWriter(shapes, integers, 0, sum_block, names.like))
        _round_nodes(graph, halves, names)
    _keep_interface(copy.graph, names)
    for graph in list(graphs(copy.graph)):
        outer = graph is copy.graph
        declared = [*graph.value_info, *(() if outer else (*graph.input, *graph.output))]
        for value in declared:
            kind = value.type
            sequence = kind.WhichOneof("value") == "sequence_type"
            tensor = kind.sequence_type.elem_type.tensor_type if sequence else kind.tensor_type
            if tensor.elem_type in HALF_TYPES:
                tensor.elem_type = _FLOAT
    return copy


def half_sums(model: ModelProto) -> tuple[dict[str, int], dict[str, int]]:
    """How many sums of each operator ``round_half_types`` can round as they grow, and cannot."""
    return count_sums(model, _element_types(model))


def to_bfloat16(half: ModelProto, original: ModelProto) -> ModelProto:
    """``half`` with bfloat16 in place of float16.

    Weights and constants are rounded from those of ``original``, by name, since float16 may have
    cut them off; what ``original`` does not have is converted.
    """
    copy = ModelProto()
    copy.CopyFrom(half)
    exact = _float_constants(original)
    for graph in graphs(copy.graph):
        for weight in graph.initializer:
            _shorten(weight, exact.get(weight.name))
        for node in graph.node:
            name = node.output[0] if node.output else ""
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    _shorten(attribute.t, exact.get(name) if attribute.name == "value" else None)
                is_type = attribute.name in ("to", "dtype") and attribute.type == AttributeProto.INT
                if is_type and attribute.i == TensorProto.FLOAT16:
                    attribute.i = TensorProto.BFLOAT16
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
                value.type.tensor_type.elem_type = TensorProto.BFLOAT16
    return copy


def _float_constants(model: ModelProto) -> dict[str, TensorProto]:
    found: dict[str, TensorProto] = {}
    for graph in graphs(model.graph):
        found |= {t.name: t for t in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and is_onnx(node):
                found.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    return {name: tensor for name, tensor in found.items() if tensor.data_type == _FLOAT}


def _shorten(tensor: TensorProto, exact: TensorProto | None) -> None:
    if tensor.data_type == TensorProto.FLOAT16:
        value = numpy_helper.to_array(tensor if exact is None else exact).astype(np.float32)
        name = tensor.name
        short = numpy_helper.from_array(value.astype(ml_dtypes.bfloat16), name)
        tensor.CopyFrom(short)


class _FreshNames:
    """Names that a model does not use."""

    def __init__(self, model: ModelProto) -> None:
        self._used = all_names(model.graph.node)
        self._used |= {v.name for v in (*model.graph.input, *model.graph.output)}
        self._numbers: dict[str, int] = {}

    def like(self, name: str) -> str:
        """A new name that begins with ``name``."""
        number = self._numbers.get(name, 0)
        fresh = f"{name}_unrounded_{number}" if number else f"{name}_unrounded"
        while fresh in self._used:
            number += 1
            fresh = f"{name}_unrounded_{number}"
        self._numbers[name] = number
        self._used.add(fresh)
        return fresh


def _element_types(model: ModelProto) -> dict[str, int]:
    """Element types of all values and weights, as far as they are known."""
    types = element_types(model)
    for graph in graphs(model.graph):
        for node in graph.node:
            types.update(_told_types(node, types))
    return types


def _told_types(node: NodeProto, types: dict[str, int]) -> Iterator[tuple[str, int]]:
    """Types that inference may not know: of casts, and of what reads a half type."""
    to = next((a.i for a in node.attribute if a.name == "to"), 0)
    halves = [types[name] for name in node.input if types.get(name) in HALF_TYPES]
    for name in node.output:
        if node.op_type == "Cast" and is_onnx(node):
            yield name, to
        elif name and name not in types and halves:
            yield name, halves[0]


def _widen_tensors(graph: GraphProto) -> None:
    for weight in graph.initializer:
        _widen(weight)
    for node in graph.node:
        cast = node.op_type == "Cast" and is_onnx(node)
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _widen(attribute.t)
            for tensor in attribute.tensors:
                _widen(tensor)
            if attribute.name == "dtype" and not cast and attribute.type == AttributeProto.INT:
                attribute.i = _FLOAT if attribute.i in HALF_TYPES else attribute.i


def _widen(tensor: TensorProto) -> None:
    if tensor.data_type in HALF_TYPES:
        wide = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))


def _write_sums(graph: GraphProto, halves: dict[str, int], writer: SumWriter) -> None:
    """Nodes that round the running sum, in place of those that sum in a half type."""
    nodes: list[NodeProto] = []
    for node in graph.node:
        kind = halves.get(node.output[0]) if node.output and is_onnx(node) else None
        written = None if kind is None else replace(writer, kind=kind).write(node)
        nodes += [node] if written is None else written
        if written is not None:
            halves.pop(node.output[0])  # rounded by the nodes written
    kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def _round_nodes(graph: GraphProto, halves: dict[str, int], names: _FreshNames) -> None:
    nodes: list[NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        is_cast = node.op_type == "Cast" and is_onnx(node)
        if is_onnx(node) and node.op_type in _COPIES:
            continue
        for index, name in enumerate(node.output):
            kind = halves.get(name)
            if kind is None:
                continue
            node.output[index] = names.like(name)
            nodes += _rounding(node.output[index], name, kind, names, only_back=is_cast)
    kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def _rounding(
    source: str, target: str, kind: int, names: _FreshNames, *, only_back: bool
) -> list[NodeProto]:
    """Casts to a half type and back; only back where ``source`` is of the half type already."""
    half = source if only_back else names.like(target)
    there = onnx.helper.make_node("Cast", [source], [half], to=kind)
    back = onnx.helper.make_node("Cast", [half], [target], to=_FLOAT)
    return [back] if only_back else [there, back]


def _keep_interface(graph: GraphProto, names: _FreshNames) -> None:
    """Cast inputs and outputs of half types, which stay as they are declared."""
    for value in graph.input:
        if value.type.tensor_type.elem_type in HALF_TYPES:
            wide = names.like(value.name)
            for node in graph.node:
                _rename_reads(node, value.name, wide)
            graph.node.insert(0, onnx.helper.make_node("Cast", [value.name], [wide], to=_FLOAT))
    for value in graph.output:
        if (kind := value.type.tensor_type.elem_type) in HALF_TYPES:
            wide = names.like(value.name)
            for node in graph.node:
                _rename_reads(node, value.name, wide)
                for index, name in enumerate(node.output):
                    if name == value.name:
                        node.output[index] = wide
            graph.node.append(onnx.helper.make_node("Cast", [wide], [value.name], to=kind))


def _rename_reads(node: NodeProto, old: str, new: str) -> None:
    for index, name in enumerate(node.input):
        if name == old:
            node.input[index] = new
    for body in bodies_of(node):
        for inner in body.node:
            _rename_reads(inner, old, new)
        for value in body.output:
            if value.name == old:
                value.name = new
