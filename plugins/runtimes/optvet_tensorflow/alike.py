"""Operators of TensorFlow that are one operator of ONNX, with their attributes there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SAME: Mapping[str, str] = {
    "Relu": "Relu",
    "Sigmoid": "Sigmoid",
    "Tanh": "Tanh",
    "Softplus": "Softplus",
    "Softsign": "Softsign",
    "Selu": "Selu",
    "Elu": "Elu",
    "Exp": "Exp",
    "Log": "Log",
    "Sqrt": "Sqrt",
    "Reciprocal": "Reciprocal",
    "Neg": "Neg",
    "Abs": "Abs",
    "Sign": "Sign",
    "Erf": "Erf",
    "Floor": "Floor",
    "Ceil": "Ceil",
    "Round": "Round",
    "Rint": "Round",
    "Sin": "Sin",
    "Cos": "Cos",
    "LogicalNot": "Not",
    "IsNan": "IsNaN",
    "Add": "Add",
    "AddV2": "Add",
    "BiasAdd": "Add",
    "Sub": "Sub",
    "Mul": "Mul",
    "RealDiv": "Div",
    "Maximum": "Max",
    "Minimum": "Min",
    "Pow": "Pow",
    "Equal": "Equal",
    "Less": "Less",
    "LessEqual": "LessOrEqual",
    "Greater": "Greater",
    "GreaterEqual": "GreaterOrEqual",
    "LogicalAnd": "And",
    "LogicalOr": "Or",
    "SelectV2": "Where",
}
"""Operators that read the same in the same order; of a bias the layout must be channels last."""
_LAST: Mapping[str, str] = {"Softmax": "Softmax", "LogSoftmax": "LogSoftmax"}
"""Operators along the last axis."""
_CONVOLUTIONS = frozenset({"Conv2D", "DepthwiseConv2dNative"})


def alike_in_onnx(op: Any) -> tuple[str, dict[str, object]]:
    """The operator of ONNX and its attributes; an empty name if there is none of one operator."""
    if op.type in _SAME:
        first = op.type == "BiasAdd" and op.get_attr("data_format") != b"NHWC"
        return ("" if first else _SAME[op.type]), {}
    if op.type in _LAST:
        return _LAST[op.type], {"axis": -1}
    if op.type == "LeakyRelu":
        return "LeakyRelu", {"alpha": float(op.get_attr("alpha"))}
    if op.type in ("MatMul", "BatchMatMulV2"):
        turned = ("transpose_a", "transpose_b", "adj_x", "adj_y")
        known = set(op.node_def.attr)
        is_turned = any(op.get_attr(name) for name in turned if name in known)
        return ("" if is_turned else "MatMul"), {}
    if op.type in _CONVOLUTIONS and op.get_attr("data_format") == b"NHWC":
        strides, dilations = (list(op.get_attr(n))[1:3] for n in ("strides", "dilations"))
        return "Conv", {"strides": strides, "dilations": dilations}
    return "", {}
