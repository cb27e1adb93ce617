"""What is plain in a model, and what is odd: parts that optimizers stumble over."""

from __future__ import annotations

import re
from collections.abc import Iterable

from onnx import FunctionProto, ModelProto, NodeProto, defs

from optvet.graph.walk import ONNX_DOMAIN, is_onnx

PLAIN_OPERATORS = frozenset({"Abs", "Not"})
"""Operators that stand for any other; reductions put them in."""
_FREE_WEIGHTS = 4
_PLAIN_NAME = re.compile(r"[xywt]\d+")


def is_plain(node: NodeProto) -> bool:
    """Whether the node stands for any other: no optimizer looks for its operator."""
    return node.op_type in PLAIN_OPERATORS and is_onnx(node)


def is_plain_name(name: str) -> bool:
    """Whether a value has a name as reductions give them: x0 an input, w0 a weight, y0, t0."""
    return _PLAIN_NAME.fullmatch(name) is not None


def is_namesake(function: FunctionProto) -> bool:
    """Whether a function of the model is named as an operator of ONNX is, in another domain."""
    return function.domain not in ("", ONNX_DOMAIN) and defs.has(function.name)


def is_aliased(model: ModelProto) -> bool:
    """Whether the model imports ONNX's operators by the long name of their domain."""
    return any(opset.domain == ONNX_DOMAIN for opset in model.opset_import)


def lists_weights(model: ModelProto) -> bool:
    """Whether the model's IR version wants weights to be listed among its inputs."""
    return model.ir_version < _FREE_WEIGHTS


def odd_parts(
    shell: ModelProto,
    nodes: Iterable[NodeProto],
    functions: Iterable[FunctionProto],
    names: Iterable[str],
) -> int:
    """How many parts of a model could be plainer: operators, names, its form.

    ``shell`` is the model, whose own graph and functions do not count.
    """
    odd = sum(not is_plain_name(name) for name in names)
    odd += sum(not is_plain(node) for node in nodes) + sum(map(is_namesake, functions))
    return odd + is_aliased(shell) + lists_weights(shell)
