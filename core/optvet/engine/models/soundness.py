"""Checks in Python of what the rest of optvet assumes about a model, when it is opened.

ONNX's checker is native code and runs later, in a worker. Before that, sizes, element types and
shapes are used in this process, so they are checked here. Other defects are left to the checker.
"""

from __future__ import annotations

import graphlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from onnx import (
    AttributeProto,
    FunctionProto,
    ModelProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
)

from optvet.graph.types import dtype_name, element_bits
from optvet.graph.walk import domain_of, graphs, inner_nodes, nodes_of, operator_of, qualified_name
from optvet.spec.errors import InputError
from optvet.spec.words import quote

MAX_RANK = 64
"""Maximal number of dimensions of a numpy array."""
MAX_INLINED = 250_000
"""Maximal number of nodes once functions are inlined, which each step of a vet does anew.

Twenty functions of two calls each are a file of a kilobyte and a million nodes.
"""
_AGAIN = "export or download the model again"
# Types whose elements are in a typed field, with the name of the field and entries per element.
_FIELDS: dict[int, tuple[str, int]] = {
    TensorProto.FLOAT: ("float_data", 1),
    TensorProto.COMPLEX64: ("float_data", 2),
    TensorProto.DOUBLE: ("double_data", 1),
    TensorProto.COMPLEX128: ("double_data", 2),
    TensorProto.INT64: ("int64_data", 1),
    TensorProto.UINT32: ("uint64_data", 1),
    TensorProto.UINT64: ("uint64_data", 1),
    TensorProto.STRING: ("string_data", 1),
}
_VALUES = {
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.TYPE_PROTO: "tp",
}
"""Fields of attribute values that are messages: a missing one would read as an empty message."""


def check_tensor(path: Path, tensor: TensorProto) -> None:
    """Refuse a tensor whose type, shape and data do not agree.

    Raises:
        InputError: Type, shape and data do not agree.
    """
    name = f"model {path}: tensor {quote(tensor.name)}"
    kind, dims = tensor.data_type, list(tensor.dims)
    bits = element_bits(kind)
    if bits is None and kind != TensorProto.STRING:
        problem = f"has the element type {dtype_name(kind)}, which optvet cannot read; {_AGAIN}"
        raise InputError(f"{name} {problem}")
    if len(dims) > MAX_RANK:
        raise InputError(f"{name} has {len(dims)} dimensions, expected at most {MAX_RANK}")
    if any(size < 0 for size in dims):
        raise InputError(f"{name} has the negative shape {shape_words(tensor)}; {_AGAIN}")
    needed, present = math.prod(dims), _elements(tensor, bits)
    if needed != present:
        shape = shape_words(tensor)
        raise InputError(
            f"{name} has data for {present:,} elements, but {shape} has {needed:,}; {_AGAIN}"
        )
    if tensor.HasField("segment"):
        raise InputError(f"{name} is one of several segments, which optvet cannot read; {_AGAIN}")
    try:
        for text in tensor.string_data:
            text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} has a text that is not in UTF-8; {_AGAIN}") from error


def shape_words(tensor: TensorProto) -> str:
    """Element type and shape, such as "float[2, 3]"; for many dimensions, only their number."""
    dims = list(tensor.dims)
    shown = str(dims) if len(dims) <= 8 else f"[{len(dims)} dimensions]"
    return f"{dtype_name(tensor.data_type)}{shown}"


def _elements(tensor: TensorProto, bits: int | None) -> int:
    """The number of elements in the tensor's data."""
    if tensor.HasField("raw_data"):
        size = len(tensor.raw_data)
        if bits is None:
            return 0  # strings have no raw form
        # Types of less than a byte leave the rest of the last byte unused.
        elements, wanted = size * 8 // bits, math.prod(tensor.dims)
        return wanted if bits < 8 and 0 <= elements - wanted < 8 // bits else elements
    field, entries = _FIELDS.get(tensor.data_type, ("int32_data", 1))
    count: int = len(getattr(tensor, field))
    if bits is not None and bits < 8:
        wanted = math.prod(tensor.dims)
        return wanted if count == -(-wanted * bits // 8) else count * 8 // bits
    return count // entries


_MOST_VERSION = 2**31 - 1


def check_model(path: Path, proto: ModelProto) -> None:
    """Refuse a model whose interface or calls nothing could be made of.

    Raises:
        InputError: An operator set has an impossible version, a type is unknown, or that of an
            input left out, a shape has too many dimensions, a node has no operator or an attribute
            no value, or functions call each other in a circle or too often.
    """
    for imported in (proto, *proto.functions):
        for opset in imported.opset_import:
            if not 0 <= opset.version <= _MOST_VERSION:  # onnx keeps it in 32 bits
                words = (
                    f"operator set {quote(opset.domain or 'ai.onnx')} has version {opset.version}"
                )
                raise InputError(f"model {path}: {words}, which there cannot be; {_AGAIN}")
    for what, values in (("input", proto.graph.input), ("output", proto.graph.output)):
        for value in values:
            known = what == "input" or not is_untyped(value)
            if known:
                _check_value(f"model {path}: {what} {quote(value.name)}", value)
    for graph in graphs(proto.graph):
        for node in graph.node:
            if not node.op_type:
                where = f"node {quote(node.name)} of graph {quote(graph.name)}"
                raise InputError(f"model {path}: {where} has no operator; {_AGAIN}")
            for attribute in node.attribute:
                field = _VALUES.get(attribute.type)
                if field is not None and not attribute.HasField(field):
                    where = f"attribute {quote(attribute.name)} of node {quote(node.name)}"
                    raise InputError(f"model {path}: {where} has no value; {_AGAIN}")
    if not proto.functions:
        return
    calls = _calls(proto.functions)
    try:
        order = list(graphlib.TopologicalSorter(calls).static_order())
    except graphlib.CycleError as error:
        raise InputError(
            f"model {path}: function {quote(qualified_name(*error.args[1][0]))} calls itself, "
            "directly or through others, which ONNX does not allow"
        ) from error
    sizes: dict[tuple[str, str], int] = {}
    for name in order:
        size = sum(n * sizes[called] for called, n in calls.get(name, {}).items())
        # Bounded: of a thousand functions it would have a thousand bits.
        sizes[name] = max(1, min(size, MAX_INLINED + 1))
    count = sum(sizes.get(operator_of(node), 1) for node in nodes_of(proto.graph))
    if count > MAX_INLINED:
        raise InputError(
            f"model {path}: its functions call each other so often that it has more than "
            f"{MAX_INLINED:,} nodes once they are inlined; export it with fewer calls"
        )


def is_untyped(value: ValueInfoProto) -> bool:
    """Whether a value declares no type, which runtimes infer for an output."""
    which = value.type.WhichOneof("value")
    return which is None or (which == "tensor_type" and not value.type.tensor_type.elem_type)


def _check_value(name: str, value: ValueInfoProto) -> None:
    if value.type.WhichOneof("value") is None:
        raise InputError(f"{name} has no type; {_AGAIN}")
    for tensor in _tensors(value.type):
        kind = dtype_name(tensor.elem_type)
        if kind == "undefined" or kind.startswith("type"):
            raise InputError(
                f"{name} has the element type {kind}, expected one of ONNX's; {_AGAIN}"
            )
        rank = len(tensor.shape.dim)
        if rank > MAX_RANK:
            raise InputError(f"{name} has {rank} dimensions, expected at most {MAX_RANK}")


def _tensors(kind: TypeProto) -> Iterator[TypeProto.Tensor | TypeProto.SparseTensor]:
    """The tensor types inside ``kind``; the parser limits the depth of nesting."""
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        yield kind.tensor_type
    elif which == "sparse_tensor_type":
        yield kind.sparse_tensor_type
    elif which == "sequence_type":
        yield from _tensors(kind.sequence_type.elem_type)
    elif which == "optional_type":
        yield from _tensors(kind.optional_type.elem_type)
    elif which == "map_type":
        yield from _tensors(kind.map_type.value_type)


def _calls(functions: Sequence[FunctionProto]) -> dict[tuple[str, str], Counter[tuple[str, str]]]:
    """How often each function calls each operator, by name."""
    return {
        (domain_of(function), function.name): Counter(
            operator_of(inner) for node in function.node for inner in (node, *inner_nodes(node))
        )
        for function in functions
    }
