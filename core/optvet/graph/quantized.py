"""Quantized tensors of a graph: where values are rounded to integers, and with which scale.

There are two forms. In the QDQ form, ``QuantizeLinear`` and ``DequantizeLinear`` surround operators
on floats. In the other, operators on integers (``QLinearConv``, …) have scales as inputs. Their
inputs follow one pattern: each integer tensor is followed by its scale and zero point; a scale and
a zero point without a tensor are those of the output. ``to_qdq`` converts the second form to QDQ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from optvet.graph.types import FLOATS, INTEGERS
from optvet.graph.walk import attribute_of, is_onnx, nodes_of, reads
from optvet.graph.weights import constants_of

Array = NDArray[Any]

RANGES = {n: (low, high) for n, (low, high) in INTEGERS.items() if high - low < 1 << 16}
"""Smallest and largest value of each element type of quantized tensors."""
_SCALES = frozenset(FLOATS) - {TensorProto.DOUBLE}


@dataclass(frozen=True, eq=False)
class Grid:
    """The integers of a quantized tensor: ``value = (q - zero) * scale``.

    ``scale`` and ``zero`` have one element, or one for each index of ``axis``.
    """

    scale: Array
    zero: Array
    kind: int = TensorProto.UINT8
    axis: int = 1

    @property
    def range(self) -> tuple[int, int]:
        """Least and largest integer."""
        return RANGES[self.kind]

    def spread(self, values: Array, rank: int) -> Array:
        """``values`` (``scale`` or ``zero``), reshaped so that it broadcasts to ``rank`` axes."""
        wide = values.astype(np.float64).reshape(-1)
        if wide.size == 1:
            return wide.reshape(())
        shape = [1] * rank
        shape[self.axis if self.axis >= 0 else self.axis + rank] = wide.size
        return wide.reshape(shape)

    def unrounded_steps(self, values: Array) -> Array:
        """``values / scale + zero`` in float64, clipped to the range but not rounded."""
        wide = values.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            units = wide / self.spread(self.scale, wide.ndim) + self.spread(self.zero, wide.ndim)
        return np.asarray(np.clip(units, *self.range))

    def same_zero(self, other: Grid) -> bool:
        """Whether element types and zero points are equal."""
        ours, theirs = self.zero.reshape(-1), other.zero.reshape(-1)
        return self.kind == other.kind and bool(np.array_equal(ours, theirs))

    def same_scale(self, other: Grid) -> bool:
        """Whether the scales are equal, up to the precision in which they are stored."""
        ours, theirs = self.scale.reshape(-1), other.scale.reshape(-1)
        return ours.size == theirs.size and bool(np.allclose(ours, theirs, rtol=1e-6, atol=0))


@dataclass(frozen=True, eq=False)
class Quantizer:
    """A place where an activation is rounded to integers.

    Attributes:
        name: The integer tensor.
        source: The float tensor that is rounded.
        grid: Scale, zero point and range of the integers.
        node: Index of the node that rounds.
    """

    name: str
    source: str
    grid: Grid
    node: int


def may_round_to_integers(operators: Iterable[str]) -> bool:
    """Whether one of these operators may be a quantizer; names may have a domain in front."""
    return any("QuantizeLinear" in name or "QLinear" in name for name in operators)


_INTEGER = ("QLinear", "QAttention", "QGemm", "QEmbed")
_CONVERTS = frozenset("QuantizeLinear DequantizeLinear DynamicQuantizeLinear".split())


def quantized_operators(model: ModelProto) -> int:
    """Number of operators that compute with quantized weights or values, in any graph.

    Those on integers (``QLinearConv``, ``MatMulInteger``, ``MatMulNBits``), and those on floats
    that read what a ``DequantizeLinear`` makes.
    """
    nodes = [*nodes_of(model.graph), *(n for f in model.functions for n in f.node)]
    floats = {o for n in nodes if n.op_type == "DequantizeLinear" for o in n.output}
    return sum(
        n.op_type not in _CONVERTS
        and (
            n.op_type.startswith(_INTEGER)
            or n.op_type.endswith(("Integer", "NBits", "IntegerToFloat"))
            or any(name in floats for name in reads(n))
        )
        for n in nodes
    )


def quantizers(model: ModelProto) -> list[Quantizer]:
    """All ``QuantizeLinear`` of the outermost graph on activations, with fixed scales, in order."""
    constants, computed = scale_constants(model), _values_from_inputs(model)
    found = []
    for index, node in enumerate(model.graph.node):
        if node.op_type != "QuantizeLinear" or not is_onnx(node) or node.input[0] not in computed:
            continue
        grid = grid_of(node, constants)
        if grid is not None and not attribute_of(node, "block_size", 0):
            found.append(Quantizer(node.output[0], node.input[0], grid, index))
    return found


def integer_tensors(model: ModelProto) -> dict[str, Grid]:
    """Quantized activations that nodes of the outermost graph compute, in either form."""
    constants, computed = scale_constants(model), _values_from_inputs(model)
    inputs = {i.name for i in model.graph.input}
    found: dict[str, Grid] = {}
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and is_onnx(node):
            grid = grid_of(node, constants)
            name = node.output[0] if node.op_type == "QuantizeLinear" else node.input[0]
            if grid is not None and name in computed and name not in inputs:
                found.setdefault(name, grid)
            continue
        read, grid_made = operands(node, constants)
        for name, grid in read:
            if name in computed and name not in inputs:
                found.setdefault(name, grid)
        if grid_made is not None and node.output[0]:
            found[node.output[0]] = grid_made
    order = {o: i for i, n in enumerate(model.graph.node) for o in n.output}
    return {name: found[name] for name in sorted(found, key=lambda n: order.get(n, -1))}


def operands(
    node: NodeProto, constants: Mapping[str, Array]
) -> tuple[list[tuple[str, Grid]], Grid | None]:
    """The integer tensors that an operator on integers reads, and the grid of its output.

    Empty and None for other operators.
    """
    read: list[tuple[str, Grid]] = []
    output_grid: Grid | None = None
    names, i = list(node.input), 0
    while i < len(names):
        grid = _pair(names, i, constants)
        if grid is not None:
            output_grid, i = grid, i + 2
            continue
        grid = _pair(names, i + 1, constants)
        if grid is not None and names[i]:
            read.append((names[i], grid))
            i += 3
            continue
        i += 1
    return (read, output_grid) if output_grid is not None and read else ([], None)


def _pair(names: Sequence[str], at: int, constants: Mapping[str, Array]) -> Grid | None:
    """The grid whose scale is the input at index ``at``, and whose zero point is the next input."""
    if at + 1 >= len(names):
        return None
    scale, zero = constants.get(names[at]), constants.get(names[at + 1])
    if scale is None or zero is None or scale.dtype.kind != "f" or not _is_scale(scale):
        return None
    kind = helper.np_dtype_to_tensor_dtype(zero.dtype)
    if kind not in RANGES or zero.size > scale.size:
        return None
    return Grid(scale, zero, kind)


def grid_of(node: NodeProto, constants: Mapping[str, Array]) -> Grid | None:
    """The grid of a quantizer or dequantizer; None if it is computed, or blockwise."""
    scale = constants.get(node.input[1])
    if scale is None or scale.ndim > 1 or not _is_scale(scale):
        return None
    kind = attribute_of(node, "output_dtype", 0) or TensorProto.UINT8
    zero: Array = np.zeros(scale.shape, np.int64)
    if len(node.input) > 2 and node.input[2]:
        if node.input[2] not in constants:
            return None
        zero = constants[node.input[2]]
        kind = helper.np_dtype_to_tensor_dtype(zero.dtype)
    if kind not in RANGES:
        return None
    return Grid(scale, zero, kind, attribute_of(node, "axis", 1))


def _is_scale(values: Array) -> bool:
    """Whether they can be a scale; what a scale of 0 makes of a number is not defined."""
    return bool(np.all(np.isfinite(values) & (values > 0)))


def scale_constants(model: ModelProto) -> dict[str, Array]:
    """Constants of at most one axis that may be scales or zero points, by their types."""
    small = {
        name: tensor
        for name, tensor in constants_of(model).items()
        if len(tensor.dims) <= 1 and _may_be_scale(tensor.data_type)
    }
    return {name: numpy_helper.to_array(tensor) for name, tensor in small.items()}


def _may_be_scale(kind: int) -> bool:
    return kind in RANGES or kind in _SCALES


def _values_from_inputs(model: ModelProto) -> set[str]:
    """Values that depend on an input of the model."""
    weights = {t.name for t in model.graph.initializer}
    known = {i.name for i in model.graph.input} - weights
    for node in model.graph.node:
        if any(name in known for name in node.input) or any(
            a.HasField("g") for a in node.attribute
        ):
            known.update(o for o in node.output if o)
    return known


# --- operators on integers, opened ----------------------------------------------------------------

_PLAIN = {
    "QLinearConv": "Conv",
    "QLinearMatMul": "MatMul",
    "QLinearAdd": "Add",
    "QLinearMul": "Mul",
    "QLinearSigmoid": "Sigmoid",
    "QLinearLeakyRelu": "LeakyRelu",
    "QLinearAveragePool": "AveragePool",
    "QLinearGlobalAveragePool": "GlobalAveragePool",
    "QLinearConcat": "Concat",
}
"""Operators on integers that equal an operator on floats between dequantizers and a quantizer."""


def to_qdq(model: ModelProto) -> ModelProto:
    """``model`` in QDQ form: operators on floats between dequantizers and a quantizer.

    ::

        QLinearAdd(a, sa, za, b, sb, zb, s, z) → Quantize(Add(Dequantize(a), Dequantize(b)), s, z)

    Operators that are not in ``_PLAIN`` are kept. If there are none to convert, ``model`` itself.
    """
    every = {t.name: t for t in model.graph.initializer} | constants_of(model)
    small = scale_constants(model)
    if not any(_can_open(n, small) for n in model.graph.node):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:]
    for index, node in enumerate(model.graph.node):
        if _can_open(node, small):
            copy.graph.node.extend(_expand_operator(node, index, small, every, copy))
        else:
            copy.graph.node.append(node)
    return copy


def _can_open(node: NodeProto, constants: Mapping[str, Array]) -> bool:
    if node.op_type not in _PLAIN or attribute_of(node, "channels_last", 0):
        return False
    read, grid_made = operands(node, constants)
    if grid_made is None or grid_made.scale.size != 1:
        return False
    # Scales for each index of an axis are those of weights, of which a convolution has its axis 0.
    per_axis = [g for _, g in read if g.scale.size != 1]
    return not per_axis or node.op_type == "QLinearConv"


def _expand_operator(
    node: NodeProto,
    index: int,
    constants: Mapping[str, Array],
    every: Mapping[str, TensorProto],
    model: ModelProto,
) -> Iterator[NodeProto]:
    read, grid_made = operands(node, constants)
    assert grid_made is not None
    prefix = f"optvet.open.{index}"
    floats = []
    for i, (name, grid) in enumerate(read):
        floats.append(f"{prefix}.in{i}")
        if name in every:
            weight = numpy_helper.to_array(every[name]).astype(np.float64)
            axis = Grid(grid.scale, grid.zero, grid.kind, 0)
            zero, scale = (axis.spread(v, weight.ndim) for v in (grid.zero, grid.scale))
            model.graph.initializer.append(
                numpy_helper.from_array(((weight - zero) * scale).astype(np.float32), floats[-1])
            )
        else:
            pair = _scalars(model, f"{prefix}.{i}", grid)
            yield helper.make_node("DequantizeLinear", [name, *pair], [floats[-1]])
    if node.op_type == "QLinearConv" and len(node.input) > 8 and node.input[8] in every:
        (_, x), (_, w) = read
        bias = numpy_helper.to_array(every[node.input[8]]).astype(np.float64)
        bias = (
            bias * x.scale.astype(np.float64).reshape(()) * w.scale.astype(np.float64).reshape(-1)
        )
        floats.append(f"{prefix}.bias")
        model.graph.initializer.append(numpy_helper.from_array(bias.astype(np.float32), floats[-1]))
    # Messages call a node without a name by what it makes, which here is a value of ours.
    name = node.name or node.output[0]
    plain = helper.make_node(_PLAIN[node.op_type], floats, [f"{prefix}.out"], name=name)
    plain.attribute.extend(a for a in node.attribute if a.name != "channels_last")
    yield plain
    pair = _scalars(model, f"{prefix}.made", grid_made)
    yield helper.make_node("QuantizeLinear", [plain.output[0], *pair], [node.output[0]])


def _scalars(model: ModelProto, prefix: str, grid: Grid) -> list[str]:
    """Names of a new scale and zero point; scalars, though some operators have them as vectors."""
    names = [f"{prefix}.scale", f"{prefix}.zero"]
    for name, value in zip(names, (grid.scale.astype(np.float32), grid.zero), strict=True):
        model.graph.initializer.append(numpy_helper.from_array(value.reshape(()), name))
    return names
