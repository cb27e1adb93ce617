"""A call of an operator, as rules about what the ONNX standard defines look at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto

from optvet.graph.walk import attribute_of

Array = np.ndarray


@dataclass(frozen=True)
class OperatorCall:
    """A node, the known values of its operands and results, and its operator set."""

    node: NodeProto
    operands: Sequence[Array | None]
    results: Sequence[Array | None]
    opset: int

    def operand(self, place: int) -> Array | None:
        """The operand at ``place``; None if it is omitted or unknown."""
        return self.operands[place] if place < len(self.operands) else None

    def known_operands(self) -> Iterator[Array]:
        """All operands of known value."""
        yield from (value for value in self.operands if value is not None)

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


Rule = Callable[[OperatorCall], str]
"""The reason why there is no result, in words; empty if there is one."""


def list_items(value: Any) -> list[Any]:
    """The items of an attribute; a model that the checker refuses may have a single item."""
    return [value] if isinstance(value, (int, float)) else list(value or ())


def axes_of(call: OperatorCall) -> tuple[int, ...] | None:
    """The axes that a node reduces; None for all."""
    value = call.operand(1)
    axes = list_items(call.attribute("axes")) if value is None else value.ravel().tolist()
    if not axes and call.attribute("noop_with_empty_axes", 0):
        return ()
    return tuple(axes) if axes else None
