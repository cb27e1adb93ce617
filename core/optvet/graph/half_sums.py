"""Sums that are accumulated in a half type, as nodes of float32 that round the running sum.

::

    MatMul(A, B)  →  Scan over blocks of k:  sum ← round(sum + A[…, block] · B[block, …])

The products of a block are added in float32, as the units of a processor do that take several at
once: blocks of 8 are those of tensor cores, blocks of 1 are one fused multiply-add after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from optvet.graph.types import infer_types
from optvet.graph.walk import attribute_of, graphs, is_onnx, opset_versions

_OPSET = 13
"""The first version whose forms of operators are written here."""
_FLOAT = TensorProto.FLOAT
_REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare")
SUMS = frozenset(
    "Attention AveragePool Conv ConvInteger ConvTranspose CumSum Einsum GRU Gemm GlobalAveragePool "
    "GlobalLpPool GroupNormalization InstanceNormalization LRN LSTM LayerNormalization "
    "LogSoftmax LpNormalization LpPool MatMul MeanVarianceNormalization RMSNormalization RNN "
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceSum ReduceSumSquare "
    "Softmax".split()
)
"""Operators that add up elements of one value."""

Named = Callable[[str], str]
Shape = Sequence[int | None]


def with_known_sums(model: ModelProto) -> tuple[ModelProto, dict[str, Shape], dict[str, Any]]:
    """``model`` at an operator set that sums can be written in; its shapes; its whole constants.

    The shapes are empty where the model cannot be written in such a set.
    """
    version = opset_versions(model).get("ai.onnx", 0)
    if version < _OPSET:
        try:
            model = onnx.version_converter.convert_version(model, _OPSET)
        except (RuntimeError, ValueError, onnx.version_converter.ConvertError):
            return model, {}, {}
    inferred = infer_types(model, data_prop=True) or model
    shapes: dict[str, Shape] = {t.name: tuple(t.dims) for t in model.graph.initializer}
    graph = inferred.graph
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape"):
            dims = tensor.shape.dim
            shapes[value.name] = tuple(d.dim_value if d.dim_value > 0 else None for d in dims)
    whole = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and (value := attribute_of(node, "value")) is not None:
            whole[node.output[0]] = value
            shapes.setdefault(node.output[0], tuple(value.dims))
    integers = {n: t for n, t in whole.items() if t.data_type == TensorProto.INT64}
    return model, shapes, {n: numpy_helper.to_array(t) for n, t in integers.items()}


def count_sums(half: ModelProto, types: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """How many sums of each operator in a half type can be rounded as they grow, and cannot.

    Args:
        half: A model with values of a half type.
        types: Their element types.
    """
    model, shapes, integers = with_known_sums(half)
    halves = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    able, unable = dict[str, int](), dict[str, int]()
    for graph in graphs(model.graph):
        for node in graph.node:
            sums = is_onnx(node) and node.op_type in SUMS
            if not sums or not node.output or types.get(node.output[0]) not in halves:
                continue
            writer = SumWriter(shapes, integers, TensorProto.FLOAT16, 8, lambda name: name)
            counts = unable if writer.write(node) is None else able
            counts[node.op_type] = counts.get(node.op_type, 0) + 1
    return able, unable


@dataclass
class Body:
    """The nodes of one step of a sum.

    Attributes:
        named: Gives a new name that begins with the given one.
        slices: Names of what a step reads.
        nodes: The nodes so far.
    """

    named: Named
    slices: Sequence[str]
    nodes: list[NodeProto] = field(default_factory=list)

    def op(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """The output of a new node."""
        output = self.named(f"sum_{operator}")
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output


@dataclass
class SumWriter:
    """Writes nodes in place of one that sums.

    Attributes:
        shapes: Shapes by value, None for a dimension that is not known.
        integers: Constants that are integers, by value.
        kind: The half type.
        block: Products that are added in float32 before the running sum is rounded.
        named: Gives a new name that begins with the given one.
        nodes: The nodes so far.
    """

    shapes: Mapping[str, Shape]
    integers: Mapping[str, Any]
    kind: int
    block: int
    named: Named
    nodes: list[NodeProto] = field(default_factory=list)

    def write(self, node: NodeProto) -> list[NodeProto] | None:
        """Nodes that give ``node``'s output, rounded; None if it cannot be written so."""
        self.nodes = []
        write = _WRITERS.get(node.op_type)
        if write is None or any(name not in self.shapes for name in node.input if name):
            return None
        result = write(self, node)
        if result is None:
            return None
        half = self.op("Cast", result, to=self.kind)
        self.nodes.append(helper.make_node("Cast", [half], [node.output[0]], to=_FLOAT))
        return self.nodes

    def rank(self, name: str) -> int:
        """Number of dimensions of a value of the model."""
        return len(self.shapes[name])

    def op(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """The output of a new node."""
        output = self.named(f"sum_{operator}")
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def ints(self, *values: int) -> str:
        """A new vector of integers."""
        return self._constant(np.array(values, np.int64))

    def number(self, value: float) -> str:
        """A new number."""
        return self._constant(np.array(value, np.float32))

    def _constant(self, value: np.ndarray) -> str:
        return self.op("Constant", value=numpy_helper.from_array(value))

    def cut(self, name: str, starts: Sequence[int], ends: Sequence[int], **more: Any) -> str:
        """A slice of the axes ``axes``, with ``steps``."""
        axes = more.get("axes", range(len(starts)))
        steps = more.get("steps", [1] * len(starts))
        return self.op("Slice", name, *(self.ints(*part) for part in (starts, ends, axes, steps)))

    def swapped(self, name: str, rank: int) -> str:
        """The last two dimensions swapped."""
        return self.op("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])

    def blocks(self, name: str, rank: int) -> str:
        """The last dimension, filled up with zeros, as two: the blocks, and their elements."""
        last = self.cut(self.op("Shape", name), [-1], [2**31 - 1], axes=[0])
        missing = self.op("Mod", self.op("Neg", last), self.ints(self.block))
        pads = self.op("Concat", self.ints(*[0] * (2 * rank - 1)), missing, axis=0)
        padded = self.op("Pad", name, pads)
        return self.op("Reshape", padded, self.ints(*[0] * (rank - 1), -1, self.block))

    def running_sum(
        self, blocks: Sequence[tuple[str, int]], zero: str, product: Callable[[Body], str]
    ) -> str:
        """The sum over all blocks of ``product``, rounded after each.

        Args:
            blocks: Values with the axis along which they are taken apart.
            zero: The sum of no block.
            product: Writes what a block adds.
        """
        body = Body(self.named, [self.named("sum_block") for _ in blocks])
        before = self.named("sum_before")
        added = body.op("Add", before, product(body))
        after = body.op("Cast", body.op("Cast", added, to=self.kind), to=_FLOAT)
        inputs = [_tensor(name) for name in (before, *body.slices)]
        graph = helper.make_graph(body.nodes, "block", inputs, [_tensor(after)])
        return self.op(
            "Scan",
            zero,
            *(name for name, _ in blocks),
            body=graph,
            num_scan_inputs=len(blocks),
            scan_input_axes=[axis for _, axis in blocks],
        )

    def product(self, a: str, b: str, ranks: tuple[int, int]) -> str:
        """The product of two matrices, or of stacks of them."""
        first, second = ranks
        left = self.cut(a, [0], [1], axes=[first - 1])
        right = self.cut(b, [0], [1], axes=[second - 2])
        shape = self.op("Shape", self.op("MatMul", left, right))
        zero = self.op("ConstantOfShape", shape)
        parts = [
            (self.blocks(a, first), first - 1),
            (self.blocks(self.swapped(b, second), second), second - 1),
        ]

        def of_block(body: Body) -> str:
            # A slice of the second value has its two dimensions swapped.
            a, b = body.slices
            across = body.op("Transpose", b, perm=[*range(second - 2), second - 1, second - 2])
            return body.op("MatMul", a, across)

        return self.running_sum(parts, zero, of_block)

    def over_axes(self, name: str, axes: Sequence[int], rank: int, *, keep: bool) -> str:
        """The sum over some dimensions."""
        left = [axis for axis in range(rank) if axis not in axes]
        moved = self.op("Transpose", name, perm=[*left, *axes])
        flat = self.op("Reshape", moved, self.ints(*[0] * len(left), -1))
        first = self.cut(flat, [0], [1], axes=[len(left)])
        shape = self.op("Shape", self.op("Squeeze", first, self.ints(len(left))))
        zero = self.op("ConstantOfShape", shape)

        def of_block(body: Body) -> str:
            axis = numpy_helper.from_array(np.array([-1], np.int64))
            return body.op("ReduceSum", *body.slices, body.op("Constant", value=axis), keepdims=0)

        total = self.running_sum([(self.blocks(flat, len(left) + 1), len(left))], zero, of_block)
        return self.op("Unsqueeze", total, self.ints(*axes)) if keep else total


def _tensor(name: str) -> onnx.ValueInfoProto:
    """A value of float32 of any shape."""
    return helper.make_tensor_value_info(name, _FLOAT, None)


# --- operators ------------------------------------------------------------------------------------


def _matmul(writer: SumWriter, node: NodeProto) -> str | None:
    a, b = node.input
    ranks = writer.rank(a), writer.rank(b)
    return writer.product(a, b, ranks) if min(ranks) >= 2 else None


def _gemm(writer: SumWriter, node: NodeProto) -> str | None:
    a, b = (
        writer.swapped(name, 2) if attribute_of(node, flag, 0) else name
        for name, flag in zip(node.input[:2], ("transA", "transB"), strict=True)
    )
    result = writer.product(a, b, (2, 2))
    if (alpha := attribute_of(node, "alpha", 1.0)) != 1:
        result = writer.op("Mul", result, writer.number(alpha))
    if len(node.input) > 2 and node.input[2]:
        more, beta = node.input[2], attribute_of(node, "beta", 1.0)
        more = writer.op("Mul", more, writer.number(beta)) if beta != 1 else more
        result = writer.op("Add", result, more)
    return result


def _conv(writer: SumWriter, node: NodeProto) -> str | None:
    """A product of the weights with the values under the kernel: channels vary fastest."""
    x, w = node.input[:2]
    weights, rank = writer.shapes[w], writer.rank(x)
    padding = attribute_of(node, "auto_pad", b"NOTSET")
    if None in weights or rank != len(weights) or padding not in (b"NOTSET", b"VALID"):
        return None
    outputs, channels, *kernel = (d or 0 for d in weights)
    spatial, groups = len(kernel), attribute_of(node, "group", 1)
    pads = attribute_of(node, "pads") if padding == b"NOTSET" else None
    windows = _windows(
        writer,
        x
        if not pads or not any(pads)
        else writer.op("Pad", x, writer.ints(0, 0, *pads[:spatial], 0, 0, *pads[spatial:])),
        kernel,
        attribute_of(node, "strides") or [1] * spatial,
        attribute_of(node, "dilations") or [1] * spatial,
    )
    flat = [writer.op("Reshape", v, writer.ints(0, groups, channels, -1)) for v in windows]
    columns = writer.op("Concat", *flat, axis=2) if len(flat) > 1 else flat[0]
    size, each = math.prod(kernel), outputs // groups
    parts = writer.op("Reshape", w, writer.ints(groups, each, channels, size))
    parts = writer.op("Transpose", parts, perm=[0, 1, 3, 2])
    matrix = writer.op("Reshape", parts, writer.ints(groups, each, channels * size))
    result = writer.product(matrix, columns, (3, 4))
    shape = writer.op("Shape", windows[0])
    batch = writer.cut(shape, [0], [1], axes=[0])
    places = writer.cut(shape, [2], [rank], axes=[0])
    whole = writer.op("Concat", batch, writer.ints(outputs), places, axis=0)
    result = writer.op("Reshape", result, whole)
    if len(node.input) > 2 and node.input[2]:
        bias = writer.op("Reshape", node.input[2], writer.ints(1, -1, *[1] * spatial))
        result = writer.op("Add", result, bias)
    return result


def _windows(
    writer: SumWriter,
    x: str,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[str]:
    """What each place of the kernel sees of ``x``."""
    axes = range(2, 2 + len(kernel))
    found = []
    for place in np.ndindex(*kernel):
        starts = [p * d for p, d in zip(place, dilations, strict=True)]
        ends = [
            s - (k - 1) * d or 2**31 - 1 for s, k, d in zip(starts, kernel, dilations, strict=True)
        ]
        found.append(writer.cut(x, starts, ends, axes=axes, steps=strides))
    return found


def _reduction(writer: SumWriter, node: NodeProto) -> str | None:
    axes = attribute_of(node, "axes")
    x, rank = node.input[0], writer.rank(node.input[0])
    if len(node.input) > 1 and node.input[1]:
        if (known := writer.integers.get(node.input[1])) is None:
            return None
        axes = known.reshape(-1).tolist()
    if not axes and attribute_of(node, "noop_with_empty_axes", 0):
        return None
    chosen = sorted({axis % rank for axis in axes or range(rank)}) if rank else []
    if not chosen:
        return None
    return _summed(writer, node, x, chosen, keep=bool(attribute_of(node, "keepdims", 1)))


def _pooled(writer: SumWriter, node: NodeProto) -> str | None:
    axes = range(2, writer.rank(node.input[0]))
    return _summed(writer, node, node.input[0], axes, keep=True) if axes else None


def _summed(writer: SumWriter, node: NodeProto, x: str, axes: Sequence[int], *, keep: bool) -> str:
    kind, rank = node.op_type, writer.rank(x)
    if kind in ("ReduceL2", "ReduceSumSquare"):
        x = writer.op("Mul", x, x)
    elif kind == "ReduceL1":
        x = writer.op("Abs", x)
    total = writer.over_axes(x, list(axes), rank, keep=keep)
    if kind == "ReduceL2":
        return writer.op("Sqrt", total)
    if kind in ("ReduceMean", "GlobalAveragePool"):
        sizes = writer.op("Gather", writer.op("Shape", x), writer.ints(*axes))
        count = writer.op("Cast", writer.op("ReduceProd", sizes, keepdims=0), to=_FLOAT)
        return writer.op("Div", total, count)
    return total


_WRITERS: Mapping[str, Callable[[SumWriter, NodeProto], str | None]] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "GlobalAveragePool": _pooled,
    **dict.fromkeys(_REDUCTIONS, _reduction),
}
