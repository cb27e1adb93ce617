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
from onnx import ModelProto, NodeProto, TensorProto

from optvet.graph.functions import without_functions
from optvet.graph.walk import ONNX_DOMAIN, attribute_of, domain_of, nodes_of, opset_versions

Shape = tuple[int, ...]
_SCALARS: Mapping[str, Sequence[int]] = {
    "BlackmanWindow": (0,),
    "Clip": (1, 2),
    "ConvInteger": (2,),
    "CumProd": (1,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "Dropout": (1, 2),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "OneHot": (1,),
    "Pad": (2,),
    "Range": (0, 1, 2),
    "STFT": (1, 3),
    "SequenceAt": (1,),
    "SequenceErase": (1,),
    "Trilu": (1,),
}
"""Places of operands of one element and no dimension."""
_REDUCTIONS = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare"
_VECTORS: Mapping[str, Sequence[int]] = {
    "AffineGrid": (1,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "Compress": (1,),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "NegativeLogLikelihoodLoss": (2,),
    "Pad": (1, 3),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "STFT": (2,),
    "SoftmaxCrossEntropyLoss": (2,),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Upsample": (1,),
    **{f"Reduce{name}": (1,) for name in _REDUCTIONS.split()},
}
"""Places of operands of one dimension."""
_AT_MOST_VECTORS: Mapping[str, Sequence[int]] = {
    "SequenceInsert": (2,),
    "SplitToSequence": (1,),
    "Unsqueeze": (1,),
}
"""Places of operands of one dimension or none, also if the text asks for one, and the standard's
own functions and tests have none."""
_MATRICES: Mapping[str, Sequence[int]] = {"EyeLike": (0,), "Multinomial": (0,)}
_OF_THREE: Mapping[str, Sequence[int]] = {"Col2Im": (0,), "STFT": (0,)}
_RANKS = (
    (_SCALARS, (0,), "a scalar"),
    (_VECTORS, (1,), "one dimension"),
    (_AT_MOST_VECTORS, (0, 1), "one dimension at most"),
    (_MATRICES, (2,), "two dimensions"),
    (_OF_THREE, (3,), "three dimensions"),
)
_IMAGES = frozenset(
    """
    GlobalAveragePool GlobalLpPool GlobalMaxPool GroupNormalization InstanceNormalization LRN
    """.split()
)
"""Operators of what has a batch, channels, and at least one dimension more."""


@dataclass(frozen=True)
class _Operands:
    """The shapes of a node's operands, as far as they are known."""

    node: NodeProto
    shapes: Sequence[Shape | None]
    opset: int

    def shape(self, place: int) -> Shape | None:
        return self.shapes[place] if place < len(self.shapes) else None

    def is_given(self, place: int) -> bool:
        return place < len(self.shapes) and self.node.input[place] != ""

    def attribute(self, name: str, default: Any = None) -> Any:
        return attribute_of(self.node, name, default)


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


Wanted = Iterator[tuple[int, Shape]]
"""Places of operands, with the shape that each must have."""


def _channels(of: _Operands) -> Wanted:
    """One number per channel; a batch of numbers has one channel."""
    x = of.shape(0)
    if x:
        channels = x[1] if len(x) > 1 else 1
        yield from ((place, (channels,)) for place in (1, 2, 3, 4))


def _groups(of: _Operands) -> Wanted:
    x, groups = of.shape(0), of.attribute("num_groups", 1)
    if x is not None and len(x) > 1:
        yield from ((place, (x[1] if of.opset >= 21 else groups,)) for place in (1, 2))


def _convolution(of: _Operands) -> Wanted:
    x, weight, group = of.shape(0), of.shape(1), of.attribute("group", 1)
    if weight and x is not None and len(x) == len(weight) > 2 and group > 0:
        yield 1, (weight[0], x[1] // group, *weight[2:])
    if weight:
        yield 2, weight[:1]


def _transposed_convolution(of: _Operands) -> Wanted:
    x, weight, group = of.shape(0), of.shape(1), of.attribute("group", 1)
    if weight and x is not None and len(x) == len(weight) > 2:
        yield 1, (x[1], *weight[1:])
    if weight and len(weight) > 2:
        yield 2, (weight[1] * group,)


_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def _recurrence(of: _Operands) -> Wanted:
    x, recurrent, gates = of.shape(0), of.shape(2), _GATES[of.node.op_type]
    size = of.attribute("hidden_size") or (recurrent[-1] if recurrent else 0)
    if x is None or len(x) != 3 or not size:
        return
    ways = 2 if of.attribute("direction", b"forward") in (b"bidirectional", "bidirectional") else 1
    batch = x[0] if of.attribute("layout", 0) else x[1]
    state = (batch, ways, size) if of.attribute("layout", 0) else (ways, batch, size)
    yield 1, (ways, gates * size, x[2])
    yield 2, (ways, gates * size, size)
    yield 3, (ways, 2 * gates * size)
    yield 4, (batch,)
    yield 5, state
    if of.node.op_type == "LSTM":
        yield 6, state
        yield 7, (ways, 3 * size)


def _as_the_indices(of: _Operands) -> Wanted:
    indices = of.shape(1)
    if indices is not None:
        yield 2, indices


def _as_the_data(of: _Operands) -> Wanted:
    data = of.shape(0)
    if data is not None:
        yield 1, data


def _slices_by_indices(of: _Operands) -> Wanted:
    data, indices = of.shape(0), of.shape(1)
    if data is not None and indices and indices[-1] <= len(data):
        yield 2, (*indices[:-1], *data[indices[-1] :])


def _all_alike(of: _Operands) -> Wanted:
    """Before operator set 8 they are not broadcast."""
    first = of.shape(0)
    if first is not None and of.opset < 8:
        yield from ((place, first) for place in range(1, len(of.shapes)))


def _lengths(of: _Operands) -> Wanted:
    x, axis = of.shape(0), of.attribute("batch_axis", 1)
    if x is not None and axis < len(x):
        yield 1, (x[axis],)


def _as_the_starts(of: _Operands) -> Wanted:
    starts = of.shape(1)
    if starts is not None:
        yield from ((place, starts) for place in (2, 3, 4))


def _one_per_dimension(of: _Operands) -> Wanted:
    x = of.shape(0)
    if x is not None:
        yield 1, (len(x),)


def _two_per_dimension(of: _Operands) -> Wanted:
    x, axes = of.shape(0), of.shape(3)
    given = of.is_given(3)
    if axes or (x is not None and not given):
        yield 1, (2 * (axes[0] if axes else len(x or ())),)


def _scales_or_sizes(of: _Operands) -> Wanted:
    """What is empty counts as omitted."""
    x, axes = of.shape(0), of.attribute("axes")
    if x is None or of.opset < 11:
        return
    count = len(axes or x)
    for place, wanted in ((1, 2 * count), (2, count), (3, count)):
        if of.shape(place) != (0,):
            yield place, (wanted,)


def _classes(of: _Operands) -> Wanted:
    x = of.shape(0)
    if x is not None and len(x) > 1:
        yield 1, (*x[:1], *x[2:])
        yield 2, x[1:2]


def _boxes(of: _Operands) -> Wanted:
    boxes, scores = of.shape(0), of.shape(1)
    if boxes is not None and len(boxes) == 3:
        yield 0, (*boxes[:2], 4)
        if scores is not None and len(scores) == 3:
            yield 1, (boxes[0], scores[1], boxes[1])
    for place in (2, 3, 4):
        if math.prod(of.shape(place) or ()) != 1:
            yield place, (1,)


def _regions(of: _Operands) -> Wanted:
    """The corners of each region, with the image that it is in or beside its number."""
    regions = of.shape(1)
    if regions:
        yield 1, (regions[0], 4 if of.node.op_type == "RoiAlign" else 5)
        if of.node.op_type == "RoiAlign":
            yield 2, regions[:1]


def _one_number(of: _Operands) -> Wanted:
    if of.opset >= 10:
        yield 1, (1,)


def _off_and_on(of: _Operands) -> Wanted:
    yield 2, (2,)


def _as_the_scale(of: _Operands) -> Wanted:
    scale = of.shape(1)
    if scale is not None:
        yield 2, scale


def _as_each_scale(of: _Operands) -> Wanted:
    """A zero point for each scale; of the result there is one."""
    for place in (1, 4, 6):
        scale = of.shape(place)
        if place == 6 and scale is not None and math.prod(scale) != 1:
            yield place, ()
        if scale is not None:
            yield place + 1, scale


def _tables(of: _Operands) -> Wanted:
    """Half as many sines and cosines as are rotated: for each position, or for each token."""
    x, ids = of.shape(0), of.shape(3)
    by_position = of.is_given(3)
    if x is None or len(x) not in (3, 4):
        return
    batch, steps = x[0], x[-2]
    heads = of.attribute("num_heads", 1) if len(x) == 3 else 1
    half = (of.attribute("rotary_embedding_dim", 0) or x[-1] // max(1, heads)) // 2
    for place in (1, 2):
        table = of.shape(place)
        if table is not None:
            yield place, (table[0] if table else 1, half) if by_position else (batch, steps, half)
    if ids is not None:
        yield 3, (batch, steps)


def _zero_points(of: _Operands) -> Wanted:
    """One for all, or one for each row of the first matrix and each column of the second."""
    for place, kept in ((2, -2), (3, -1)):
        matrix, given = of.shape(place - 2), of.shape(place)
        if given is None or matrix is None or len(matrix) < 2:
            continue
        each = (*matrix[:-2], matrix[-2], 1) if kept == -2 else (*matrix[:-2], 1, matrix[-1])
        if given != matrix[kept:][:1] and not _fits(given, each):
            yield place, matrix[kept:][:1]


def _letters(of: _Operands) -> Wanted:
    """One size for each letter; what is to be broadcast is written as an ellipsis."""
    equation = of.attribute("equation", b"")
    text = equation.decode() if isinstance(equation, bytes) else equation
    sizes: dict[str, int] = {}
    for place, term in enumerate(text.replace(" ", "").partition("->")[0].split(",")):
        shape = of.shape(place)
        if shape is not None and len(term) == len(shape) and "." not in term:
            yield place, tuple(map(sizes.setdefault, term, shape))


def _affine(of: _Operands) -> Wanted:
    """A matrix with an offset for each image."""
    matrices, size = of.shape(0), of.shape(1)
    if matrices and size in ((4,), (5,)):
        yield 0, (matrices[0], size[0] - 2, size[0] - 1)


def _one_per_axis(of: _Operands) -> Wanted:
    x, axes = of.shape(0), of.attribute("axes")
    if x is not None:
        yield 1, (len(axes or x),)


def _integer_convolution(of: _Operands) -> Wanted:
    """One zero point of the weights, or one for each of the outputs."""
    for place, wanted in _convolution(of):
        if place == 1:
            yield place, wanted
        elif of.shape(3) != ():
            yield 3, wanted


def _deformed(of: _Operands) -> Wanted:
    x, weight, offset = of.shape(0), of.shape(1), of.shape(2)
    yield from (each for each in _convolution(of) if each[0] == 1)
    if weight:
        yield 3, weight[:1]
    if x is None or not weight or offset is None or not len(x) == len(offset) == len(weight):
        return
    places = of.attribute("offset_group", 1) * math.prod(weight[2:])
    yield 2, (x[0], places * (len(x) - 2), *offset[2:])
    yield 4, (x[0], places, *offset[2:])


def _grid(of: _Operands) -> Wanted:
    """For each place of the result, where it is in the image."""
    x, grid = of.shape(0), of.shape(1)
    if x is not None and grid is not None and len(x) > 2:
        yield 1, (x[0], *(grid[1:-1] if len(grid) == len(x) else x[2:]), len(x) - 2)


def _joined(of: _Operands) -> Wanted:
    first, axis = of.shape(0), of.attribute("axis", 1)
    for place, shape in enumerate(of.shapes):
        if first and shape is not None:
            yield place, _apart_from(axis, first, shape)


def _apart_from(axis: int, shape: Shape, own: Shape) -> Shape:
    """``shape`` with the size of ``own`` along the axis."""
    if len(own) != len(shape) or not -len(shape) <= axis < len(shape):
        return shape
    axis %= len(shape)
    return (*shape[:axis], own[axis], *shape[axis + 1 :])


def _updates(of: _Operands) -> Wanted:
    past, update, axis = of.shape(0), of.shape(1), of.attribute("axis", -2)
    if past and update is not None and -len(past) <= axis < len(past):
        if len(update) == len(past):
            yield 1, _apart_from(axis, past, update)
        yield 2, past[:1]


def _attention(of: _Operands) -> Wanted:
    """A past for each head of keys, and a mask whose end may be missing."""
    query, key, value = (_by_head(of, place) for place in range(3))
    if query is None or key is None or value is None:
        return
    yield 6, query[:1]
    past = of.shape(4)
    if past is None and of.is_given(4):
        return
    steps = past[2] if past is not None and len(past) == 4 else 0
    yield 4, (*key[:2], steps, key[3])
    yield 5, (*key[:2], steps, value[3])
    mask, total = of.shape(3), steps + key[2]
    whole = (*query[:3], total)
    if mask and of.opset >= 24 and mask[-1] < total:
        mask = (*mask[:-1], total)
    if mask is not None and not _fits(mask, whole):
        yield 3, whole


def _by_head(of: _Operands, place: int) -> Shape | None:
    shape = of.shape(place)
    return None if shape is None else by_head(shape, of.attribute(heads_of(place), 0))


def _linear_attention(of: _Operands) -> Wanted:
    """A state for each head of keys; gates by head or finer."""
    key, value, heads = of.shape(1), of.shape(2), of.attribute("kv_num_heads", 0)
    if key is None or value is None or len(key) != 3 or len(value) != 3 or heads < 1:
        return
    batch, steps, width = key
    yield 0, (batch, steps, of.attribute("q_num_heads", 0) * (width // heads))
    yield 2, (batch, steps, value[2])
    yield 3, (batch, heads, width // heads, value[2] // heads)
    for place, finer in ((4, width), (5, 1)):
        if of.shape(place) != (batch, steps, finer):
            yield place, (batch, steps, heads)


def _causal_convolution(of: _Operands) -> Wanted:
    x, weight = of.shape(0), of.shape(1)
    if x is not None and weight and len(x) == len(weight) == 3:
        yield 1, (x[1], 1, weight[2])
        yield 2, x[1:2]
        yield 3, (*x[:2], weight[2] - 1)


_WANTED: Mapping[str, Callable[[_Operands], Wanted]] = {
    "AffineGrid": _affine,
    "Attention": _attention,
    "BatchNormalization": _channels,
    "CausalConvWithState": _causal_convolution,
    "CenterCropPad": _one_per_axis,
    "Concat": _joined,
    "Conv": _convolution,
    "ConvInteger": _integer_convolution,
    "ConvTranspose": _transposed_convolution,
    "DeformConv": _deformed,
    "DequantizeLinear": _as_the_scale,
    "Einsum": _letters,
    "GRU": _recurrence,
    "GridSample": _grid,
    "GroupNormalization": _groups,
    "InstanceNormalization": _channels,
    "LSTM": _recurrence,
    "LinearAttention": _linear_attention,
    "MatMulInteger": _zero_points,
    "Max": _all_alike,
    "MaxRoiPool": _regions,
    "MaxUnpool": _as_the_data,
    "Mean": _all_alike,
    "Min": _all_alike,
    "NegativeLogLikelihoodLoss": _classes,
    "NonMaxSuppression": _boxes,
    "OneHot": _off_and_on,
    "Pad": _two_per_dimension,
    "QLinearConv": _as_each_scale,
    "QLinearMatMul": _as_each_scale,
    "QuantizeLinear": _as_the_scale,
    "RNN": _recurrence,
    "Resize": _scales_or_sizes,
    "ReverseSequence": _lengths,
    "RoiAlign": _regions,
    "RotaryEmbedding": _tables,
    "ScatterElements": _as_the_indices,
    "ScatterND": _slices_by_indices,
    "Slice": _as_the_starts,
    "SoftmaxCrossEntropyLoss": _classes,
    "Sum": _all_alike,
    "SwiGLU": _as_the_data,
    "TensorScatter": _updates,
    "Tile": _one_per_dimension,
    "TopK": _one_number,
    "Upsample": _one_per_dimension,
}
"""What the shapes of other operands, and attributes, say of an operand's shape."""


def _as_x(of: _Operands) -> Shape | None:
    return of.shape(0)


def _product(of: _Operands) -> Shape | None:
    a, b = of.shape(0), of.shape(1)
    if a is None or b is None or len(a) != 2 or len(b) != 2:
        return None
    return (a[bool(of.attribute("transA", 0))], b[not of.attribute("transB", 0)])


_BROADCAST: Mapping[str, tuple[Sequence[int], int, Callable[[_Operands], Shape | None]]] = {
    "Gemm": ((2,), 7, _product),
    "LayerNormalization": ((1, 2), 17, _as_x),
    "PRelu": ((1,), 7, _as_x),
    "RMSNormalization": ((1,), 23, _as_x),
}
"""Places of operands that are broadcast to a shape, the operator set since when, and the shape."""


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
            operands = _Operands(node, [shapes.get(name) for name in node.input], opset)
            for place, wanted in _contradictions(operands):
                label = node.name or next(iter(node.output), "")
                return (
                    f"{node.op_type} {label!r}: the standard wants {wanted} as input {place}, "
                    f"which has the shape {list(operands.shape(place) or ())}"
                )
    return ""


def _contradictions(of: _Operands) -> Iterator[tuple[int, str]]:
    """Places of operands that have another shape than they must, with what is wanted."""
    operator = of.node.op_type
    for places_of, ranks, kind in _RANKS:
        for place in places_of.get(operator, ()):
            shape = of.shape(place)
            if shape is not None and len(shape) not in ranks:
                yield place, kind
    image = of.shape(0)
    if operator in _IMAGES and image is not None and len(image) < 3:
        yield 0, "a batch, channels and some dimension more"
    if operator in _WANTED:
        for place, wanted in _WANTED[operator](of):
            if of.shape(place) not in (None, wanted):
                yield place, f"the shape {list(wanted)}"
    if operator in _BROADCAST:
        places, since, broadcast_to = _BROADCAST[operator]
        into = broadcast_to(of) if of.opset >= since else None
        for place in places:
            shape = of.shape(place)
            if shape is not None and into is not None and not _fits(shape, into):
                yield place, f"what can be broadcast to {list(into)}"


def _fits(shape: Shape, into: Shape) -> bool:
    """Whether ``shape`` is broadcast to ``into`` without changing that."""
    ends = zip(reversed(shape), reversed(into), strict=False)
    return len(shape) <= len(into) and all(size in (1, wide) for size, wide in ends)
