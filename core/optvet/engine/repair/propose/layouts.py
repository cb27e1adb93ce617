"""Nodes that the source has no operator for, layouts that were left out, inputs exchanged."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from optvet.engine.repair.aligned_run import AlignedRun
from optvet.engine.repair.candidates import RepairCandidate, insert_operator, propose, short
from optvet.graph.walk import domain_of, opset_versions, schema_of
from optvet.spec.records.repair import Operation, RemoveNode, SetInput, SetOutputType

_EDGES = 5
"""Nodes in front of which, and behind which, something is inserted."""
_RANK = 4
_OTHERS = 24
"""Other values that an input is tried to read."""
_OPERATORS = 6
_OPEN_SQUEEZE = 13
"""From this operator set on, the axes of Squeeze and Unsqueeze are an input."""


def removals(aligned: AlignedRun, nodes: tuple[int, ...]) -> Iterator[RepairCandidate]:
    """Each node left out: what reads it reads one of its inputs."""
    for index in nodes:
        node = aligned.node_of(index)
        if not node.output:
            continue
        for name in dict.fromkeys(node.input):
            if name and name not in aligned.constants:
                about = f"{node.op_type} {node.output[0]} removed"
                yield propose("removal", about, RemoveNode(node=node.output[0], value=name))


def insertions(aligned: AlignedRun, nodes: tuple[int, ...]) -> Iterator[RepairCandidate]:
    """Transpose, Gather, Squeeze, Reshape or Cast before or behind the first nodes."""
    for node, index, value in _edges(aligned, nodes):
        yield from _transposes(aligned, node, index, value)
        yield from _layouts(aligned, node, index, value)
        yield from _casts(aligned, node, index, value)
    for node, index, value in _edges(aligned, nodes):
        yield from _reorder_slices(aligned, node, index, value)


def _edges(
    aligned: AlignedRun, nodes: tuple[int, ...]
) -> Iterator[tuple[str, int | None, np.ndarray]]:
    """Places for a node: an input of a node by its number, or behind a node; with its value."""
    for index in nodes[:_EDGES]:
        node = aligned.node_of(index)
        for place, name in enumerate(node.input):
            value = aligned.values.get(name)
            if value is not None and name not in aligned.constants:
                yield node.output[0], place, value
    behind = [name for index in nodes[:_EDGES] for name in aligned.node_of(index).output]
    for name in dict.fromkeys((*behind, aligned.output)):
        value = aligned.values.get(name)
        if value is not None:
            yield name, None, value


def _words(operator: str, about: object, node: str, index: int | None) -> str:
    where = f"behind {node}" if index is None else f"before input {index} of {node}"
    return f"{operator} {short(about)} inserted {where}"


def _transposes(
    aligned: AlignedRun, node: str, index: int | None, value: np.ndarray
) -> Iterator[RepairCandidate]:
    if not 2 <= value.ndim <= _RANK:
        return
    for order in itertools.permutations(range(value.ndim)):
        if order != tuple(range(value.ndim)):
            operations = insert_operator(
                aligned, node, index, "Transpose", (), {"perm": list(order)}
            )
            operations += _redeclare_output(aligned, node, index, value.dtype, value.ndim)
            yield propose("insertion", _words("Transpose", list(order), node, index), *operations)


def _layouts(
    aligned: AlignedRun, node: str, index: int | None, value: np.ndarray
) -> Iterator[RepairCandidate]:
    """The shapes that values of the source have which are as large."""
    near = {
        *aligned.missing,
        *(i for m in aligned.missing[:_OPERATORS] for i in _reads(aligned, m)),
    }
    shapes = dict.fromkeys(
        aligned.inside.values[i].value.shape
        for i in sorted(near)
        if aligned.inside.values[i].value.size == value.size
    )
    for shape in shapes:
        if shape == value.shape:
            continue
        for operator, more in _shape_changes(aligned, value.shape, shape):
            operations = insert_operator(aligned, node, index, operator, [more])
            operations += _redeclare_output(aligned, node, index, value.dtype, len(shape))
            yield propose("insertion", _words(operator, more[1], node, index), *operations)


def _redeclare_output(
    aligned: AlignedRun, node: str, index: int | None, kind: np.dtype[Any], axes: int
) -> list[Operation]:
    """The declaration of a graph output, if it is that which the edit changes."""
    if index is not None or node not in {o.name for o in aligned.model.graph.output}:
        return []
    return [SetOutputType(output=node, type=kind.name, axes=axes)]


def _reads(aligned: AlignedRun, place: int) -> tuple[int, ...]:
    return aligned.inside.values[place].reads


def _shape_changes(
    aligned: AlignedRun, now: tuple[int, ...], wanted: tuple[int, ...]
) -> Iterator[tuple[str, tuple[str, np.ndarray]]]:
    """Squeeze or Unsqueeze where ones come or go, then Reshape with the first size left open."""
    by_input = opset_versions(aligned.model).get("ai.onnx", 0) >= _OPEN_SQUEEZE
    for operator, longer, shorter in (("Squeeze", now, wanted), ("Unsqueeze", wanted, now)):
        extra = len(longer) - len(shorter)
        for axes in itertools.combinations(range(len(longer)), max(extra, 0)):
            kept = tuple(n for i, n in enumerate(longer) if i not in axes)
            if by_input and extra > 0 and kept == shorter:
                yield operator, ("axes", np.array(axes, np.int64))
    if now and wanted and now[0] == wanted[0]:
        yield "Reshape", ("shape", np.array([0, *wanted[1:]], np.int64))
    if wanted:
        yield "Reshape", ("shape", np.array([-1, *wanted[1:]], np.int64))


def _casts(
    aligned: AlignedRun, node: str, index: int | None, value: np.ndarray
) -> Iterator[RepairCandidate]:
    import onnx

    types = {aligned.inside.values[i].value.dtype for i in (*aligned.missing, aligned.place)}
    for kind in sorted(types, key=str):
        if kind == value.dtype or kind == np.dtype(object):
            continue
        to = int(onnx.helper.np_dtype_to_tensor_dtype(kind))
        operations = insert_operator(aligned, node, index, "Cast", (), {"to": to})
        operations += _redeclare_output(aligned, node, index, kind, value.ndim)
        yield propose("insertion", _words("Cast", kind, node, index), *operations)


def _reorder_slices(
    aligned: AlignedRun, node: str, index: int | None, value: np.ndarray
) -> Iterator[RepairCandidate]:
    """A Gather that puts slices along one axis in the order of a missing value."""
    for i in aligned.missing[:_OPERATORS]:
        wanted = aligned.inside.values[i].value
        if wanted.ndim != value.ndim or wanted.dtype != value.dtype or not 1 <= value.ndim <= 5:
            continue
        for axis in range(value.ndim):
            order = _order(value, wanted, axis, aligned.allowed.values[i])
            if order is not None:
                more = [("indices", np.array(order, np.int64))]
                operations = insert_operator(aligned, node, index, "Gather", more, {"axis": axis})
                yield propose("insertion", _words("Gather", order, node, index), *operations)


def _order(value: np.ndarray, wanted: np.ndarray, axis: int, allowed: float) -> list[int] | None:
    """Which slices of ``value`` along ``axis`` are those of ``wanted``; None if they are not."""
    one, two = np.moveaxis(value, axis, 0), np.moveaxis(wanted, axis, 0)
    if one.shape[1:] != two.shape[1:] or not 2 <= len(one) <= 64 or len(two) > 64:
        return None
    order = []
    for each in two:
        with np.errstate(invalid="ignore"):
            off = np.abs(one.astype(np.float64) - each.astype(np.float64))
        same = np.flatnonzero(off.reshape(len(one), -1).max(axis=1) <= allowed)
        if len(same) != 1:
            return None
        order.append(int(same[0]))
    return order if order != list(range(len(one))) else None


def inputs(aligned: AlignedRun, nodes: tuple[int, ...]) -> Iterator[RepairCandidate]:
    """Inputs of a node in another order, then one of them another value."""
    for index in nodes:
        node = aligned.node_of(index)
        names = list(node.input)
        if not 2 <= len(names) <= 4:
            continue
        for order in itertools.permutations(names):
            if list(order) != names:
                operations: list[Operation] = [
                    SetInput(node=node.output[0], index=i, value=name)
                    for i, name in enumerate(order)
                    if name != names[i]
                ]
                about = f"inputs of {node.op_type} {node.output[0]} as {', '.join(order)}"
                yield propose("inputs", about, *operations)
    for index in nodes:
        yield from _others(aligned, index)


def _others(aligned: AlignedRun, index: int) -> Iterator[RepairCandidate]:
    """One input replaced by a value, or a weight, of the same type and shape."""
    node = aligned.node_of(index)
    behind = _behind(aligned, index)
    optional = _last_optional(aligned, index)
    for place in range(max(len(node.input), optional + 1)):
        name = node.input[place] if place < len(node.input) else ""
        group = aligned.constants if name in aligned.constants or not name else aligned.values
        now = group.get(name)
        ways = [
            other
            for other, value in group.items()
            if other != name
            and other not in behind
            and (now is None or (value.shape == now.shape and value.dtype == now.dtype))
        ]
        for other in ways[:_OTHERS]:
            about = f"input {place} of {node.op_type} {node.output[0]} = {other}"
            operation = SetInput(node=node.output[0], index=place, value=other)
            yield propose("inputs", about, operation)


def _last_optional(aligned: AlignedRun, index: int) -> int:
    """Number of the next input that a node may have; that of its last one if there is no more."""
    node = aligned.node_of(index)
    schema = schema_of(domain_of(node), node.op_type, opset_versions(aligned.model))
    more = schema is not None and len(node.input) < len(schema.inputs)
    return len(node.input) if more else len(node.input) - 1


def _behind(aligned: AlignedRun, index: int) -> set[str]:
    """Values that depend on a node, its own included."""
    found = set(aligned.node_of(index).output)
    for node in list(aligned.model.graph.node)[index + 1 :]:
        if found & set(node.input):
            found.update(node.output)
    return found
