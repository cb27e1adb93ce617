"""A call of an operator, as rules about what the ONNX standard defines look at it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import onnx
from onnx import NodeProto

from optvet.graph.walk import attribute_of

Array = np.ndarray
Shape = tuple[int, ...]
_Operand = TypeVar("_Operand", Array, Shape)


@dataclass(frozen=True)
class CallOf(Generic[_Operand]):
    """A node, its operands and results as far as they are known, and its operator set.

    Rules about values get arrays, those about shapes get shapes.
    """

    node: NodeProto
    operands: Sequence[_Operand | None]
    results: Sequence[_Operand | None]
    opset: int

    def operand(self, place: int) -> _Operand | None:
        """The operand at ``place``; None if it is omitted or unknown."""
        return self.operands[place] if place < len(self.operands) else None

    def known_operands(self) -> Iterator[_Operand]:
        """All operands that are known."""
        yield from (operand for operand in self.operands if operand is not None)

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute of the node."""
        return attribute_of(self.node, name, default)

    def given_or_default(self, name: str) -> Any:
        """An attribute of the node, or its default in this operator set; None if it has none."""
        given = self.attribute(name)
        return _default(self.node.op_type, self.opset, name) if given is None else given

    def text(self, name: str, default: str = "") -> str:
        """An attribute that is a word."""
        value = self.attribute(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def arguments(self, test: Callable[..., Any], at: Sequence[int] = ()) -> dict[str, Any] | None:
        """What the parameters of a test stand for in this call; None if the test says nothing.

        Positional parameters are the operands at the places ``at``, or the first ones. One with a
        default may be omitted or unknown; where another is, the test says nothing. A parameter
        ``call`` is the whole call. Parameters after ``*`` are attributes by name, words as text;
        one without a default has that of the operator, and ``opset`` is the operator set.
        """
        found: dict[str, Any] = {}
        places = iter(at or range(9))
        for name, is_operand, default in _parameters(test):
            if name in ("call", "opset"):
                value: Any = self if name == "call" else self.opset
            elif is_operand:
                value = self.operand(next(places))
            else:
                value = self.given_or_default(name) if default is _NEEDED else self.attribute(name)
                value = value.decode() if isinstance(value, bytes) else value
            if value is None and default is _NEEDED:
                return None
            found[name] = default if value is None else value
        return found


_NEEDED = object()
OTHER_FORMS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What tests raise of operands and attributes of another form: those are for the checker."""


@cache
def _parameters(test: Callable[..., Any]) -> list[tuple[str, bool, Any]]:
    """Of each parameter its name, whether it is positional, and its default."""
    return [
        (p.name, p.kind is not p.KEYWORD_ONLY, _NEEDED if p.default is p.empty else p.default)
        for p in inspect.signature(test).parameters.values()
    ]


@cache
def _default(operator: str, opset: int, attribute: str) -> Any:
    try:
        schema = onnx.defs.get_schema(operator, opset, "")
    except onnx.defs.SchemaError:
        return None
    found = schema.attributes.get(attribute)
    if found is None or not found.default_value.name:
        return None
    return onnx.helper.get_attribute_value(found.default_value)


OperatorCall = CallOf[Array]


class _OfOperators(Protocol):
    @property
    def operators(self) -> str: ...


_Row = TypeVar("_Row", bound=_OfOperators)


def by_operator(rows: Iterable[_Row]) -> Mapping[str, Sequence[_Row]]:
    """The rows of a table that are about an operator, in their order."""
    found: dict[str, list[_Row]] = {}
    for row in rows:
        for operator in row.operators.split():
            found.setdefault(operator, []).append(row)
    return found


def list_items(value: Any) -> list[Any]:
    """The items of an attribute; a model that the checker refuses may have a single item."""
    return [value] if isinstance(value, (int, float)) else list(value or ())


REDUCING = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum ReduceSumSquare"
)


def repeats_an_axis(axes: Sequence[int], data: Array | None, added: int = 0) -> str:
    """Whether an axis of ``data`` is listed twice: as it is, or also from the back."""
    rank = None if data is None else data.ndim + added
    counted = [n if rank is None or n >= 0 else n + rank for n in axes]
    return "an axis is listed twice" if len(set(counted)) < len(counted) else ""


def axes_of(call: OperatorCall) -> tuple[int, ...] | None:
    """The axes that a node reduces; None for all."""
    value = call.operand(1)
    axes = list_items(call.attribute("axes")) if value is None else value.ravel().tolist()
    if not axes and call.attribute("noop_with_empty_axes", 0):
        return ()
    return tuple(axes) if axes else None
