"""Rules by operator: operand values for which the ONNX standard defines no result.

A rule returns the reason in words, or nothing. An operand of unknown value breaks no rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto

from optvet.engine.judge.defined_indices import (
    axis_inside,
    count,
    delta,
    depth,
    equal_parts,
    infinite_signal,
    lengths,
    normalized_nothing,
    order,
    padding,
    parts,
    places,
    sliced_axes,
    steps,
    tokens,
    unique_places,
)
from optvet.engine.judge.operator_call import Array, OperatorCall, Rule
from optvet.engine.numerics.floats import is_float
from optvet.graph.types import INTEGERS, element_bits
from optvet.graph.walk import attribute_of

_SAYS_MORE = 28
"""The operator set from which on BitShift has an answer for any shift, and Mod for any floats."""


# --- quantization, casts, shifts ------------------------------------------------------------------

_SCALES: Mapping[str, tuple[int, ...]] = {
    "QuantizeLinear": (1,),
    "DequantizeLinear": (1,),
    "QLinearConv": (1, 4, 6),
    "QLinearMatMul": (1, 4, 6),
    "QLinearAdd": (1, 4, 6),
    "QLinearMul": (1, 4, 6),
    "QLinearSigmoid": (1, 3),
    "QLinearLeakyRelu": (1, 3),
    "QLinearAveragePool": (1, 3),
    "QLinearGlobalAveragePool": (1, 3),
    "QGemm": (1, 4, 7),
    "MatMulNBits": (2,),
}
SCALE_PLACES = _SCALES
"""Places of the scales among the inputs of operators that quantize."""


def _scale(call: OperatorCall) -> str:
    for place in _SCALES[call.node.op_type]:
        value = call.operand(place)
        if value is not None and is_float(value.dtype) and not _are_positive(value):
            return "a scale is not a positive number"
    return ""


def _are_positive(value: Array) -> bool:
    wide = np.asarray(value).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return bool(np.all(np.isfinite(wide) & (wide > 0)))


def _number_to_quantize(call: OperatorCall) -> str:
    value = call.operand(0)
    if value is None or not is_float(value.dtype):
        return ""
    if bool(np.isnan(value.astype(np.float64)).any()):
        return "NaN has no integer"
    return ""


def _zero_point_of_wide(call: OperatorCall) -> str:
    value, zero = call.operand(0), call.operand(2)
    wide = value is not None and value.dtype == np.int32
    return "int32 has no zero point but 0" if wide and zero is not None and zero.any() else ""


def _cast(call: OperatorCall) -> str:
    value, to = call.operand(0), call.attribute("to")
    if value is None or not is_float(value.dtype) or not _is_integer(to):
        return ""
    return outside_of(value, np.dtype(onnx.helper.tensor_dtype_to_np_dtype(to)))


def _cast_like(call: OperatorCall) -> str:
    value, like = call.operand(0), call.operand(1)
    if value is None or like is None or not is_float(value.dtype) or like.dtype.kind not in "iu":
        return ""
    return outside_of(value, like.dtype)


def _is_integer(kind: object) -> bool:
    # Of 4 bits and fewer, the standard's tests expect the lowest bits.
    return isinstance(kind, int) and kind in INTEGERS and (element_bits(kind) or 0) >= 8


def outside_of(value: Array, kind: np.dtype) -> str:
    """Why floats cannot become integers of type ``kind``; empty if they can."""
    limits = np.iinfo(kind)
    with np.errstate(invalid="ignore"):
        whole = np.trunc(value.astype(np.float64))
        # As floats: the largest int64 is none, and rounds to one that is too large.
        fits = (whole >= float(limits.min)) & (whole < float(limits.max) + 1)
    return "" if bool(np.all(fits)) else f"a float that is no {kind}"


def _shift(call: OperatorCall) -> str:
    value, by = call.operand(0), call.operand(1)
    if by is None or call.opset >= _SAYS_MORE:
        return ""
    bits = 8 * (by if value is None else value).dtype.itemsize
    return shifts_outside(by, bits)


def shifts_outside(by: Array, bits: int) -> str:
    """Why a number of ``bits`` bits cannot be shifted ``by`` so many; empty if it can."""
    signed = by.astype(np.int64) if by.dtype != np.uint64 else by.astype(np.float64)
    wrong = bool(np.any((signed < 0) | (signed >= bits)))
    return f"a shift that is not from 0 to {bits - 1}" if wrong else ""


# --- integers -------------------------------------------------------------------------------------


def _divisor(call: OperatorCall) -> str:
    over, by = call.operand(0), call.operand(1)
    if by is None or by.dtype.kind not in "iu":
        return ""
    return divides_outside(over, by)


def divides_outside(over: Array | None, by: Array) -> str:
    """Why integers cannot be divided; empty if they can."""
    if not bool(np.all(by != 0)):
        return "integers divided by 0"
    if over is not None and over.dtype.kind == "i" and by.dtype.kind == "i":
        try:
            wrong = (over == np.iinfo(over.dtype).min) & (by == -1)
        except ValueError:
            return ""  # shapes that do not fit are for the checker to refuse
        if bool(np.any(wrong)):
            return "the least integer divided by -1"
    return ""


def _overflow(call: OperatorCall) -> str:
    """Signed integers that overflow."""
    return _beyond(call, "i")


def _wrap(call: OperatorCall) -> str:
    """Unsigned integers that wrap, as they do in C and in all kernels; the standard is silent."""
    return _beyond(call, "u")


def _beyond(call: OperatorCall, signed: str) -> str:
    """Whether results leave the type's range, computed in floats: exact enough for 32 bits."""
    values = list(call.known_operands())
    if len(values) < len([n for n in call.node.input if n]) or not values:
        return ""
    if call.node.op_type in ("CumSum", *_REDUCTIONS):
        values = values[:1]  # the others are axes
    kind = values[0].dtype
    if kind.kind != signed or any(v.dtype != kind for v in values):
        return ""
    exact = _in_floats(call.node.op_type, [v.astype(np.float64) for v in values], call)
    if exact is None or not exact.size:
        return ""
    limits = np.iinfo(kind)
    slack = 2.0**11 if kind.itemsize == 8 else 0.0  # float64 does not hold every int64
    high, low = float(limits.max) - slack, float(limits.min) + (slack if kind.kind == "i" else 0)
    wrong = bool(np.any((exact > high) | (exact < low)))
    return f"the result is no {kind}" if wrong else ""


def _in_floats(operator: str, values: Sequence[Array], call: OperatorCall) -> Array | None:
    with np.errstate(all="ignore"):
        try:
            if operator in _FOLDS:
                total = values[0]
                for value in values[1:]:
                    total = _FOLDS[operator](total, value)
                return np.asarray(total)
            if operator == "CumSum":
                return _running(values[0], call)
            if operator in _REDUCTIONS:
                return _REDUCTIONS[operator](values[0], _axes(call))
            if operator == "MatMul":
                return np.asarray(np.matmul(values[0], values[1]))
            if operator == "Gemm":
                return _general_product(values, call)
            if operator == "Neg":
                return -values[0]
            return np.abs(values[0]) if operator == "Abs" else None
        except ValueError:
            return None  # shapes that do not fit are for the checker to refuse


def _general_product(values: Sequence[Array], call: OperatorCall) -> Array:
    """A product of two matrices, each of which may be transposed, and a third one added."""
    a = values[0].T if call.attribute("transA", 0) else values[0]
    b = values[1].T if call.attribute("transB", 0) else values[1]
    product = np.asarray(call.attribute("alpha", 1.0) * np.matmul(a, b))
    return product + call.attribute("beta", 1.0) * values[2] if len(values) > 2 else product


def _running(value: Array, call: OperatorCall) -> Array:
    """The partial sums that are results of a cumulative sum."""
    (axis,) = _axes(call) or (0,)
    turned = np.flip(value, axis) if call.attribute("reverse", 0) else value
    sums = np.cumsum(turned, axis)
    last = value.shape[axis] - 1 if call.attribute("exclusive", 0) else value.shape[axis]
    return np.asarray(np.take(sums, range(max(0, last)), axis))


def _list_items(value: Any) -> list[Any]:
    """The items of an attribute; a model that the checker refuses may have a single item."""
    return [value] if isinstance(value, (int, float)) else list(value or ())


def _axes(call: OperatorCall) -> tuple[int, ...] | None:
    """The axes that a node reduces; None for all."""
    value = call.operand(1)
    axes = _list_items(call.attribute("axes")) if value is None else value.ravel().tolist()
    if not axes and call.attribute("noop_with_empty_axes", 0):
        return ()
    return tuple(axes) if axes else None


_REDUCTIONS: Mapping[str, Callable[[Array, tuple[int, ...] | None], Array]] = {
    "ReduceL1": lambda value, axes: np.asarray(np.sum(np.abs(value), axis=axes)),
    "ReduceProd": lambda value, axes: np.asarray(np.prod(value, axis=axes)),
    "ReduceSum": lambda value, axes: np.asarray(np.sum(value, axis=axes)),
    "ReduceSumSquare": lambda value, axes: np.asarray(np.sum(np.square(value), axis=axes)),
}
"""By what and which axes. The result counts: how often a sum overflows on its way is not seen."""
_FOLDS: Mapping[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Sum": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
}


def _power(call: OperatorCall) -> str:
    """Negative powers of integers, and signed powers that overflow."""
    return _power_beyond(call, signed=True)


def _power_wrap(call: OperatorCall) -> str:
    """Powers of unsigned integers that wrap."""
    return _power_beyond(call, signed=False)


def _power_beyond(call: OperatorCall, *, signed: bool) -> str:
    base, exponent = call.operand(0), call.operand(1)
    if base is None or exponent is None or base.dtype.kind not in "iu":
        return ""
    with np.errstate(all="ignore"):
        negative = np.broadcast_arrays(base, exponent)
        if bool(np.any((negative[1] < 0) & (np.abs(negative[0].astype(np.float64)) != 1))):
            return "an integer to a negative power" if signed else ""
        if signed != (base.dtype.kind == "i"):
            return ""
        exact = np.power(base.astype(np.float64), exponent.astype(np.float64))
    limits = np.iinfo(base.dtype)
    wrong = bool(np.any((np.abs(exact) > float(limits.max)) | (exact < float(limits.min))))
    return f"the result is no {base.dtype}" if wrong else ""


def _float_remainder(call: OperatorCall) -> str:
    value = call.operand(0)
    if value is None or value.dtype.kind != "f" or call.attribute("fmod", 0):
        return ""
    if call.opset >= _SAYS_MORE:
        return ""
    return "the remainder of floats without fmod"


# --- attributes and shapes ------------------------------------------------------------------------


def _epsilon(call: OperatorCall) -> str:
    """An epsilon of 0 may divide by a variance of 0; unknown variances count as 0."""
    value = call.attribute("epsilon")
    if value is None or (np.isfinite(value) and value > 0):
        return ""
    result = call.results[0] if call.results else None
    if value == 0 and result is not None and bool(np.all(np.isfinite(result))):
        return ""
    return f"epsilon is {value:g}, which is not positive"


def _variance(call: OperatorCall) -> str:
    """The root of a negative variance is NaN, which kernels treat differently."""
    value = call.operand(4)
    if value is None or not is_float(value.dtype):
        return ""
    with np.errstate(invalid="ignore"):
        positive = value.astype(np.float64) + call.attribute("epsilon", 1e-5) >= 0
    return "" if bool(np.all(positive)) else "a variance is negative"


def _scales_of_size(call: OperatorCall) -> str:
    value = call.operand(1 if call.node.op_type == "Upsample" or call.opset < 11 else 2)
    listed = call.attribute("scales")
    if value is None and listed is not None:
        value = np.array(_list_items(listed), np.float32)
    if value is None or value.dtype.kind != "f" or not value.size:
        return ""
    return "" if _are_positive(value) else "a scale is not a positive number"


def _size_by_rounding(call: OperatorCall) -> str:
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


def _negative_axis(call: OperatorCall) -> str:
    for name in ("axis", "axes"):
        value = call.attribute(name)
        numbers = _list_items(value)
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


def _axes_once(call: OperatorCall) -> str:
    numbers, value = _axes(call) or (), call.operand(0)
    if value is not None:
        rank = value.ndim + (len(numbers) if call.node.op_type == "Unsqueeze" else 0)
        numbers = tuple(n + rank if n < 0 else n for n in numbers)
    return "an axis is listed twice" if len(set(numbers)) < len(numbers) else ""


def _mean_of_nothing(call: OperatorCall) -> str:
    value, axes = call.operand(0), _axes(call)
    if value is None or axes == ():
        return ""
    size = dict(enumerate(value.shape))
    reduced = set(size) if axes is None else {n % value.ndim for n in axes if size}
    kept = math.prod(d for n, d in size.items() if n not in reduced)
    return "the mean of no numbers" if kept and 0 in {size[n] for n in reduced} else ""


def _largest_of_a_row(call: OperatorCall) -> str:
    """The text divides by the largest number, onnx's evaluator by the largest magnitude."""
    value = call.operand(0)
    if value is None or not value.size or call.attribute("norm", b"MAX") not in (b"MAX", "MAX"):
        return ""
    rows = value.reshape(-1, value.shape[-1] if value.ndim else 1)
    negative = bool(np.any(rows.max(axis=1) < np.abs(rows).max(axis=1)))
    return "the number of the largest magnitude in a row is negative" if negative else ""


def _zero_and_rest(call: OperatorCall) -> str:
    shape = call.operand(1)
    if shape is None or not call.attribute("allowzero", 0):
        return ""
    both = bool(np.any(shape == 0)) and bool(np.any(shape == -1))
    return "sizes of 0 and -1 together with allowzero" if both else ""


def _ratio(call: OperatorCall) -> str:
    """A share that is dropped, of which something is left; it is told also where nothing is."""
    given = call.operand(1)
    ratio = call.attribute("ratio", 0.5) if given is None else given.item(0)
    return "" if 0 <= ratio < 1 else f"a ratio of {ratio:g}, which is not in [0, 1)"


def _batches(call: OperatorCall) -> str:
    """A matrix for each image."""
    matrices, size = call.operand(0), call.operand(1)
    if matrices is None or size is None or not size.size or matrices.shape[0] == size.item(0):
        return ""
    return f"{matrices.shape[0]} matrices for {size.item(0)} images"


def _keys(call: OperatorCall) -> str:
    """One value for each key."""
    kinds = ("keys_floats", "keys_int64s", "keys_strings")
    repeated = any(len(set(keys)) < len(keys) for keys in map(call.attribute, kinds) if keys)
    return "a key stands for several values" if repeated else ""


def _bounds(call: OperatorCall) -> str:
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


def _block(call: OperatorCall) -> str:
    size = call.attribute("block_size", 0)
    return f"block_size is {size}, which is not positive" if size < 0 else ""


def _stage(call: OperatorCall) -> str:
    """The stage of the product of queries and keys that is an output."""
    stage = call.attribute("qk_matmul_output_mode", 0)
    return "" if 0 <= stage <= 3 else f"qk_matmul_output_mode is {stage}, which is not from 0 to 3"


def _flag(call: OperatorCall) -> str:
    for given in call.node.attribute:
        if given.name in _FLAGS and given.type == given.INT and given.i not in (0, 1):
            return f"{given.name} is {given.i}, which is neither 0 nor 1"
    return ""


_BY_OPERATOR: Mapping[str, tuple[Rule, ...]] = {
    "QuantizeLinear": (_number_to_quantize, _block),
    "DynamicQuantizeLinear": (_number_to_quantize,),
    "DequantizeLinear": (_zero_point_of_wide, _block),
    "Cast": (_cast,),
    "CastLike": (_cast_like,),
    "BitShift": (_shift,),
    "Div": (_divisor,),
    "Mod": (_divisor, _float_remainder),
    "Pow": (_power, _power_wrap),
    "BatchNormalization": (_variance,),
    "Resize": (_scales_of_size, _size_by_rounding),
    "Upsample": (_scales_of_size, _size_by_rounding),
    "Reshape": (_zero_and_rest,),
    "AffineGrid": (_batches,),
    "Clip": (_bounds,),
    "Dropout": (_ratio,),
    "LabelEncoder": (_keys,),
    "MaxPool": (padding,),
    "AveragePool": (padding,),
    "LpPool": (padding,),
    "Gather": (places,),
    "GatherElements": (places,),
    "GatherND": (places,),
    "Scatter": (places, unique_places),
    "ScatterElements": (places, unique_places),
    "ScatterND": (places, unique_places),
    "OneHot": (depth,),
    "Range": (delta,),
    "ReverseSequence": (lengths,),
    "DFT": (infinite_signal,),
    "STFT": (infinite_signal,),
    "Slice": (steps, sliced_axes),
    "Split": (parts, equal_parts),
    "SplitToSequence": (parts,),
    "TopK": (count, order),
    "ArgMax": (order,),
    "ArgMin": (order,),
    "Hardmax": (order,),
    "ReduceMax": (order,),
    "ReduceMin": (order,),
    "Relu": (order,),
    "Unique": (order,),
    "ReduceMean": (_mean_of_nothing,),
    "Normalizer": (_largest_of_a_row,),
    "Attention": (_stage, tokens),
    "LayerNormalization": (axis_inside, normalized_nothing),
    "RMSNormalization": (axis_inside, normalized_nothing),
    "Softmax": (axis_inside,),
    "LogSoftmax": (axis_inside,),
    "Squeeze": (_axes_once,),
    "Unsqueeze": (_axes_once,),
}
OF_ALL: tuple[Rule, ...] = (_flag,)
"""The rules of every operator."""
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
_OVERFLOWING = [*"Add Sum Sub Mul Neg Abs CumSum MatMul Gemm".split(), *_REDUCTIONS]
_REDUCING = [*_REDUCTIONS, *"ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean".split()]
_NORMALIZATIONS = (
    "BatchNormalization GroupNormalization InstanceNormalization LayerNormalization "
    "RMSNormalization SimplifiedLayerNormalization SkipLayerNormalization "
    "SkipSimplifiedLayerNormalization".split()
)
_WITH_AXES = (
    "ArgMax ArgMin Concat Flatten Gather GatherElements Hardmax LogSoftmax OneHot ReduceL1 "
    "ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare ScatterElements Slice Softmax Split Squeeze TopK Unsqueeze".split()
)


def _collect_rules() -> dict[str, tuple[Rule, ...]]:
    found: dict[str, list[Rule]] = {name: list(rules) for name, rules in _BY_OPERATOR.items()}
    for rule, names in (
        (_scale, _SCALES),
        (_overflow, _OVERFLOWING),
        (_wrap, _OVERFLOWING),
        (_axes_once, _REDUCING),
        (_epsilon, _NORMALIZATIONS),
        (_negative_axis, _WITH_AXES),
    ):
        for name in names:
            found.setdefault(name, []).append(rule)
    return {name: tuple(rules) for name, rules in found.items()}


RULES: Mapping[str, tuple[Rule, ...]] = _collect_rules()
"""The rules of each operator."""
AGREED = frozenset({_negative_axis, _power_wrap, _size_by_rounding, _wrap})
"""Rules about what the standard does not allow or does not say, and all kernels do alike: hunts
judge no such model, and in any other one it excuses nothing."""
_BY_ATTRIBUTES = {
    axis_inside,
    _batches,
    _block,
    count,
    _epsilon,
    _keys,
    _mean_of_nothing,
    _negative_axis,
    order,
    padding,
    parts,
    places,
    _ratio,
    sliced_axes,
    _stage,
    steps,
    tokens,
}
"""Rules for which no value is recorded: runtimes mostly refuse an index outside of the data, and
hardly any model has tensors without elements, or asks for the largest of NaN."""
_OF_INTEGERS = {_overflow, _wrap, _divisor, _power, _power_wrap, _shift}


def wanted_values(node: NodeProto, types: Mapping[str, int]) -> Iterator[str]:
    """Names of operands on whose values a rule may depend; ``types`` are element types by name."""
    rules = set(RULES.get(node.op_type, ())) - _BY_ATTRIBUTES
    listed = attribute_of(node, "axes")
    if node.op_type in _REDUCING or (listed is not None and len(_list_items(listed)) < 2):
        rules.discard(_axes_once)
    if rules <= _OF_INTEGERS | {_float_remainder}:
        if not any(_is_integer(types.get(name)) for name in node.input):
            return
    if rules == {_scale}:
        yield from (node.input[p] for p in _SCALES[node.op_type] if p < len(node.input))
    elif rules == {_cast}:
        yield from node.input if _is_integer(attribute_of(node, "to")) else ()
    elif rules:
        yield from node.input
