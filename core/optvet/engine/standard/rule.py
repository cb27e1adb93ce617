"""Rules about values: a row that says of what, above a test that says when.

A test is a function of operands and attributes, ``def _count(count, data, *, axis=-1)``, which is
asked only where it has what it needs. So a rule says nothing of operands that are unknown, and no
test begins with looking for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from onnx import NodeProto

from optvet.engine.standard.call import OTHER_FORMS, OperatorCall
from optvet.graph.types import INTEGERS, element_bits

Types = Mapping[str, int]
"""Element types by the names of values."""
Test = Callable[..., object]
Recorded = Callable[[NodeProto, Types], Iterable[str]]
"""Names of the operands of a node whose values are worth a run."""


def nothing(node: NodeProto, types: Types) -> Iterable[str]:
    """Return no operand: the rule needs only what is known before the model runs.

    Runtimes mostly refuse an index outside of the data, and hardly any model has tensors without
    elements or asks for the largest of NaN.
    """
    return ()


def operands(node: NodeProto, types: Types) -> Iterable[str]:
    """Return all operands."""
    return tuple(node.input)


def integers(node: NodeProto, types: Types) -> Iterable[str]:
    """All operands, if one of them is an integer."""
    return tuple(node.input) if any(is_integer(types.get(name)) for name in node.input) else ()


def is_integer(kind: object) -> bool:
    """Whether an element type is one of integers that a cast must fit."""
    # Of 4 bits and fewer, the standard's tests expect the lowest bits.
    return isinstance(kind, int) and kind in INTEGERS and (element_bits(kind) or 0) >= 8


@dataclass(frozen=True)
class Rule:
    """Calls for which the standard has no answer, or which it does not allow.

    Attributes:
        name: With the operator, the kind of what is undefined.
        operators: Their names, in one text; all operators if it is empty.
        broken: Whether a call breaks the rule; a text is the reason in words. ``CallOf.arguments``
            says what its parameters stand for.
        words: The reason, in which ``{name}`` is a parameter.
        at: Places of the operands; the first ones, unless they are given.
        recorded: Operands whose values are recorded in a run for this rule.
        agreed: The standard is silent or forbids it, and most kernels do the same. Hunts judge no
            such model, and in any other one it excuses no value.
    """

    name: str
    operators: str
    broken: Test
    words: str
    at: tuple[int, ...]
    recorded: Recorded
    agreed: bool

    def explain(self, call: OperatorCall) -> str:
        """The reason why ``call`` has no result, in words; empty if this rule gives none."""
        try:
            given = call.arguments(self.broken, self.at)
            found = given is not None and self.broken(**given)
        except OTHER_FORMS:
            return ""
        # Outside of the try: words that name no parameter are our mistake.
        if isinstance(found, str):
            return found
        return self.words.format(**given) if found and given is not None else ""


class RuleTable(list[Rule]):
    """List of rules; each rule is added by a decorator on the function that checks it."""

    def __call__(
        self,
        operators: str,
        words: str = "",
        *,
        at: tuple[int, ...] = (),
        recorded: Recorded = nothing,
        agreed: bool = False,
    ) -> Callable[[Test], Test]:
        """A decorator for the test of a rule, which is named as the rule is."""

        def add(test: Test) -> Test:
            name = test.__name__.strip("_").replace("_", " ")
            self.append(Rule(name, operators, test, words, at, recorded, agreed))
            return test

        return add
