"""Rules about attributes and shapes; see ``rules``."""

from __future__ import annotations

import math
import re
from functools import cache

import numpy as np
import onnx
from onnx import TensorProto

from optvet.engine.numerics.floats import is_float
from optvet.engine.standard.call import OperatorCall, axes_of, list_items
from optvet.engine.standard.numbers import are_positive


def epsilon(call: OperatorCall) -> str:
    """An epsilon of 0 may divide by a variance of 0; unknown variances count as 0."""
    value = call.attribute("epsilon")
    if value is None or (np.isfinite(value) and value > 0):
        return ""
    result = call.results[0] if call.results else None
    if value == 0 and result is not None and bool(np.all(np.isfinite(result))):
        return ""
    return f"epsilon is {value:g}, which is not positive"


def variance(call: OperatorCall) -> str:
    """The root of a negative variance is NaN, which kernels treat differently."""
    value = call.operand(4)
    if value is None or not is_float(value.dtype):
        return ""
    with np.errstate(invalid="ignore"):
        positive = value.astype(np.float64) + call.attribute("epsilon", 1e-5) >= 0
    return "" if bool(np.all(positive)) else "a variance is negative"


def scales_of_size(call: OperatorCall) -> str:
    """Scales of a size that are positive; those of Upsample are not below 1."""
    value = call.operand(1 if call.node.op_type == "Upsample" or call.opset < 11 else 2)
    listed = call.attribute("scales")
    if value is None and listed is not None:
        value = np.array(list_items(listed), np.float32)
    if value is None or value.dtype.kind != "f" or not value.size:
        return ""
    if call.node.op_type == "Upsample" and bool(np.any(value < 1)):
        return "a scale is less than 1"
    return "" if are_positive(value) else "a scale is not a positive number"


def size_by_rounding(call: OperatorCall) -> str:
    """The standard does not say in which type a size is multiplied; kernels do it in float32."""
    data = call.operand(0)
    listed = call.operand(1 if call.node.op_type == "Upsample" or call.opset < 11 else 2)
    scales = call.attribute("scales") if listed is None else listed
    if data is None or scales is None or len(scales) != data.ndim:
        return ""
    single = np.asarray(scales, np.float32)
    sizes = np.array(data.shape)
    rounded = np.floor(sizes.astype(np.float32) * single)
    exact = np.floor(sizes * single.astype(np.float64))
    return "" if np.array_equal(rounded, exact) else "a size depends on how a product is rounded"


def aligned_corners(call: OperatorCall) -> str:
    """Corners that are two places: of one, the text divides 0 by 0, and kernels take the first."""
    data, scales, sizes = call.operand(0), call.operand(2), call.operand(3)
    if call.text("coordinate_transformation_mode") != "align_corners" or data is None:
        return ""
    axes = list_items(call.attribute("axes")) or range(data.ndim)
    before = np.array([data.shape[axis] for axis in axes])
    after = before * scales.astype(np.float64) if scales is not None and scales.size else sizes
    one = after is not None and bool(np.any((after == 1) & (before > 1)))
    return "the corners of one place" if one else ""


def negative_axis(call: OperatorCall) -> str:
    """An axis that is counted from the back only where its operator set says so."""
    for name in ("axis", "axes"):
        value = call.attribute(name)
        numbers = list_items(value)
        if any(not _may_be(n, call.node.op_type, call.opset, name) for n in numbers if n < 0):
            return f"{name} is {value}, and may not be negative in operator set {call.opset}"
    return ""


@cache
def _may_be(axis: int, operator: str, opset: int, attribute: str) -> bool:
    """Whether the standard allows this axis, counted from the back."""
    try:
        schema = onnx.defs.get_schema(operator, opset, "")
    except onnx.defs.SchemaError:
        return True
    found = schema.attributes.get(attribute)
    if found is None or axis == found.default_value.i:
        return True
    texts = f"{schema.doc or ''} {found.description}".lower().replace("non-negative", "")
    return "negative" in texts or "[-r" in texts or "-r," in texts


def axes_once(call: OperatorCall) -> str:
    """Axes that are listed once."""
    numbers, value = axes_of(call) or (), call.operand(0)
    if value is not None:
        rank = value.ndim + (len(numbers) if call.node.op_type == "Unsqueeze" else 0)
        numbers = tuple(n + rank if n < 0 else n for n in numbers)
    return "an axis is listed twice" if len(set(numbers)) < len(numbers) else ""


def some_axes(call: OperatorCall) -> str:
    """Axes, where they are listed: an empty list may stand for none or for all."""
    given = call.operand(1)
    listed = call.attribute("axes") if given is None else given.ravel().tolist()
    return "an empty list of axes" if listed is not None and not list_items(listed) else ""


def mean_of_nothing(call: OperatorCall) -> str:
    """Numbers to take the mean of."""
    value, axes = call.operand(0), axes_of(call)
    if value is None or axes == ():
        return ""
    size = dict(enumerate(value.shape))
    reduced = set(size) if axes is None else {n % value.ndim for n in axes if size}
    kept = math.prod(d for n, d in size.items() if n not in reduced)
    return "the mean of no numbers" if kept and 0 in {size[n] for n in reduced} else ""


def largest_of_a_row(call: OperatorCall) -> str:
    """The text divides by the largest number, onnx's evaluator by the largest magnitude."""
    value = call.operand(0)
    if value is None or not value.size or call.attribute("norm", b"MAX") not in (b"MAX", "MAX"):
        return ""
    rows = value.reshape(-1, value.shape[-1] if value.ndim else 1)
    negative = bool(np.any(rows.max(axis=1) < np.abs(rows).max(axis=1)))
    return "the number of the largest magnitude in a row is negative" if negative else ""


def zero_and_rest(call: OperatorCall) -> str:
    """A size that is left to find beside sizes that are not 0."""
    shape = call.operand(1)
    if shape is None or not call.attribute("allowzero", 0):
        return ""
    both = bool(np.any(shape == 0)) and bool(np.any(shape == -1))
    return "sizes of 0 and -1 together with allowzero" if both else ""


def ratio(call: OperatorCall) -> str:
    """A share that is dropped, of which something is left; it is told also where nothing is."""
    given = call.operand(1)
    ratio = call.attribute("ratio", 0.5) if given is None else given.item(0)
    return "" if 0 <= ratio < 1 else f"a ratio of {ratio:g}, which is not in [0, 1)"


def batches(call: OperatorCall) -> str:
    """A matrix for each image."""
    matrices, size = call.operand(0), call.operand(1)
    if matrices is None or size is None or not size.size or matrices.shape[0] == size.item(0):
        return ""
    return f"{matrices.shape[0]} matrices for {size.item(0)} images"


def corners(call: OperatorCall) -> str:
    """Corners that are two places, where they are aligned."""
    size = call.operand(1)
    if size is None or not call.attribute("align_corners", 0) or not bool(np.any(size[2:] == 1)):
        return ""
    return "the corners of one place"


def keys(call: OperatorCall) -> str:
    """One value for each key; since operator set 4, the last one counts."""
    if call.opset >= 4:
        return ""
    kinds = ("keys_floats", "keys_int64s", "keys_strings")
    repeated = any(len(set(keys)) < len(keys) for keys in map(call.attribute, kinds) if keys)
    return "a key stands for several values" if repeated else ""


def bounds(call: OperatorCall) -> str:
    """A lower bound that is not above the upper one."""
    low, high = call.operand(1), call.operand(2)
    if call.opset < 11:
        pair = (call.attribute("min"), call.attribute("max"))
    else:
        pair = (
            None if low is None else low.item(0) if low.size else None,
            None if high is None else high.item(0) if high.size else None,
        )
    if call.opset >= 13 or None in pair or pair[0] <= pair[1]:
        return ""
    return "the lower bound is above the upper one"


def block(call: OperatorCall) -> str:
    """A size of blocks that is not negative."""
    size = call.attribute("block_size", 0)
    return f"block_size is {size}, which is not positive" if size < 0 else ""


def stage(call: OperatorCall) -> str:
    """The stage of the product of queries and keys that is an output."""
    stage = call.attribute("qk_matmul_output_mode", 0)
    return "" if 0 <= stage <= 3 else f"qk_matmul_output_mode is {stage}, which is not from 0 to 3"


def flag(call: OperatorCall) -> str:
    """Yes or no."""
    for given in call.node.attribute:
        if given.name in _FLAGS and given.type == given.INT and given.i not in (0, 1):
            return f"{given.name} is {given.i}, which is neither 0 nor 1"
    return ""


_FLAGS = frozenset(
    """
    align_corners allowzero antialias ceil_mode center_point_box count_include_pad detect_negative
    detect_positive exclude_outside exclusive fmod input_forget interleaved inverse
    is_case_sensitive is_causal keepdims largest layout linear_before_reset new_axis
    noop_with_empty_axes one_class onesided periodic reverse saturate select_last_index sorted
    storage_order training_mode transA transB upper zeros
    """.split()
)
"""Attributes that say yes or no."""


def number_of_heads(call: OperatorCall) -> str:
    """Numbers of heads, which are not negative, also where the shape tells them."""
    for name in ("num_heads", "q_num_heads", "kv_num_heads"):
        number = call.attribute(name, 0)
        if number < 0:
            return f"{name} is {number}"
    return ""


def dividing_alpha(call: OperatorCall) -> str:
    """An alpha by which the data are divided."""
    return "" if call.attribute("alpha", 1.0) else "data divided by an alpha of 0"


def word(call: OperatorCall) -> str:
    """Words that the text lists."""
    node = call.node
    for given in node.attribute:
        if given.name in _WORDS and given.type == given.STRING:
            value = given.s.decode(errors="replace")
            if not _is_listed(value, node.op_type, call.opset, node.domain, given.name):
                return f"{given.name} is {value!r}, which its text does not list"
    return ""


@cache
def _is_listed(value: str, operator: str, opset: int, domain: str, attribute: str) -> bool:
    try:
        if domain in ("", "ai.onnx"):
            schema = onnx.defs.get_schema(operator, opset, "")
        else:
            schema = onnx.defs.get_schema(operator, domain)
    except onnx.defs.SchemaError:
        return True
    found = schema.attributes.get(attribute)
    if found is None or value == found.default_value.s.decode():
        return True
    text = f"{schema.doc or ''} {found.description}"
    return re.search(rf"(?<![A-Za-z_]){re.escape(value)}(?![A-Za-z_])", text) is not None


_WORDS = frozenset(
    """
    activation aggregate_function approximate auto_pad case_change_action cast_to
    coordinate_transformation_mode direction kernel_type keep_aspect_ratio_policy map_form mode
    nearest_mode norm padding_mode pixel_format post_transform reduction round_mode update_rule
    """.split()
)
"""Attributes that are one of a few words."""


def precision(call: OperatorCall) -> str:
    """A type of floats to compute in."""
    for name in ("stash_type", "softmax_precision"):
        kind = call.attribute(name)
        if kind is not None and kind not in _FLOATS:
            return f"{name} is {kind}, which is no type of floats"
    return ""


_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


def spread(call: OperatorCall) -> str:
    """A range to draw from that does not end before it begins, and no negative deviation."""
    low, high = call.attribute("low", 0.0), call.attribute("high", 1.0)
    if not low <= high:
        return f"numbers from {low:g} to {high:g}"
    deviation = call.attribute("scale", 1.0)
    return "" if deviation >= 0 else f"a standard deviation of {deviation:g}"


def probability(call: OperatorCall) -> str:
    """Probabilities, which are from 0 to 1."""
    value = call.operand(0)
    if value is None or not is_float(value.dtype):
        return ""
    wide = value.astype(np.float64)
    inside = bool(np.all((wide >= 0) & (wide <= 1)))
    return "" if inside else "a probability that is not from 0 to 1"


def outcomes(call: OperatorCall) -> str:
    """Something to draw."""
    value = call.operand(0)
    if call.attribute("sample_size", 1) < 0:
        return "a negative number of samples"
    if value is None or value.ndim != 2:
        return ""
    if value.shape[0] and not value.shape[1]:
        return "a draw from no outcomes"
    return "NaN is no probability" if np.isnan(value.astype(np.float64)).any() else ""


def channels_of_groups(call: OperatorCall) -> str:
    """Groups of one size."""
    data, number = call.operand(0), call.attribute("num_groups", 1)
    channels = data.shape[1] if data is not None and data.ndim > 1 else 0
    fits = number > 0 and not channels % number
    return "" if fits else f"{number} groups of {channels} channels"


def cells(call: OperatorCall) -> str:
    """Cells of a recurrence: some, with a function for each gate, and a limit that is one."""
    size, limit = call.attribute("hidden_size"), call.attribute("clip", 0.0)
    if size is not None and size < 1:
        return f"hidden_size is {size}"
    if not limit >= 0:
        return f"values from {-limit:g} to {limit:g}"
    functions = [f.decode() for f in call.attribute("activations", ())]
    ways = 2 if call.text("direction", "forward") == "bidirectional" else 1
    if functions and len(functions) != ways * _FUNCTIONS[call.node.op_type]:
        return f"{len(functions)} activations in {ways} directions"
    unknown = [f for f in functions if f not in _ACTIVATIONS]
    return f"activations are {unknown}, which its text does not list" if unknown else ""


_FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
_ACTIVATIONS = frozenset(
    """
    Relu Tanh Sigmoid Affine LeakyRelu ThresholdedRelu ScaledTanh HardSigmoid Elu Softsign Softplus
    """.split()
)


def equation(call: OperatorCall) -> str:
    """Letters, each of which is once in the result."""
    text = call.text("equation").replace(" ", "")
    terms, arrow, result = text.partition("->")
    if not re.fullmatch(r"[A-Za-z.,]*", terms) or not re.fullmatch(r"[A-Za-z.]*", result):
        return f"an equation of other signs: {text!r}"
    letters = result.replace("...", "")
    if "." in letters or any("." in t.replace("...", "", 1) for t in terms.split(",")):
        return f"an equation with dots that are no ellipsis: {text!r}"
    twice = bool(arrow) and len(set(letters)) < len(letters)
    return f"a letter is twice in the result: {text!r}" if twice else ""
