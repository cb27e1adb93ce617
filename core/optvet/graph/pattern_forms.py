"""In which forms a pattern fits: what two places that it fits may differ in."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from onnx import NodeProto

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


def decided_by(condition: ast.expr) -> Iterator[ast.expr]:
    """What a condition compares with literals such that several values of it fit."""
    for part in ast.walk(condition):
        if not isinstance(part, ast.Compare) or isinstance(part.ops[0], ast.Eq):
            continue
        other = ast.walk(part.comparators[0])
        literal = not any(isinstance(p, ast.Call | ast.Name) for p in other)
        if literal and isinstance(part.left, ast.Call) and isinstance(part.left.func, ast.Name):
            if part.left.func.id in _TOLD:
                yield part.left
