"""Rules about sizes, padding, blocks of data and heads of attention."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from optvet.engine.standard.call import Array, OperatorCall, list_items, repeats_an_axis
from optvet.engine.standard.rule import RuleTable
from optvet.engine.standard.shapes import by_head, heads_of

rule = RuleTable()
"""The rules of this module, in the order in which they are told."""


_SMALLEST: Mapping[str, tuple[int, int]] = {
    "BlackmanWindow": (0, 0),
    "CenterCropPad": (1, 0),
    "ConstantOfShape": (0, 0),
    "Expand": (1, 0),
    "HammingWindow": (0, 0),
    "HannWindow": (0, 0),
    "Reshape": (1, -1),
    "Resize": (3, 1),
    "Split": (1, 0),
    "Tile": (1, 0),
}
"""Places of operands that are sizes, and the smallest: -1 is the rest, no size is scaled to 0."""


@rule(" ".join(_SMALLEST))
def _size(call: OperatorCall) -> str:
    place, least = _SMALLEST[call.node.op_type]
    value = call.operand(place)
    if value is None or value.dtype.kind != "i" or bool(np.all(value >= least)):
        return ""
    return f"a size of {value.min()}"


@rule("SplitToSequence", at=(1,))
def _sizes_of_parts(parts: Array) -> object:
    # One number is the size of all parts. Of a list, some may be empty.
    return parts.size and parts.min() < (parts.ndim == 0) and f"parts of the size {parts.min()}"


@rule("Split")
def _number_of_parts(call: OperatorCall, *, num_outputs: int | None = None) -> str:
    node = call.node
    if num_outputs is None:
        return ""
    if any(node.input[1:]):
        return "both the sizes of the parts and their number are given"
    fits = num_outputs == len(node.output)
    return "" if fits else f"{num_outputs} parts for {len(node.output)} outputs"


@rule("CenterCropPad MeanVarianceNormalization Pad")
def _axes_listed_once(call: OperatorCall) -> str:
    given = call.operand(3) if call.node.op_type == "Pad" else None
    axes = list_items(call.attribute("axes")) if given is None else given.ravel().tolist()
    return repeats_an_axis(axes, call.operand(0))


# --- padding --------------------------------------------------------------------------------------


@rule("Pad")
def _removed(call: OperatorCall, *, mode: str = "constant") -> str:
    for size, begin, end in _padded(call):
        left = min(begin, 0) + min(end, 0) + size
        if left < 0:
            return f"{-min(begin, 0) - min(end, 0)} elements less of an axis of {size}"
        # What is added is a copy of what is left, but for constants.
        if not left and max(begin, end) > 0 and mode != "constant":
            return "no elements to pad with"
    return ""


@rule("Pad", "a reflection that is longer than the data", agreed=True)
def _long_reflection(call: OperatorCall, *, mode: str = "constant") -> bool:
    # numpy goes on with the reflection, and the text is silent.
    long = (max(begin, end) >= size for size, begin, end in _padded(call))
    return mode == "reflect" and any(long)


@rule("Pad", "an axis with elements removed and others repeated", agreed=True)
def _repeated_or_removed(call: OperatorCall, *, mode: str = "constant") -> bool:
    # One end of an axis removed and the other repeated: the text gives no order.
    both = (min(begin, end) < 0 < max(begin, end) for _, begin, end in _padded(call))
    return mode in ("reflect", "wrap") and any(both)


def _padded(call: OperatorCall) -> list[tuple[int, int, int]]:
    """Of each axis that is padded its size, and what is added at its beginning and end."""
    data, given, axes = call.operand(0), call.operand(1), call.operand(3)
    pads = call.attribute("pads") if given is None else given.ravel().tolist()
    if data is None or not pads or len(pads) % 2:
        return []
    half = len(pads) // 2
    named = range(data.ndim) if axes is None else axes.ravel().tolist()
    sizes = [data.shape[n] for n in named if -data.ndim <= n < data.ndim]
    return list(zip(sizes, pads[:half], pads[half:], strict=False))


# --- blocks ---------------------------------------------------------------------------------------


@rule("DepthToSpace SpaceToDepth")
def _blocks(call: OperatorCall, data: Array, *, blocksize: int = 0) -> str:
    if data.ndim != 4 or blocksize < 1:
        return ""
    if call.node.op_type == "DepthToSpace":
        fits = not data.shape[1] % blocksize**2
    else:
        fits = not any(n % blocksize for n in data.shape[2:])
    return "" if fits else f"blocks of {blocksize} in data of the shape {list(data.shape)}"


@rule("Col2Im")
def _columns(
    data: Array,
    image: Array,
    block: Array,
    *,
    strides: list[int] | None = None,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
) -> str:
    if data.ndim != 3:
        return ""
    axes = len(block)
    if len(image) != axes or image.min(initial=1) < 1 or block.min(initial=1) < 1:
        return "an image or a block that has no elements, or axes that the other has not"
    ones = [1] * axes
    steps, reach = strides or ones, dilations or ones
    if min(steps) < 1:
        return ""  # for the checker to refuse
    padding = np.array(pads or [0] * (2 * axes)).reshape(2, -1).sum(axis=0)
    counts = (image + padding - (block - 1) * reach - 1) // steps + 1
    # The columns hold all elements of a block, one after another, for each channel.
    fits = not data.shape[1] % math.prod(block.tolist()) and counts.min(initial=1) > 0
    if fits and data.shape[2] == math.prod(counts.tolist()):
        return ""
    return f"columns of the shape {list(data.shape)} for blocks {counts.tolist()}"


@rule("DequantizeLinear QuantizeLinear")
def _granularity(
    data: Array, scale: Array, *, block_size: int = 0, axis: int = 1, opset: int
) -> str:
    # One for all, one for each place of an axis, or one for each block along an axis.
    if not scale.ndim or (scale.ndim == 1 and scale.size == 1):
        return f"one scale for all, and blocks of {block_size}" if block_size else ""
    if scale.ndim == 1 and not block_size:
        return _one_per_place(scale.size, data.shape, axis, opset)
    if scale.ndim != data.ndim or block_size < 1 or not -data.ndim <= axis < data.ndim:
        shape = list(scale.shape)
        return f"scales of the shape {shape} with blocks of {block_size} along axis {axis}"
    wanted = list(data.shape)
    wanted[axis] = -(-wanted[axis] // block_size)
    fits = wanted == list(scale.shape)
    return "" if fits else f"scales of the shape {list(scale.shape)} for {wanted} blocks"


def _one_per_place(scales: int, shape: tuple[int, ...], axis: int, opset: int) -> str:
    if opset < 13:
        return f"{scales} scales, in an operator set that knows one for all"
    # The default axis is 1, also of data with one dimension: kernels take the only one.
    if len(shape) == 1:
        axis = 0
    if not -len(shape) <= axis < len(shape):
        return f"axis {axis} of {len(shape)} dimensions"
    return "" if shape[axis] == scales else f"{scales} scales for an axis of {shape[axis]}"


# --- heads of attention: of ONNX's own operators alone, other domains have operators so named -----


@rule("Attention")
def _heads(call: OperatorCall, query: Array, key: Array, value: Array) -> str:
    if call.node.domain:
        return ""
    operands = enumerate((query, key, value))
    shapes = [by_head(o.shape, call.attribute(heads_of(n), 0)) for n, o in operands]
    if not all(shapes):
        return "a hidden size that its number of heads does not divide"
    (batch, many, _, size), (pairs, few, keys, key_size), other = (s or () for s in shapes)
    wanted = (batch, few, keys)
    alike = wanted == (pairs, few, keys) == other[:3]
    if not few or many % few or not alike or size != key_size:
        return f"queries, keys and values of the shapes {', '.join(map(str, shapes))}"
    return ""


@rule("Attention", "past keys without values, or with a number of tokens")
def _past(call: OperatorCall) -> bool:
    # A number of tokens is for a cache that the caller extends, past keys are for one that this
    # operator extends.
    given = [bool(n) for n in [*call.node.input[4:7], "", "", ""][:3]]
    allowed = ([False] * 3, [True, True, False], [False, False, True])
    return not call.node.domain and given not in allowed


@rule("LinearAttention")
def _gates(call: OperatorCall) -> str:
    decay, update = ([*call.node.input[4:6], "", ""])[:2]
    kind = call.text("update_rule", "gated_delta")
    if (kind.startswith("gated") and not decay) or (kind.endswith("delta") and not update):
        return f"updates by the rule {kind!r} without the gate that it takes"
    many, few = (call.attribute(f"{name}_num_heads", 0) for name in ("q", "kv"))
    if few < 1 or many < 1 or many % few:
        return f"{many} heads of queries for {few} of keys"
    widths = [(call.operand(place), heads) for place, heads in ((0, many), (1, few), (2, few))]
    if any(o is not None and o.ndim == 3 and o.shape[2] % heads for o, heads in widths):
        return "a hidden size that its number of heads does not divide"
    return ""


@rule("RotaryEmbedding")
def _rotated(
    call: OperatorCall, data: Array, *, rotary_embedding_dim: int = 0, num_heads: int = 0
) -> str:
    if call.node.domain:
        return ""
    size, part = data.shape[-1], rotary_embedding_dim
    if data.ndim == 3:
        if num_heads < 1 or size % num_heads:
            return f"{num_heads} heads of {size} elements"
        size //= num_heads
    turned = part or size  # 0 stands for all elements, which turn in pairs
    fits = 0 <= part <= size and turned % 2 == 0
    return "" if fits else f"{turned} of {size} elements are rotated in pairs"
