"""What conditions of a pattern can ask of a graph, and what is not known before it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, TypeProto, numpy_helper

from optvet.graph.walk import (
    ONNX_DOMAIN,
    attribute_of,
    domain_of,
    schema_of,
)
from optvet.graph.weights import held_tensor

_MOST_ELEMENTS = 65536
ANY = "_"
"""Any operator."""


_ELEMENTS_A_STEP = 64


class UnknownFact(Exception):
    """A condition asks for what is not known before the model runs."""


class OutOfSteps(Exception):
    """A search has taken as many steps as it may."""


@dataclass
class SearchSteps:
    """What is left to a search."""

    left: int

    def spend(self, elements: int = 0) -> None:
        """Take a step, and more for many elements; OutOfSteps if none is left."""
        # A malformed tensor has less than no elements.
        self.left -= 1 + max(elements, 0) // _ELEMENTS_A_STEP
        if self.left < 0:
            raise OutOfSteps


@dataclass
class PatternGraph:
    """One graph, indexed."""

    nodes: list[NodeProto]
    graph: GraphProto | None
    opsets: Mapping[str, int]
    weights: Mapping[str, TensorProto]
    types: Mapping[str, TypeProto]
    ir_version: int
    steps: SearchSteps
    makers: dict[str, NodeProto] = field(default_factory=dict)
    readers: dict[str, list[NodeProto]] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    outputs: set[str] = field(default_factory=set)
    inputs: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._by_operator: dict[tuple[str | None, str], list[NodeProto]] = {}
        for place, node in enumerate(self.nodes):
            self.places[id(node)] = place
            self.makers |= {name: node for name in node.output if name}
            for name in filter(None, node.input):
                self.readers.setdefault(name, []).append(node)
            for value in (None, *dict.fromkeys(filter(None, node.input))):
                for operator in (node.op_type, ANY):
                    self._by_operator.setdefault((value, operator), []).append(node)
        if self.graph is not None:
            self.outputs = {value.name for value in self.graph.output}
            self.inputs = {value.name for value in self.graph.input}

    def of_operators(self, operators: Sequence[str], value: str | None) -> list[NodeProto]:
        """Nodes of one of these operators in order; those that read ``value`` unless it is None."""
        found = [self._by_operator.get((value, operator), []) for operator in operators]
        if len(found) == 1:
            return found[0]
        return sorted((n for nodes in found for n in nodes), key=lambda n: self.places[id(n)])

    def attribute(self, node: NodeProto, name: str) -> Any:
        """The value of an attribute; see ``attribute_value``.

        Raises:
            UnknownFact: In a function, where whoever calls it gives the value.
        """
        try:
            value = attribute_value(node, name, self.opsets)
        except ValueError as error:
            raise UnknownFact from error
        self.steps.spend(len(value) if isinstance(value, list | str) else 0)
        return value

    def tensor(self, name: str) -> TensorProto | None:
        """The constant of that name; None if the value is no constant."""
        if name in self.weights:
            return self.weights[name]
        node = self.makers.get(name)
        return None if node is None else held_tensor(node)

    def shape(self, name: str) -> list[int | None]:
        """The dimensions; those that are not known are None."""
        tensor = self.tensor(name)
        if tensor is not None:
            return [int(d) for d in tensor.dims]
        kind = self.types.get(name)
        if kind is None or not kind.HasField("tensor_type"):
            raise UnknownFact
        if not kind.tensor_type.HasField("shape"):
            raise UnknownFact
        dims = kind.tensor_type.shape.dim
        return [d.dim_value if d.HasField("dim_value") else None for d in dims]


def _rank(graph: PatternGraph, name: str) -> int:
    return len(graph.shape(name))


def _dim(graph: PatternGraph, name: str, axis: int) -> int:
    shape = graph.shape(name)
    if not -len(shape) <= axis < len(shape):
        raise UnknownFact
    return _known(shape[axis])


def _shape(graph: PatternGraph, name: str) -> list[int]:
    return [_known(d) for d in graph.shape(name)]


def _elements(graph: PatternGraph, name: str) -> int:
    shape = graph.shape(name)
    return 0 if 0 in shape else math.prod(_known(d) for d in shape)


def _is_empty(graph: PatternGraph, name: str, axis: int | None = None) -> bool:
    """Whether a value, or one of its dimensions, has no elements.

    A dimension that varies is not taken for one of 0: few are, and every model would be suspected.
    """
    try:
        shape = graph.shape(name)
    except UnknownFact:
        return False
    if axis is None:
        return 0 in shape
    return -len(shape) <= axis < len(shape) and shape[axis] == 0


def _known(value: int | None) -> int:
    if value is None:
        raise UnknownFact
    return value


def _dtype(graph: PatternGraph, name: str) -> str:
    tensor, kind = graph.tensor(name), graph.types.get(name)
    number = tensor.data_type if tensor is not None else 0
    if not number and kind is not None:
        number = kind.tensor_type.elem_type
    if not number:
        raise UnknownFact
    return str(onnx.TensorProto.DataType.Name(number)).lower()


def _kind(graph: PatternGraph, name: str) -> str:
    kind = graph.types.get(name)
    found = None if kind is None else kind.WhichOneof("value")
    if graph.tensor(name) is not None:
        return "tensor"
    if found is None:
        raise UnknownFact
    return str(found).removesuffix("_type")


def _value(graph: PatternGraph, name: str) -> list[Any]:
    tensor = graph.tensor(name)
    if tensor is None or math.prod(tensor.dims) > _MOST_ELEMENTS:
        raise UnknownFact
    graph.steps.spend(math.prod(tensor.dims))
    if tensor.data_location == TensorProto.EXTERNAL:
        raise UnknownFact
    values: list[Any] = numpy_helper.to_array(tensor).ravel().tolist()
    return values


def _readers(graph: PatternGraph, name: str) -> int:
    return len(graph.readers.get(name, [])) + (name in graph.outputs)


def _made_by(graph: PatternGraph, name: str) -> str:
    """The operator that makes a value; "" for an input, or where it is not in this graph."""
    node = graph.makers.get(name)
    return "" if node is None or domain_of(node) != ONNX_DOMAIN else str(node.op_type)


def _copies_moved(graph: PatternGraph, sizes: str, before: str, first: str) -> bool:
    """Whether a 0 among the sizes of a Reshape stands for another dimension of ``first``.

    It copies a dimension of ``before``, which another Reshape made of ``first``.
    """
    here, there = graph.shape(before), graph.shape(first)
    places = [axis for axis, size in enumerate(_value(graph, sizes)) if size == 0]
    pairs = [(here[a : a + 1], there[a : a + 1]) for a in places]
    if any(one != other and None not in (*one, *other) for one, other in pairs):
        return True
    if any(None in (*one, *other) for one, other in pairs):
        raise UnknownFact
    return False


def _is_product(graph: PatternGraph, scales: str, *factors: str) -> bool:
    """Whether constants are the product of others but for rounding."""
    values = [np.asarray(_value(graph, name), np.float64) for name in (scales, *factors)]
    try:
        return bool(np.allclose(values[0], np.prod(np.broadcast_arrays(*values[1:]), axis=0), 1e-4))
    except ValueError:  # Of shapes that no runtime multiplies.
        return False


def _attr(graph: PatternGraph, result: str, name: str) -> Any:
    node = graph.makers.get(result)
    value = None if node is None else graph.attribute(node, name)
    if value is None:
        raise UnknownFact
    return value


def _over_last(graph: PatternGraph, result: str) -> bool:
    """Whether the node that makes a result reduces its input along the last axis alone."""
    node = graph.makers.get(result)
    if node is None:
        raise UnknownFact
    given = graph.attribute(node, "axes")
    # Later operator sets have an operand in place of the attribute; without both it is all axes.
    if given is None and len(node.input) > 1 and node.input[1]:
        given = _value(graph, node.input[1])
    if not given:
        return _rank(graph, node.input[0]) == 1
    if len(given) != 1 or given[0] < 0:
        return list(given) == [-1]
    return bool(given[0] == _rank(graph, node.input[0]) - 1)


@dataclass(frozen=True)
class GraphFact:
    """A function of conditions: what it is given, what it gives, and how that is found.

    ``takes`` has kinds: name, number, text, list; ``?`` may be left out, ``*`` are one or more.
    """

    takes: tuple[str, ...]
    gives: str
    of: Callable[..., Any]


FUNCTIONS: Mapping[str, GraphFact] = {
    "rank": GraphFact(("name",), "number", _rank),
    "dim": GraphFact(("name", "number"), "number", _dim),
    "shape": GraphFact(("name",), "list", _shape),
    "elements": GraphFact(("name",), "number", _elements),
    "dtype": GraphFact(("name",), "text", _dtype),
    "kind": GraphFact(("name",), "text", _kind),
    "value": GraphFact(("name",), "list", _value),
    "readers": GraphFact(("name",), "number", _readers),
    "attr": GraphFact(("name", "text"), "any", _attr),
    "made_by": GraphFact(("name",), "text", _made_by),
    "copies_moved": GraphFact(("name", "name", "name"), "bool", _copies_moved),
    "is_product": GraphFact(("name", "name*"), "bool", _is_product),
    "largest": GraphFact(("list",), "any", lambda graph, values: max(values, default=0)),
    "smallest": GraphFact(("list",), "any", lambda graph, values: min(values, default=0)),
    "over_last": GraphFact(("name",), "bool", _over_last),
    "is_empty": GraphFact(("name", "number?"), "bool", _is_empty),
    "is_constant": GraphFact(("name",), "bool", lambda graph, name: graph.tensor(name) is not None),
    "is_input": GraphFact(("name",), "bool", lambda graph, name: name in graph.inputs),
    "is_output": GraphFact(("name",), "bool", lambda graph, name: name in graph.outputs),
    "opset": GraphFact((), "number", lambda graph: _known(graph.opsets.get(ONNX_DOMAIN))),
    "ir_version": GraphFact((), "number", lambda graph: graph.ir_version),
}
"""What conditions can ask: of a value its ``rank``, ``dim(x, axis)``, ``shape``, ``elements``,
``dtype``, ``kind`` ("tensor", "sequence", "map", "optional"), whether it or an axis of it
``is_empty``, ``value`` of a constant as a flat list, number of ``readers`` (a graph output is one
more); of the node that makes a result its operator (``made_by(y)``, "" for an input), its
``attr(y, "axis")``, and whether it is a reduction along the last axis alone (``over_last(y)``); of
a list its ``largest`` and ``smallest`` number; of the sizes of a Reshape after another one whether
a 0 ``copies_moved(S, r, x)`` dimensions; of a constant whether it ``is_product(B, X, W)`` of
others; of the model its ``opset`` and ``ir_version``."""


def attribute_value(node: NodeProto, name: str, opsets: Mapping[str, int]) -> Any:
    """The value of an attribute, or its default; texts as text; None if there is none."""
    value = attribute_of(node, name)
    if value is None:
        schema = schema_of(domain_of(node), node.op_type, opsets)
        known = None if schema is None else schema.attributes.get(name)
        if known is not None and known.default_value.type:
            value = onnx.helper.get_attribute_value(known.default_value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
