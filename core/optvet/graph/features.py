"""Features of a model: what an optimizer's condition may look at, one small fact each.

A feature names kinds and not numbers: an attribute is negative, an operand is a weight of one
element, a value is read twice. Two models that differ in one edit differ in a few features, which
stay the same whatever else is in the models.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from optvet.graph.plain import is_aliased, is_namesake, lists_weights
from optvet.graph.types import NUMPY_FLOATS
from optvet.graph.walk import (
    bodies_of,
    domain_of,
    opset_versions,
    qualified_name,
    reads,
    schema_of,
)

_SMALL = 64
"""Values of tensors up to so many elements are looked at."""
_SHORT = 8
_WORD = 24
_INTEGERS = frozenset(
    {
        *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
        *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
    }
)


class Feature(NamedTuple):
    """One fact of a model.

    Attributes:
        operator: Of the node that it is about, with its domain if that is not ONNX's own; "" for
            the model as a whole.
        place: An attribute by its name, ``input 2`` or ``output 0``, or another part.
        kind: What is there, without numbers of the model.
    """

    operator: str
    place: str
    kind: str

    def __str__(self) -> str:
        return " ".join(part for part in (self.operator, self.place, self.kind) if part)


Placed = tuple[Feature, int]
"""A feature, and of which of the nodes of its operator it is one; 0 for the model's own."""


def placed_features(model: ModelProto) -> frozenset[Placed]:
    """All features of a model, of its nested graphs and functions too, with their nodes."""
    found = {(Feature("", "model", kind), 0) for kind in _of_model(model)}
    versions = opset_versions(model)
    found.update(_of_graph(model.graph, versions, {}, ()))
    for function in model.functions:
        inner = dict.fromkeys(function.input, _Source("input"))
        found.update(_of_nodes(function.node, opset_versions(function), inner, function.output))
    return frozenset(found)


def features(model: ModelProto) -> frozenset[Feature]:
    """All features of a model, whichever node each is of."""
    return without_places(placed_features(model))


def without_places(found: Iterable[Placed]) -> frozenset[Feature]:
    """The features alone."""
    return frozenset(feature for feature, _ in found)


def edit_between(old: frozenset[Feature], new: frozenset[Feature]) -> tuple[str, ...]:
    """What an edit changed: ``- `` and each feature that is gone, ``+ `` and each that is new."""
    return tuple(sorted([f"- {f}" for f in old - new] + [f"+ {f}" for f in new - old]))


@dataclass(frozen=True)
class _Source:
    """Where a value comes from: its role, and its tensor if it is a constant."""

    role: str
    tensor: TensorProto | None = None
    element: int = 0
    rank: int | None = None
    dims: frozenset[int] = frozenset()


def integer_constants(model: ModelProto) -> Counter[tuple[float, ...]]:
    """Short lists of integers that nodes read: axes, pads, sizes, places."""
    tensors = [*model.graph.initializer, *filter(None, map(_constant, model.graph.node))]
    short = (t for t in tensors if t.data_type in _INTEGERS and len(t.dims) < 2)
    return Counter(tuple(_values_of(t)) for t in short if math.prod(t.dims) <= _SHORT)


def _of_model(model: ModelProto) -> Iterator[str]:
    graph = model.graph
    if lists_weights(model):
        yield "lists weights as inputs"
    if is_aliased(model):
        yield "names the domain ai.onnx"
    if model.functions:
        yield "has a namesake" if any(map(is_namesake, model.functions)) else "has a function"
    parts = {
        "sparse weights": graph.sparse_initializer,
        "inner types": graph.value_info,
        "metadata": model.metadata_props or graph.metadata_props,
        "training info": model.training_info,
        "quantization annotations": graph.quantization_annotation,
    }
    yield from (f"has {name}" for name, items in parts.items() if items)
    if any(t.external_data for t in graph.initializer):
        yield "has external data"
    names = [v.name for v in (*graph.input, *graph.output)]
    inner = [o for node in graph.node for o in node.output if o]
    weights = [t.name for t in graph.initializer]
    for what, some in (("a value", names), ("an inner value", inner), ("a weight", weights)):
        if any(name.isdigit() for name in some):
            yield f"has a number for the name of {what}"
        if any(not name.isidentifier() and not name.isdigit() for name in some):
            yield f"has an odd name of {what}"
    for what, values in (("input", graph.input), ("output", graph.output)):
        tensors = [v.type.tensor_type for v in values if v.type.HasField("tensor_type")]
        if any(not t.HasField("shape") for t in tensors):
            yield f"has an {what} without rank"
        if any(not d.HasField("dim_value") for t in tensors for d in t.shape.dim):
            yield f"has an {what} of open size"
        if any(v.type.denotation for v in values):
            yield f"has a denotation of an {what}"
        kinds = {v.type.WhichOneof("value") for v in values} - {"tensor_type", None}
        yield from (f"has an {what} that is a {str(kind)[:-5]}" for kind in kinds)
    produced = {*inner}
    if any(o.name not in produced for o in graph.output):
        yield "has an output that no node makes"
    if max(Counter(o.name for o in graph.output).values(), default=0) > 1:
        yield "lists an output twice"


def _of_graph(
    graph: GraphProto,
    versions: Mapping[str, int],
    outer: Mapping[str, _Source],
    path: tuple[str, ...],
) -> Iterator[Placed]:
    weights = {t.name: t for t in graph.initializer}
    known = {name: replace(source, role="captured") for name, source in outer.items()}
    for value in graph.input:
        kind = value.type.tensor_type
        rank = len(kind.shape.dim) if kind.HasField("shape") else None
        role = "default" if value.name in weights else "input"
        dims = frozenset(d.dim_value for d in kind.shape.dim if d.HasField("dim_value"))
        known[value.name] = _Source(role, weights.get(value.name), kind.elem_type, rank, dims)
    for name, tensor in weights.items():
        if name not in known or not any(v.name == name for v in graph.input):
            rank, dims = len(tensor.dims), frozenset(tensor.dims)
            known[name] = _Source("weight", tensor, tensor.data_type, rank, dims)
    for sparse in graph.sparse_initializer:
        known[sparse.values.name] = _Source("sparse weight")
    yield from _of_nodes(graph.node, versions, known, [o.name for o in graph.output], path)


def _of_nodes(
    nodes: Iterable[NodeProto],
    versions: Mapping[str, int],
    known: dict[str, _Source],
    outputs: Iterable[str],
    path: tuple[str, ...] = (),
) -> Iterator[Placed]:
    nodes, returned = list(nodes), set(outputs)
    before = Counter[str]()
    read = Counter(name for node in nodes for name in reads(node))
    for node in nodes:
        domain, operator = domain_of(node), node.op_type
        name = "/".join((*path, qualified_name(domain, operator, ".")))
        own, before[name] = before[name], before[name] + 1
        yield Feature(name, "", ""), own
        schema = schema_of(domain, operator, versions)
        if schema is not None:
            yield Feature(name, "since", str(schema.since_version)), own
        for attribute in node.attribute:
            yield Feature(name, attribute.name, _kind_of_attribute(attribute)), own
        for slot, value in enumerate(node.input):
            source = known.get(value, _Source("captured")) if value else _Source("omitted")
            for kind in _of_source(source):
                yield Feature(name, f"input {slot}", kind), own
            if read[value] > 1 and source.role in ("weight", "default", "input"):
                yield Feature(name, f"input {slot}", "read more than once"), own
        present = [i for i in node.input if i]
        if len(set(present)) < len(present):
            yield Feature(name, "inputs", "repeated"), own
        for body in bodies_of(node):
            yield from _of_graph(body, versions, known, (*path, operator))
        tensor = _constant(node)
        for slot, value in enumerate(node.output):
            if not value:
                continue
            role = f"constant {node.attribute[0].name}" if tensor else f"from {operator}"
            element = tensor.data_type if tensor else 0
            rank = len(tensor.dims) if tensor else None
            known[value] = _Source(role, tensor, element, rank)
            if value in returned and read[value]:
                yield Feature(name, f"output {slot}", "also returned"), own
            if read[value] > 1:
                yield Feature(name, f"output {slot}", "read more than once"), own
            if not read[value] and value not in returned:
                yield Feature(name, f"output {slot}", "unread"), own


def _constant(node: NodeProto) -> TensorProto | None:
    """What a Constant node holds; None for other nodes, or lists and sparse tensors' odd forms."""
    if node.op_type != "Constant" or len(node.attribute) != 1:
        return None
    (attribute,) = node.attribute
    if attribute.HasField("t"):
        tensor: TensorProto = attribute.t
        return tensor
    form = {"value_floats": 1, "value_float": 1, "value_ints": 7, "value_int": 7}
    element = form.get(attribute.name)
    if element is None:
        return None
    several = attribute.name.endswith("s")
    count = len(attribute.floats) + len(attribute.ints)
    return TensorProto(data_type=element, dims=[count] if several else [])


def _of_source(source: _Source) -> Iterator[str]:
    """Facts of an operand; of values that nodes compute, only by which operator."""
    yield source.role
    if source.element:
        yield f"of {TensorProto.DataType.Name(source.element).lower()}"
    if source.rank is not None:
        yield f"of rank {min(source.rank, 5)}"
    yield from (f"with a dimension of {number}" for number in source.dims & {0, 1})
    tensor = source.tensor
    if tensor is None:
        return
    size = math.prod(tensor.dims)
    yield "of no element" if not size else "of one element" if size == 1 else "of many elements"
    yield from (f"has {kind}" for kind in _kinds_of_values(tensor, size))


def _kinds_of_values(tensor: TensorProto, size: int) -> list[str]:
    if not 0 < size <= _SMALL or tensor.data_type not in _INTEGERS.union(NUMPY_FLOATS):
        return []
    values = _values_of(tensor)
    kinds = {_kind_of_number(v) for v in values}
    if tensor.data_type in _INTEGERS and any(a > b for a, b in pairwise(values)):
        kinds.add("no order")
    # Of many arbitrary numbers, the signs say nothing.
    odd = {"0", "1", "-1", "infinite", "nan"}
    return sorted(kinds if tensor.data_type in _INTEGERS or size == 1 else kinds & odd)


def _values_of(tensor: TensorProto) -> list[float]:
    """The values of a tensor; none if it does not hold them."""
    if tensor.external_data or not _holds_values(tensor):
        return []
    try:
        values: list[float] = numpy_helper.to_array(tensor).ravel().tolist()
    except (ValueError, TypeError):
        return []
    return values


def _holds_values(tensor: TensorProto) -> bool:
    fields = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data")
    return any(len(getattr(tensor, name)) for name in fields)


def _kind_of_number(value: float) -> str:
    if value != value:
        return "nan"
    if math.isinf(value):
        return "infinite"
    if value in (0, 1, -1):
        return str(int(value))
    return "negative" if value < 0 else "fraction" if value < 1 else "positive"


def _kind_of_attribute(attribute: AttributeProto) -> str:
    match attribute.type:
        case AttributeProto.INT:
            return _kind_of_number(attribute.i)
        case AttributeProto.FLOAT:
            return _kind_of_number(attribute.f)
        case AttributeProto.STRING:
            text = attribute.s.decode("utf-8", "replace")
            # Words and equations tell what an operator does; what is longer is prose.
            return text if text.isprintable() and len(text) <= _WORD else "text"
        case AttributeProto.INTS | AttributeProto.FLOATS:
            items = [*attribute.ints, *attribute.floats]
            kinds = sorted({_kind_of_number(i) for i in items})
            increasing = all(a < b for a, b in pairwise(items))
            order = "" if len(items) < 2 or increasing else " unordered"
            return f"[{' '.join(kinds)}{order}]"
        case AttributeProto.TENSOR:
            name = TensorProto.DataType.Name(attribute.t.data_type).lower()
            return f"a tensor of {name}, rank {len(attribute.t.dims)}"
        case other:
            return str(AttributeProto.AttributeType.Name(other)).lower().replace("_", " ")
