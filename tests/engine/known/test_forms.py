"""Forms of triggers: each that a trigger names was dated with a model of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import onnx
import pytest

from optvet.engine.known.documents import shipped, with_declared
from optvet.graph.condition import ChainedComparison, Expression, Several, parts_of, written
from optvet.graph.pattern import GraphPattern, PatternNode, parse_pattern, search
from optvet.graph.types import inferred_types
from optvet.spec.records.known import KnownFault

OPTIONAL = onnx.defs.OpSchema.FormalParameterOption.Optional
OLDEST = 7
"""Operator sets before it are of no model that an optimizer is given today."""


def narrowed(trigger: str) -> Iterator[tuple[str, GraphPattern]]:
    """Forms that a trigger names, in words and as a pattern of these places alone."""
    for number, pattern in enumerate(parse_pattern(trigger)):
        yield f"alternative {number}", pattern
        for place, node in enumerate(pattern.nodes):
            for words, other in of_node(node):
                nodes = (*pattern.nodes[:place], other, *pattern.nodes[place + 1 :])
                yield f"alternative {number}, {words}", replace(pattern, nodes=nodes)
        for place, condition in enumerate(pattern.conditions):
            for words, one in of_condition(condition):
                conditions = (*pattern.conditions[:place], one, *pattern.conditions[place + 1 :])
                yield f"alternative {number}, {words}", replace(pattern, conditions=conditions)


def of_node(node: PatternNode) -> Iterator[tuple[str, PatternNode]]:
    if len(node.operators) > 1:
        yield from ((name, replace(node, operators=(name,))) for name in node.operators)
    for place, operand in enumerate(node.operands):
        for other in (operand.removesuffix("?"), "-") if operand.endswith("?") else ():
            operands = (*node.operands[:place], other, *node.operands[place + 1 :])
            yield f"{node.operators[0]}({', '.join(operands)})", replace(node, operands=operands)
    if node.operands[-1:] == ("*",) and node.operators != ("_",) and node.domain != "?":
        yield from of_operands_that_follow(node)


def of_operands_that_follow(node: PatternNode) -> Iterator[tuple[str, PatternNode]]:
    operator, given = node.operators[0], node.operands[:-1]
    schemas = versions_of(operator, node.domain)
    for place in range(len(given), max(len(s.inputs) for s in schemas)):
        skipped = tuple(f"other{k}?" for k in range(len(given), place))
        for schema in schemas:
            if place >= len(schema.inputs) or schema.inputs[place].option != OPTIONAL:
                continue
            for operand in ("_", "-"):
                operands = (*given, *skipped, operand, "*")
                words = f"{operator}({', '.join(operands)})"
                yield words, replace(node, operands=operands)
            break
    # An operand of today may have been an attribute of earlier operator sets.
    later = {one.name for one in schemas[-1].inputs[len(given) :]}
    for name in sorted(later & set(schemas[0].attributes)):
        yield f"{operator}<{name}>", replace(node, attributes=((name, "given", None),))


def versions_of(operator: str, domain: str) -> list[onnx.defs.OpSchema]:
    every = [
        s
        for s in onnx.defs.get_all_schemas_with_history()
        if (s.name, s.domain) == (operator, domain)
    ]
    every.sort(key=lambda schema: int(schema.since_version))
    late = [s for s in every if s.since_version > OLDEST]
    return [*(s for s in every[-len(late) - 1 :][:1] if s.since_version <= OLDEST), *late]


def of_condition(condition: Expression) -> Iterator[tuple[str, Expression]]:
    """Each value of a list in which a condition looks for something, alone."""
    for part in parts_of(condition):
        if isinstance(part, ChainedComparison) and part.signs == ("in",):
            left, values = part.values
            for value in values.items if isinstance(values, Several) else ():
                other = ChainedComparison(("==",), (left, value))
                yield written(other), other


def uncovered(fault: KnownFault) -> Iterator[str]:
    """Forms that a trigger names and no model of the fault has."""
    models = [onnx.parser.parse_model(form.model) for form in fault.every_form]
    typed = [(model, with_declared(inferred_types(model) or {}, model)) for model in models]
    for words, pattern in narrowed(fault.trigger):
        if not any(search((pattern,), model, types).places for model, types in typed):
            yield words


@pytest.mark.parametrize("fault", shipped(), ids=lambda fault: fault.id)
def test_each_form_that_a_trigger_names_was_dated(fault: KnownFault) -> None:
    assert list(uncovered(fault)) == []
