"""Rules about sizes, padding and blocks of data; see ``rules``."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from optvet.engine.standard.call import OperatorCall, list_items
from optvet.engine.standard.shapes import by_head, heads_of

_SIZES: Mapping[str, tuple[int, int]] = {
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
SIZED = tuple(_SIZES)
"""Operators with an operand that is a size."""


def size(call: OperatorCall) -> str:
    """Sizes that are not negative; -1 has a meaning for Reshape, and Resize scales by no 0."""
    place, least = _SIZES[call.node.op_type]
    value = call.operand(place)
    if value is None or value.dtype.kind != "i" or bool(np.all(value >= least)):
        return ""
    return f"a size of {value.min()}"


def sizes_of_parts(call: OperatorCall) -> str:
    """Parts that have a size."""
    value = call.operand(1)
    if value is None or not value.size:
        return ""
    return f"parts of the size {value.min()}" if value.min() < (value.ndim == 0) else ""


def number_of_parts(call: OperatorCall) -> str:
    """As many parts as outputs, either by their sizes or by their number."""
    node, number = call.node, call.attribute("num_outputs")
    if number is None:
        return ""
    if any(node.input[1:]):
        return "both the sizes of the parts and their number are given"
    return "" if number == len(node.output) else f"{number} parts for {len(node.output)} outputs"


def axes_listed_once(call: OperatorCall) -> str:
    """Axes that are listed once, in an attribute or as the operand of Pad."""
    data, given = call.operand(0), call.operand(3) if call.node.op_type == "Pad" else None
    numbers = list_items(call.attribute("axes")) if given is None else given.ravel().tolist()
    if data is not None:
        numbers = [n + data.ndim if n < 0 else n for n in numbers]
    return "an axis is listed twice" if len(set(numbers)) < len(numbers) else ""


def removed(call: OperatorCall) -> str:
    """No more elements to remove than there are, and some to repeat."""
    for size, begin, end in _padded(call):
        if min(begin, 0) + min(end, 0) + size < 0:
            return f"{-min(begin, 0) - min(end, 0)} elements less of an axis of {size}"
        left = min(begin, 0) + min(end, 0) + size
        if not left and max(begin, end) > 0 and call.text("mode", "constant") != "constant":
            return "no elements to pad with"
    return ""


def long_reflection(call: OperatorCall) -> str:
    """A reflection that ends inside of the data; numpy goes on, and the text is silent."""
    if call.text("mode", "constant") != "reflect":
        return ""
    long = any(max(begin, end) >= size for size, begin, end in _padded(call))
    return "a reflection that is longer than the data" if long else ""


def repeated_or_removed(call: OperatorCall) -> str:
    """No end of an axis removed where the other is more of the data: the text gives no order."""
    if call.text("mode", "constant") not in ("reflect", "wrap"):
        return ""
    both = any(min(begin, end) < 0 < max(begin, end) for _, begin, end in _padded(call))
    return "an axis with elements removed and others repeated" if both else ""


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


def blocks(call: OperatorCall) -> str:
    """Blocks into which the data can be divided."""
    data, block = call.operand(0), call.attribute("blocksize", 0)
    if data is None or data.ndim != 4 or block < 1:
        return ""
    to_space = call.node.op_type == "DepthToSpace"
    fits = not data.shape[1] % block**2 if to_space else not any(n % block for n in data.shape[2:])
    return "" if fits else f"blocks of {block} in data of the shape {list(data.shape)}"


def columns(call: OperatorCall) -> str:
    """As many columns as an image has blocks, each with all elements of a block."""
    data, image, block = call.operand(0), call.operand(1), call.operand(2)
    if data is None or image is None or block is None or data.ndim != 3:
        return ""
    axes = len(block)
    if len(image) != axes or image.min(initial=1) < 1 or block.min(initial=1) < 1:
        return "an image or a block that has no elements, or axes that the other has not"
    ones = [1] * axes
    steps, reach = call.attribute("strides") or ones, call.attribute("dilations") or ones
    if min(steps) < 1:
        return ""  # for the checker to refuse
    pads = np.array(call.attribute("pads") or [0] * (2 * axes)).reshape(2, -1).sum(axis=0)
    counts = (image + pads - (block - 1) * reach - 1) // steps + 1
    fits = not data.shape[1] % math.prod(block.tolist()) and counts.min(initial=1) > 0
    if fits and data.shape[2] == math.prod(counts.tolist()):
        return ""
    return f"columns of the shape {list(data.shape)} for blocks {counts.tolist()}"


def granularity(call: OperatorCall) -> str:
    """One scale for all, for each place of an axis, or for each block along an axis."""
    data, scale = call.operand(0), call.operand(1)
    block, axis = call.attribute("block_size", 0), call.attribute("axis", 1)
    if data is None or scale is None:
        return ""
    if not scale.ndim or (scale.ndim == 1 and scale.size == 1):
        return f"one scale for all, and blocks of {block}" if block else ""
    if scale.ndim == 1 and not block:
        return _one_per_place(scale.size, data.shape, axis, call.opset)
    if scale.ndim != data.ndim or block < 1 or not -data.ndim <= axis < data.ndim:
        return f"scales of the shape {list(scale.shape)} with blocks of {block} along axis {axis}"
    wanted = list(data.shape)
    wanted[axis] = -(-wanted[axis] // block)
    fits = wanted == list(scale.shape)
    return "" if fits else f"scales of the shape {list(scale.shape)} for {wanted} blocks"


def _one_per_place(scales: int, shape: tuple[int, ...], axis: int, opset: int) -> str:
    if opset < 13:
        return f"{scales} scales, in an operator set that knows one for all"
    if len(shape) == 1:
        axis = 0
    if not -len(shape) <= axis < len(shape):
        return f"axis {axis} of {len(shape)} dimensions"
    return "" if shape[axis] == scales else f"{scales} scales for an axis of {shape[axis]}"


def heads(call: OperatorCall) -> str:
    """Heads of queries for each head of keys, of one size and of as many batches."""
    query, key, value = (call.operand(n) for n in range(3))
    if query is None or key is None or value is None or call.node.domain:
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


def past(call: OperatorCall) -> str:
    """Keys and values of the past, both or none, and not with a number of tokens."""
    given = [bool(n) for n in [*call.node.input[4:7], "", "", ""][:3]]
    if call.node.domain or given in ([False] * 3, [True, True, False], [False, False, True]):
        return ""
    return "past keys without values, or with a number of tokens"


def gates(call: OperatorCall) -> str:
    """The gates that a rule of updates takes, and as many heads of queries for each of keys."""
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


def rotated(call: OperatorCall) -> str:
    """A number of elements to rotate that is even, and heads of one size."""
    data, part = call.operand(0), call.attribute("rotary_embedding_dim", 0)
    if data is None or call.node.domain:
        return ""
    size = data.shape[-1]
    if data.ndim == 3:
        number = call.attribute("num_heads", 0)
        if number < 1 or size % number:
            return f"{number} heads of {size} elements"
        size //= number
    turned = part or size
    fits = 0 <= part <= size and turned % 2 == 0
    return "" if fits else f"{turned} of {size} elements are rotated in pairs"
