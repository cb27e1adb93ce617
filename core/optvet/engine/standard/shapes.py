"""Operands whose shape the ONNX standard fixes, and that no checker looks at.

A runtime that refuses a model in which such an operand has another shape is right.

Source: the descriptions of operators in ONNX's operator schemas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from optvet.engine.standard.call import REDUCING, CallOf, Shape, by_operator
from optvet.graph.functions import without_functions
from optvet.graph.walk import ONNX_DOMAIN, attribute_of, domain_of, nodes_of, opset_versions

ShapeCall = CallOf[Shape]
Wanted = Mapping[int, Shape | None]
"""The shape that the operand at a place must have; None where anything goes."""


@dataclass(frozen=True)
class _Rank:
    """Operators whose operand at a place has one of a few numbers of dimensions."""

    words: str
    ranks: Sequence[int]
    place: int
    operators: str


@dataclass(frozen=True)
class _Fixed:
    """Operators with operands whose shape follows from other operands and from attributes.

    Attributes:
        operators: Their names, in one text.
        wanted: Gives ``Wanted``, or something false; ``CallOf.arguments`` says of what.
        at: Places of the operands on which that depends; the first ones, unless they are given.
        broadcast: Whether the operand may also be broadcast to the shape.
    """

    operators: str
    wanted: Callable[..., Any]
    at: tuple[int, ...] = ()
    broadcast: bool = False


# --- numbers of dimensions ------------------------------------------------------------------------

_SCALAR, _VECTOR = "a scalar", "one dimension"
RANKS = (
    _Rank(_SCALAR, (0,), 0, "BlackmanWindow HammingWindow HannWindow MelWeightMatrix Range"),
    _Rank(
        _SCALAR,
        (0,),
        1,
        "Clip CumProd CumSum DFT Dropout MelWeightMatrix OneHot Range STFT SequenceAt "
        "SequenceErase Trilu",
    ),
    _Rank(_SCALAR, (0,), 2, "Clip ConvInteger DFT Dropout MelWeightMatrix Pad Range"),
    _Rank(_SCALAR, (0,), 3, "MelWeightMatrix STFT"),
    _Rank(_SCALAR, (0,), 4, "MelWeightMatrix"),
    _Rank(_VECTOR, (1,), 0, "ConstantOfShape"),
    _Rank(
        _VECTOR,
        (1,),
        1,
        "AffineGrid CenterCropPad Col2Im Compress Expand Pad Reshape Resize Slice Split Squeeze "
        f"Tile TopK Upsample {REDUCING}",
    ),
    _Rank(
        _VECTOR,
        (1,),
        2,
        "Col2Im NegativeLogLikelihoodLoss Resize STFT Slice SoftmaxCrossEntropyLoss",
    ),
    _Rank(_VECTOR, (1,), 3, "Pad Resize Slice"),
    _Rank(_VECTOR, (1,), 4, "Slice"),
    # The text asks for one dimension; the standard's own functions and tests have none.
    _Rank("one dimension at most", (0, 1), 1, "SplitToSequence Unsqueeze"),
    _Rank("one dimension at most", (0, 1), 2, "SequenceInsert"),
    _Rank("two dimensions", (2,), 0, "EyeLike Multinomial"),
    _Rank("three dimensions", (3,), 0, "Col2Im STFT"),
    _Rank(
        "a batch, channels and some dimension more",
        range(3, 99),
        0,
        "GlobalAveragePool GlobalLpPool GlobalMaxPool GroupNormalization InstanceNormalization LRN",
    ),
)


# --- shapes that follow from others ---------------------------------------------------------------


def heads_of(place: int) -> str:
    """The attribute of an Attention that says how many heads an operand has."""
    return f"{'kv' if place else 'q'}_num_heads"


def by_head(shape: Shape, heads: int) -> Shape | None:
    """The shape by batch, head, place and element; None if the heads do not divide it."""
    if len(shape) != 3:
        return shape if len(shape) == 4 else None
    if heads < 1 or shape[2] % heads:
        return None
    return (shape[0], heads, shape[1], shape[2] // heads)


def _convolution(weight: Shape, x: Shape | None = None, *, group: int = 1) -> Wanted:
    if not weight:
        return {}
    fits = x is not None and len(x) == len(weight) > 2 and group > 0
    return {1: (weight[0], x[1] // group, *weight[2:]) if x and fits else None, 2: weight[:1]}


def _transposed_convolution(weight: Shape, x: Shape | None = None, *, group: int = 1) -> Wanted:
    if len(weight) < 3:
        return {}
    fits = x is not None and len(x) == len(weight)
    return {1: (x[1], *weight[1:]) if x and fits else None, 2: (weight[1] * group,)}


def _integer_convolution(
    weight: Shape, x: Shape | None = None, zero: Shape | None = None, *, group: int = 1
) -> Wanted:
    wanted = _convolution(weight, x, group=group)
    # One zero point of the weights, or one for each of the outputs.
    return {1: wanted.get(1), 3: None if zero == () else wanted.get(2)}


def _deformed(
    weight: Shape,
    x: Shape | None = None,
    offset: Shape | None = None,
    *,
    group: int = 1,
    offset_group: int = 1,
) -> Wanted:
    if not weight:
        return {}
    wanted = {1: _convolution(weight, x, group=group)[1], 3: weight[:1]}
    if x is None or offset is None or not len(x) == len(offset) == len(weight):
        return wanted
    places = offset_group * math.prod(weight[2:])
    wanted[2] = (x[0], places * (len(x) - 2), *offset[2:])
    return {**wanted, 4: (x[0], places, *offset[2:])}


_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def _recurrence(
    call: ShapeCall,
    x: Shape,
    recurrent: Shape | None = None,
    *,
    hidden_size: int = 0,
    direction: str = "forward",
    layout: int = 0,
) -> Wanted:
    gates, ways = _GATES[call.node.op_type], 2 if direction == "bidirectional" else 1
    size = hidden_size or (recurrent[-1] if recurrent else 0)
    if len(x) != 3 or not size:
        return {}
    batch = x[0] if layout else x[1]
    # With a layout of 1 the batch comes first, in the data and in the states.
    state = (batch, ways, size) if layout else (ways, batch, size)
    of_all = {
        1: (ways, gates * size, x[2]),
        2: (ways, gates * size, size),
        3: (ways, 2 * gates * size),
        4: (batch,),
        5: state,
    }
    return {**of_all, 6: state, 7: (ways, 3 * size)} if call.node.op_type == "LSTM" else of_all


def _two_per_dimension(call: ShapeCall) -> Wanted:
    x, axes = call.operand(0), call.operand(3)
    if not axes and (x is None or _is_given(call, 3)):
        return {}
    return {1: (2 * (axes[0] if axes else len(x or ())),)}


def _is_given(call: ShapeCall, place: int) -> bool:
    """Whether there is an operand, also if its shape is unknown."""
    return place < len(call.operands) and call.node.input[place] != ""


def _scales_or_sizes(call: ShapeCall, x: Shape, *, axes: Any = None, opset: int) -> Wanted:
    if opset < 11:
        return {}
    count = len(axes or x)
    wanted = {1: (2 * count,), 2: (count,), 3: (count,)}
    # What is empty counts as omitted.
    return {place: each for place, each in wanted.items() if call.operand(place) != (0,)}


def _boxes(call: ShapeCall, boxes: Shape | None = None, scores: Shape | None = None) -> Wanted:
    wanted: dict[int, Shape] = {}
    if boxes is not None and len(boxes) == 3:
        wanted[0] = (*boxes[:2], 4)
        if scores is not None and len(scores) == 3:
            wanted[1] = (boxes[0], scores[1], boxes[1])
    # Kernels take one number in any shape.
    several = (p for p in (2, 3, 4) if math.prod(call.operand(p) or ()) != 1)
    return {**wanted, **dict.fromkeys(several, (1,))}


def _regions(call: ShapeCall, regions: Shape) -> Wanted:
    """The corners of each region, with the image that it is in or beside its number."""
    if not regions:
        return {}
    if call.node.op_type == "MaxRoiPool":
        return {1: (regions[0], 5)}
    return {1: (regions[0], 4), 2: regions[:1]}


def _scales(call: ShapeCall) -> Wanted:
    # A zero point for each scale; of the result there is one.
    first, second, result = (call.operand(place) for place in (1, 4, 6))
    several = result is not None and math.prod(result) != 1
    return {2: first, 5: second, 6: () if several else None, 7: result}


def _tables(
    call: ShapeCall, x: Shape, *, num_heads: int = 1, rotary_embedding_dim: int = 0
) -> Wanted:
    """Half as many sines and cosines as are rotated: for each position, or for each token."""
    if len(x) not in (3, 4):
        return {}
    batch, steps = x[0], x[-2]
    heads = num_heads if len(x) == 3 else 1
    half = (rotary_embedding_dim or x[-1] // max(1, heads)) // 2
    wanted: dict[int, Shape] = {}
    for place in (1, 2):
        table = call.operand(place)
        if table is not None:
            of_positions = (table[0] if table else 1, half)
            wanted[place] = of_positions if _is_given(call, 3) else (batch, steps, half)
    return {**wanted, 3: (batch, steps)}


def _zero_points(call: ShapeCall) -> Wanted:
    """One for all, or one for each row of the first matrix and each column of the second."""
    wanted = {}
    for place, kept in ((2, -2), (3, -1)):
        matrix, given = call.operand(place - 2), call.operand(place)
        if given is None or matrix is None or len(matrix) < 2:
            continue
        # Of matrices in a batch, zero points have a dimension of 1, by which they are broadcast.
        each = (*matrix[:-2], matrix[-2], 1) if kept == -2 else (*matrix[:-2], 1, matrix[-1])
        if given != matrix[kept:][:1] and not _fits(given, each):
            wanted[place] = matrix[kept:][:1]
    return wanted


def _letters(call: ShapeCall, *, equation: str = "") -> Wanted:
    """One size for each letter; what is to be broadcast is written as an ellipsis."""
    sizes: dict[str, int] = {}
    wanted = {}
    for place, term in enumerate(equation.replace(" ", "").partition("->")[0].split(",")):
        shape = call.operand(place)
        if shape is not None and len(term) == len(shape) and "." not in term:
            wanted[place] = tuple(map(sizes.setdefault, term, shape))
    return wanted


def _grid(x: Shape, grid: Shape) -> Wanted:
    """For each place of the result, where it is in the image."""
    if len(x) < 3:
        return {}
    return {1: (x[0], *(grid[1:-1] if len(grid) == len(x) else x[2:]), len(x) - 2)}


def _joined(call: ShapeCall, first: Shape, *, axis: int = 1) -> Wanted:
    shapes = enumerate(call.operands) if first else ()
    return {place: _apart_from(axis, first, s) for place, s in shapes if s is not None}


def _apart_from(axis: int, shape: Shape, own: Shape) -> Shape:
    """``shape`` with the size of ``own`` along the axis."""
    if len(own) != len(shape) or not -len(shape) <= axis < len(shape):
        return shape
    axis %= len(shape)
    return (*shape[:axis], own[axis], *shape[axis + 1 :])


def _updates(past: Shape, update: Shape, *, axis: int = -2) -> Wanted:
    if not past or not -len(past) <= axis < len(past):
        return {}
    alike = len(update) == len(past)
    return {1: _apart_from(axis, past, update) if alike else None, 2: past[:1]}


def _attention(call: ShapeCall, *, opset: int) -> Wanted:
    """A past for each head of keys, and a mask whose end may be missing."""
    query, key, value = (_by_head(call, place) for place in range(3))
    if query is None or key is None or value is None:
        return {}
    past, mask = call.operand(4), call.operand(3)
    # How long a past of unknown shape is, is unknown too, and so is the mask's width.
    if past is None and _is_given(call, 4):
        return {6: query[:1]}
    steps = past[2] if past is not None and len(past) == 4 else 0
    whole = (*query[:3], steps + key[2])
    # Since operator set 24, a mask that ends early masks the rest.
    if mask and opset >= 24 and mask[-1] < whole[-1]:
        mask = (*mask[:-1], whole[-1])
    return {
        6: query[:1],
        4: (*key[:2], steps, key[3]),
        5: (*key[:2], steps, value[3]),
        3: whole if mask is not None and not _fits(mask, whole) else None,
    }


def _by_head(call: ShapeCall, place: int) -> Shape | None:
    shape = call.operand(place)
    return None if shape is None else by_head(shape, call.attribute(heads_of(place), 0))


def _linear_attention(
    call: ShapeCall, key: Shape, value: Shape, *, q_num_heads: int = 0, kv_num_heads: int = 0
) -> Wanted:
    """A state for each head of keys; gates by head or finer."""
    if len(key) != 3 or len(value) != 3 or kv_num_heads < 1:
        return {}
    (batch, steps, width), heads = key, kv_num_heads
    wanted = {
        0: (batch, steps, q_num_heads * (width // heads)),
        2: (batch, steps, value[2]),
        3: (batch, heads, width // heads, value[2] // heads),
    }
    for place, finer in ((4, width), (5, 1)):
        if call.operand(place) != (batch, steps, finer):
            wanted[place] = (batch, steps, heads)
    return wanted


def _product(a: Shape, b: Shape, *, transA: int = 0, transB: int = 0, opset: int) -> Wanted:
    if len(a) != 2 or len(b) != 2 or opset < 7:
        return {}
    return {2: (a[bool(transA)], b[not transB])}


FIXED = (
    _Fixed(
        "AffineGrid",
        lambda m, size: m and size in ((4,), (5,)) and {0: (m[0], size[0] - 2, size[0] - 1)},
    ),
    _Fixed("Attention", _attention),
    # One number per channel; a batch of numbers has one channel.
    _Fixed(
        "BatchNormalization InstanceNormalization",
        lambda x: x and dict.fromkeys((1, 2, 3, 4), (x[1] if len(x) > 1 else 1,)),
    ),
    _Fixed(
        "CausalConvWithState",
        lambda x, weight: (
            weight
            and len(x) == len(weight) == 3
            and {1: (x[1], 1, weight[2]), 2: x[1:2], 3: (*x[:2], weight[2] - 1)}
        ),
    ),
    _Fixed("CenterCropPad", lambda x, *, axes=None: {1: (len(axes or x),)}),
    _Fixed("Concat", _joined),
    _Fixed("Conv", _convolution, at=(1, 0)),
    _Fixed("ConvInteger", _integer_convolution, at=(1, 0, 3)),
    _Fixed("ConvTranspose", _transposed_convolution, at=(1, 0)),
    _Fixed("DeformConv", _deformed, at=(1, 0, 2)),
    _Fixed("DequantizeLinear QuantizeLinear", lambda scale: {2: scale}, at=(1,)),
    _Fixed("Einsum", _letters),
    _Fixed("GRU LSTM RNN", _recurrence, at=(0, 2)),
    _Fixed("GridSample", _grid),
    _Fixed(
        "GroupNormalization",
        lambda x, *, num_groups=1, opset: (
            len(x) > 1 and dict.fromkeys((1, 2), (x[1] if opset >= 21 else num_groups,))
        ),
    ),
    _Fixed("LinearAttention", _linear_attention, at=(1, 2)),
    _Fixed("MatMulInteger", _zero_points),
    # Before operator set 8 they are not broadcast.
    _Fixed(
        "Max Mean Min Sum",
        lambda call, x, *, opset: opset < 8 and dict.fromkeys(range(1, len(call.operands)), x),
    ),
    _Fixed("MaxRoiPool RoiAlign", _regions, at=(1,)),
    _Fixed("MaxUnpool SwiGLU", lambda x: {1: x}),
    _Fixed(
        "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
        lambda x: len(x) > 1 and {1: (*x[:1], *x[2:]), 2: x[1:2]},
    ),
    _Fixed("NonMaxSuppression", _boxes),
    _Fixed("OneHot", lambda: {2: (2,)}),
    _Fixed("Pad", _two_per_dimension),
    _Fixed("QLinearConv QLinearMatMul", _scales),
    _Fixed("Resize", _scales_or_sizes),
    _Fixed(
        "ReverseSequence", lambda x, *, batch_axis=1: batch_axis < len(x) and {1: (x[batch_axis],)}
    ),
    _Fixed("RotaryEmbedding", _tables),
    _Fixed("ScatterElements", lambda indices: {2: indices}, at=(1,)),
    _Fixed(
        "ScatterND",
        lambda data, indices: (
            indices and indices[-1] <= len(data) and {2: (*indices[:-1], *data[indices[-1] :])}
        ),
    ),
    _Fixed("Slice", lambda starts: dict.fromkeys((2, 3, 4), starts), at=(1,)),
    _Fixed("TensorScatter", _updates),
    _Fixed("Tile Upsample", lambda x: {1: (len(x),)}),
    _Fixed("TopK", lambda *, opset: opset >= 10 and {1: (1,)}),
    _Fixed("Gemm", _product, broadcast=True),
    # Models of runtimes have this operator also in older sets, of which the standard says nothing.
    _Fixed("LayerNormalization", lambda x, *, opset: opset >= 17 and {1: x, 2: x}, broadcast=True),
    _Fixed("PRelu", lambda x, *, opset: opset >= 7 and {1: x}, broadcast=True),
    _Fixed("RMSNormalization", lambda x, *, opset: opset >= 23 and {1: x}, broadcast=True),
)


_RANKS_OF, _FIXED_OF = by_operator(RANKS), by_operator(FIXED)


def describe_wrong_shape(
    model: ModelProto,
    feeds: Mapping[str, np.ndarray],
    inner: Mapping[str, np.ndarray] | None = None,
) -> str:
    """The first operand of another shape than the standard allows, in words; empty if none is.

    Only shapes of inputs, weights, constants and the values that are given are known.

    Args:
        model: Any model.
        feeds: Its inputs.
        inner: Values inside of the graph, as far as they were recorded.

    >>> import onnx.parser
    >>> text = '<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) {'
    >>> model = onnx.parser.parse_model(text + 'y = Clip(x, x)}')
    >>> describe_wrong_shape(model, {"x": np.ones(2, np.float32)})
    "Clip 'y': the standard wants a scalar as input 1, which has the shape [2]"
    """
    model = without_functions(model)
    shapes = {name: value.shape for name, value in {**(inner or {}), **feeds}.items()}
    shapes |= {t.name: tuple(t.dims) for t in model.graph.initializer}
    for node in nodes_of(model.graph):
        if node.op_type == "Constant" and node.output:
            value = attribute_of(node, "value")
            if isinstance(value, TensorProto):
                shapes[node.output[0]] = tuple(value.dims)
    opset = opset_versions(model).get(ONNX_DOMAIN, 1)
    for node in nodes_of(model.graph):
        if domain_of(node) == ONNX_DOMAIN:
            call = ShapeCall(node, [shapes.get(name) for name in node.input], (), opset)
            for place, wanted in _contradictions(call):
                label = node.name or next(iter(node.output), "")
                return (
                    f"{node.op_type} {label!r}: the standard wants {wanted} as input {place}, "
                    f"which has the shape {list(call.operand(place) or ())}"
                )
    return ""


def _contradictions(call: ShapeCall) -> Iterator[tuple[int, str]]:
    """Places of operands that have another shape than they must, with what is wanted."""
    for rank in _RANKS_OF.get(call.node.op_type, ()):
        shape = call.operand(rank.place)
        if shape is not None and len(shape) not in rank.ranks:
            yield rank.place, rank.words
    for row in _FIXED_OF.get(call.node.op_type, ()):
        given = call.arguments(row.wanted, row.at)
        wanted: Wanted = (given is not None and row.wanted(**given)) or {}
        for place, into in wanted.items():
            shape = call.operand(place)
            if shape is None or into is None or shape == into:
                continue
            if not row.broadcast:
                yield place, f"the shape {list(into)}"
            elif not _fits(shape, into):
                yield place, f"what can be broadcast to {list(into)}"


def _fits(shape: Shape, into: Shape) -> bool:
    """Whether ``shape`` is broadcast to ``into`` without changing that."""
    ends = zip(reversed(shape), reversed(into), strict=False)
    return len(shape) <= len(into) and all(size in (1, wide) for size, wide in ends)
