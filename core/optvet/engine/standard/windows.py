"""Rules about convolutions, pools and what else moves over images; see ``rules``."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from optvet.engine.standard.call import OperatorCall

WEIGHT_PLACES: Mapping[str, int] = {
    "Conv": 1,
    "ConvInteger": 1,
    "ConvTranspose": 1,
    "DeformConv": 1,
    "QLinearConv": 3,
}
"""Places of the weights among the inputs of convolutions."""


def window(call: OperatorCall) -> str:
    """Windows that fit into the data with its padding; those of one element do always."""
    data, reach = call.operand(0), _reach(call)
    how = call.text("auto_pad", "NOTSET")
    if data is None or data.ndim != len(reach) + 2 or how.startswith("SAME"):
        return ""
    pads = _pads(call, len(reach)) if how == "NOTSET" else [0] * (2 * len(reach))
    padded = [
        size + begin + end
        for size, begin, end in zip(
            data.shape[2:], pads[: len(reach)], pads[len(reach) :], strict=True
        )
    ]
    wide = any(size < r > 1 for size, r in zip(padded, reach, strict=True))
    return "a window is larger than the data with its padding" if wide else ""


def padding(call: OperatorCall) -> str:
    """Windows of a pool that hold something besides padding."""
    pads, kernel = call.attribute("pads"), call.attribute("kernel_shape")
    if not pads or not kernel or len(pads) != 2 * len(kernel):
        return ""
    data = call.operand(0)
    empty = data is not None and math.prod(data.shape[:2]) and 0 in data.shape[2:]
    wide = any(p >= r for p, r in zip(pads, _reach(call) * 2, strict=True))
    return "a window lies in the padding alone" if wide or empty else ""


def negative_padding(call: OperatorCall) -> str:
    """Padding that adds elements, or none."""
    least = min(call.attribute("pads") or (0,))
    return f"padding of {least} elements" if least < 0 else ""


def padding_twice(call: OperatorCall) -> str:
    """Padding by its sizes or by a rule, not by both; what kernels compute goes by the rule."""
    both = call.attribute("pads") is not None and call.text("auto_pad", "NOTSET") != "NOTSET"
    return "pads together with auto_pad" if both else ""


def kernel(call: OperatorCall) -> str:
    """A size of the window that is the one of the weights."""
    listed, weight = call.attribute("kernel_shape"), call.operand(_place(call))
    if not listed or weight is None or list(weight.shape[2:]) == list(listed):
        return ""
    return f"kernel_shape is {list(listed)} for weights of the shape {list(weight.shape)}"


def groups(call: OperatorCall) -> str:
    """Groups of one size, of the channels and of the filters."""
    data, weight = call.operand(0), call.operand(_place(call))
    counted = {"group": [data.shape[1]] if data is not None and data.ndim > 1 else []}
    counted["offset_group"] = [*counted["group"]]
    if weight is not None and weight.ndim and call.node.op_type != "ConvTranspose":
        counted["group"].append(weight.shape[0])
    for name, channels in counted.items():
        number = call.attribute(name, 1)
        if number < 1 or any(size % number for size in channels):
            return f"{name} is {number}, which does not divide the channels"
    return ""


def added_padding(call: OperatorCall) -> str:
    """Elements that a transposed convolution adds, fewer than a step is wide."""
    added = call.attribute("output_padding")
    if not added or call.opset < 11:  # before, the standard does not say so
        return ""
    ones = [1] * len(added)
    strides, dilations = call.attribute("strides", ones), call.attribute("dilations", ones)
    wide = any(n >= max(s, d) for n, s, d in zip(added, strides, dilations, strict=False))
    return "output_padding is not smaller than the stride or the dilation" if wide else ""


def transposed(call: OperatorCall) -> str:
    """A transposed convolution with a result: padding takes away less than there is."""
    data, reach = call.operand(0), _reach(call)
    if data is None or data.ndim != len(reach) + 2 or call.attribute("output_shape"):
        return ""
    if call.text("auto_pad", "NOTSET") != "NOTSET":
        return ""
    strides = call.attribute("strides") or [1] * len(reach)
    added = call.attribute("output_padding") or [0] * len(reach)
    pads = _pads(call, len(reach))
    several = zip(data.shape[2:], strides, added, reach, pads, pads[len(reach) :], strict=False)
    sizes = [s * (n - 1) + a + r - b - e for n, s, a, r, b, e in several]
    return f"a result of the sizes {sizes}" if min(sizes, default=1) < 1 else ""


def norm_of_window(call: OperatorCall) -> str:
    """A norm: its power is not below 1."""
    power = call.attribute("p", 2)
    return f"the norm of the power {power}" if power < 1 else ""


def norm(call: OperatorCall) -> str:
    """One of the two norms that there are."""
    power = call.attribute("p", 2)
    return "" if power in (1, 2) else f"p is {power}, and only 1 and 2 are supported"


def pooled_nothing(call: OperatorCall) -> str:
    """Channels that have elements, as the window of a pool has."""
    data = call.operand(0)
    if data is None or data.ndim < 3 or not math.prod(data.shape[:2]):
        return ""
    return "" if math.prod(data.shape[2:]) else "a pool of no elements"


def region(call: OperatorCall) -> str:
    """Channels to sum over."""
    size = call.attribute("size", 1)
    return "" if size > 0 else f"a sum over {size} channels"


def sampled_nothing(call: OperatorCall) -> str:
    """Elements to take samples of."""
    data, at = call.operand(0), call.operand(1)
    if data is None or at is None or data.ndim < 3:
        return ""
    samples = math.prod(data.shape[:2]) * math.prod(at.shape[:-1])
    return "samples of no elements" if samples and not math.prod(data.shape[2:]) else ""


def finite_places(call: OperatorCall) -> str:
    """Places to sample at that are numbers."""
    places = call.operand(1)
    finite = places is None or bool(np.isfinite(places.astype(np.float64)).all())
    return "" if finite else "a place to sample at is not finite"


def images(call: OperatorCall) -> str:
    """Images that are in the batch."""
    data, given = call.operand(0), call.operand(2 if call.node.op_type == "RoiAlign" else 1)
    if data is None or given is None or not data.ndim:
        return ""
    if call.node.op_type == "MaxRoiPool":
        given = given[..., 0]
    fits = (given >= 0) & (given < data.shape[0]) & (given == np.trunc(given))
    return "" if bool(np.all(fits)) else f"an image that is not one of the {data.shape[0]}"


def sampling(call: OperatorCall) -> str:
    """As many samples as there may be, and a result that has elements."""
    for name, least, default in (
        ("sampling_ratio", 0, 0),
        ("output_height", 1, 1),
        ("output_width", 1, 1),
    ):
        if (number := call.attribute(name, default)) < least:
            return f"{name} is {number}, which is less than {least}"
    return ""


def unpooled(call: OperatorCall) -> str:
    """Places in the result, and each of them once."""
    places, wanted, reach = call.operand(1), call.operand(2), _reach(call)
    if places is None or places.ndim != len(reach) + 2:
        return ""
    strides, pads = call.attribute("strides", [1] * len(reach)), _pads(call, len(reach))
    several = zip(places.shape[2:], strides, reach, pads, pads[len(reach) :], strict=False)
    sizes = [*places.shape[:2], *((n - 1) * s + r - b - e for n, s, r, b, e in several)]
    if wanted is not None and any(w < s for w, s in zip(wanted.tolist(), sizes, strict=False)):
        return f"output_shape is {wanted.tolist()}, and {sizes} are needed"
    if bool(np.any((places < 0) | (places >= math.prod(sizes)))):
        return "an index is outside of the result"
    return "an element is written twice" if np.unique(places).size < places.size else ""


def resized_region(call: OperatorCall) -> str:
    """The region that is resized, where only one is."""
    how = call.text("coordinate_transformation_mode", "half_pixel")
    if call.opset < 11 or how != "tf_crop_and_resize":
        return ""
    region = call.operand(1)
    if not call.node.input[1:] or not call.node.input[1]:
        return "no region of interest is given"
    finite = region is None or bool(np.isfinite(region.astype(np.float64)).all())
    return "" if finite else "a region of interest is not finite"


def cropped_between(call: OperatorCall) -> str:
    """Places of a region, of which the nearest element does not depend on rounding."""
    data, region, wanted = call.operand(0), call.operand(1), call.operand(3)
    crops = call.text("coordinate_transformation_mode") == "tf_crop_and_resize"
    if not crops or call.text("mode", "nearest") != "nearest":
        return ""
    if data is None or region is None or wanted is None:
        return ""
    axes = list(call.attribute("axes") or range(data.ndim))
    middle = 0.5 if call.text("nearest_mode", "round_prefer_floor").startswith("round") else 0.0
    starts, ends = np.split(region.astype(np.float64), 2)
    for axis, begin, end, count in zip(axes, starts, ends, wanted.tolist(), strict=True):
        places = np.linspace(begin, end, count) if count > 1 else np.array([(begin + end) / 2])
        beyond = places * (data.shape[axis] - 1) - middle
        if np.any(np.abs(beyond - np.round(beyond)) < _CLOSE * data.shape[axis]):
            return "a place whose nearest element depends on rounding"
    return ""


_CLOSE = 1e-5


def _place(call: OperatorCall) -> int:
    return WEIGHT_PLACES.get(call.node.op_type, 1)


def _reach(call: OperatorCall) -> list[int]:
    """How far a window reaches along each axis; nothing if it is not known."""
    sizes, weight = call.attribute("kernel_shape"), None
    if not sizes and call.node.op_type in WEIGHT_PLACES:
        weight = call.operand(_place(call))
    sizes = list(sizes or (() if weight is None else weight.shape[2:]))
    dilations = call.attribute("dilations") or [1] * len(sizes)
    return [(k - 1) * d + 1 for k, d in zip(sizes, dilations, strict=True)]


def _pads(call: OperatorCall, axes: int) -> list[int]:
    return list(call.attribute("pads") or [0] * (2 * axes))
