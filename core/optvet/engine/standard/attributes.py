"""Rules about attributes and shapes, two of them of all operators."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto

from optvet.engine.numerics.floats import is_float
from optvet.engine.standard.call import (
    REDUCING,
    Array,
    OperatorCall,
    axes_of,
    list_items,
    repeats_an_axis,
)
from optvet.engine.standard.numbers import are_positive
from optvet.engine.standard.rule import RuleTable, Types, operands
from optvet.graph.types import FLOATS
from optvet.graph.walk import attribute_of

rule = RuleTable()
"""The rules of this module, in the order in which they are told."""
_NORMALIZATIONS = (
    "BatchNormalization GroupNormalization InstanceNormalization LayerNormalization "
    "RMSNormalization SimplifiedLayerNormalization SkipLayerNormalization "
    "SkipSimplifiedLayerNormalization"
)
_WITH_SEVERAL = f"{REDUCING} Squeeze Unsqueeze"
_WITH_AXES = (
    f"{_WITH_SEVERAL} ArgMax ArgMin Concat Flatten Gather GatherElements Hardmax LogSoftmax OneHot "
    "ScatterElements Slice Softmax Split TopK"
)


@rule(_NORMALIZATIONS)
def _epsilon(call: OperatorCall) -> str:
    value = call.attribute("epsilon")
    if value is None or (np.isfinite(value) and value > 0):
        return ""
    # An epsilon of 0 may divide by a variance of 0; unknown variances count as 0.
    result = call.results[0] if call.results else None
    if value == 0 and result is not None and bool(np.all(np.isfinite(result))):
        return ""
    return f"epsilon is {value:g}, which is not positive"


@rule("BatchNormalization", "a variance is negative", at=(4,), recorded=operands)
def _variance(variance: Array, *, epsilon: float = 1e-5) -> bool:
    # Kernels treat the root of a negative number differently.
    with np.errstate(invalid="ignore"):
        return is_float(variance.dtype) and not np.all(variance.astype(np.float64) + epsilon >= 0)


# --- resizing -------------------------------------------------------------------------------------


def _scales(call: OperatorCall) -> Array | None:
    """The scales of a size; an attribute in old operator sets."""
    given = call.operand(1 if call.node.op_type == "Upsample" or call.opset < 11 else 2)
    listed = call.attribute("scales")
    return np.array(list_items(listed), np.float32) if given is None and listed else given


@rule("Resize Upsample", recorded=operands)
def _scales_of_size(call: OperatorCall) -> str:
    scales = _scales(call)
    if scales is None or scales.dtype.kind != "f" or not scales.size:
        return ""
    if call.node.op_type == "Upsample" and bool(np.any(scales < 1)):
        return "a scale is less than 1"
    return "" if are_positive(scales) else "a scale is not a positive number"


@rule("Resize Upsample", recorded=operands, agreed=True)
def _size_by_rounding(call: OperatorCall) -> str:
    data, scales = call.operand(0), _scales(call)
    if data is None or scales is None or len(scales) != data.ndim:
        return ""
    # The standard does not say in which type a size is multiplied; kernels do it in float32.
    single = np.asarray(scales, np.float32)
    sizes = np.array(data.shape)
    rounded = np.floor(sizes.astype(np.float32) * single)
    exact = np.floor(sizes * single.astype(np.float64))
    return "" if np.array_equal(rounded, exact) else "a size depends on how a product is rounded"


@rule("Resize", at=(0, 2, 3), recorded=operands, agreed=True)
def _aligned_corners(
    data: Array,
    scales: Array | None = None,
    sizes: Array | None = None,
    *,
    axes: Any = None,
    coordinate_transformation_mode: str = "",
) -> str:
    if coordinate_transformation_mode != "align_corners":
        return ""
    before = np.array([data.shape[axis] for axis in list_items(axes) or range(data.ndim)])
    after = before * scales.astype(np.float64) if scales is not None and scales.size else sizes
    # Of corners in one place, the text divides 0 by 0, and kernels take the first.
    one = after is not None and bool(np.any((after == 1) & (before > 1)))
    return "the corners of one place" if one else ""


# --- axes -----------------------------------------------------------------------------------------


@rule(_WITH_AXES, agreed=True)
def _negative_axis(call: OperatorCall) -> str:
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
    # A default of -1 is allowed where no other negative axis is.
    if found is None or axis == found.default_value.i:
        return True
    # Schemas have no field for it; their texts do say so, in one of three ways.
    texts = f"{schema.doc or ''} {found.description}".lower().replace("non-negative", "")
    return "negative" in texts or "[-r" in texts or "-r," in texts


def _if_several_axes(node: NodeProto, types: Types) -> Iterable[str]:
    listed = attribute_of(node, "axes")
    # Axes of reductions are hardly ever computed.
    one = listed is not None and len(list_items(listed)) < 2
    return () if one or node.op_type.startswith("Reduce") else node.input


@rule(_WITH_SEVERAL, recorded=_if_several_axes)
def _axes_once(call: OperatorCall) -> str:
    axes = axes_of(call) or ()
    added = len(axes) if call.node.op_type == "Unsqueeze" else 0
    return repeats_an_axis(axes, call.operand(0), added)


@rule("Squeeze", "an empty list of axes", agreed=True)
def _some_axes(call: OperatorCall) -> bool:
    # An empty list may stand for none or for all.
    given = call.operand(1)
    listed = call.attribute("axes") if given is None else given.ravel().tolist()
    return listed is not None and not list_items(listed)


@rule("ReduceMean", "the mean of no numbers")
def _mean_of_nothing(call: OperatorCall) -> bool:
    value, axes = call.operand(0), axes_of(call)
    if value is None or axes == ():
        return False
    size = dict(enumerate(value.shape))
    reduced = set(size) if axes is None else {n % value.ndim for n in axes if size}
    # Nobody asks for a mean if the result has no elements.
    kept = math.prod(d for n, d in size.items() if n not in reduced)
    return bool(kept) and 0 in {size[n] for n in reduced}


@rule("Normalizer", recorded=operands)
def _largest_of_a_row(value: Array, *, norm: str = "MAX") -> str:
    if not value.size or norm != "MAX":
        return ""
    # The text divides by the largest number, onnx's evaluator by the largest magnitude.
    rows = value.reshape(-1, value.shape[-1] if value.ndim else 1)
    negative = bool(np.any(rows.max(axis=1) < np.abs(rows).max(axis=1)))
    return "the number of the largest magnitude in a row is negative" if negative else ""


@rule("Reshape", "sizes of 0 and -1 together with allowzero", at=(1,), recorded=operands)
def _zero_and_rest(shape: Array, *, allowzero: int = 0) -> object:
    return allowzero and np.any(shape == 0) and np.any(shape == -1)


# --- ranges and bounds ----------------------------------------------------------------------------


@rule("Dropout", at=(1,))
def _ratio(given: Array | None = None, *, ratio: float = 0.5) -> str:
    # Of a ratio of 1, what is left is divided by 0; it is told also where nothing is dropped.
    share = ratio if given is None else given.item(0)
    return "" if 0 <= share < 1 else f"a ratio of {share:g}, which is not in [0, 1)"


@rule("AffineGrid")
def _batches(matrices: Array, size: Array) -> object:
    fits = not size.size or matrices.shape[0] == size.item(0)
    return "" if fits else f"{matrices.shape[0]} matrices for {size.item(0)} images"


@rule("AffineGrid", "the corners of one place", at=(1,))
def _corners(size: Array, *, align_corners: int = 0) -> object:
    return align_corners and np.any(size[2:] == 1)


@rule("LabelEncoder", "a key stands for several values")
def _keys(call: OperatorCall) -> bool:
    kinds = ("keys_floats", "keys_int64s", "keys_strings")
    twice = any(len(set(keys)) < len(keys) for keys in map(call.attribute, kinds) if keys)
    # Since operator set 4, the last value of a key counts.
    return twice and call.opset < 4


@rule("Clip", "the lower bound is above the upper one", recorded=operands)
def _bounds(call: OperatorCall) -> bool:
    if call.opset < 11:
        pair = [call.attribute("min"), call.attribute("max")]
    else:
        given = (call.operand(1), call.operand(2))
        pair = [None if bound is None or not bound.size else bound.item(0) for bound in given]
    # Since operator set 13, the upper bound counts.
    return not (call.opset >= 13 or None in pair or pair[0] <= pair[1])


@rule("DequantizeLinear QuantizeLinear", "block_size is {block_size}, which is not positive")
def _block(*, block_size: int = 0) -> bool:
    return block_size < 0


@rule("Attention", "qk_matmul_output_mode is {qk_matmul_output_mode}, which is not from 0 to 3")
def _stage(*, qk_matmul_output_mode: int = 0) -> bool:
    return not 0 <= qk_matmul_output_mode <= 3


@rule("Attention LinearAttention RotaryEmbedding")
def _number_of_heads(call: OperatorCall) -> str:
    # Also where the shape tells them.
    for name in ("num_heads", "q_num_heads", "kv_num_heads"):
        number = call.attribute(name, 0)
        if number < 0:
            return f"{name} is {number}"
    return ""


@rule("Celu", "data divided by an alpha of 0")
def _dividing_alpha(*, alpha: float = 1.0) -> bool:
    return not alpha


@rule("Attention GroupNormalization LayerNormalization RMSNormalization Range")
def _precision(call: OperatorCall) -> str:
    for name in ("stash_type", "softmax_precision"):
        kind = call.attribute(name)
        if kind is not None and kind not in FLOATS:
            return f"{name} is {kind}, which is no type of floats"
    return ""


@rule("RandomNormal RandomNormalLike RandomUniform RandomUniformLike")
def _spread(*, low: float = 0.0, high: float = 1.0, scale: float = 1.0) -> str:
    if not low <= high:
        return f"numbers from {low:g} to {high:g}"
    return "" if scale >= 0 else f"a standard deviation of {scale:g}"


@rule("Bernoulli", "a probability that is not from 0 to 1")
def _probability(value: Array) -> bool:
    wide = value.astype(np.float64)
    return is_float(value.dtype) and not np.all((wide >= 0) & (wide <= 1))


@rule("Multinomial")
def _outcomes(value: Array | None = None, *, sample_size: int = 1) -> str:
    if sample_size < 0:
        return "a negative number of samples"
    if value is None or value.ndim != 2:
        return ""
    if value.shape[0] and not value.shape[1]:
        return "a draw from no outcomes"
    return "NaN is no probability" if np.isnan(value.astype(np.float64)).any() else ""


@rule("GroupNormalization")
def _channels_of_groups(data: Array | None = None, *, num_groups: int = 1) -> str:
    channels = data.shape[1] if data is not None and data.ndim > 1 else 0
    fits = num_groups > 0 and not channels % num_groups
    return "" if fits else f"{num_groups} groups of {channels} channels"


_FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
_ACTIVATIONS = frozenset(
    """
    Relu Tanh Sigmoid Affine LeakyRelu ThresholdedRelu ScaledTanh HardSigmoid Elu Softsign Softplus
    """.split()
)


@rule("GRU LSTM RNN")
def _cells(call: OperatorCall) -> str:
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


@rule("Einsum")
def _equation(*, equation: str = "") -> str:
    text = equation.replace(" ", "")
    terms, arrow, result = text.partition("->")
    if not re.fullmatch(r"[A-Za-z.,]*", terms) or not re.fullmatch(r"[A-Za-z.]*", result):
        return f"an equation of other signs: {text!r}"
    letters = result.replace("...", "")
    if "." in letters or any("." in t.replace("...", "", 1) for t in terms.split(",")):
        return f"an equation with dots that are no ellipsis: {text!r}"
    twice = bool(arrow) and len(set(letters)) < len(letters)
    return f"a letter is twice in the result: {text!r}" if twice else ""


# --- of all operators -----------------------------------------------------------------------------


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


@rule("")
def _flag(call: OperatorCall) -> str:
    for given in call.node.attribute:
        if given.name in _FLAGS and given.type == given.INT and given.i not in (0, 1):
            return f"{given.name} is {given.i}, which is neither 0 nor 1"
    return ""


_WORDS = frozenset(
    """
    activation aggregate_function approximate auto_pad case_change_action cast_to
    coordinate_transformation_mode direction kernel_type keep_aspect_ratio_policy map_form mode
    nearest_mode norm padding_mode pixel_format post_transform reduction round_mode update_rule
    """.split()
)
"""Attributes that are one of a few words."""


@rule("")
def _word(call: OperatorCall) -> str:
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
    # Nor do they list words but in their texts.
    text = f"{schema.doc or ''} {found.description}"
    return re.search(rf"(?<![A-Za-z_]){re.escape(value)}(?![A-Za-z_])", text) is not None
