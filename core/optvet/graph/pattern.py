"""Patterns of nodes in a graph, written as text: what triggers a known fault.

A pattern is a line per node, ``results = Operator<attributes>(operands)``, and lines that begin
with ``where``. A name of lower case stands for any value, one of capitals for a constant; a name
that stands twice is one value::

    t = Transpose<perm>(x)
    y = Gemm<transA=1>(t, *)
    where rank(x) == 2 and readers(t) == 1

- Operators: ``Conv|MaxPool`` is one of several; ``my.Relu`` is of another domain, ``?.Relu`` of any
  domain but ONNX's; ``_`` is any operator of any domain.
- Attributes: ``axis`` is given, ``!axis`` is not, ``axis=1`` has this value, by default too.
- Operands: ``_`` is any value, ``-`` is left out, ``x?`` may be left out, ``*`` is all that follow.
  Operands of commutative operators are tried in either order. Results: ``_`` is any or none.
- A line ``or`` begins another pattern: one of them must fit.
- Conditions: comparisons and ``and``, ``or``, ``not``, ``in`` of numbers, texts, lists and the
  functions of ``FUNCTIONS``. What cannot be known before the model runs makes a match uncertain.
"""

from __future__ import annotations

import ast
import itertools
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import ModelProto, NodeProto, TypeProto

from optvet.graph.pattern_facts import FUNCTIONS, PatternGraph, UnknownFact, attribute_value
from optvet.graph.pattern_forms import decided_by, form_of_node
from optvet.graph.walk import (
    ONNX_DOMAIN,
    domain_of,
    graphs,
    opset_versions,
)

_NODE = re.compile(
    r"(?P<results>[\w?,\s]+?)\s*=\s*(?P<domain>(?:\?|[\w.]+)\.)?(?P<operators>\w+(?:\|\w+)*)"
    r"\s*(?:<(?P<attributes>.*)>)?\s*\((?P<operands>[^()]*)\)"
)
_OPERAND = re.compile(r"_|-|\*|\w+\??")
_ATTRIBUTE = re.compile(r"(?P<absent>!)?(?P<name>\w+)\s*(?:=\s*(?P<value>.+))?", re.DOTALL)
_COMMUTATIVE = frozenset("Add Mul And Or Xor Equal Min Max Sum".split())
_MOST_MATCHES = 100
_COMPARISONS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, several: one in several,
    ast.NotIn: lambda one, several: one not in several,
}
_SUMS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
}


@dataclass(frozen=True)
class PatternNode:
    """One line of a pattern."""

    results: tuple[str, ...]
    domain: str
    operators: tuple[str, ...]
    attributes: tuple[tuple[str, str, Any], ...]
    operands: tuple[str, ...]


@dataclass(frozen=True)
class GraphPattern:
    """A pattern that was read; see the module."""

    nodes: tuple[PatternNode, ...]
    conditions: tuple[ast.expr, ...]


@dataclass(frozen=True)
class PatternMatch:
    """A place that fits: its nodes in the order of the pattern.

    ``certain`` says whether all was known that the conditions ask for. ``form`` has what places of
    one pattern may differ in: which operands are given, and the values that conditions look at.
    """

    nodes: tuple[NodeProto, ...]
    certain: bool
    form: str


def parse_pattern(text: str) -> tuple[GraphPattern, ...]:
    """Read a pattern, or several that lines ``or`` part.

    Raises:
        ValueError: It is none; the message names the line.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    parts = itertools.groupby(lines, lambda line: line == "or")
    return tuple(_parse_one(list(part)) for is_or, part in parts if not is_or) or (_parse_one([]),)


def _parse_one(lines: Sequence[str]) -> GraphPattern:
    nodes, conditions = [], []
    for line in lines:
        if line.startswith("where "):
            conditions.append(_parse_condition(line))
        else:
            nodes.append(_parse_node(line))
    if not nodes:
        raise ValueError("a pattern needs a node, such as y = Relu(x)")
    return GraphPattern(tuple(nodes), tuple(conditions))


def _parse_node(line: str) -> PatternNode:
    found = _NODE.fullmatch(line)
    if found is None:
        raise ValueError(f"{line!r}: expected results = Operator<attributes>(operands)")
    operands = [part.strip() for part in found["operands"].split(",") if part.strip()]
    for part in operands:
        if not _OPERAND.fullmatch(part):
            raise ValueError(f"{line!r}: {part!r} is no operand")
    if "*" in operands[:-1]:
        raise ValueError(f"{line!r}: * stands for all that follow, so it is the last")
    attributes = [_parseattribute_value(part, line) for part in _split(found["attributes"] or "")]
    return PatternNode(
        tuple(part.strip() for part in found["results"].split(",")),
        (found["domain"] or "").removesuffix("."),
        tuple(found["operators"].split("|")),
        tuple(attributes),
        tuple(operands),
    )


def _split(text: str) -> list[str]:
    """Attributes between commas outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[(") - (character in "])")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _parseattribute_value(text: str, line: str) -> tuple[str, str, Any]:
    found = _ATTRIBUTE.fullmatch(text)
    if found is None or (found["absent"] and found["value"]):
        raise ValueError(f"{line!r}: {text!r} is no attribute; write axis, !axis or axis=1")
    if found["value"] is None:
        return found["name"], "absent" if found["absent"] else "given", None
    try:
        return found["name"], "equal", ast.literal_eval(found["value"])
    except (ValueError, SyntaxError):
        raise ValueError(f"{line!r}: {found['value']!r} is no number, text or list") from None


def _parse_condition(line: str) -> ast.expr:
    try:
        condition = ast.parse(line.removeprefix("where ").strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(f"{line!r} is no condition") from None
    for part in ast.walk(condition):
        if isinstance(part, ast.Call):
            name = part.func.id if isinstance(part.func, ast.Name) else "?"
            if name not in FUNCTIONS or part.keywords:
                raise ValueError(f"{line!r}: there is no {name}(); known: {', '.join(FUNCTIONS)}")
        elif not isinstance(part, _ALLOWED):
            raise ValueError(f"{line!r}: {type(part).__name__} has no place in a condition")
    return condition


_ALLOWED = (
    *(ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare, ast.BinOp),
    *(ast.Name, ast.Constant, ast.List, ast.Tuple, ast.Load, ast.operator, ast.cmpop),
)


# --- matching ------------------------------------------------------------------------------------


def find_matches(
    patterns: Sequence[GraphPattern], model: ModelProto, types: Mapping[str, TypeProto]
) -> list[PatternMatch]:
    """Places of ``model`` that fit, in all its graphs and functions; at most 100.

    Args:
        patterns: What to look for; one of them must fit.
        model: Where.
        types: Types of values by name, those that are known.
    """
    outer = {t.name: t for g in graphs(model.graph) for t in g.initializer}
    opsets = opset_versions(model)
    known = (outer, types, model.ir_version)
    searched = [PatternGraph(list(g.node), g, opsets, *known) for g in graphs(model.graph)]
    searched += [
        PatternGraph(list(f.node), None, opset_versions(f), *known) for f in model.functions
    ]
    found = (
        PatternMatch(m.nodes, m.certain, f"{number}: {m.form}" if len(patterns) > 1 else m.form)
        for number, pattern in enumerate(patterns)
        for graph in searched
        for m in _Matcher(pattern, graph).all()
    )
    return list(itertools.islice(found, _MOST_MATCHES))


class _Matcher:
    """Finds the places of one graph that fit a pattern, by trying node after node."""

    def __init__(self, pattern: GraphPattern, graph: PatternGraph) -> None:
        self._pattern, self._graph = pattern, graph

    def all(self) -> Iterator[PatternMatch]:
        """Each place once, whatever the order of its operands."""
        seen: set[tuple[int, ...]] = set()
        for nodes, names in self._extend((), {}):
            key = tuple(sorted(id(node) for node in nodes))
            if key in seen:
                continue
            state = self._judge(names)
            if state is not False:
                seen.add(key)
                yield PatternMatch(nodes, state is True, self._form(nodes, names))

    def _extend(
        self, nodes: tuple[NodeProto, ...], names: Mapping[str, str]
    ) -> Iterator[tuple[tuple[NodeProto, ...], Mapping[str, str]]]:
        if len(nodes) == len(self._pattern.nodes):
            yield nodes, names
            return
        wanted = self._pattern.nodes[len(nodes)]
        for node in self._candidates(wanted, names):
            if any(node is other for other in nodes) or not self._is_of(node, wanted):
                continue
            for bound in self._bind(node, wanted, names):
                yield from self._extend((*nodes, node), bound)

    def _candidates(self, wanted: PatternNode, names: Mapping[str, str]) -> Sequence[NodeProto]:
        for result in wanted.results:
            if result in names:
                maker = self._graph.makers.get(names[result])
                return [] if maker is None else [maker]
        for operand in wanted.operands:
            if operand in names:
                return self._graph.readers.get(names[operand], [])
        return self._graph.nodes

    def _is_of(self, node: NodeProto, wanted: PatternNode) -> bool:
        domain = domain_of(node)
        if wanted.operators == ("_",):
            fits = True
        elif wanted.domain == "?":
            fits = domain != ONNX_DOMAIN
        else:
            fits = domain == (wanted.domain or ONNX_DOMAIN)
        if not fits or (node.op_type not in wanted.operators and wanted.operators != ("_",)):
            return False
        for name, kind, value in wanted.attributes:
            given = any(attribute.name == name for attribute in node.attribute)
            if kind == "equal" and attribute_value(node, name, self._graph.opsets) != value:
                return False
            if kind != "equal" and given != (kind == "given"):
                return False
        return True

    def _bind(
        self, node: NodeProto, wanted: PatternNode, names: Mapping[str, str]
    ) -> Iterator[Mapping[str, str]]:
        """The names with those of this node, in each order of its operands that fits."""
        orders = [list(node.input)]
        if node.op_type in _COMMUTATIVE and len(node.input) == 2:
            orders.append(orders[0][::-1])
        for operands in orders:
            bound = dict(names)
            if self._bind_operands(operands, wanted.operands, bound) and _bind_results(
                list(node.output), wanted.results, bound
            ):
                yield bound

    def _bind_operands(
        self, operands: list[str], wanted: Sequence[str], bound: dict[str, str]
    ) -> bool:
        rest = bool(wanted) and wanted[-1] == "*"
        places = wanted[:-1] if rest else wanted
        given = [*operands, *[""] * (len(places) - len(operands))]
        if not rest and any(given[len(places) :]):
            return False
        return all(self._bind_one(g, w, bound) for g, w in zip(given, places, strict=False))

    def _bind_one(self, given: str, wanted: str, bound: dict[str, str]) -> bool:
        if wanted in ("_", "-"):
            return bool(given) == (wanted == "_")
        name = wanted.removesuffix("?")
        if not given:
            return wanted != name
        if name.isupper() and self._graph.tensor(given) is None:
            return False
        return bound.setdefault(name, given) == given

    def _judge(self, names: Mapping[str, str]) -> bool | None:
        """Whether all conditions hold; None if that cannot be known."""
        states = [self._state(condition, names) for condition in self._pattern.conditions]
        return False if False in states else None if None in states else True

    def _form(self, nodes: Sequence[NodeProto], names: Mapping[str, str]) -> str:
        """The form of a place, as text that is compared with that of other places."""
        pairs = zip(nodes, self._pattern.nodes, strict=True)
        parts = ["_" if w.operators == ("_",) else form_of_node(node) for node, w in pairs]
        for condition in self._pattern.conditions:
            for asked in decided_by(condition):
                try:
                    value = repr(self._compute(asked, names))
                except UnknownFact:
                    value = "?"
                parts.append(f"{ast.unparse(asked)}={value}")
        return " ".join(parts)

    def _state(self, condition: ast.expr, names: Mapping[str, str]) -> bool | None:
        if isinstance(condition, ast.BoolOp):
            states = [self._state(part, names) for part in condition.values]
            decisive = isinstance(condition.op, ast.Or)
            return decisive if decisive in states else None if None in states else not decisive
        if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
            state = self._state(condition.operand, names)
            return None if state is None else not state
        try:
            return bool(self._compute(condition, names))
        except UnknownFact:
            return None

    def _compute(self, part: ast.expr, names: Mapping[str, str]) -> Any:
        if isinstance(part, ast.Constant):
            return part.value
        if isinstance(part, ast.Name):
            if part.id not in names:
                raise UnknownFact
            return names[part.id]
        if isinstance(part, ast.List | ast.Tuple):
            return [self._compute(item, names) for item in part.elts]
        if isinstance(part, ast.UnaryOp):
            return -self._compute(part.operand, names)
        if isinstance(part, ast.BinOp):
            left, right = self._compute(part.left, names), self._compute(part.right, names)
            return _SUMS[type(part.op)](left, right)
        if isinstance(part, ast.Call):
            assert isinstance(part.func, ast.Name)
            given = [self._compute(item, names) for item in part.args]
            return FUNCTIONS[part.func.id](self._graph, *given)
        assert isinstance(part, ast.Compare)
        values = [self._compute(item, names) for item in (part.left, *part.comparators)]
        pairs = zip(part.ops, itertools.pairwise(values), strict=True)
        return all(_COMPARISONS[type(op)](*pair) for op, pair in pairs)


def _bind_results(results: list[str], wanted: Sequence[str], bound: dict[str, str]) -> bool:
    for number, name in enumerate(wanted):
        given = results[number] if number < len(results) else ""
        if name == "_":
            continue
        if not given:
            if name.endswith("?"):
                continue
            return False
        if bound.setdefault(name.removesuffix("?"), given) != given:
            return False
    return True
