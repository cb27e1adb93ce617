"""Walking an ONNX graph: its operators, the graphs inside its nodes, and the names that they use.

``ModelProto.graph`` is only the outermost graph: an ``If``, a ``Loop`` or a ``Scan`` holds
graphs of its own, which read the values around them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

ONNX_DOMAIN = "ai.onnx"
"""ONNX's own operator domain. In a file it may be spelled "" as well, which means the same."""

RANDOM_OPERATORS = frozenset(
    "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split()
)
"""Operators that always draw random numbers; Dropout may, too, where it is told to train."""


class HasDomain(Protocol):
    """A node, a function or an operator-set import."""

    @property
    def domain(self) -> str:
        """As the file spells it."""
        ...


# --- operators ------------------------------------------------------------------------------------


def domain_of(item: HasDomain) -> str:
    """Operator domain of a node, a function or an import; ONNX's own is always ``ONNX_DOMAIN``."""
    return item.domain or ONNX_DOMAIN


def is_onnx(node: NodeProto) -> bool:
    """Whether the node's operator is of ONNX's own domain."""
    return domain_of(node) == ONNX_DOMAIN


def operator_of(node: NodeProto) -> tuple[str, str]:
    """Domain and name of the node's operator."""
    return domain_of(node), node.op_type


def qualified(domain: str, op_type: str, separator: str = "::") -> str:
    """An operator's name, with its domain in front where that is not ONNX's own."""
    return op_type if domain in ("", ONNX_DOMAIN) else f"{domain}{separator}{op_type}"


def opset_versions(owner: ModelProto | FunctionProto) -> dict[str, int]:
    """Operator-set version by domain, as a model or a function imports them."""
    return {domain_of(entry): entry.version for entry in owner.opset_import}


def schema_of(domain: str, op_type: str, versions: Mapping[str, int]) -> onnx.defs.OpSchema | None:
    """The operator's definition at these operator-set versions; None if ONNX has none."""
    version = versions.get(domain or ONNX_DOMAIN)
    # The registry knows ONNX's own domain by its short spelling only.
    short = "" if domain == ONNX_DOMAIN else domain
    if version is None or not onnx.defs.has(op_type, version, short):
        return None
    return onnx.defs.get_schema(op_type, version, short)


def attribute_of(node: NodeProto, name: str, default: Any = None) -> Any:
    """The value of an attribute, or ``default`` where the node does not give it."""
    for given in node.attribute:
        if given.name == name:
            return onnx.helper.get_attribute_value(given)
    return default


# --- graphs inside graphs -------------------------------------------------------------------------


def bodies_of(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs among the attributes of ``node``."""
    for given in node.attribute:
        if given.HasField("g"):
            yield given.g
        yield from given.graphs


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """``graph`` and every graph inside its nodes, outer ones first."""
    yield graph
    for node in graph.node:
        for body in bodies_of(node):
            yield from graphs(body)


def nodes_of(graph: GraphProto) -> Iterator[NodeProto]:
    """All nodes of ``graph`` and of the graphs inside it."""
    for each in graphs(graph):
        yield from each.node


def inner_nodes(node: NodeProto) -> Iterator[NodeProto]:
    """All nodes of the graphs inside ``node``."""
    for body in bodies_of(node):
        for inner in body.node:
            yield inner
            yield from inner_nodes(inner)


def node_count(model: ModelProto) -> int:
    """Nodes of the graph and of all graphs inside it; functions count by their calls."""
    return sum(len(graph.node) for graph in graphs(model.graph))


# --- names ----------------------------------------------------------------------------------------


def local_names(body: GraphProto) -> set[str]:
    """Names that a graph defines itself: inputs, weights and what its nodes make."""
    names = {v.name for v in body.input} | {t.name for t in body.initializer}
    names |= {t.values.name for t in body.sparse_initializer}
    return names | {o for node in body.node for o in node.output if o}


def captured(body: GraphProto) -> list[str]:
    """Names that a graph inside a node reads from outside of it; each once, in order."""
    known = local_names(body)
    names: list[str] = []
    for node in body.node:
        names += [n for n in node.input if n and n not in known]
        names += [n for inner in bodies_of(node) for n in captured(inner) if n not in known]
    names += [o.name for o in body.output if o.name and o.name not in known]
    return list(dict.fromkeys(names))


def reads(node: NodeProto) -> Iterator[str]:
    """Values that a node reads, those included that only the graphs inside it read."""
    yield from (name for name in node.input if name)
    for body in bodies_of(node):
        yield from captured(body)


def all_names(nodes: Iterable[NodeProto]) -> set[str]:
    """Every name in ``nodes`` and in the graphs inside them."""
    names: set[str] = set()
    for node in nodes:
        names.update(node.input)
        names.update(node.output)
        for body in bodies_of(node):
            names |= local_names(body) | all_names(body.node)
    return names
