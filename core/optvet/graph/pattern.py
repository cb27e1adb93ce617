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

A search takes a step per node that it looks at. Where a pattern needs more than a multiple of the
nodes of the model, it ends and says so.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import ModelProto, NodeProto, TypeProto

from optvet.graph.condition import (
    MOST_CHARS,
    Expression,
    Joined,
    Name,
    parse_condition,
    parse_literal,
    parts_of,
    state_of,
    value_of,
    written,
)
from optvet.graph.pattern_facts import ANY, OutOfSteps, PatternGraph, SearchSteps, UnknownFact
from optvet.graph.pattern_forms import decided_by, form_of_node
from optvet.graph.walk import (
    ONNX_DOMAIN,
    domain_of,
    graphs,
    opset_versions,
)

_NODE = re.compile(
    # No two parts that follow each other match the same text: a foreign line takes no n³ tries.
    r"(?P<results>[\w?,\s]+)=\s*(?P<domain>(?:\?|[\w.]+)\.)?(?P<operators>\w+(?:\|\w+)*)"
    r"\s*(?:<(?P<attributes>.*)>\s*)?\((?P<operands>[^()]*)\)"
)
_OPERAND = re.compile(r"_|-|\*|\w+\??")
_ATTRIBUTE = re.compile(r"(?P<absent>!)?(?P<name>\w+)\s*(?:=\s*(?P<value>.+))?", re.DOTALL)
_COMMUTATIVE = frozenset("Add Mul And Or Xor Equal Min Max Sum".split())
_MOST_MATCHES = 100
_MOST_LINES = 64
"""Of one pattern, and of patterns in one text."""
_STEPS, _STEPS_A_NODE = 100_000, 20


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
    conditions: tuple[Expression, ...]


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
    if len(lines) > _MOST_LINES:
        raise ValueError(f"it has {len(lines):,} lines, more than {_MOST_LINES}")
    parts = itertools.groupby(lines, lambda line: line == "or")
    return tuple(_parse_one(list(part)) for is_or, part in parts if not is_or) or (_parse_one([]),)


def _parse_one(lines: Sequence[str]) -> GraphPattern:
    nodes, conditions = [], []
    for line in lines:
        if len(line) > MOST_CHARS:
            raise ValueError(f"{line[:40]!r}…: a line has more than {MOST_CHARS:,} characters")
        if line.startswith("where "):
            conditions.append((line, _parse_where(line)))
        else:
            nodes.append(_parse_node(line))
    if not nodes:
        raise ValueError("a pattern needs a node, such as y = Relu(x)")
    named = {name.removesuffix("?") for node in nodes for name in _names_in(node)}
    for line, condition in conditions:
        if unknown := [name for name in sorted(_asked_of(condition)) if name not in named]:
            raise ValueError(f"{line!r}: no node of the pattern has {unknown[0]!r}")
    return GraphPattern(tuple(nodes), tuple(condition for _, condition in conditions))


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
        return found["name"], "equal", parse_literal(found["value"])
    except ValueError:
        raise ValueError(f"{line!r}: {found['value']!r} is no number, text or list") from None


def _parse_where(line: str) -> Expression:
    try:
        return parse_condition(line.removeprefix("where "))
    except ValueError as error:
        raise ValueError(f"{line[:80]!r} is no condition: {error}") from None


def _names_in(node: PatternNode) -> list[str]:
    """Names of values, with the ``?`` of those that may be left out."""
    return [name for name in (*node.results, *node.operands) if name not in ("_", "-", "*")]


def _asked_of(condition: Expression) -> set[str]:
    return {part.name for part in parts_of(condition) if isinstance(part, Name)}


# --- matching ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PatternSearch:
    """The places that were found, at most 100; ``complete`` unless it ran out of steps before."""

    places: list[PatternMatch]
    complete: bool


def search(
    patterns: Sequence[GraphPattern], model: ModelProto, types: Mapping[str, TypeProto]
) -> PatternSearch:
    """Look for places of ``model`` that fit, in all its graphs and functions.

    Args:
        patterns: What to look for; one of them must fit.
        model: Where.
        types: Types of values by name, those that are known.
    """
    outer = {t.name: t for g in graphs(model.graph) for t in g.initializer}
    opsets = opset_versions(model)
    every = [(list(g.node), g, opsets) for g in graphs(model.graph)]
    functions = [(list(f.node), None, opset_versions(f)) for f in model.functions]
    steps = SearchSteps(
        _STEPS + _STEPS_A_NODE * sum(len(nodes) for nodes, *_ in (*every, *functions))
    )
    searched = [
        PatternGraph(*each, outer, types, model.ir_version, steps) for each in (*every, *functions)
    ]
    found = (
        PatternMatch(m.nodes, m.certain, f"{number}: {m.form}" if len(patterns) > 1 else m.form)
        for number, pattern in enumerate(patterns)
        for graph in searched
        for m in _Matcher(pattern, graph).all()
    )
    places: list[PatternMatch] = []
    try:
        for place in itertools.islice(found, _MOST_MATCHES):
            places.append(place)
    except OutOfSteps:
        return PatternSearch(places, complete=False)
    return PatternSearch(places, complete=True)


class _Matcher:
    """Finds the places of one graph that fit a pattern, by trying node after node.

    A condition is judged as soon as all that it asks of is bound, so that what cannot fit is not
    continued; of lines that may be exchanged only the order of the graph is tried.
    """

    def __init__(self, pattern: GraphPattern, graph: PatternGraph) -> None:
        self._pattern, self._graph = pattern, graph
        self._order = _connected(pattern.nodes)
        self._before = _exchangeable(pattern, self._order)
        self._checks = _by_level(pattern, self._order)

    def all(self) -> Iterator[PatternMatch]:
        """Each place once, whatever the order of its operands."""
        seen: set[tuple[int, ...]] = set()
        state = self._judge(0, {})
        for found, names, certain in () if state is False else self._extend((), {}, state is True):
            key = tuple(sorted(id(node) for node in found))
            if key not in seen:
                seen.add(key)
                by_line = dict(zip(self._order, found, strict=True))
                nodes = tuple(by_line[line] for line in range(len(found)))
                yield PatternMatch(nodes, certain, self._form(nodes, names))

    def _extend(
        self, nodes: tuple[NodeProto, ...], names: Mapping[str, str], certain: bool
    ) -> Iterator[tuple[tuple[NodeProto, ...], Mapping[str, str], bool]]:
        if len(nodes) == len(self._order):
            yield nodes, names, certain
            return
        wanted, before = (
            self._pattern.nodes[self._order[len(nodes)]],
            self._before[len(nodes)],
        )
        least = -1 if before is None else self._graph.places[id(nodes[before])]
        for node in self._candidates(wanted, names):
            self._graph.steps.spend(len(node.input) + len(node.output) + len(node.attribute))
            if self._graph.places[id(node)] <= least or any(node is other for other in nodes):
                continue
            fits = self._is_of(node, wanted)
            if fits is False:
                continue
            for bound in self._bind(node, wanted, names):
                state = self._judge(len(nodes) + 1, bound)
                if state is not False:
                    known = certain and fits is True and state is True
                    yield from self._extend((*nodes, node), bound, known)

    def _candidates(self, wanted: PatternNode, names: Mapping[str, str]) -> Sequence[NodeProto]:
        for result in wanted.results:
            if result in names:
                maker = self._graph.makers.get(names[result])
                return [] if maker is None else [maker]
        read = [names[operand] for operand in wanted.operands if operand in names]
        if not read:
            return self._graph.of_operators(wanted.operators, None)
        return min((self._graph.of_operators(wanted.operators, v) for v in read), key=len)

    def _is_of(self, node: NodeProto, wanted: PatternNode) -> bool | None:
        """Whether a node is of the operator, with these attributes; None if that is not known."""
        domain = domain_of(node)
        if wanted.operators == (ANY,):
            fits = True
        elif wanted.domain == "?":
            fits = domain != ONNX_DOMAIN
        else:
            fits = domain == (wanted.domain or ONNX_DOMAIN)
        if not fits or (node.op_type not in wanted.operators and wanted.operators != (ANY,)):
            return False
        states = [self._has(node, *attribute) for attribute in wanted.attributes]
        return False if False in states else None if None in states else True

    def _has(self, node: NodeProto, name: str, kind: str, value: Any) -> bool | None:
        if kind != "equal":
            return any(attribute.name == name for attribute in node.attribute) == (kind == "given")
        try:
            return bool(self._graph.attribute(node, name) == value)
        except UnknownFact:
            return None

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

    def _judge(self, level: int, names: Mapping[str, str]) -> bool | None:
        """Whether all conditions of a level hold; None if that cannot be known."""
        certain = True
        for condition in self._checks[level]:
            state = state_of(condition, self._graph, names)
            if state is False:
                return False
            certain = certain and state is True
        return True if certain else None

    def _form(self, nodes: Sequence[NodeProto], names: Mapping[str, str]) -> str:
        """The form of a place, as text that is compared with that of other places."""
        pairs = zip(nodes, self._pattern.nodes, strict=True)
        parts = ["_" if w.operators == (ANY,) else form_of_node(node) for node, w in pairs]
        for condition in self._pattern.conditions:
            for asked in decided_by(condition):
                try:
                    value = repr(value_of(asked, self._graph, names))
                except UnknownFact:
                    value = "?"
                parts.append(f"{written(asked)}={value}")
        return " ".join(parts)


def _connected(nodes: Sequence[PatternNode]) -> list[int]:
    """The lines in an order in which each has a name of those before it, where there is one."""
    left, order, bound = list(range(len(nodes))), [], set[str]()
    while left:
        line = next((k for k in left if bound & set(_names_in(nodes[k]))), left[0])
        left.remove(line)
        order.append(line)
        bound |= _surely_bound(nodes[line])
    return order


def _surely_bound(node: PatternNode) -> set[str]:
    return {name for name in _names_in(node) if not name.endswith("?")}


def _exchangeable(pattern: GraphPattern, order: Sequence[int]) -> list[int | None]:
    """For each line in order the one before it that differs from it in names of its own alone.

    Such lines fit the same nodes in any order, and n! orders of them are one place.
    """
    used = Counter(name.removesuffix("?") for node in pattern.nodes for name in _names_in(node))
    used.update(name for condition in pattern.conditions for name in _asked_of(condition))

    def without_own(names: Sequence[str]) -> tuple[object, ...]:
        own = [
            name.removesuffix("?") in used and used[name.removesuffix("?")] == 1 for name in names
        ]
        kinds = [(name.removesuffix("?").isupper(), name.endswith("?")) for name in names]
        return tuple(k if o else n for n, k, o in zip(names, kinds, own, strict=True))

    last: dict[str, int] = {}
    found: list[int | None] = []
    for place, line in enumerate(order):
        node = pattern.nodes[line]
        form = (node.domain, node.operators, node.attributes)
        key = repr((form, without_own(node.operands), without_own(node.results)))
        found.append(last.get(key))
        last[key] = place
    return found


def _by_level(pattern: GraphPattern, order: Sequence[int]) -> list[list[Expression]]:
    """What to judge after so many nodes: all conditions, each once and as early as it can be."""
    conditions = list(pattern.conditions)
    levels: list[list[Expression]] = [[] for _ in range(len(order) + 1)]
    bound = [set[str]()]
    for line in order:
        bound.append(bound[-1] | _surely_bound(pattern.nodes[line]))
    while conditions:
        condition = conditions.pop(0)
        if isinstance(condition, Joined) and condition.word == "and":
            conditions = [*condition.parts, *conditions]
            continue
        asked = _asked_of(condition)
        level = next((k for k, names in enumerate(bound) if asked <= names), len(order))
        levels[level].append(condition)
    return levels


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
