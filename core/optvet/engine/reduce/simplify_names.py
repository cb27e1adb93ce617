"""Simplifying a graph: names and text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from onnx import ModelProto, NodeProto

from optvet.engine.reduce.cut import reachable_functions
from optvet.engine.reduce.graph import Graph, Node, Weight, rename_values
from optvet.engine.reduce.simplify import with_node, without_idle
from optvet.graph.plain import is_plain_name
from optvet.graph.walk import (
    ONNX_DOMAIN,
    bodies_of,
    domain_of,
    inner_nodes,
    local_names,
)

# --- names and text -------------------------------------------------------------------------------


def cleaner(graph: Graph) -> Iterator[Graph | None]:
    """Remove everything that is not computation, together and then one by one.

    That is: unread inputs and initializers, unused functions and operator sets, declared types of
    inner values, doc strings and metadata, names of nodes; values are renamed (t0, t1 …).
    """
    steps: Sequence[Callable[[Graph], Graph | None]] = (
        without_idle,
        _without_text,
        _without_functions,
        _without_value_info,
        _without_node_names,
        _unlist_initializers,
        short_names,
    )
    everything: Graph | None = graph
    for step in steps:
        everything = step(everything) if everything is not None else None
    yield everything
    for step in steps:
        yield step(graph)
    yield from _less_text(graph)
    for name in graph.value_info:
        yield graph.with_(value_info={n: k for n, k in graph.value_info.items() if n != name})
    for index, node in enumerate(graph.nodes):
        if _has_text(node.proto):
            yield with_node(graph, index, _nameless(node.proto))


def _without_text(graph: Graph) -> Graph:
    shell = ModelProto(ir_version=graph.shell.ir_version)
    used = {node.type[0] for node in graph.nodes} | {ONNX_DOMAIN}
    used |= {domain_of(n) for node in graph.nodes for n in inner_nodes(node.proto)}
    used |= {domain_of(n) for f in graph.functions for n in f.node}
    shell.opset_import.extend(o for o in graph.shell.opset_import if domain_of(o) in used)
    shell.graph.name = "g"
    return graph.with_(shell=shell)


def _less_text(graph: Graph) -> Iterator[Graph]:
    """``graph`` with one text field less, or with one metadata property without its value."""
    kept = {"ir_version", "opset_import", "graph", "name"}
    for index in (0, 1):
        message = (graph.shell, graph.shell.graph)[index]
        for descriptor, value in message.ListFields():
            field = descriptor.name
            if field in kept:
                continue
            shell, changed = _shell_copy(graph, index)
            changed.ClearField(field)
            yield graph.with_(shell=shell)
            for i in range(len(value) if not isinstance(value, (str, bytes, int)) else 0):
                shell, changed = _shell_copy(graph, index)
                del getattr(changed, field)[i]
                yield graph.with_(shell=shell)
                if field == "metadata_props" and value[i].value:
                    shell, changed = _shell_copy(graph, index)
                    changed.metadata_props[i].value = ""
                    yield graph.with_(shell=shell)


def _shell_copy(graph: Graph, index: int) -> tuple[ModelProto, Any]:
    """A copy of the shell, and the message in it to change: the model or its graph."""
    shell = ModelProto()
    shell.CopyFrom(graph.shell)
    return shell, (shell, shell.graph)[index]


def _without_functions(graph: Graph) -> Graph:
    called = reachable_functions(graph.functions, (node.proto for node in graph.nodes))
    kept = tuple(f for f in graph.functions if (f.domain, f.name) in called)
    return graph.with_(functions=kept)


def _without_value_info(graph: Graph) -> Graph:
    return graph.with_(value_info={})


def _unlist_initializers(graph: Graph) -> Graph:
    return graph.with_(listed=frozenset()) if graph.shell.ir_version >= 4 else graph


def _without_node_names(graph: Graph) -> Graph:
    return graph.with_(
        nodes=tuple(Node(_nameless(n.proto)) if _has_text(n.proto) else n for n in graph.nodes)
    )


_TEXT = ("name", "doc_string", "metadata_props")


def _has_text(proto: NodeProto) -> bool:
    return any(getattr(node, field) for node in (proto, *inner_nodes(proto)) for field in _TEXT)


def _nameless(proto: NodeProto) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(proto)
    for node in (copy, *inner_nodes(copy)):
        for field in _TEXT:
            node.ClearField(field)
    return copy


def short_names(graph: Graph) -> Graph | None:
    """Values become x0 … (inputs), w0 … (initializers), t0 … (inner), y0 … (outputs).

    None if a subgraph defines a name that would hide one of these.
    """
    return None if _subgraph_defines_name(graph) else _rename_all(graph, _short(graph))


_FEW = 24
"""Names up to which each is tried alone."""


def one_short_name(graph: Graph) -> Iterator[Graph | None]:
    """One value gets a short name, where not all may: then it is known whose names matter."""
    short = _short(graph)
    odd = [n for n in short if not is_plain_name(n)]
    if not odd or len(odd) > _FEW or _subgraph_defines_name(graph):
        return
    same = {n: n for n in short}
    for name in odd:
        stem, number = short[name][0], 0
        while f"{stem}{number}" in same:
            number += 1
        yield _rename_all(graph, {**same, name: f"{stem}{number}"})


def _short(graph: Graph) -> dict[str, str]:
    names: dict[str, str] = {}
    for stem, values in (
        ("y", graph.outputs),
        ("x", graph.inputs),
        ("w", (*graph.weights, *graph.sparse)),
        ("t", [n for node in graph.nodes for n in node.makes]),
    ):
        fresh = [n for n in values if n not in names]
        names |= {n: f"{stem}{i}" for i, n in enumerate(fresh)}
    return names


def _subgraph_defines_name(graph: Graph) -> bool:
    """Whether a subgraph defines a name that values get here."""
    return any(
        is_plain_name(name)
        for node in graph.nodes
        for body in bodies_of(node.proto)
        for name in local_names(body)
    )


def _rename_all(graph: Graph, names: Mapping[str, str]) -> Graph:
    weights: dict[str, Weight] = {}
    for name, weight in graph.weights.items():
        if names[name] == name:
            weights[name] = weight
            continue
        proto = type(weight.proto)()
        proto.CopyFrom(weight.proto)
        proto.name = names[name]
        weights[names[name]] = Weight(proto)
    sparse = {}
    for name, tensor in graph.sparse.items():
        copy = type(tensor)()
        copy.CopyFrom(tensor)
        copy.values.name = names[name]
        sparse[names[name]] = copy
    recorded = type(graph.recorded)(
        {names.get(n, n): k for n, k in graph.recorded.types.items() if n in names},
        {names.get(n, n): a for n, a in graph.recorded.values.items() if n in names},
    )
    return graph.with_(
        nodes=tuple(rename_values(node, names) for node in graph.nodes),
        inputs={names[n]: k for n, k in graph.inputs.items()},
        outputs={names[n]: k for n, k in graph.outputs.items()},
        weights=weights,
        sparse=sparse,
        listed=frozenset(names[n] for n in graph.listed),
        value_info={names[n]: k for n, k in graph.value_info.items() if n in names},
        feeds=None
        if graph.feeds is None
        else {names[n]: f for n, f in graph.feeds.items() if n in names},
        recorded=recorded,
    )
