"""Nodes that may need their precision: from the values they had, and from the graph alone.

A suspicion only orders the search; no answer rests on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
from onnx import ModelProto, NodeProto, numpy_helper

from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inner_values import record_values
from optvet.graph.walk import attribute_of, is_onnx, name_nodes
from optvet.spec.records.precision import PrecisionRisk
from optvet.spec.words import show

Values = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class HalfRange:
    """What a half type can tell apart.

    Attributes:
        dtype: Its type in numpy.
        largest: Its largest finite number.
        normal: Its smallest number with all digits.
        smallest: Its smallest number above 0.
    """

    dtype: np.dtype[np.generic]
    largest: float
    normal: float
    smallest: float

    def round(self, values: np.ndarray) -> np.ndarray:
        """``values`` rounded to the type, as float32."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(values).astype(self.dtype).astype(np.float32)


RANGES: Mapping[str, HalfRange] = {
    "fp16": HalfRange(np.dtype(np.float16), 65504.0, 2.0**-14, 2.0**-24),
    "bf16": HalfRange(np.dtype(ml_dtypes.bfloat16), 3.3895e38, 2.0**-126, 2.0**-133),
}
_OVERFLOW, _LOST, _SHARE, _HINT = 4.0, 3.0, 1.0, 0.1
"""Severities: an infinite value; a value that is lost; one that is lost in part; an operator."""
_FEW_SHARE = 0.02
_ABSORBED_SHARE = 0.05
_FEW_DIGITS_SHARE = 0.5
_MOST_OF_IT = 0.25
_SCALARS = 16
"""Weights of so few elements are constants, of which each counts."""
_LONG_SUM = 2048
_DELICATE = frozenset(
    "Div Exp GroupNormalization InstanceNormalization LayerNormalization Log LogSoftmax "
    "LpNormalization Pow Reciprocal ReduceL2 ReduceLogSumExp ReduceMean ReduceProd ReduceSum "
    "ReduceSumSquare Softmax Sqrt".split()
)
"""Operators that tend to need range or digits."""


def suspects(
    data: bytes, feeds: Sequence[Values], config: RuntimeConfig, precision: str
) -> dict[str, list[PrecisionRisk]]:
    """Suspicions by node, the most severe first. Called in a worker; raises what a runtime raises.

    Args:
        data: The model.
        feeds: Inputs on which its inner values are observed.
        config: What runs it.
        precision: A half type, or another precision, for which only the graph is looked at.
    """
    model = onnx.load_from_string(data)
    name_nodes(model)
    found: dict[str, dict[str, PrecisionRisk]] = {}
    kept, constants = RANGES.get(precision), _constants(model)
    for node, suspicion in _from_graph(model, constants, kept):
        _keep_worst(found, node, suspicion)
    for each in feeds if kept is not None else ():
        values = {**constants, **each, **record_values(data, each, config)}
        for node, suspicion in _from_values(model, values, kept):
            _keep_worst(found, node, suspicion)
    return {
        name: sorted(kinds.values(), key=lambda s: -s.severity) for name, kinds in found.items()
    }


def _keep_worst(
    found: dict[str, dict[str, PrecisionRisk]], node: NodeProto, suspicion: PrecisionRisk
) -> None:
    kinds = found.setdefault(node.name, {})
    known = kinds.get(suspicion.kind)
    if known is None or suspicion.severity > known.severity:
        kinds[suspicion.kind] = suspicion


# --- from values ----------------------------------------------------------------------------------


def _from_values(
    model: ModelProto, values: Values, half: HalfRange | None
) -> Iterator[tuple[NodeProto, PrecisionRisk]]:
    if half is None:
        return
    about: dict[str, list[PrecisionRisk]] = {}
    for node in model.graph.node:
        for where, names in (("output", node.output), ("input", node.input)):
            for name in names:
                if name not in values or values[name].dtype != np.float32:
                    continue
                if name not in about:
                    about[name] = list(_of_value(values[name], half))
                for each in about[name]:
                    words = f"{each.words} in its {where} {show(name)}"
                    yield node, each.model_copy(update={"words": words})
        if node.op_type in ("Add", "Sub") and is_onnx(node):
            yield from ((node, s) for s in _absorbed(node, values, half))


def _of_value(value: np.ndarray, half: HalfRange) -> Iterator[PrecisionRisk]:
    size = np.abs(value[np.isfinite(value)])
    used = size[size > 0]
    if not used.size:
        return
    most, rounded = float(used.max()), half.round(used)
    if np.isinf(rounded).any():
        # How far beyond, so that of two the worse is tried first.
        severity = _OVERFLOW + min(math.log10(most / half.largest) / 100, 0.9)
        words = f"max |x| = {most:,.6g}, beyond {half.largest:,.6g},"
        yield PrecisionRisk(kind="overflow", severity=severity, words=words)
    lost = float(np.mean(rounded == 0))
    if lost >= _FEW_SHARE:
        severity = _LOST if lost > 0.5 else _SHARE + lost
        words = f"{lost:.0%} of the values that are not 0 become 0"
        yield PrecisionRisk(kind="underflow", severity=severity, words=words)
    few = float(np.mean(used < half.normal))
    if few >= _FEW_DIGITS_SHARE:
        words = f"{few:.0%} of the values are below {half.normal:.2g}, where digits are lost,"
        yield PrecisionRisk(kind="few-digits", severity=_SHARE, words=words)


def _absorbed(node: NodeProto, values: Values, half: HalfRange) -> Iterator[PrecisionRisk]:
    """Whether one summand has no effect on the sum once all are rounded."""
    weights = [values.get(name) for name in node.input]
    if any(w is None or w.dtype != np.float32 for w in weights) or len(weights) != 2:
        return
    a, b = (half.round(w) for w in weights if w is not None)
    with np.errstate(invalid="ignore", over="ignore"):
        total = half.round(a - b if node.op_type == "Sub" else a + b)
    sign = -1.0 if node.op_type == "Sub" else 1.0
    with np.errstate(invalid="ignore", over="ignore"):
        yield from _cancelled(values.get(node.output[0]), a + sign * b)
    for other, small, name in ((a, sign * b, node.input[1]), (sign * b, a, node.input[0])):
        gone = (total == other) & (small != 0) & np.isfinite(total)
        share = float(np.mean(gone)) if gone.size else 0.0
        if share >= _ABSORBED_SHARE:
            words = f"adding {show(name)} changes nothing in {share:.0%} of the sums"
            severity = _LOST if share > 0.5 else _SHARE + share
            yield PrecisionRisk(kind="absorption", severity=severity, words=words)


def _cancelled(exact: np.ndarray | None, rounded: np.ndarray) -> Iterator[PrecisionRisk]:
    """Whether the rounding of two numbers that nearly cancel is most of what is left."""
    if exact is None or exact.shape != rounded.shape:
        return
    used = np.isfinite(exact) & (exact != 0) & np.isfinite(rounded)
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.abs(rounded - exact)[used] > _MOST_OF_IT * np.abs(exact)[used]
    share = float(np.mean(off)) if off.size else 0.0
    if share >= _ABSORBED_SHARE:
        words = f"its inputs nearly cancel: {share:.0%} of the results are off by a quarter"
        severity = _LOST if share > 0.5 else _SHARE + share
        yield PrecisionRisk(kind="cancellation", severity=severity, words=words)


# --- from the graph -------------------------------------------------------------------------------


def _from_graph(
    model: ModelProto, constants: Values, half: HalfRange | None
) -> Iterator[tuple[NodeProto, PrecisionRisk]]:
    sums = _long_sums(model)
    for node in model.graph.node:
        if half is not None:
            for name in node.input:
                if name in constants:
                    yield from ((node, s) for s in _of_constant(name, constants[name], half))
        if (length := sums.get(node.name, 0)) >= _LONG_SUM:
            words = f"sums {length:,} products"
            severity = _HINT + min(length / 1e7, 0.5)
            yield node, PrecisionRisk(kind="long-sum", severity=severity, words=words)
        if node.op_type in _DELICATE and is_onnx(node):
            words = f"{node.op_type} needs range or digits"
            yield node, PrecisionRisk(kind="operator", severity=_HINT, words=words)


def _constants(model: ModelProto) -> dict[str, np.ndarray]:
    """Weights and constants of float32."""
    found = {
        t.name: numpy_helper.to_array(t)
        for t in model.graph.initializer
        if t.data_type == onnx.TensorProto.FLOAT
    }
    for node in model.graph.node:
        value = attribute_of(node, "value") if node.op_type == "Constant" else None
        if isinstance(value, onnx.TensorProto) and value.data_type == onnx.TensorProto.FLOAT:
            found[node.output[0]] = numpy_helper.to_array(value)
    return found


def _of_constant(name: str, value: np.ndarray, half: HalfRange) -> Iterable[PrecisionRisk]:
    size = np.abs(value[np.isfinite(value)])
    used = size[size > 0]
    if not used.size:
        return
    most, least = float(used.max()), float(used.min())
    if most > half.largest:
        words = f"the constant {show(name)} has {most:,.6g}, beyond {half.largest:,.6g}"
        yield PrecisionRisk(kind="constant", severity=_OVERFLOW, words=words)
    if value.size <= _SCALARS and least < half.smallest:
        words = f"the constant {show(name)} of {least:.3g} is below {half.smallest:.2g}"
        yield PrecisionRisk(kind="constant", severity=_LOST, words=words)


def _long_sums(model: ModelProto) -> dict[str, int]:
    """Number of products that each node with a weight adds up for an element."""
    dims = {t.name: tuple(t.dims) for t in model.graph.initializer}
    found = {}
    for node in model.graph.node:
        shape = dims.get(node.input[1], ()) if len(node.input) > 1 else ()
        if not shape or not is_onnx(node):
            continue
        if node.op_type == "Conv":
            found[node.name] = math.prod(shape[1:])
        elif node.op_type == "MatMul":
            found[node.name] = shape[-2] if len(shape) > 1 else shape[0]
        elif node.op_type == "Gemm":
            found[node.name] = shape[1 if attribute_of(node, "transB") else 0]
    return found
