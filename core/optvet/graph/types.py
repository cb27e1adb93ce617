"""Types of values: element types by name, and the declared types of tensors."""

from __future__ import annotations

import onnx
from onnx import TensorProto, TypeProto, ValueInfoProto

from optvet.spec.types import ValueInfo


def value_info(value: ValueInfoProto) -> ValueInfo:
    """Name, element type and shape of a graph input or output."""
    kind = value.type.WhichOneof("value")
    if kind == "tensor_type":
        tensor = value.type.tensor_type
        return ValueInfo(value.name, dtype_name(tensor.elem_type), _shape(tensor))
    if kind == "sparse_tensor_type":
        return ValueInfo(value.name, "sparse", _shape(value.type.sparse_tensor_type))
    return ValueInfo(value.name, (kind or "undefined").removesuffix("_type"), None)


def dtype_name(number: int) -> str:
    """ONNX's lower-case name of an element type; newer types than the library's get a number."""
    if number in TensorProto.DataType.values():
        return str(TensorProto.DataType.Name(number)).lower()
    return f"type{number}"


def _shape(
    tensor: TypeProto.Tensor | TypeProto.SparseTensor,
) -> tuple[int | str | None, ...] | None:
    if not tensor.HasField("shape"):
        return None
    return tuple(_dimension(d) for d in tensor.shape.dim)


def _dimension(dimension: onnx.TensorShapeProto.Dimension) -> int | str | None:
    # Some tools write -1 where they mean unknown; runtimes read it so.
    if dimension.HasField("dim_value") and dimension.dim_value >= 0:
        return int(dimension.dim_value)
    return dimension.dim_param or None
