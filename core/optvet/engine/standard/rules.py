"""All rules, by operator, and which of them a call breaks."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import NodeProto

from optvet.engine.standard import attributes, estimators, indices, numbers, signals, sizes, windows
from optvet.engine.standard.call import OperatorCall, by_operator
from optvet.engine.standard.rule import Rule, Types

_MODULES = (numbers, attributes, indices, estimators, signals, sizes, windows)
RULES = by_operator(rule for module in _MODULES for rule in module.rule)
"""The rules of each operator, in the order in which they are told."""


OF_ALL = [rule for rule in attributes.rule if not rule.operators]


def broken_rules(call: OperatorCall) -> Iterator[tuple[Rule, str]]:
    """The rules that a call breaks, each with the reason in words."""
    for rule in (*RULES.get(call.node.op_type, ()), *OF_ALL):
        if words := rule.explain(call):
            yield rule, words


def wanted_values(node: NodeProto, types: Types) -> Iterator[str]:
    """Names of operands on whose values a rule may depend; ``types`` are element types by name."""
    for rule in RULES.get(node.op_type, ()):
        yield from rule.recorded(node, types)
