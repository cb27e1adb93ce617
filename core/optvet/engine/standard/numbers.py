"""Rules about quantization, casts, shifts and integers; see ``rules``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx

from optvet.engine.numerics.floats import is_float
from optvet.engine.standard.call import Array, OperatorCall, axes_of
from optvet.graph.types import INTEGERS, element_bits

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


def scale(call: OperatorCall) -> str:
    """Scales of quantized numbers that are positive."""
    for place in SCALE_PLACES[call.node.op_type]:
        value = call.operand(place)
        if value is not None and is_float(value.dtype) and not are_positive(value):
            return "a scale is not a positive number"
    return ""


def are_positive(value: Array) -> bool:
    """Whether all numbers are finite and more than 0."""
    wide = np.asarray(value).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return bool(np.all(np.isfinite(wide) & (wide > 0)))


def number_to_quantize(call: OperatorCall) -> str:
    """Numbers that have a nearest integer."""
    value = call.operand(0)
    if value is None or not is_float(value.dtype):
        return ""
    if bool(np.isnan(value.astype(np.float64)).any()):
        return "NaN has no integer"
    return ""


def range_to_quantize(call: OperatorCall) -> str:
    """Numbers with a range; of zeros alone the text divides by 0, and kernels scale by 1."""
    value = call.operand(0)
    return "" if value is None or value.any() else "the range of no numbers, or of zeros alone"


def zero_point_of_wide(call: OperatorCall) -> str:
    """No zero point of 32 bits but 0."""
    value, zero = call.operand(0), call.operand(2)
    wide = value is not None and value.dtype == np.int32
    return "int32 has no zero point but 0" if wide and zero is not None and zero.any() else ""


def cast(call: OperatorCall) -> str:
    """Floats that the type of integers they become holds."""
    value, to = call.operand(0), call.attribute("to")
    if value is None or not is_float(value.dtype) or not is_integer(to):
        return ""
    return outside_of(value, np.dtype(onnx.helper.tensor_dtype_to_np_dtype(to)))


def cast_like(call: OperatorCall) -> str:
    """The same, where the type is that of an operand."""
    value, like = call.operand(0), call.operand(1)
    if value is None or like is None or not is_float(value.dtype) or like.dtype.kind not in "iu":
        return ""
    return outside_of(value, like.dtype)


def is_integer(kind: object) -> bool:
    """Whether an element type is one of integers that a cast must fit."""
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


def shift(call: OperatorCall) -> str:
    """A shift by no more bits than there are."""
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


def divisor(call: OperatorCall) -> str:
    """Integers to divide by."""
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


def overflow(call: OperatorCall) -> str:
    """Signed integers that overflow."""
    return _beyond(call, "i")


def wrap(call: OperatorCall) -> str:
    """Unsigned integers that wrap, as they do in C and in all kernels; the standard is silent."""
    return _beyond(call, "u")


def _beyond(call: OperatorCall, signed: str) -> str:
    """Whether results leave the type's range, computed in floats: exact enough for 32 bits."""
    values = list(call.known_operands())
    if len(values) < len([n for n in call.node.input if n]) or not values:
        return ""
    if call.node.op_type in ("CumSum", *REDUCTIONS):
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
            if operator in REDUCTIONS:
                return REDUCTIONS[operator](values[0], axes_of(call))
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
    (axis,) = axes_of(call) or (0,)
    turned = np.flip(value, axis) if call.attribute("reverse", 0) else value
    sums = np.cumsum(turned, axis)
    last = value.shape[axis] - 1 if call.attribute("exclusive", 0) else value.shape[axis]
    return np.asarray(np.take(sums, range(max(0, last)), axis))


REDUCTIONS: Mapping[str, Callable[[Array, tuple[int, ...] | None], Array]] = {
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


def power(call: OperatorCall) -> str:
    """Negative powers of integers, and signed powers that overflow."""
    return _power_beyond(call, signed=True)


def power_wrap(call: OperatorCall) -> str:
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


def float_remainder(call: OperatorCall) -> str:
    """A remainder of floats whose sign the operator set says."""
    value = call.operand(0)
    if value is None or value.dtype.kind != "f" or call.attribute("fmod", 0):
        return ""
    if call.opset >= _SAYS_MORE:
        return ""
    return "the remainder of floats without fmod"
