"""Operators of the source translated anew, in place of a node or beside it; and affine changes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from optvet.engine.convert.lost_inputs import is_given
from optvet.engine.repair.aligned_run import AlignedRun
from optvet.engine.repair.candidates import RepairCandidate, insert_operator, propose
from optvet.engine.repair.edits import BEFORE, fresh_name, tensor_of
from optvet.spec.converters import SourceValue
from optvet.spec.records.repair import InsertNode, Operation, ReplaceNode, SetWeight

_OPERATORS = 6
_NODES = 4
_NAMES = 2
_DIGITS = 6
_POINTWISE = frozenset(
    "Abs Ceil Cos Elu Erf Exp Floor Gelu HardSwish LeakyRelu Log Neg Reciprocal Relu Round Selu "
    "Sigmoid Sign Sin Softplus Softsign Sqrt Tanh".split()
)
"""Operators that do the same in every layout."""


def operators(aligned: AlignedRun, nodes: tuple[int, ...]) -> Iterator[RepairCandidate]:
    """The first missing operators as ONNX's own: replacing a node, or inserted before one."""
    for operator in aligned.operators(_OPERATORS):
        if operator.alike and operator.inputs:
            for inputs, weights in _translate_inputs(aligned, operator):
                yield from _place_operator(aligned, nodes, operator, inputs, weights)


def _translate_inputs(
    aligned: AlignedRun, operator: SourceValue
) -> Iterator[tuple[list[str], list[Operation]]]:
    """Inputs of the operator by name, and weights to be made for them, in a few ways."""
    by_name = {o.name: o for o in operator.operands}
    weights: list[Operation] = []
    ways: list[list[str]] = []
    for name in operator.inputs:
        operand = by_name.get(name)
        constant = None if operand is None else aligned.array_of(operand)
        if operand is None or not is_given(operand):
            ways.append([""])
        elif constant is not None:
            label = fresh_name(aligned.model, f"{operator.alike}_{name}".replace(".", "_"))
            kind = operator.value.dtype if constant.ndim == 0 else constant.dtype
            weights.append(SetWeight(name=label, tensor=tensor_of(constant.astype(kind))))
            ways.append([label])
        else:
            anyhow = operator.alike in _POINTWISE
            ways.append(aligned.names_of(operand, turned=anyhow)[:_NAMES])
    for inputs in itertools.product(*ways):
        kept = list(inputs)
        while kept and not kept[-1]:
            kept.pop()
        yield kept, weights


def _place_operator(
    aligned: AlignedRun,
    nodes: tuple[int, ...],
    operator: SourceValue,
    inputs: list[str],
    weights: list[Operation],
) -> Iterator[RepairCandidate]:
    attributes = {
        name: list(v) if isinstance(v, (list, tuple)) else v
        for name, v in operator.attributes.items()
        if v is not None
    }
    what = f"{operator.alike} ({operator.operator})"
    for index in nodes[:_NODES]:
        node = aligned.node_of(index)
        for output in node.output[:1]:
            replacement = ReplaceNode(
                node=output, operator=operator.alike, inputs=inputs, attributes=attributes
            )
            about = f"{node.op_type} {output} replaced by {what}"
            yield propose("operator", about, *weights, replacement)
    for index in nodes[:_NODES]:
        node = aligned.node_of(index)
        for place, name in enumerate(node.input):
            if name in inputs and name not in aligned.constants:
                output = fresh_name(aligned.model, f"{name}_{operator.alike}")
                insertion = InsertNode(
                    node=node.output[0],
                    index=place,
                    operator=operator.alike,
                    inputs=[BEFORE if n == name else n for n in inputs],
                    output=output,
                    attributes=attributes,
                )
                about = f"{what} inserted before input {place} of {node.output[0]}"
                yield propose("operator", about, *weights, insertion)
    for name in dict.fromkeys((*inputs, aligned.output)):
        if name and (name in aligned.values) and name not in aligned.constants:
            yield _behind(aligned, operator, name, inputs, weights, attributes)


def _behind(
    aligned: AlignedRun,
    operator: SourceValue,
    name: str,
    inputs: list[str],
    weights: list[Operation],
    attributes: dict[str, object],
) -> RepairCandidate:
    """The operator inserted behind a value, for all that read it."""
    insertion = InsertNode(
        node=name,
        operator=operator.alike,
        inputs=[BEFORE if n == name else n for n in inputs],
        output=fresh_name(aligned.model, f"{name}_{operator.alike}"),
        attributes=attributes,
    )
    about = f"{operator.alike} ({operator.operator}) inserted behind {name}"
    return propose("operator", about, *weights, insertion)


def affine(aligned: AlignedRun, nodes: tuple[int, ...]) -> Iterator[RepairCandidate]:
    """A factor and a shift, of all or of each channel, where they explain a value exactly."""
    for index in nodes[:_NODES]:
        node = aligned.node_of(index)
        for place, name in enumerate(node.input):
            value = aligned.values.get(name)
            if value is None or name in aligned.constants or value.dtype.kind != "f":
                continue
            for i in aligned.missing[:_OPERATORS]:
                wanted = aligned.inside.values[i].value
                if wanted.shape != value.shape or not value.size:
                    continue
                for factor, shift in _fits(value, wanted, aligned.allowed.values[i]):
                    yield _rescale_input(aligned, node.output[0], place, factor, shift)


def _fits(
    value: np.ndarray, wanted: np.ndarray, allowed: float
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Factor and shift of all, then of each slice along the second axis."""
    axes = [tuple(range(value.ndim))]
    if value.ndim > 1:
        axes.append(tuple(a for a in range(value.ndim) if a != 1))
    x, y = value.astype(np.float64), wanted.astype(np.float64)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return
    for over in axes:
        if x.size // max(np.prod([x.shape[a] for a in over]), 1) > x.size // 8:
            continue
        mean_x, mean_y = x.mean(over, keepdims=True), y.mean(over, keepdims=True)
        spread = ((x - mean_x) ** 2).sum(over, keepdims=True)
        if np.any(spread <= 0):
            continue
        factor = ((x - mean_x) * (y - mean_y)).sum(over, keepdims=True) / spread
        factor = _round_digits(factor)
        shift = _round_digits(mean_y - factor * mean_x)
        if np.max(np.abs(factor * x + shift - y)) <= allowed:
            yield factor, shift
            return


def _round_digits(value: np.ndarray) -> np.ndarray:
    """Round to a few digits, as people write numbers."""
    return np.asarray([float(f"{v:.{_DIGITS}g}") for v in value.reshape(-1)]).reshape(value.shape)


def _rescale_input(
    aligned: AlignedRun, node: str, place: int, factor: np.ndarray, shift: np.ndarray
) -> RepairCandidate:
    maker = next(n for n in aligned.model.graph.node if node in n.output)
    kind = aligned.values[maker.input[place]].dtype
    operations: list[Operation] = []
    if np.any(factor != 1):
        operations += insert_operator(
            aligned, node, place, "Mul", [("factor", factor.astype(kind))]
        )
    if np.any(shift != 0):
        operations += insert_operator(aligned, node, place, "Add", [("shift", shift.astype(kind))])
    about = f"a factor and a shift before input {place} of {node}"
    return propose("affine", about, *operations)
