"""Which elements of a value the ONNX standard leaves open, and what may stand there.

A window without NaN has a maximum, whatever stands in the others: an operation that is undefined
for some of its elements excuses no other. And of numbers with NaN among them the largest is NaN or
that of the numbers, but nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from onnx import NodeProto

from optvet.engine.numerics.floats import is_float
from optvet.engine.standard.call import OperatorCall, axes_of
from optvet.engine.standard.rules import RULES
from optvet.graph.walk import attribute_of

_BY_ELEMENT = frozenset("Abs Add BitShift Cast CastLike Div Mod Mul Neg Pow Relu Sub".split())
"""Operators of whose result each element depends on one element of each operand."""
_LARGEST = {"GlobalMaxPool": True, "MaxPool": True, "ReduceMax": True, "ReduceMin": False}
"""Operators that take the largest or the smallest of several numbers."""
_CALLS = 2000
"""Parts of a value that are looked at; what is not looked at by then is taken for open."""


def open_elements(
    node: NodeProto, name: str, values: Mapping[str, np.ndarray], opset: int
) -> np.ndarray:
    """Mask of the elements of a result that have no answer; all where it is not known which.

    Args:
        node: Breaks a rule of what is defined.
        name: One of its results.
        values: All values of a run.
        opset: The operator set of its domain.
    """
    result = values[name]
    operands = [values.get(name) if name else None for name in node.input]
    call = OperatorCall(node, operands, [result], opset)
    if node.op_type in _BY_ELEMENT:
        return _by_element(call, result)
    value = call.operand(0)
    if value is not None and is_float(value.dtype) and _only_order_is_open(call):
        return np.broadcast_to(_holds_nan(call, np.isnan(value.astype(np.float64))), result.shape)
    return np.ones(result.shape, bool)


def largest_of_numbers(node: NodeProto, value: np.ndarray) -> np.ndarray | None:
    """``value`` with NaN replaced so that it is neither the largest nor the smallest; else None."""
    largest = _LARGEST.get(node.op_type)
    if largest is None or not is_float(value.dtype):
        return None
    nan = np.isnan(value.astype(np.float64))
    return np.where(nan, np.array(-np.inf if largest else np.inf, value.dtype), value)


def _rules_broken(call: OperatorCall) -> list[str]:
    """Names of the rules that a call breaks, but for those on which all kernels agree."""
    rules = RULES.get(call.node.op_type, ())
    return [rule.name for rule in rules if not rule.agreed and rule.explain(call)]


def _only_order_is_open(call: OperatorCall) -> bool:
    return _rules_broken(call) == ["order"]


def _holds_nan(call: OperatorCall, nan: np.ndarray) -> np.ndarray:
    """Which results depend on NaN, in a shape that fits theirs; everywhere if that is unknown."""
    op = call.node.op_type
    if op == "MaxPool":
        return _windows_with(call, nan)
    if op == "GlobalMaxPool":
        return np.asarray(nan.any(axis=tuple(range(2, nan.ndim)), keepdims=True))
    if op in ("ArgMax", "ArgMin", "Hardmax", "TopK"):
        axis = call.attribute("axis", 0 if op.startswith("Arg") else -1)
        keep = op in ("Hardmax", "TopK") or bool(call.attribute("keepdims", 1))
        return np.asarray(nan.any(axis=axis, keepdims=keep))
    if op in ("ReduceMax", "ReduceMin"):
        keep = bool(call.attribute("keepdims", 1))
        axes = axes_of(call)
        return nan if axes == () else np.asarray(nan.any(axis=axes, keepdims=keep))
    return np.ones(1, bool)


def _windows_with(call: OperatorCall, nan: np.ndarray) -> np.ndarray:
    """Which windows of a MaxPool hold NaN; all, where its padding is left to it."""
    result, rank = call.results[0], nan.ndim - 2
    assert result is not None
    # How much padding lies on which side is for the kernel to find.
    if call.text("auto_pad", "NOTSET") != "NOTSET":
        return np.ones(1, bool)
    kernel = list(call.attribute("kernel_shape"))
    strides = list(call.attribute("strides") or [1] * rank)
    dilations = list(call.attribute("dilations") or [1] * rank)
    pads = list(call.attribute("pads") or [0] * 2 * rank)
    # A window holds NaN if it does along one axis after the other.
    for i in range(rank):
        axis, size = i + 2, nan.shape[i + 2]
        starts = np.arange(result.shape[axis]) * strides[i] - pads[i]
        held = np.zeros((*nan.shape[:axis], len(starts), *nan.shape[axis + 1 :]), bool)
        for k in range(kernel[i]):
            places = starts + k * dilations[i]
            inside = ((places >= 0) & (places < size)).reshape([-1] + [1] * (nan.ndim - axis - 1))
            held |= np.take(nan, np.clip(places, 0, size - 1), axis) & inside
        nan = held
    return nan


def _by_element(call: OperatorCall, result: np.ndarray) -> np.ndarray:
    """Look at ever smaller parts of an operation by element, as long as a part breaks a rule."""
    open_ = np.zeros(result.size, bool)
    try:
        wide = [None if v is None else np.broadcast_to(v, result.shape) for v in call.operands]
    except ValueError:
        return np.ones(result.shape, bool)
    flat = [None if v is None else v.ravel() for v in wide]
    # Halves of halves: a few open elements among a million take some forty calls.
    todo, calls = [(0, result.size)], 0
    while todo:
        start, end = todo.pop()
        part = slice(start, end)
        calls += 1
        operands = [None if v is None else v[part] for v in flat]
        smaller = replace(call, operands=operands, results=[result.ravel()[part]])
        # Past the limit, the rest counts as open: no wrong value is then accused for it.
        if calls < _CALLS and not _rules_broken(smaller):
            continue
        if end - start == 1 or calls >= _CALLS:
            open_[part] = True
        else:
            middle = (start + end) // 2
            todo += [(start, middle), (middle, end)]
    return open_.reshape(result.shape)


def may_be_largest(
    node: NodeProto, found: np.ndarray, numbers: np.ndarray, tolerance: float
) -> np.ndarray:
    """Where ``found`` is NaN or the largest of the numbers; everywhere where these are unknown.

    Of NaN alone there is no largest number: kernels begin with the lowest of all.
    """
    if attribute_of(node, "auto_pad") not in (None, b"NOTSET"):
        return np.ones(found.shape, bool)
    z, t = found.astype(np.float64), numbers.astype(np.float64)
    lowest = float(np.finfo(found.dtype).max) if found.dtype.kind == "f" else 0.0
    with np.errstate(invalid="ignore"):
        none = (np.isinf(t) | (np.abs(t) >= lowest)) & (np.abs(z) >= lowest)
        return np.asarray(np.isnan(z) | none | (z == t) | (np.abs(z - t) <= tolerance))
