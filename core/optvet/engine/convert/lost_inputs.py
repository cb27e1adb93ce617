"""Inputs and outputs of a node that differ from those of the source's operator."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from onnx import GraphProto, NodeProto

from optvet.engine.convert.align import Known
from optvet.graph.walk import domain_of, schema_of
from optvet.spec.converters import SourceInside, SourceOperand, SourceValue


@dataclass(frozen=True)
class OtherInput:
    """An input that differs from the source's.

    Attributes:
        index: Its number.
        name: What the operator's schema calls it.
        how: What became of it.
        operand: What the source gives there; None where it gives nothing.
    """

    index: int
    name: str
    how: Literal["is gone", "became a constant", "was added"]
    operand: SourceOperand | None = None

    def words(self) -> str:
        """The difference in words."""
        return f"input {self.name} {self.how}"


def other_inputs(
    inside: SourceInside,
    source: SourceValue,
    node: NodeProto,
    constants: Collection[str],
    versions: Mapping[str, int],
) -> Iterator[OtherInput]:
    """How the inputs of ``node`` differ from those of ``source``, the same operator of ONNX.

    Args:
        inside: The run of the source.
        source: What the operator computes there.
        node: The operator in the converted model.
        constants: Names of the converted model's constants.
        versions: Its operator sets.
    """
    given = {operand.name: operand for operand in source.operands}
    for index, label in enumerate(source.inputs):
        name, operand = input_name(node, index, versions), given.get(label)
        now = node.input[index] if index < len(node.input) else ""
        if operand is None:
            if now:
                yield OtherInput(index, name, "was added")
        elif is_given(operand) and not now:
            yield OtherInput(index, name, "is gone", operand)
        elif now in constants and _varies(inside, operand):
            yield OtherInput(index, name, "became a constant", operand)
    for index in range(len(source.inputs), len(node.input) if source.inputs else 0):
        if node.input[index]:
            yield OtherInput(index, input_name(node, index, versions), "was added")


def lost_output(
    inside: SourceInside, place: int, known: Known, graph: GraphProto, versions: Mapping[str, int]
) -> tuple[NodeProto, str] | None:
    """The node that gives other outputs of the source's operator but not that at ``place``.

    With the difference in words; None where there is no such node.
    """
    first = inside.values[place]
    beside = {
        i
        for i, each in enumerate(inside.values)
        if i != place and each.alike == first.alike and each.operands == first.operands
    }
    for node in graph.node if first.alike else ():
        if node.op_type != first.alike or not any(
            known.target.get(o) in beside for o in node.output
        ):
            continue
        if first.output >= len(node.output) or not node.output[first.output]:
            schema = schema_of(domain_of(node), node.op_type, versions)
            named = schema is not None and first.output < len(schema.outputs)
            name = schema.outputs[first.output].name if schema and named else first.output
            return node, f"output {name} is gone"
    return None


def is_given(operand: SourceOperand) -> bool:
    """Whether the source gives anything there that is known."""
    named = operand.input or operand.parameter
    return bool(named) or operand.place is not None or operand.constant is not None


def _varies(inside: SourceInside, operand: SourceOperand) -> bool:
    """Whether an operand depends on inputs."""
    if operand.input:
        return True
    return operand.place is not None and not inside.values[operand.place].constant


def input_name(node: NodeProto, index: int, versions: Mapping[str, int]) -> str:
    """What the schema of a node's operator calls its input number ``index``."""
    schema = schema_of(domain_of(node), node.op_type, versions)
    if schema is None or index >= len(schema.inputs):
        return str(index)
    return str(schema.inputs[index].name)
