"""Types of values: element types by name, and the declared types of tensors."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import ml_dtypes  # comes with onnx: types that numpy does not know
import numpy as np
import onnx
from onnx import ModelProto, TensorProto, TensorShapeProto, TypeProto, ValueInfoProto, helper

from optvet.graph.walk import graphs
from optvet.graph.weights import SHAPE_ELEMENTS, without_large_weights
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


FLOATS: tuple[int, ...] = (
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
)
"""Element types in which operators compute; floats of 8 bits and fewer only store values."""
NUMPY_FLOATS = tuple(
    # By the class, since the kind of some types of ml_dtypes is "f" too.
    n
    for n in FLOATS
    if np.issubdtype(helper.tensor_dtype_to_np_dtype(n), np.floating)
)
"""Those of ``FLOATS`` that numpy itself knows, so that all of its functions take them."""


def _integers() -> dict[int, tuple[int, int]]:
    numbers = [n for n in TensorProto.DataType.values() if dtype_name(n).strip("u")[:3] == "int"]
    ranges = {}
    for number in numbers:
        about = ml_dtypes.iinfo(  # type: ignore[no-untyped-call]
            helper.tensor_dtype_to_np_dtype(number)
        )
        ranges[number] = (int(about.min), int(about.max))
    return ranges


@cache
def element_bits(number: int) -> int | None:
    """Bits per element in a file; None for strings and unknown types."""
    if number in (TensorProto.UNDEFINED, TensorProto.STRING):
        return None
    try:
        dtype = helper.tensor_dtype_to_np_dtype(number)
    except KeyError:
        return None
    if dtype.kind in "bc":
        return 8 * dtype.itemsize
    about = ml_dtypes.iinfo if dtype.kind in "iu" or "int" in dtype.name else ml_dtypes.finfo
    return int(about(dtype).bits)


def values_outside(
    values: Iterable[ValueInfoProto], types: Collection[str]
) -> Iterator[tuple[str, str, str]]:
    """Values that are no tensors of ``types``, which are names of ``TensorProto.DataType``.

    Yields:
        The name of the value, that of its element type, and what it is in words.
    """
    for value in values:
        kind = value.type.WhichOneof("value")
        name = TensorProto.DataType.Name(value.type.tensor_type.elem_type)
        if kind != "tensor_type" or name not in types:
            words = f"a {name.lower()} tensor" if kind == "tensor_type" else f"a {kind}"
            yield value.name, name, words


def numpy_dtype(info: ValueInfo) -> np.dtype[Any]:
    """Numpy's dtype of a tensor's elements; of texts it is object.

    Raises:
        ValueError: It is no tensor, or its element type is not declared.
    """
    try:
        code = TensorProto.DataType.Value(info.dtype.upper())
        return np.dtype(helper.tensor_dtype_to_np_dtype(code))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{info.name!r} is a {info.dtype}, expected a tensor") from error


def dtype_name(number: int) -> str:
    """ONNX's lower-case name of an element type; a number for types that onnx does not know."""
    if number in TensorProto.DataType.values():
        return str(TensorProto.DataType.Name(number)).lower()
    return f"type{number}"


INTEGERS: Mapping[int, tuple[int, int]] = _integers()
"""Smallest and largest value of each integer type that the installed onnx knows, without bool."""


def _shape(
    tensor: TypeProto.Tensor | TypeProto.SparseTensor,
) -> tuple[int | str | None, ...] | None:
    if not tensor.HasField("shape"):
        return None
    return tuple(_dimension(d) for d in tensor.shape.dim)


def _dimension(dimension: onnx.TensorShapeProto.Dimension) -> int | str | None:
    # Some tools write -1 for an unknown dimension, and runtimes accept it.
    if dimension.HasField("dim_value") and dimension.dim_value >= 0:
        return int(dimension.dim_value)
    return dimension.dim_param or None


# --- types of tensors ----------------------------------------------------------------------------


def type_of_array(array: np.ndarray) -> TypeProto | None:
    """Tensor type of an array; None if ONNX has no such element type."""
    if array.dtype.kind in "OUS":
        kind = int(TensorProto.STRING)
    else:
        try:
            kind = int(helper.np_dtype_to_tensor_dtype(array.dtype))
        except (KeyError, ValueError):
            return None
    return helper.make_tensor_type_proto(kind, list(array.shape))


def is_cuttable(kind: TypeProto | None) -> bool:
    """Whether a graph can be cut at a value of this type: it is a tensor of known rank."""
    if kind is None or kind.WhichOneof("value") != "tensor_type":
        return False
    return bool(kind.tensor_type.elem_type != 0 and kind.tensor_type.HasField("shape"))


def same_type(a: TypeProto | None, b: TypeProto | None) -> bool:
    """Whether two types are tensors of one element type and of equal, known shape."""
    if a is None or b is None or not is_cuttable(a) or not is_cuttable(b):
        return False
    if a.tensor_type.elem_type != b.tensor_type.elem_type:
        return False
    left, right = a.tensor_type.shape.dim, b.tensor_type.shape.dim
    return len(left) == len(right) and all(map(_same_dim, left, right))


def _same_dim(a: TensorShapeProto.Dimension, b: TensorShapeProto.Dimension) -> bool:
    if a.HasField("dim_value") and b.HasField("dim_value"):
        return bool(a.dim_value == b.dim_value)
    return bool(a.dim_param and a.dim_param == b.dim_param)


def agrees(declared: TypeProto, seen: TypeProto) -> bool:
    """Whether the tensor type ``seen`` in a run fits the declared type."""
    if not is_cuttable(declared):
        return bool(declared.WhichOneof("value") != "tensor_type")
    a, b = declared.tensor_type, seen.tensor_type
    if a.elem_type != b.elem_type or len(a.shape.dim) != len(b.shape.dim):
        return False
    return all(
        not x.HasField("dim_value")
        or not y.HasField("dim_value")
        or bool(x.dim_value == y.dim_value)
        for x, y in zip(a.shape.dim, b.shape.dim, strict=True)
    )


def correct_declaration(declared: TypeProto, seen: TypeProto) -> TypeProto:
    """``seen``, but with unknown dimensions where ``declared`` has them."""
    if agrees(declared, seen):
        return declared
    if not is_cuttable(declared) or not is_cuttable(seen):
        return seen
    kind = TypeProto()
    kind.CopyFrom(seen)
    old, new = declared.tensor_type.shape.dim, kind.tensor_type.shape.dim
    if len(old) == len(new):
        for x, y in zip(old, new, strict=True):
            if not x.HasField("dim_value"):
                y.CopyFrom(x)
    return kind


def loosen(kind: TypeProto) -> TypeProto:
    """The type with all dimensions unknown."""
    loose = TypeProto()
    loose.CopyFrom(kind)
    for dim in loose.tensor_type.shape.dim:
        dim.Clear()
    return loose


def open_dims(kind: TypeProto) -> int:
    """Number of dimensions without a static value."""
    if not is_cuttable(kind):
        return 0
    return sum(not d.HasField("dim_value") for d in kind.tensor_type.shape.dim)


def has_negative(kind: TypeProto) -> bool:
    """Whether shape inference gave a negative dimension, as for a window beyond its input."""
    return is_cuttable(kind) and any(d.dim_value < 0 for d in kind.tensor_type.shape.dim)


def declared_elements(kind: TypeProto) -> int:
    """Number of elements of a tensor of this type; unknown dimensions count as 1."""
    if not is_cuttable(kind):
        return 1
    return math.prod(max(d.dim_value, 1) for d in kind.tensor_type.shape.dim)


# --- inference ------------------------------------------------------------------------------------

TYPED_ELEMENTS = 1 << 10
"""Weights of up to so many elements keep their values for type inference in a reduction."""


def inferred_types(
    model: ModelProto, *, strict: bool = True, partial: bool = False
) -> dict[str, TypeProto] | None:
    """Types of inner values and outputs by onnx's shape inference; None if inference fails.

    If ``strict``, a type that cannot be inferred is a failure too; else it is left out. With
    ``partial``, values of nested graphs and tensors of unknown rank are among them. Large weights
    are not copied into native code, since only small ones affect shapes.
    """
    light = without_large_weights(model, TYPED_ELEMENTS)
    if light is not model:
        # Before IR version 4 inference takes the types of weights from the inputs only.
        light.ir_version = max(light.ir_version, 4)
    try:
        inferred = onnx.shape_inference.infer_shapes(
            light, check_type=strict, strict_mode=strict, data_prop=True
        )
    except Exception:  # inference fails in many ways; each means None
        return None
    if partial:
        return {n: k for n, k in _types_of_all(inferred).items() if _has_some(k)}
    graph = inferred.graph
    known = {v.name: v.type for v in (*graph.value_info, *graph.output)}
    return {name: kind for name, kind in known.items() if is_cuttable(kind) or _is_other(kind)}


def _types_of_all(model: ModelProto) -> dict[str, TypeProto]:
    """Types of the values of all graphs; a name with another type in each branch has none."""
    found: dict[str, TypeProto] = {}
    for graph in graphs(model.graph):
        for value in (*graph.value_info, *graph.output):
            if found.setdefault(value.name, value.type) != value.type:
                found[value.name] = TypeProto()
    return found


def _has_some(kind: TypeProto) -> bool:
    return _is_other(kind) or kind.tensor_type.elem_type != 0


def _is_other(kind: TypeProto) -> bool:
    return kind.WhichOneof("value") in ("sequence_type", "optional_type")


def infer_types(model: ModelProto, *, data_prop: bool = False) -> ModelProto | None:
    """A copy of ``model`` with inferred types of values; None if onnx cannot infer any.

    Such as for an operator set that onnx does not know, or for a graph that breaks its rules.
    """
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=data_prop)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError):
        return None
    except (ValueError, IndexError, RuntimeError):  # as which native code raises what it raises
        return None


def element_types(model: ModelProto) -> dict[str, int]:
    """Element types by value name, of all graphs in ``model``, as far as they can be inferred.

    Only tensors are listed. Weights are not copied for the inference, which would take most of the
    time: their types are declared.
    """
    light = without_large_weights(model, SHAPE_ELEMENTS)
    light = infer_types(light) or light  # inferred types only refine the answer
    types: dict[str, int] = {}
    for graph in graphs(light.graph):
        for value in (*graph.input, *graph.value_info, *graph.output):
            if value.type.tensor_type.elem_type:
                types[value.name] = value.type.tensor_type.elem_type
        types.update((tensor.name, tensor.data_type) for tensor in graph.initializer)
    return types
