"""onnx.checker on candidates, as their format and dialect ask, without copying their weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # ships no types
from onnx import ModelProto, TensorProto

from optvet.graph import structure
from optvet.graph.outline import (
    Message,
    fetch,
    is_outside,
    location_of,
    outline_in,
    outline_of,
    place_of,
)
from optvet.graph.types import element_bits
from optvet.graph.walk import graphs, is_onnx
from optvet.graph.weights import tensors_of, tensors_of_nodes
from optvet.spec.scratch import temporary_folder

_WHOLE_BYTES = 1 << 20
"""Models below this size are checked as they are."""


def check(model: bytes | Path, *, full: bool, dialect: bool = False) -> None:
    """Run onnx.checker, with strict shape inference if ``full``; raises the checker's errors.

    With ``dialect``, unknown operators under ONNX's domain are accepted as if they were of another
    domain, which the checker does not know, and weights need not be listed among the inputs.
    """
    if passes_without_weights(model, full=full, dialect=dialect):
        return
    if dialect:
        model = _in_plain_onnx(model)
    onnx.checker.check_model(model, full_check=full)


def passes_without_weights(model: bytes | Path, *, full: bool, dialect: bool = False) -> bool:
    """Whether the checker accepts the graph, and every large weight has the size of its shape.

    Of a weight that operators only compute with, the checker reads type, shape and number of bytes,
    but copies it twice. Here such weights are data of a file that has as many bytes and no content.
    False says nothing of the model: what is wrong with it, the checker tells of the whole.
    """
    try:
        size = model.stat().st_size if isinstance(model, Path) else len(model)
        if size < _WHOLE_BYTES:
            return False
        source: Path | Message
        if isinstance(model, Path):
            graph, source, inside = outline_of(model), model.parent, model.name
        else:
            graph, source = outline_in(model)
            inside = source.location
        weights = [tensor for tensor in tensors_of(graph) if is_outside(tensor)]
        if graph.functions or not all(location_of(t) == inside and _is_filled(t) for t in weights):
            return False
        for tensor in _read_for_shapes(graph):
            if is_outside(tensor):
                fetch(tensor, source)
        if dialect:
            _make_plain(graph)
        with temporary_folder("optvet-check-") as folder:
            with (Path(folder) / inside).open("wb") as file:
                file.truncate(size)
            path = Path(folder) / f"{inside}.graph"
            path.write_bytes(graph.SerializeToString())
            onnx.checker.check_model(path, full_check=full)
    except (DecodeError, OSError, ValueError, RuntimeError, onnx.checker.ValidationError):
        return False
    return True


_COMPUTES = frozenset(
    """
    Add BatchNormalization Conv ConvTranspose Div GRU Gemm InstanceNormalization LSTM
    LayerNormalization MatMul Mul PRelu RNN Sub
    """.split()
)
"""Operators of ONNX whose shape inference reads no content of an input."""


def _read_for_shapes(model: ModelProto) -> Iterator[TensorProto]:
    """Tensors whose content shape inference may read."""
    read = {
        name
        for graph in graphs(model.graph)
        for node in graph.node
        if is_onnx(node) and node.op_type not in _COMPUTES
        for name in node.input
    }
    yield from (tensor for tensor in model.graph.initializer if tensor.name in read)
    yield from tensors_of_nodes(model)


def _is_filled(tensor: TensorProto) -> bool:
    """Whether there are as many bytes as elements of this type and shape take."""
    bits = element_bits(tensor.data_type)
    return bool(bits) and 8 * place_of(tensor, Path())[2] == math.prod(tensor.dims) * (bits or 0)


_FOREIGN = "optvet.foreign"


def _in_plain_onnx(model: bytes | Path) -> bytes | Path:
    """The model with deviations of ``Traits.dialect`` replaced by valid ONNX, for the checker."""
    if isinstance(model, Path):
        proto = outline_of(model)
    else:
        proto = onnx.load_from_string(model)
    _make_plain(proto)
    data = bytes(proto.SerializeToString())
    if not isinstance(model, Path):
        return data
    plain = model.with_name("plain.onnx")
    plain.write_bytes(data)
    return plain


def _make_plain(proto: ModelProto) -> None:
    nodes = [n for n in structure.foreign_nodes(proto) if is_onnx(n)]
    for node in nodes:
        node.domain = _FOREIGN
    for holder in (proto, *proto.functions) if nodes else ():
        holder.opset_import.add(domain=_FOREIGN, version=1)
    # IR version 4 only drops version 3's requirement that weights are listed among the inputs.
    if proto.ir_version == 3:
        proto.ir_version = 4
