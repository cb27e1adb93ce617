"""Whether a runtime computes each operator of a model as exactly as its type and its range let.

Then none of its operators is wrong, however far the outputs are from the exact ones: a
Sigmoid of -39 that is 0 is off by 1e-17, and its product with 189 by all of its size.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from optvet.engine.judge.sample import magnitude, unlike
from optvet.engine.judge.thresholds import OTHER_KERNELS, THRESHOLDS
from optvet.engine.numerics.floats import is_float, unit_roundoff
from optvet.engine.numerics.inject import BOUNDED
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inner_values import record_values
from optvet.engine.work.trials.opinions import evaluate_in_own_types
from optvet.graph.functions import without_functions
from optvet.graph.walk import bodies_of, is_onnx
from optvet.spec.types import Artifact

Values = Mapping[str, np.ndarray]
_MOST_NODES = 64
"""The evaluator is slow, and a model of so many operators is seldom wrong in none of them."""


_BY_ONES = BOUNDED | {"LogSoftmax"}
"""Operators that resolve roundoffs of 1, such as the logarithm of a share that is nearly 1."""
_TRANSFORMS = frozenset({"DFT", "STFT"})
"""Operators whose results are off by roundoffs of the largest of them.

Source: Higham 2002, "Accuracy and Stability of Numerical Algorithms", Theorem 24.2.
"""


def exact_by_operator(data: bytes, feeds: Values, config: RuntimeConfig) -> str:
    """That no operator of a serialized model is wrong, in words; empty if one may be.

    Each is compared with float64 on the operands that the runtime gave it; where the evaluator has
    no float64, with what it gives in the operands' own types. Called in a worker.
    """
    model = without_functions(ModelProto.FromString(data))
    if len(model.graph.node) > _MOST_NODES or any(any(bodies_of(n)) for n in model.graph.node):
        return ""
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    recorded = record_values(model.SerializeToString(), feeds, config)
    # A runtime may compute otherwise where nobody asks for the values between operators.
    plain = config.runtime.load(Artifact("onnx", data), config.options).run(feeds)
    if unlike(plain, recorded) & plain.keys():
        return ""
    values = {**weights, **feeds, **recorded}
    if not all(_is_exact(model, node, values) for node in model.graph.node):
        return ""
    words = "computes each operator as exactly as its type and its range let"
    return f"{config.runtime.name} {words}: to {THRESHOLDS.rounding:g} roundoffs"


def _is_exact(model: ModelProto, node: NodeProto, values: Values) -> bool:
    from optvet.engine.numerics import float64  # scipy takes long to import

    operands = dict.fromkeys(name for name in node.input if name)
    names = [name for name in node.output if name]
    if node.op_type == "Constant":
        return True
    if not {*operands, *names} <= values.keys():
        return False
    inputs = [_info(name, values[name]) for name in operands]
    outputs = [_info(name, values[name]) for name in names]
    graph = helper.make_graph([node], "operator", inputs, outputs)
    alone = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    feeds = {name: values[name] for name in operands}
    try:
        exact = float64.evaluate(alone, feeds)
    except float64.NotPromotable:
        return _is_alike(alone, feeds, {name: values[name] for name in names})
    return all(_is_rounded(node, values[name], exact[name]) for name in names)


def _is_alike(alone: ModelProto, feeds: Values, given: Values) -> bool:
    """Whether the evaluator gives the same in the operands' own types, but for rounding of sums."""
    try:
        wanted = evaluate_in_own_types(alone, feeds, list(given))
    except Exception as error:  # the evaluator raises what it likes
        if isinstance(error, MemoryError):
            raise
        return False
    return all(_is_near(value, wanted[name]) for name, value in given.items())


def _is_near(value: np.ndarray, wanted: np.ndarray) -> bool:
    if value.shape != wanted.shape or not is_float(value.dtype):
        return np.array_equal(value, wanted)
    allowed = OTHER_KERNELS.rounding * unit_roundoff(value.dtype) * magnitude(wanted)
    return bool(np.allclose(value, wanted, rtol=0, atol=allowed, equal_nan=True))


def _info(name: str, value: np.ndarray) -> ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_value_info(name, kind, value.shape)


def _is_rounded(node: NodeProto, value: np.ndarray, exact: np.ndarray) -> bool:
    """Whether every element is a few roundoffs off, of itself or of what the operator resolves."""
    if value.shape != exact.shape or not is_float(value.dtype):
        return np.array_equal(value, exact)
    least = float(np.finfo(value.dtype).tiny)
    if is_onnx(node) and node.op_type in _BY_ONES:
        least = 1.0
    elif is_onnx(node) and node.op_type in _TRANSFORMS:
        least = magnitude(exact)
    with np.errstate(invalid="ignore"):
        off = np.abs(value.astype(np.float64) - exact)
        size = np.maximum(np.abs(exact), least)
        return bool(np.all(off <= THRESHOLDS.rounding * unit_roundoff(value.dtype) * size))
