"""In which forms a pattern fits: what two places that it fits may differ in."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import NodeProto

from optvet.graph.condition import Asked, ChainedComparison, Expression, Name, parts_of
from optvet.graph.walk import domain_of, schema_of

_TOLD = ("attr", "dtype", "kind", "rank", "value")
"""What tells forms of a place from each other; sizes differ between any two models."""
_NEWEST = 1 << 30


def form_of_node(node: NodeProto) -> str:
    """An operator with the operands that it is given, and those that are attributes of it yet."""
    given = ",".join("x" if operand else "-" for operand in node.input)
    schema = schema_of(domain_of(node), node.op_type, {domain_of(node): _NEWEST})
    operands = set() if schema is None else {one.name for one in schema.inputs}
    earlier = sorted(a.name for a in node.attribute if a.name in operands)
    attributes = f"<{','.join(earlier)}>" if earlier else ""
    return f"{node.op_type}{attributes}({given.rstrip('-,')})"


def decided_by(condition: Expression) -> Iterator[Asked]:
    """What a condition compares with literals such that several values of it fit."""
    for part in parts_of(condition):
        if not isinstance(part, ChainedComparison) or part.signs[0] == "==":
            continue
        left, right = part.values[:2]
        literal = not any(isinstance(p, Asked | Name) for p in parts_of(right))
        if literal and isinstance(left, Asked) and left.function in _TOLD:
            yield left
