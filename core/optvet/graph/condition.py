"""Conditions of a pattern: a small language of its own, with types and sizes, read and evaluated.

::

    condition   = all {"or" all}            all   = negated {"and" negated}
    negated     = ["not"] comparison        comparison = sum {== != < <= > >= in "not in" sum}
    sum         = product {+ - product}     product    = factor {* % factor}
    factor      = ["-"] (number | text | True | False | list | name | function(...) | (condition))

What it says of types is checked as it is read: no text is multiplied, no list is added. Types that
only the model decides, such as that of an attribute, are checked as it is evaluated; what does not
fit then is not known.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from optvet.graph.pattern_facts import FUNCTIONS, PatternGraph, UnknownFact

MOST_CHARS = 1000
"""Of a line of a pattern."""
_MOST_DEPTH = 16
_LARGEST = 1 << 63
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<text>\"[^\"\\]*\"|'[^'\\]*')|"
    r"(?P<word>[A-Za-z_]\w*)|(?P<sign>==|!=|<=|>=|[<>+\-*%()\[\],]))"
)
_EQUAL = {"==": operator.eq, "!=": operator.ne}
_ORDERED = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_SUMS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "%": operator.mod,
}
_WORDS = frozenset({"and", "or", "not", "in", "True", "False"})


@dataclass(frozen=True)
class Literal:
    """A number, a text, or whether."""

    value: float | str | bool


@dataclass(frozen=True)
class Name:
    """A value of the pattern."""

    name: str


@dataclass(frozen=True)
class Several:
    """A list."""

    items: tuple[Expression, ...]


@dataclass(frozen=True)
class Asked:
    """A fact: one of ``FUNCTIONS`` with what it is given."""

    function: str
    given: tuple[Expression, ...]


@dataclass(frozen=True)
class Arithmetic:
    """Numbers with one of ``+ - * %`` between each and the next, from the left."""

    signs: tuple[str, ...]
    values: tuple[Expression, ...]


@dataclass(frozen=True)
class ChainedComparison:
    """Values with a comparison between each and the next."""

    signs: tuple[str, ...]
    values: tuple[Expression, ...]


@dataclass(frozen=True)
class Not:
    """The opposite."""

    part: Expression


@dataclass(frozen=True)
class Joined:
    """Conditions that all hold (``and``), or one of them (``or``)."""

    word: str
    parts: tuple[Expression, ...]


Expression: TypeAlias = (
    Literal | Name | Several | Asked | Arithmetic | ChainedComparison | Not | Joined
)


def parts_of(expression: Expression) -> Iterator[Expression]:
    """An expression and all that is in it, from the outside."""
    todo: list[Any] = [expression]
    while todo:
        part = todo.pop(0)
        yield part
        for value in (getattr(part, field.name) for field in fields(part)):
            inner = value if isinstance(value, tuple) else (value,)
            todo += [each for each in inner if isinstance(each, Expression)]


def written(expression: Expression) -> str:
    """An expression as text that reads as it."""
    match expression:
        case Literal(value):
            return repr(value)
        case Name(name):
            return name
        case Several(items):
            return f"[{', '.join(map(written, items))}]"
        case Asked(function, given):
            return f"{function}({', '.join(map(written, given))})"
        case Arithmetic(signs, values) | ChainedComparison(signs, values):
            pairs = zip(signs, values[1:], strict=True)
            words = written(values[0]) + "".join(f" {s} {written(v)}" for s, v in pairs)
            return f"({words})" if isinstance(expression, Arithmetic) else words
        case Not(part):
            return f"not ({written(part)})"
    return f" {expression.word} ".join(f"({written(part)})" for part in expression.parts)


# --- reading -------------------------------------------------------------------------------------


def parse_condition(text: str) -> Expression:
    """Read a condition.

    Raises:
        ValueError: It is none, its types do not fit, or it is too large.
    """
    reader = _ConditionReader(text)
    found = reader.condition(0)
    reader.expect_end()
    _require(found, "bool", "a condition")
    return found


def parse_literal(text: str) -> Any:
    """Read a number, a text, True, False, or a list of these.

    Raises:
        ValueError: It is none.
    """
    reader = _ConditionReader(text)
    found = reader.factor(0)
    reader.expect_end()
    if not all(isinstance(part, Literal | Several) for part in parts_of(found)):
        raise ValueError("it is no number, text or list")
    return value_of(found, None, {})


class _ConditionReader:
    """Reads one condition, token after token."""

    def __init__(self, text: str) -> None:
        if len(text) > MOST_CHARS:
            raise ValueError(f"it has more than {MOST_CHARS:,} characters")
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            if found is None:
                raise ValueError(f"{text[at:].strip()[:20]!r} has no place in a condition")
            at, kind = found.end(), str(found.lastgroup)
            self._tokens.append((kind, found[kind]))
        self._at = 0

    def condition(self, depth: int) -> Expression:
        if depth > _MOST_DEPTH:
            raise ValueError(f"it is nested more than {_MOST_DEPTH} deep")
        return self._joined("or", lambda: self._joined("and", lambda: self._negated(depth)))

    def factor(self, depth: int) -> Expression:
        if depth > _MOST_DEPTH:
            raise ValueError(f"it is nested more than {_MOST_DEPTH} deep")
        kind, token = self._next()
        if token == "-" and kind == "sign":
            of = self.factor(depth + 1)
            _require(of, "number", "-")
            if isinstance(of, Literal):
                return Literal(-float(of.value) if isinstance(of.value, float) else -int(of.value))
            return Arithmetic(("-",), (Literal(0), of))
        if token == "(":
            inner = self.condition(depth + 1)
            self._take(")", needed=True)
            return inner
        if token == "[":
            return Several(self._several("]", depth))
        if kind == "number":
            return Literal(_number(token))
        if kind == "text":
            return Literal(token[1:-1])
        if token in ("True", "False"):
            return Literal(token == "True")
        if kind != "word" or token in _WORDS:
            raise ValueError(f"{token or 'its end'!r} has no place there")
        if not self._take("("):
            return Name(token)
        if token not in FUNCTIONS:
            raise ValueError(f"there is no {token}(); known: {', '.join(FUNCTIONS)}")
        return _checked(Asked(token, self._several(")", depth)))

    def expect_end(self) -> None:
        if self._at < len(self._tokens):
            raise ValueError(f"{self._tokens[self._at][1]!r} has no place there")

    def _next(self) -> tuple[str, str]:
        self._at += 1
        return self._tokens[self._at - 1] if self._at <= len(self._tokens) else ("", "")

    def _take(self, *wanted: str, needed: bool = False) -> str:
        """The next token if it is one of these; else "", or an error if it is needed."""
        kind, token = (*self._tokens[self._at :][:1], ("", ""))[0]
        if token in wanted and kind != "text":
            self._at += 1
            return token
        if needed:
            raise ValueError(f"{wanted[0]!r} is missing before {token or 'its end'!r}")
        return ""

    def _several(self, end: str, depth: int) -> tuple[Expression, ...]:
        found: list[Expression] = []
        while not self._take(end):
            if found:
                self._take(",", needed=True)
            found.append(self.condition(depth + 1))
        return tuple(found)

    def _joined(self, word: str, read: Callable[[], Expression]) -> Expression:
        found = [read()]
        while self._take(word):
            found.append(read())
        for part in found if len(found) > 1 else ():
            _require(part, "bool", word)
        return Joined(word, tuple(found)) if len(found) > 1 else found[0]

    def _negated(self, depth: int) -> Expression:
        if depth > _MOST_DEPTH:
            raise ValueError(f"it is nested more than {_MOST_DEPTH} deep")
        if not self._take("not"):
            return self._comparison(depth)
        part = self._negated(depth + 1)
        _require(part, "bool", "not")
        return Not(part)

    def _comparison(self, depth: int) -> Expression:
        values, signs = [self._sum(depth)], []
        while sign := self._take(*_EQUAL, *_ORDERED, "in", "not"):
            if sign == "not":
                sign = f"not {self._take('in', needed=True)}"
            signs.append(sign)
            values.append(self._sum(depth))
            _check_pair(sign, *values[-2:])
        return ChainedComparison(tuple(signs), tuple(values)) if signs else values[0]

    def _sum(self, depth: int) -> Expression:
        return self._arithmetic("+-", lambda: self._arithmetic("*%", lambda: self.factor(depth)))

    def _arithmetic(self, among: str, read: Callable[[], Expression]) -> Expression:
        values, signs = [read()], []
        while sign := self._take(*among):
            signs.append(sign)
            values.append(read())
        for value in values if signs else ():
            _require(value, "number", signs[0])
        return Arithmetic(tuple(signs), tuple(values)) if signs else values[0]


def _number(text: str) -> float:
    value = int(text) if text.isdecimal() else float(text)
    if not -_LARGEST <= value < _LARGEST and (isinstance(value, int) or math.isinf(value)):
        raise ValueError(f"the number {text[:20]} is too large")
    return value


# --- types ---------------------------------------------------------------------------------------


def _kind(expression: Expression) -> str:
    """What an expression is; "any" if only the model decides it."""
    if isinstance(expression, Literal):
        value = expression.value
        if isinstance(value, str):
            return "text"
        return "bool" if isinstance(value, bool) else "number"
    if isinstance(expression, Asked):
        return FUNCTIONS[expression.function].gives
    kinds: Mapping[type, str] = {Name: "name", Several: "list", Arithmetic: "number"}
    return kinds.get(type(expression), "bool")


def _require(expression: Expression, wanted: str, by: str) -> None:
    kind = _kind(expression)
    if kind not in (wanted, "any"):
        words = {"bool": "a comparison", "name": "a name of a value"}.get(wanted, f"a {wanted}")
        raise ValueError(f"{by} takes {words}, {written(expression)[:60]} is none")


def _check_pair(sign: str, left: Expression, right: Expression) -> None:
    one, other = _kind(left), _kind(right)
    if sign.endswith("in"):
        _require(right, "list", sign)
    elif "any" not in (one, other) and one != other:
        pair = f"{written(left)[:60]} is a {one}, {written(right)[:60]} a {other}"
        raise ValueError(f"{sign} compares what is of one kind: {pair}")
    elif sign in _ORDERED and not {one, other} <= {"number", "text", "any"}:
        raise ValueError(f"{sign} takes a number, {written(left)[:60]} is a {one}")


def _checked(call: Asked) -> Asked:
    function, given = FUNCTIONS[call.function], call.given
    takes = function.takes
    if takes[-1:] and takes[-1].endswith("*"):
        takes = (*takes[:-1], *[takes[-1][:-1]] * max(1, len(given) - len(takes) + 1))
    least = sum(not each.endswith("?") for each in takes)
    if not least <= len(given) <= len(takes):
        raise ValueError(f"{call.function}() takes {', '.join(function.takes) or 'nothing'}")
    for one, wanted in zip(given, takes, strict=False):
        _require(one, wanted.removesuffix("?"), f"{call.function}()")
    return call


# --- evaluating ----------------------------------------------------------------------------------


def state_of(condition: Expression, graph: PatternGraph, names: Mapping[str, str]) -> bool | None:
    """Whether a condition holds of a place; None if that cannot be known.

    Args:
        condition: It.
        graph: Where the place is.
        names: Values of the graph by name of the pattern.
    """
    if isinstance(condition, Joined):
        states = [state_of(part, graph, names) for part in condition.parts]
        decisive = condition.word == "or"
        return decisive if decisive in states else None if None in states else not decisive
    if isinstance(condition, Not):
        state = state_of(condition.part, graph, names)
        return None if state is None else not state
    try:
        return bool(_of_kind(value_of(condition, graph, names), "bool"))
    except UnknownFact:
        return None


def value_of(expression: Expression, graph: PatternGraph | None, names: Mapping[str, str]) -> Any:
    """The value of an expression at a place; see ``state_of``. Literals need no graph.

    Raises:
        UnknownFact: It cannot be known.
    """
    match expression:
        case Literal(value):
            return value
        case Several(items):
            return [value_of(item, graph, names) for item in items]
        case Name(name):
            if name not in names:
                raise UnknownFact
            return names[name]
        case Arithmetic(signs, values):
            numbers = [_of_kind(value_of(each, graph, names), "number") for each in values]
            total = numbers[0]
            for sign, number in zip(signs, numbers[1:], strict=True):
                total = _calculated(sign, total, number)
            return total
        case Asked(function, given):
            assert graph is not None
            return _fact(function, [value_of(each, graph, names) for each in given], graph)
        case ChainedComparison(signs, values):
            found = [value_of(each, graph, names) for each in values]
            pairs = zip(signs, itertools.pairwise(found), strict=True)
            return all(_compared(sign, *pair) for sign, pair in pairs)
    assert graph is not None
    state = state_of(expression, graph, names)
    if state is None:
        raise UnknownFact
    return state


_PYTHON: Mapping[str, tuple[type, ...]] = {
    "number": (int, float),
    "bool": (bool, int),
    "text": (str,),
    "name": (str,),
    "list": (list,),
}


def _of_kind(value: Any, kind: str) -> Any:
    """The value, which only the model says the kind of; UnknownFact if it is another."""
    if not isinstance(value, _PYTHON[kind]):
        raise UnknownFact
    return value


def _calculated(sign: str, left: float, right: float) -> float:
    try:
        value = _SUMS[sign](left, right)
    except (ArithmeticError, ValueError):
        raise UnknownFact from None
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        raise UnknownFact
    return float(value) if isinstance(value, float) else int(value)


def _compared(sign: str, left: Any, right: Any) -> bool:
    if sign.endswith("in"):
        return (left in _of_kind(right, "list")) == (sign == "in")
    if sign in _EQUAL:
        return bool(_EQUAL[sign](left, right))
    kind = "text" if isinstance(left, str) else "number"
    return bool(_ORDERED[sign](_of_kind(left, kind), _of_kind(right, kind)))


def _fact(name: str, given: Sequence[Any], graph: PatternGraph) -> Any:
    function = FUNCTIONS[name]
    kinds = [each.rstrip("?*") for each in function.takes]
    kinds += kinds[-1:] * (len(given) - len(kinds))
    for value, kind in zip(given, kinds, strict=False):
        _of_kind(value, kind)
    try:
        return function.of(graph, *given)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        # A tensor that is malformed, an attribute of a type that its operator does not take.
        raise UnknownFact from None
