"""Parameters that are other numbers than the source's, by name, by their operator, or folded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from optvet.engine.convert.align import differing_weights, iter_layouts
from optvet.engine.repair.aligned_run import AlignedRun
from optvet.engine.repair.candidates import RepairCandidate, give_constant, propose
from optvet.engine.repair.edits import tensor_of
from optvet.engine.work.trials.inference import Outputs
from optvet.graph.weights import constants_of
from optvet.spec.converters import SourceValue
from optvet.spec.records.repair import Edit, SetWeight

_OPERATORS = 6
_ALONE = 16
_SMALL = 1e-30


def parameters(aligned: AlignedRun, nodes: tuple[int, ...]) -> Iterator[RepairCandidate]:
    """By name, all at once and each alone; then what the source's operators read; then folds."""
    yield from _by_name(aligned)
    for index in nodes:
        for operator in aligned.operators(_OPERATORS):
            yield from _by_role(aligned, index, operator)
    for index in nodes:
        yield from _fold_again(aligned, index)


def _by_name(aligned: AlignedRun) -> Iterator[RepairCandidate]:
    found = differing_weights(aligned.constants, aligned.inside.parameters)
    edits = [
        Edit(
            kind="parameter",
            about=f"{w.weight} from the source's {w.name}{', ' * bool(w.how)}{w.how}",
            operations=[SetWeight(name=w.weight, tensor=tensor_of(w.value))],
        )
        for w in found
    ]
    if edits:
        yield RepairCandidate(tuple(edits), explains=False)
    if len(edits) > 1:
        for edit in edits[:_ALONE]:
            yield RepairCandidate((edit,), explains=False)


def _by_role(aligned: AlignedRun, index: int, operator: SourceValue) -> Iterator[RepairCandidate]:
    """Constants of a node replaced by those that the source's operator reads."""
    node = aligned.node_of(index)
    arrays = [(o.name, o.parameter, aligned.array_of(o)) for o in operator.operands]
    wanted = [(parameter or name, a) for name, parameter, a in arrays if a is not None and a.size]
    for place, name in enumerate(node.input):
        now = aligned.constants.get(name)
        if now is None or not now.size:
            continue
        for label, value in wanted:
            for fit, how in _fits(value, now, {operator.alike, node.op_type}):
                about = f"input {place} of {node.op_type} {node.output[0]} from {label}{how}"
                yield propose("parameter", about, *give_constant(aligned, index, place, fit))
    yield from _all_at_once(aligned, index, operator)


def _fits(
    value: np.ndarray, now: np.ndarray, operators: set[str]
) -> Iterator[tuple[np.ndarray, str]]:
    """``value`` in every layout of ``now`` that differs from it.

    A number fits every shape, if both ``operators`` are the same; one that is subtracted may have
    become one that is added, and so forth.
    """
    if value.dtype.kind in "fiu" and now.dtype.kind in "fiu" and value.size == 1:
        number = float(value.reshape(-1)[0])
        ways = {}
        if len(operators) == 1 and (now.dtype.kind == "f" or number.is_integer()):
            ways[""] = number
        if operators == {"Add", "Sub"}:
            ways[", negative"] = -number
        if operators == {"Mul", "Div"} and now.dtype.kind == "f" and abs(number) > _SMALL:
            ways[", inverse"] = 1 / number
        for how, way in ways.items():
            whole = np.full(now.shape, way).astype(now.dtype)
            if not np.array_equal(whole, now):
                yield whole, f" = {way:g}{how}"
        return
    if value.size != now.size or value.dtype.kind != now.dtype.kind:
        return
    for laid_out, how in iter_layouts(value, now.shape):
        kept = laid_out.astype(now.dtype)
        if not np.array_equal(kept, now):
            yield kept, f", {how}" if how else ""


def _all_at_once(
    aligned: AlignedRun, index: int, operator: SourceValue
) -> Iterator[RepairCandidate]:
    """All constants of the operator of ONNX that the source's operator is."""
    node = aligned.node_of(index)
    if operator.alike != node.op_type or not operator.inputs:
        return
    by_name = {o.name: o for o in operator.operands}
    edits = []
    for place, name in enumerate(operator.inputs):
        operand = by_name.get(name)
        value = None if operand is None else aligned.array_of(operand)
        if value is None or place >= len(node.input):
            continue
        now = aligned.constants.get(node.input[place])
        fit = next(iter(_fits(value, now, {node.op_type})), None) if now is not None else None
        if fit is not None:
            about = f"input {place} of {node.op_type} {node.output[0]} from the source"
            operations = give_constant(aligned, index, place, fit[0])
            edits.append(Edit(kind="parameter", about=about, operations=operations))
    if len(edits) > 1:
        yield RepairCandidate(tuple(edits))


def _fold_again(aligned: AlignedRun, index: int) -> Iterator[RepairCandidate]:
    """A convolution into which the batch normalization behind it was folded, folded anew."""
    node = aligned.node_of(index)
    weights = constants_of(aligned.model)
    if node.op_type not in ("Conv", "Gemm") or len(node.input) < 2 or node.input[1] not in weights:
        return
    now = aligned.constants[node.input[1]]
    for i, each in enumerate(aligned.inside.values):
        if each.alike != "BatchNormalization" or not each.reads:
            continue
        before = aligned.inside.values[each.reads[0]]
        if each.reads[0] not in aligned.missing and i not in aligned.missing:
            continue
        fold = _fold(aligned, before, each, now)
        if fold is None:
            continue
        about = f"{node.op_type} {node.output[0]}: {each.module or each.operator} folded anew"
        operations = give_constant(aligned, index, 1, fold["weight"].astype(now.dtype))
        operations += give_constant(aligned, index, 2, fold["bias"].astype(now.dtype))
        yield propose("parameter", about, *operations)


def _fold(
    aligned: AlignedRun, before: SourceValue, norm: SourceValue, now: np.ndarray
) -> Outputs | None:
    """Weight and bias of ``before`` with ``norm`` folded in; None where shapes do not fit."""
    one = {o.name: aligned.array_of(o) for o in before.operands}
    two = {o.name: aligned.array_of(o) for o in norm.operands}
    names = {alike: name for name, alike in zip(norm.inputs, _NORM, strict=False)}
    weight = one.get("weight")
    mean, variance = two.get(names.get("mean", "")), two.get(names.get("variance", ""))
    if weight is None or mean is None or variance is None or weight.shape != now.shape:
        return None
    if len(mean) != len(weight):
        return None
    scale, shift = two.get(names.get("scale", "")), two.get(names.get("bias", ""))
    epsilon = norm.attributes.get("epsilon", 1e-5)
    assert isinstance(epsilon, float)
    factor = (1.0 if scale is None else scale) / np.sqrt(variance.astype(np.float64) + epsilon)
    bias = one.get("bias")
    moved = ((0.0 if bias is None else bias) - mean.astype(np.float64)) * factor
    shape = (-1, *[1] * (weight.ndim - 1))
    return {
        "weight": weight * np.reshape(factor, shape),
        "bias": moved + (0.0 if shift is None else shift),
    }


_NORM = ("", "scale", "bias", "mean", "variance")
"""Inputs of BatchNormalization in their order."""
