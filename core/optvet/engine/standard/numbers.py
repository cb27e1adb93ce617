"""Where ONNX defines no result for quantization, casts, shifts and integer operators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from optvet.engine.numerics.floats import is_float
from optvet.engine.standard.call import Array, OperatorCall, axes_of
from optvet.engine.standard.rule import RuleTable, Types, integers, is_integer, operands
from optvet.graph.walk import attribute_of

rule = RuleTable()
"""The rules of this module, in the order in which they are told."""
_SAYS_MORE = 28
"""The operator set from which on BitShift has an answer for any shift, and Mod for any floats."""


# --- quantization, casts, shifts ------------------------------------------------------------------

SCALE_PLACES: Mapping[str, tuple[int, ...]] = {
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
"""Places of the scales among the inputs of operators that quantize."""


def _scales(node: NodeProto, types: Types) -> Iterable[str]:
    return (node.input[p] for p in SCALE_PLACES[node.op_type] if p < len(node.input))


def _if_to_integer(node: NodeProto, types: Types) -> Iterable[str]:
    return node.input if is_integer(attribute_of(node, "to")) else ()


@rule(" ".join(SCALE_PLACES), "a scale is not a positive number", recorded=_scales)
def _scale(call: OperatorCall) -> bool:
    scales = (call.operand(place) for place in SCALE_PLACES[call.node.op_type])
    return any(s is not None and is_float(s.dtype) and not are_positive(s) for s in scales)


def are_positive(value: Array) -> bool:
    """Whether all numbers are finite and more than 0."""
    wide = np.asarray(value).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return bool(np.all(np.isfinite(wide) & (wide > 0)))


def holds_nan(value: Array) -> bool:
    """Whether some of the values are NaN."""
    return is_float(value.dtype) and bool(np.isnan(value.astype(np.float64)).any())


def is_finite(value: Array) -> bool:
    """Whether no value is infinite or NaN."""
    return bool(np.isfinite(value.astype(np.float64)).all())


@rule("DynamicQuantizeLinear QuantizeLinear", "NaN has no integer", recorded=operands)
def _number_to_quantize(value: Array) -> bool:
    return holds_nan(value)


@rule(
    "DynamicQuantizeLinear",
    "the range of no numbers, or of zeros alone",
    recorded=operands,
    agreed=True,
)
def _range_to_quantize(x: Array) -> bool:
    # The text divides by a range of 0, and kernels scale by 1.
    return not x.any()


@rule("DequantizeLinear", "int32 has no zero point but 0", at=(0, 2), recorded=operands)
def _zero_point_of_wide(x: Array, zero: Array) -> object:
    # int32 comes of products that were summed up, whose zero points are accounted for.
    return x.dtype == np.int32 and zero.any()


@rule("Cast", recorded=_if_to_integer)
def _cast(x: Array, *, to: Any = None) -> str:
    if not is_float(x.dtype) or not is_integer(to):
        return ""
    return outside_of(x, np.dtype(helper.tensor_dtype_to_np_dtype(to)))


@rule("CastLike", recorded=operands)
def _cast_like(x: Array, like: Array) -> object:
    return is_float(x.dtype) and like.dtype.kind in "iu" and outside_of(x, like.dtype)


def outside_of(value: Array, kind: np.dtype) -> str:
    """Why floats cannot become integers of type ``kind``; empty if they can."""
    limits = np.iinfo(kind)
    with np.errstate(invalid="ignore"):
        whole = np.trunc(value.astype(np.float64))
        # As floats: the largest int64 is none, and rounds to one that is too large.
        fits = (whole >= float(limits.min)) & (whole < float(limits.max) + 1)
    return "" if bool(np.all(fits)) else f"a float that is no {kind}"


@rule("BitShift", at=(1, 0), recorded=integers)
def _shift(by: Array, x: Array | None = None, *, opset: int) -> object:
    return opset < _SAYS_MORE and shifts_outside(by, 8 * (by if x is None else x).dtype.itemsize)


def shifts_outside(by: Array, bits: int) -> str:
    """Why a number of ``bits`` bits cannot be shifted ``by`` so many; empty if it can."""
    signed = by.astype(np.int64) if by.dtype != np.uint64 else by.astype(np.float64)
    wrong = bool(np.any((signed < 0) | (signed >= bits)))
    return f"a shift that is not from 0 to {bits - 1}" if wrong else ""


# --- integers -------------------------------------------------------------------------------------


@rule("Div Mod", at=(1, 0), recorded=integers)
def _divisor(by: Array, over: Array | None = None) -> object:
    return by.dtype.kind in "iu" and divides_outside(over, by)


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


def _overflows(call: OperatorCall, signed: str) -> str:
    """Whether results leave the type's range, computed in floats: exact enough for 32 bits."""
    operator, values = call.node.op_type, list(call.known_operands())
    if len(values) < len([n for n in call.node.input if n]) or not values:
        return ""  # some operand is unknown
    if operator == "CumSum" or operator.startswith("Reduce"):
        values = values[:1]  # the others are axes
    kind = values[0].dtype
    if kind.kind != signed or any(v.dtype != kind for v in values):
        return ""
    with np.errstate(all="ignore"):
        exact = np.asarray(_RESULTS[operator]([v.astype(np.float64) for v in values], call))
    if not exact.size:
        return ""
    limits = np.iinfo(kind)
    slack = 2.0**11 if kind.itemsize == 8 else 0.0  # float64 does not hold every int64
    high, low = float(limits.max) - slack, float(limits.min) + (slack if kind.kind == "i" else 0)
    wrong = bool(np.any((exact > high) | (exact < low)))
    return f"the result is no {kind}" if wrong else ""


def _general_product(values: Sequence[Array], call: OperatorCall) -> Array:
    """A product of two matrices, each of which may be transposed, and a third one added."""
    a = values[0].T if call.attribute("transA", 0) else values[0]
    b = values[1].T if call.attribute("transB", 0) else values[1]
    product = np.asarray(call.attribute("alpha", 1.0) * np.matmul(a, b))
    return product + call.attribute("beta", 1.0) * values[2] if len(values) > 2 else product


def _running(values: Sequence[Array], call: OperatorCall) -> Array:
    """The partial sums that are results of a cumulative sum."""
    (value,), (axis,) = values, axes_of(call) or (0,)
    turned = np.flip(value, axis) if call.attribute("reverse", 0) else value
    sums = np.cumsum(turned, axis)
    last = value.shape[axis] - 1 if call.attribute("exclusive", 0) else value.shape[axis]
    return np.asarray(np.take(sums, range(max(0, last)), axis))


# The result counts: how often a sum overflows on its way is not seen, since wrapping is undone.
_RESULTS: Mapping[str, Callable[[Sequence[Array], OperatorCall], Any]] = {
    "Abs": lambda values, call: np.abs(values[0]),
    "Add": lambda values, call: functools.reduce(np.add, values),
    "CumSum": _running,
    "Gemm": _general_product,
    "MatMul": lambda values, call: np.matmul(values[0], values[1]),
    "Mul": lambda values, call: functools.reduce(np.multiply, values),
    "Neg": lambda values, call: -values[0],
    "ReduceL1": lambda values, call: np.sum(np.abs(values[0]), axis=axes_of(call)),
    "ReduceProd": lambda values, call: np.prod(values[0], axis=axes_of(call)),
    "ReduceSum": lambda values, call: np.sum(values[0], axis=axes_of(call)),
    "ReduceSumSquare": lambda values, call: np.sum(np.square(values[0]), axis=axes_of(call)),
    "Sub": lambda values, call: functools.reduce(np.subtract, values),
    "Sum": lambda values, call: functools.reduce(np.add, values),
}


_OVERFLOWING = " ".join(_RESULTS)


@rule(_OVERFLOWING, recorded=integers)
def _overflow(call: OperatorCall) -> object:
    return _overflows(call, "i")


@rule(_OVERFLOWING, recorded=integers, agreed=True)
def _wrap(call: OperatorCall) -> object:
    # Unsigned integers wrap in C and in all kernels; the standard is silent.
    return _overflows(call, "u")


@rule("Pow", recorded=integers)
def _power(base: Array, exponent: Array) -> object:
    return _power_overflows(base, exponent, True)


@rule("Pow", recorded=integers, agreed=True)
def _power_wrap(base: Array, exponent: Array) -> object:
    return _power_overflows(base, exponent, False)


def _power_overflows(base: Array, exponent: Array, signed: bool) -> str:
    if base.dtype.kind not in "iu":
        return ""
    with np.errstate(all="ignore"):
        negative = np.broadcast_arrays(base, exponent)
        # 1 and -1 have any power.
        if bool(np.any((negative[1] < 0) & (np.abs(negative[0].astype(np.float64)) != 1))):
            return "an integer to a negative power" if signed else ""
        if signed != (base.dtype.kind == "i"):
            return ""
        exact = np.power(base.astype(np.float64), exponent.astype(np.float64))
    limits = np.iinfo(base.dtype)
    wrong = bool(np.any((np.abs(exact) > float(limits.max)) | (exact < float(limits.min))))
    return f"the result is no {base.dtype}" if wrong else ""


@rule("Mod", "the remainder of floats without fmod")
def _float_remainder(x: Array, *, fmod: int = 0, opset: int) -> bool:
    # The sign of the remainder is not said.
    return x.dtype.kind == "f" and not fmod and opset < _SAYS_MORE
