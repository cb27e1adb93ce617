"""Inputs of a node that were lost, added or made constant, as the source has them."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import helper

from optvet.engine.convert.lost_inputs import OtherInput, other_inputs
from optvet.engine.repair.aligned_run import AlignedRun
from optvet.engine.repair.candidates import RepairCandidate, give_constant, insert_operator, propose
from optvet.graph.walk import opset_versions
from optvet.spec.records.repair import Operation, SetInput

_OPERATORS = 6
_NAMES = 4


def put_back(aligned: AlignedRun, nodes: tuple[int, ...]) -> Iterator[RepairCandidate]:
    """All inputs of a node that differ, then each alone, as the source's operator has them."""
    versions = opset_versions(aligned.model)
    for index in nodes:
        node = aligned.node_of(index)
        for operator in aligned.operators(_OPERATORS):
            if operator.alike != node.op_type:
                continue
            about = (aligned.inside, operator, node, aligned.constants, versions)
            found = [
                (o, ops) for o in other_inputs(*about) if (ops := _operations(aligned, index, o))
            ]
            if len(found) > 1:
                yield _candidate(aligned, index, found)
            for each in found:
                yield _candidate(aligned, index, [each])


def _candidate(
    aligned: AlignedRun, index: int, found: list[tuple[OtherInput, list[Operation]]]
) -> RepairCandidate:
    node = aligned.node_of(index)
    names = ", ".join(other.name for other, _ in found)
    about = f"input {names} of {node.op_type} {_value_of(node)} as in the source"
    return propose("inputs", about, *(o for _, operations in found for o in operations))


def _value_of(node: onnx.NodeProto) -> str:
    """A value that the node computes, by which edits name it."""
    return next((name for name in node.output if name), "")


def _operations(aligned: AlignedRun, index: int, other: OtherInput) -> list[Operation]:
    """What gives the input; nothing where the converted model has no such value."""
    value = _value_of(aligned.node_of(index))
    if other.operand is None:
        return [SetInput(node=value, index=other.index, value="")]
    constant = aligned.array_of(other.operand)
    if constant is not None:
        return give_constant(aligned, index, other.index, constant)
    wanted = aligned.dtype_of(other.operand)
    for name in aligned.names_of(other.operand)[:_NAMES]:
        operations: list[Operation] = [SetInput(node=value, index=other.index, value=name)]
        if wanted is not None and aligned.values[name].dtype != wanted:
            to = int(helper.np_dtype_to_tensor_dtype(wanted))
            operations += insert_operator(aligned, value, other.index, "Cast", (), {"to": to})
        return operations
    return []
