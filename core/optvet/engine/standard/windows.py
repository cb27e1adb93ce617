"""Rules about convolutions, pools and what else moves over images."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from optvet.engine.standard.call import Array, OperatorCall
from optvet.engine.standard.numbers import is_finite
from optvet.engine.standard.rule import RuleTable

rule = RuleTable()
"""The rules of this module, in the order in which they are told."""
_WEIGHT_PLACES: Mapping[str, int] = {
    "Conv": 1,
    "ConvInteger": 1,
    "ConvTranspose": 1,
    "DeformConv": 1,
    "QLinearConv": 3,
}
"""Places of the weights among the inputs of convolutions."""
_CONVOLUTIONS = " ".join(_WEIGHT_PLACES)
_CLOSE = 1e-5


def _place(call: OperatorCall) -> int:
    return _WEIGHT_PLACES.get(call.node.op_type, 1)


def _reach(call: OperatorCall) -> list[int]:
    """How far a window reaches along each axis; nothing if it is not known."""
    sizes, weight = call.attribute("kernel_shape"), None
    if not sizes and call.node.op_type in _WEIGHT_PLACES:
        weight = call.operand(_place(call))
    sizes = list(sizes or (() if weight is None else weight.shape[2:]))
    dilations = call.attribute("dilations") or [1] * len(sizes)
    return [(k - 1) * d + 1 for k, d in zip(sizes, dilations, strict=True)]


def _pads(call: OperatorCall, axes: int) -> tuple[list[int], list[int]]:
    """What is added at the beginning and at the end of each axis."""
    pads = list(call.attribute("pads") or [0] * (2 * axes))
    return pads[:axes], pads[axes:]


@rule(
    "AveragePool Conv ConvInteger DeformConv LpPool MaxPool QLinearConv",
    "a window is larger than the data with its padding",
)
def _window(call: OperatorCall, data: Array, *, auto_pad: str = "NOTSET") -> bool:
    reach = _reach(call)
    if data.ndim != len(reach) + 2 or auto_pad.startswith("SAME"):
        return False
    # SAME pads as much as is needed, and VALID not at all, whatever ``pads`` says.
    none = [0] * len(reach)
    begins, ends = _pads(call, len(reach)) if auto_pad == "NOTSET" else (none, none)
    # All of them first: pads of another number are for the checker to refuse.
    several = list(zip(data.shape[2:], begins, ends, reach, strict=True))
    # A window of one element fits always, also into no elements.
    return any(size + begin + end < r > 1 for size, begin, end, r in several)


@rule("AveragePool LpPool MaxPool", "a window lies in the padding alone")
def _padding(call: OperatorCall, data: Array | None = None) -> bool:
    pads, kernel = call.attribute("pads"), call.attribute("kernel_shape")
    if not pads or not kernel or len(pads) != 2 * len(kernel):
        return False
    # Of no elements, all windows lie in the padding, if there are channels.
    empty = data is not None and math.prod(data.shape[:2]) and 0 in data.shape[2:]
    return bool(empty) or any(p >= r for p, r in zip(pads, _reach(call) * 2, strict=True))


@rule(f"{_CONVOLUTIONS} AveragePool Col2Im LpPool MaxPool MaxUnpool")
def _negative_padding(*, pads: list[int] | None = None) -> str:
    least = min(pads or [0])
    return f"padding of {least} elements" if least < 0 else ""


@rule(
    "AveragePool Conv ConvInteger ConvTranspose LpPool MaxPool QLinearConv",
    "pads together with auto_pad",
    agreed=True,
)
def _padding_twice(*, pads: list[int] | None = None, auto_pad: str = "NOTSET") -> bool:
    # By its sizes or by a rule: kernels go by the rule.
    return pads is not None and auto_pad != "NOTSET"


@rule(_CONVOLUTIONS)
def _kernel(call: OperatorCall) -> str:
    listed, weight = call.attribute("kernel_shape"), call.operand(_place(call))
    if not listed or weight is None or list(weight.shape[2:]) == list(listed):
        return ""
    return f"kernel_shape is {list(listed)} for weights of the shape {list(weight.shape)}"


@rule(_CONVOLUTIONS)
def _groups(call: OperatorCall) -> str:
    data, weight = call.operand(0), call.operand(_place(call))
    counted = {"group": [data.shape[1]] if data is not None and data.ndim > 1 else []}
    counted["offset_group"] = [*counted["group"]]
    # The weights of a transposed convolution begin with the channels of the data.
    if weight is not None and weight.ndim and call.node.op_type != "ConvTranspose":
        counted["group"].append(weight.shape[0])
    for name, channels in counted.items():
        number = call.attribute(name, 1)
        if number < 1 or any(size % number for size in channels):
            return f"{name} is {number}, which does not divide the channels"
    return ""


@rule("ConvTranspose", "output_padding is not smaller than the stride or the dilation")
def _added_padding(
    *,
    output_padding: list[int] | None = None,
    strides: list[int] | None = None,
    dilations: list[int] | None = None,
    opset: int,
) -> bool:
    if not output_padding or opset < 11:  # before, the standard does not say so
        return False
    ones = [1] * len(output_padding)
    several = zip(
        output_padding,
        ones if strides is None else strides,
        ones if dilations is None else dilations,
        strict=False,
    )
    return any(n >= max(s, d) for n, s, d in several)


@rule("ConvTranspose")
def _transposed(
    call: OperatorCall, data: Array, *, auto_pad: str = "NOTSET", output_shape: object = None
) -> str:
    reach = _reach(call)
    if data.ndim != len(reach) + 2 or output_shape or auto_pad != "NOTSET":
        return ""
    strides = call.attribute("strides") or [1] * len(reach)
    added = call.attribute("output_padding") or [0] * len(reach)
    several = zip(data.shape[2:], strides, added, reach, *_pads(call, len(reach)), strict=False)
    sizes = [s * (n - 1) + a + r - b - e for n, s, a, r, b, e in several]
    return f"a result of the sizes {sizes}" if min(sizes, default=1) < 1 else ""


@rule("GlobalLpPool LpPool", "the norm of the power {p}")
def _norm_of_window(*, p: int = 2) -> bool:
    return p < 1


@rule("LpNormalization", "p is {p}, and only 1 and 2 are supported")
def _norm(*, p: int = 2) -> bool:
    return p not in (1, 2)


@rule("GlobalAveragePool GlobalLpPool GlobalMaxPool", "a pool of no elements")
def _pooled_nothing(data: Array) -> object:
    return data.ndim > 2 and math.prod(data.shape[:2]) and not math.prod(data.shape[2:])


@rule("LRN", "a sum over {size} channels")
def _region(*, size: int = 1) -> bool:
    return size <= 0


@rule("GridSample MaxRoiPool RoiAlign", "samples of no elements")
def _sampled_nothing(data: Array, at: Array) -> bool:
    samples = math.prod(data.shape[:2]) * math.prod(at.shape[:-1])
    return data.ndim > 2 and bool(samples) and not math.prod(data.shape[2:])


@rule("GridSample MaxRoiPool RoiAlign", "a place to sample at is not finite", at=(1,))
def _finite_places(places: Array) -> bool:
    return not is_finite(places)


@rule("MaxRoiPool RoiAlign")
def _images(call: OperatorCall) -> str:
    data, given = call.operand(0), call.operand(2 if call.node.op_type == "RoiAlign" else 1)
    if data is None or given is None or not data.ndim:
        return ""
    # There the image stands beside the corners, as a float.
    if call.node.op_type == "MaxRoiPool":
        given = given[..., 0]
    fits = (given >= 0) & (given < data.shape[0]) & (given == np.trunc(given))
    return "" if bool(np.all(fits)) else f"an image that is not one of the {data.shape[0]}"


@rule("RoiAlign")
def _sampling(call: OperatorCall) -> str:
    for name, least, default in (
        ("sampling_ratio", 0, 0),
        ("output_height", 1, 1),
        ("output_width", 1, 1),
    ):
        if (number := call.attribute(name, default)) < least:
            return f"{name} is {number}, which is less than {least}"
    return ""


@rule("MaxUnpool", at=(1, 2))
def _unpooled(call: OperatorCall, places: Array, wanted: Array | None = None) -> str:
    reach = _reach(call)
    if places.ndim != len(reach) + 2:
        return ""
    strides = call.attribute("strides", [1] * len(reach))
    several = zip(places.shape[2:], strides, reach, *_pads(call, len(reach)), strict=False)
    # Indices count in the result without the added rows, which ``output_shape`` asks for.
    sizes = [*places.shape[:2], *((n - 1) * s + r - b - e for n, s, r, b, e in several)]
    if wanted is not None and any(w < s for w, s in zip(wanted.tolist(), sizes, strict=False)):
        return f"output_shape is {wanted.tolist()}, and {sizes} are needed"
    if bool(np.any((places < 0) | (places >= math.prod(sizes)))):
        return "an index is outside of the result"
    return "an element is written twice" if np.unique(places).size < places.size else ""


@rule("Resize", at=(1,))
def _resized_region(
    call: OperatorCall,
    region: Array | None = None,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    opset: int,
) -> str:
    if opset < 11 or coordinate_transformation_mode != "tf_crop_and_resize":
        return ""
    if not call.node.input[1:] or not call.node.input[1]:
        return "no region of interest is given"
    finite = region is None or is_finite(region)
    return "" if finite else "a region of interest is not finite"


@rule("Resize", "a place whose nearest element depends on rounding", at=(0, 1, 3), agreed=True)
def _cropped_between(call: OperatorCall, data: Array, region: Array, wanted: Array) -> bool:
    """Whether the element that is nearest to some place depends on rounding."""
    crops = call.text("coordinate_transformation_mode") == "tf_crop_and_resize"
    if not crops or call.text("mode", "nearest") != "nearest":
        return False
    axes = list(call.attribute("axes") or range(data.ndim))
    # Rounding decides halfway between two elements, floor and ceil decide on an element.
    middle = 0.5 if call.text("nearest_mode", "round_prefer_floor").startswith("round") else 0.0
    starts, ends = np.split(region.astype(np.float64), 2)
    for axis, begin, end, count in zip(axes, starts, ends, wanted.tolist(), strict=True):
        places = np.linspace(begin, end, count) if count > 1 else np.array([(begin + end) / 2])
        beyond = places * (data.shape[axis] - 1) - middle
        if np.any(np.abs(beyond - np.round(beyond)) < _CLOSE * data.shape[axis]):
            return True
    return False
