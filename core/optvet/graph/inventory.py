"""What a model is made of, counted without running it, and the difference of two models."""

from __future__ import annotations

import math
from collections import Counter

from onnx import ModelProto, TensorProto

from optvet.graph.cost import Shapes
from optvet.graph.flops import flops_of
from optvet.graph.structure import operator_counts
from optvet.graph.types import element_bits
from optvet.graph.walk import graphs, node_count
from optvet.graph.weights import constant_tensors, unused_weights
from optvet.spec.records.structure import Inventory, InventoryChange


def inventory_of(model: ModelProto, size_bytes: int, shapes: Shapes | None = None) -> Inventory:
    """All that is counted of ``model``, whose size with its weights is ``size_bytes``.

    Args:
        model: Any model; large weights may be left in their files.
        size_bytes: Its serialized size.
        shapes: Shapes of graph inputs, in place of the declared ones; for ``flops``.
    """
    weights: list[TensorProto] = []
    constants = 0
    for graph in graphs(model.graph):
        sparse = [each.values for each in graph.sparse_initializer]
        tensors = [*graph.initializer, *sparse]
        weights += tensors
        constants += sum(math.prod(tensor.dims) for tensor in constant_tensors(graph))
    named = {t.name for t in model.graph.initializer}
    nodes = node_count(model)
    flops, unknown = flops_of(model, shapes)
    return Inventory(
        nodes=nodes,
        size_bytes=size_bytes,
        operators=dict(operator_counts(model).most_common()),
        nested=nodes - len(model.graph.node),
        initializers=len(weights),
        unused_initializers=unused_weights(model),
        initializer_bytes=sum(map(_bytes_of, weights)),
        parameters=sum(math.prod(tensor.dims) for tensor in weights) + constants,
        weight_inputs=sum(value.name in named for value in model.graph.input),
        flops=flops,
        flops_unknown=unknown,
    )


def _bytes_of(tensor: TensorProto) -> int:
    """Bytes of the contents, wherever they are kept."""
    bits = element_bits(tensor.data_type)
    if bits is None:
        return sum(map(len, tensor.string_data))
    elements: int = math.prod(tensor.dims)
    return (elements * bits + 7) // 8


def change_of(before: Inventory, after: Inventory) -> InventoryChange:
    """What ``after`` has more of than ``before``."""
    moved = Counter(after.operators)
    moved.subtract(before.operators)
    ranked = sorted(moved.items(), key=lambda item: (-abs(item[1]), item[0]))
    known = not (before.flops_unknown or after.flops_unknown)
    return InventoryChange(
        nodes=after.nodes - before.nodes,
        size_bytes=after.size_bytes - before.size_bytes,
        operators={name: amount for name, amount in ranked if amount},
        initializers=after.initializers - before.initializers,
        unused_initializers=after.unused_initializers - before.unused_initializers,
        initializer_bytes=after.initializer_bytes - before.initializer_bytes,
        parameters=after.parameters - before.parameters,
        weight_inputs=after.weight_inputs - before.weight_inputs,
        flops=after.flops - before.flops if known else None,
    )
