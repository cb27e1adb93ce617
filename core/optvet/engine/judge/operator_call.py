"""A call of an operator, as rules about what the ONNX standard defines look at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
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


Rule = Callable[[OperatorCall], str]
"""The reason why there is no result, in words; empty if there is one."""
