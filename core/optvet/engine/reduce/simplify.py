"""Simplifying a graph: attributes, optional inputs, contents.

Steps that may change the type of a value set ``stale``; the caller then infers types again before
it tests such a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from onnx import AttributeProto, NodeProto, defs, numpy_helper

from optvet.engine.reduce.cut import without_dead
from optvet.engine.reduce.graph import Feed, Graph, Node, Weight, rename_values, with_constant
from optvet.graph.types import NUMPY_FLOATS, is_cuttable, same_type
from optvet.graph.walk import (
    opset_versions,
    schema_of,
)

_WEIGHTS_MAX = 1 << 22
"""Maximal number of elements of tensors whose contents are simplified; larger ones are sliced."""


# --- attributes and inputs of nodes ---------------------------------------------------------------


def fewer_attributes(graph: Graph) -> Iterator[Graph | None]:
    """``op(x; a=1, b=2) → op(x)``, then ``→ op(x; b=2)``: remove attributes.

    Attributes that the operator's schema requires, and subgraphs, are kept.
    """
    for index, node in enumerate(graph.nodes):
        optional = _optional_attributes(graph, node)
        if len(optional) > 1:
            yield _without_attributes(graph, index, frozenset(optional))
        for name in optional:
            yield _without_attributes(graph, index, frozenset([name]))


def _optional_attributes(graph: Graph, node: Node) -> list[str]:
    schema = schema_of(*node.type, opset_versions(graph.shell))
    graphs = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
    names = [a.name for a in node.proto.attribute if a.type not in graphs]
    if schema is None:
        return names
    required = {name for name, a in schema.attributes.items() if a.required}
    # A Constant has exactly one of several attributes that the schema calls optional.
    return [] if node.proto.op_type == "Constant" else [n for n in names if n not in required]


def _without_attributes(graph: Graph, index: int, names: frozenset[str]) -> Graph:
    proto = NodeProto()
    proto.CopyFrom(graph.nodes[index].proto)
    for i in reversed(range(len(proto.attribute))):
        if proto.attribute[i].name in names:
            del proto.attribute[i]
    return with_node(graph, index, proto)


def with_node(graph: Graph, index: int, proto: NodeProto) -> Graph:
    """The graph with ``proto`` in place of one node."""
    return graph.with_(nodes=(*graph.nodes[:index], Node(proto), *graph.nodes[index + 1 :]))


def fewer_arguments(graph: Graph) -> Iterator[Graph | None]:
    """``op(x, b) → op(x)`` for an optional b, ``op(x1 … xn) → op(x1 … xn-1)`` for a variadic."""
    for index, node in enumerate(graph.nodes):
        schema = schema_of(*node.type, opset_versions(graph.shell))
        if schema is None:
            continue
        for position in reversed(range(len(node.proto.input))):
            formal = schema.inputs[min(position, len(schema.inputs) - 1)] if schema.inputs else None
            if formal is None or not node.proto.input[position]:
                continue
            variadic = formal.option == defs.OpSchema.FormalParameterOption.Variadic
            optional = formal.option == defs.OpSchema.FormalParameterOption.Optional
            if optional or (variadic and len(node.proto.input) - len(schema.inputs) + 1 > 1):
                yield _without_argument(graph, index, position, drop=variadic)


def _without_argument(graph: Graph, index: int, position: int, *, drop: bool) -> Graph | None:
    proto = NodeProto()
    proto.CopyFrom(graph.nodes[index].proto)
    lost = proto.input[position]
    if drop:
        del proto.input[position]
    else:
        proto.input[position] = ""
        while proto.input and not proto.input[-1]:
            del proto.input[-1]
    changed = with_node(graph, index, proto)
    if lost in changed.consumers:
        return changed
    return without_idle(without_dead(graph, changed, [lost]), {lost})


def without_idle(graph: Graph | None, names: set[str] | None = None) -> Graph | None:
    """``graph`` without inputs and initializers that nothing reads (those in ``names`` only)."""
    if graph is None:
        return None
    idle = {
        n
        for n in (*graph.inputs, *graph.weights, *graph.sparse)
        if n not in graph.consumers and n not in graph.outputs and (names is None or n in names)
    }
    return graph.with_(
        inputs={n: k for n, k in graph.inputs.items() if n not in idle},
        weights={n: w for n, w in graph.weights.items() if n not in idle},
        sparse={n: t for n, t in graph.sparse.items() if n not in idle},
        listed=graph.listed - idle,
        feeds=None
        if graph.feeds is None
        else {n: f for n, f in graph.feeds.items() if n not in idle},
    )


def fewer_outputs(graph: Graph) -> Iterator[Graph | None]:
    """(y1 … yn) → one of the outputs; then all but one, without the nodes that only it needed."""
    if len(graph.outputs) < 2:
        return
    # Keeping one is tried before dropping one: usually only one of many outputs matters.
    chosen = [{n} for n in graph.outputs] if len(graph.outputs) > 2 else []
    chosen += [graph.outputs.keys() - {n} for n in graph.outputs]
    for names in chosen:
        kept = {n: k for n, k in graph.outputs.items() if n in names}
        lost = [n for n in graph.outputs if n not in names]
        yield graph.with_(outputs=kept)
        yield without_idle(without_dead(graph, graph.with_(outputs=kept), lost))


def merged_inputs(graph: Graph) -> Iterator[Graph | None]:
    """``op(a, b) → op(a, a)`` for inputs or initializers a, b of one type, b no output."""
    names = [*graph.inputs, *graph.weights]
    for j, b in enumerate(names):
        for a in names[:j]:
            if b in graph.outputs or not same_type(graph.type_of(a), graph.type_of(b)):
                continue
            nodes = tuple(rename_values(node, {b: a}) for node in graph.nodes)
            yield without_idle(graph.with_(nodes=nodes), {b})
            break


def feed_weights(graph: Graph) -> Iterator[Graph | None]:
    """A float initializer → an input that is fed its contents: this makes the model smaller.

    Integer initializers are kept: they are shapes, axes and indices.
    """
    for name, weight in graph.weights.items():
        kind = graph.type_of(name)
        if not _is_float(graph, name):
            continue
        if kind is None or not is_cuttable(kind) or name in graph.outputs:
            continue
        feeds = None
        if graph.feeds is not None:
            try:
                feeds = {**graph.feeds, name: Feed(weight.array)}
            except (ValueError, TypeError):
                continue
        yield graph.with_(
            inputs={**graph.inputs, name: kind},
            weights={n: w for n, w in graph.weights.items() if n != name},
            listed=graph.listed - {name},
            feeds=feeds,
        )


# --- contents -------------------------------------------------------------------------------------

_PLAIN: Sequence[tuple[int, Callable[[np.ndarray], np.ndarray]]] = (
    (0, np.zeros_like),
    (1, np.ones_like),
    (2, lambda a: (np.arange(a.size) % 10).reshape(a.shape).astype(a.dtype)),
    (2, lambda a: np.clip(np.round(_finite(a)), -999, 999).astype(a.dtype)),
    (3, lambda a: np.clip(np.round(_finite(a), 1), -999, 999).astype(a.dtype)),
)
"""Simpler contents, simplest first, with their grade."""


def _finite(array: np.ndarray) -> np.ndarray:
    return np.nan_to_num(array.astype(np.float64), posinf=100, neginf=-100)


def plainer_contents(graph: Graph) -> Iterator[Graph | None]:
    """Contents x → 0, 1, 0 1 2 …, round(x): of all float tensors together, then of each one.

    This applies to inputs, initializers and Constants. Integer tensors are kept: they are shapes,
    axes and indices.
    """
    grades = {n: feed.grade for n, feed in (graph.feeds or {}).items() if _is_float(graph, n)}
    grades |= {n: weight.grade for n, weight in graph.weights.items() if _is_float(graph, n)}
    for node in graph.nodes:
        if node.constant is not None and _is_float_tensor(node.constant):
            grades[node.makes[0]] = node.constant.grade
    for level, make in _PLAIN:
        changed = [name for name, grade in grades.items() if grade > level]
        if len(changed) > 1:
            yield _with_contents(graph, changed, make)
    for name, grade in grades.items():
        for level, make in _PLAIN:
            if grade > level:
                yield _with_contents(graph, [name], make)


def _is_float(graph: Graph, name: str) -> bool:
    if name in graph.weights:
        return _is_float_tensor(graph.weights[name])
    return (graph.feeds or {})[name].array.dtype.kind == "f"


def _is_float_tensor(weight: Weight) -> bool:
    return weight.proto.data_type in NUMPY_FLOATS and weight.elements <= _WEIGHTS_MAX


def _with_contents(
    graph: Graph, names: Sequence[str], make: Callable[[np.ndarray], np.ndarray]
) -> Graph:
    weights, nodes = dict(graph.weights), list(graph.nodes)
    feeds = None if graph.feeds is None else dict(graph.feeds)
    for name in names:
        if name in weights:
            proto = numpy_helper.from_array(np.array(make(weights[name].array)), name)
            weights[name] = Weight(proto)
        elif feeds is not None and name in feeds:
            feeds[name] = Feed(np.array(make(feeds[name].array)))
        else:
            node = nodes[graph.producer[name]]
            assert node.constant is not None
            tensor = numpy_helper.from_array(np.array(make(node.constant.array)))
            nodes[graph.producer[name]] = with_constant(node, tensor)
    return graph.with_(nodes=tuple(nodes), weights=weights, feeds=feeds)
