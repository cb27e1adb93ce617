"""Walking an ONNX graph: its operators, nested graphs, and the names that nodes use.

``ModelProto.graph`` is only the outermost graph: ``If``, ``Loop`` and ``Scan`` nodes have graphs as
attributes, which can read values of the graphs around them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

ONNX_DOMAIN = "ai.onnx"
"""ONNX's own operator domain. A file may spell it "" too."""

LOOPS = frozenset({"Loop", "Scan"})
"""Operators with a body that runs once for each iteration."""
RANDOM_OPERATORS = frozenset(
    "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split()
)
"""Operators that always draw random numbers; Dropout does too in training mode."""


class HasDomain(Protocol):
    """A node, a function or an operator-set import."""

    @property
    def domain(self) -> str:
        """The domain as spelled in the file."""
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


def qualified_name(domain: str, op_type: str, separator: str = "::") -> str:
    """An operator's name, preceded by its domain if that is not ONNX's own."""
    return op_type if domain in ("", ONNX_DOMAIN) else f"{domain}{separator}{op_type}"


def opset_versions(owner: ModelProto | FunctionProto) -> dict[str, int]:
    """Operator-set version by domain, as a model or a function imports them."""
    return {domain_of(entry): entry.version for entry in owner.opset_import}


def schema_of(domain: str, op_type: str, versions: Mapping[str, int]) -> onnx.defs.OpSchema | None:
    """The operator's schema at these operator-set versions; None if ONNX has none."""
    version = versions.get(domain or ONNX_DOMAIN)
    # The registry spells ONNX's own domain "".
    short = "" if domain == ONNX_DOMAIN else domain
    if version is None or not onnx.defs.has(op_type, version, short):
        return None
    return onnx.defs.get_schema(op_type, version, short)


def attribute_of(node: NodeProto, name: str, default: Any = None) -> Any:
    """The value of an attribute, or ``default`` where the node does not give it."""
    for attribute in node.attribute:
        if attribute.name == name:
            return onnx.helper.get_attribute_value(attribute)
    return default


# --- graphs inside graphs -------------------------------------------------------------------------


def bodies_of(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs among the attributes of ``node``."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """``graph`` and every graph inside its nodes, outer ones first."""
    yield graph
    for node in graph.node:
        if node.attribute:
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
    """Number of nodes of the graph and of nested graphs; a function call is one node."""
    return sum(len(graph.node) for graph in graphs(model.graph))


# --- names ----------------------------------------------------------------------------------------


def local_names(body: GraphProto) -> set[str]:
    """Names that a graph defines itself: inputs, weights and outputs of its nodes."""
    names = {v.name for v in body.input} | {t.name for t in body.initializer}
    names |= {t.values.name for t in body.sparse_initializer}
    return names | {o for node in body.node for o in node.output if o}


def captured_names(body: GraphProto) -> list[str]:
    """Names that a nested graph reads from the graphs around it; each once, in order."""
    known = local_names(body)
    names: list[str] = []
    for node in body.node:
        names += [n for n in node.input if n and n not in known]
        names += [n for inner in bodies_of(node) for n in captured_names(inner) if n not in known]
    names += [o.name for o in body.output if o.name and o.name not in known]
    return list(dict.fromkeys(names))


def reads(node: NodeProto) -> Iterator[str]:
    """Values that a node reads, including those that only its nested graphs read."""
    yield from (name for name in node.input if name)
    for body in bodies_of(node):
        yield from captured_names(body)


def between(graph: GraphProto, end: str, begins: Collection[str]) -> list[int]:
    """Indices of the nodes that make the value ``end`` from the values ``begins``, in order."""
    maker = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    todo, found = [end], set[int]()
    while todo:
        name = todo.pop()
        index = maker.get(name)
        if index is not None and index not in found and (name == end or name not in begins):
            found.add(index)
            todo += reads(graph.node[index])
    return sorted(found)


def all_names(nodes: Iterable[NodeProto]) -> set[str]:
    """Every name in ``nodes`` and in the graphs inside them."""
    names: set[str] = set()
    for node in nodes:
        names.update(node.input)
        names.update(node.output)
        for body in bodies_of(node):
            names |= local_names(body) | all_names(body.node)
    return names


def name_nodes(model: ModelProto) -> list[str]:
    """Name the nodes of ``model`` that have no name, or one that another node has too.

    Returns:
        The new names, which depend on operators and order alone.
    """
    taken = {node.name for node in nodes_of(model.graph) if node.name}
    seen, new, counts = set[str](), list[str](), dict[str, int]()
    for node in nodes_of(model.graph):
        if not node.name or node.name in seen:
            number = counts.get(node.op_type, 0)
            while f"{node.op_type}_{number}" in taken:
                number += 1
            counts[node.op_type] = number + 1
            node.name = f"{node.op_type}_{number}"
            taken.add(node.name)
            new.append(node.name)
        seen.add(node.name)
    return new
