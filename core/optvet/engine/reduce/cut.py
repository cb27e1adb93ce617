"""Cutting a part out of a graph: values from outside become inputs, values for outside outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from onnx import FunctionProto, NodeProto, TypeProto, numpy_helper

from optvet.engine.reduce.graph import Feed, Graph, Node, Weight, rename_values
from optvet.graph.types import is_cuttable, loosen
from optvet.graph.walk import bodies_of


def add_needed_nodes(graph: Graph, kept: Iterable[int]) -> list[int]:
    """``kept`` and the nodes before it that are needed because their values cannot be inputs."""
    chosen = set(kept)
    pending = list(chosen)
    while pending:
        for name in graph.nodes[pending.pop()].uses:
            maker = graph.producer.get(name)
            if maker is None or maker in chosen:
                continue
            if not _can_be_fed(graph, name):
                chosen.add(maker)
                pending.append(maker)
    return sorted(chosen)


def _can_be_fed(graph: Graph, name: str) -> bool:
    if not is_cuttable(graph.type_of(name)):
        return False
    return graph.feeds is None or name in graph.recorded.values


def cut(
    graph: Graph,
    kept: Iterable[int],
    *,
    frontier: bool = False,
    fixed: bool | None = None,
    loose: bool = False,
) -> Graph | None:
    """G → G[kept]: only these nodes; what they read becomes inputs, unread values become outputs.

    Args:
        graph: The graph to cut.
        kept: Indexes of nodes; more nodes are kept if a value cannot be an input (a sequence, say).
        frontier: Values that a removed node read become outputs even if a kept node reads them.
        fixed: Whether a cut value becomes an initializer; None: if it is the same for all inputs.
        loose: Leave the dimensions of new inputs and outputs unknown.

    Returns:
        None if nothing would be left, or an output would have no known type.
    """
    indexes = add_needed_nodes(graph, kept)
    return restrict(
        graph, [graph.nodes[i] for i in indexes], frontier=frontier, fixed=fixed, loose=loose
    )


def restrict(
    graph: Graph,
    nodes: Sequence[Node],
    *,
    frontier: bool = False,
    fixed: bool | None = None,
    loose: bool = False,
) -> Graph | None:
    """``graph`` with ``nodes`` in place of its own; see ``cut``."""
    if not nodes:
        return None
    computed = {name for node in nodes for name in node.makes}
    read = dict.fromkeys(name for node in nodes for name in node.uses)
    idle = {n for n in (*graph.inputs, *graph.weights, *graph.sparse) if n not in graph.consumers}
    # An input that was unused before may matter (or be an output); another step tries to remove it.
    stays = read.keys() | idle
    inputs = {n: kind for n, kind in graph.inputs.items() if n in stays}
    weights = {n: weight for n, weight in graph.weights.items() if n in stays}
    feeds = None
    if graph.feeds is not None:
        feeds = {n: feed for n, feed in graph.feeds.items() if n in inputs}
    for name in read:
        if name in computed or name in inputs or name in weights or name in graph.sparse:
            continue
        kind, value = graph.type_of(name), graph.recorded.values.get(name)
        if kind is None or not is_cuttable(kind) or (value is None and feeds is not None):
            return None
        constant = name in graph.constants if fixed is None else fixed
        if constant and value is not None:
            weights[name] = Weight(numpy_helper.from_array(np.array(value), name))
            continue
        inputs[name] = loosen(kind) if loose else kind
        if feeds is not None and value is not None:
            feeds[name] = Feed(value)
    outputs = _outputs(graph, nodes, computed, read.keys(), frontier=frontier, loose=loose)
    if not outputs:
        return None
    return graph.with_(
        nodes=tuple(nodes),
        inputs=inputs,
        outputs=outputs,
        weights=weights,
        sparse={n: t for n, t in graph.sparse.items() if n in stays},
        listed=graph.listed & (weights.keys() | graph.sparse.keys()),
        value_info={
            n: k for n, k in graph.value_info.items() if n in computed and n not in outputs
        },
        functions=_drop_uncalled_functions(graph, nodes),
        feeds=feeds,
    )


def _outputs(
    graph: Graph,
    nodes: Sequence[Node],
    produced: set[str],
    read: Iterable[str],
    *,
    frontier: bool,
    loose: bool,
) -> dict[str, TypeProto]:
    """The outputs that remain, and values whose readers were removed."""
    counts: dict[str, int] = {}
    for node in nodes:
        for name in node.uses:
            counts[name] = counts.get(name, 0) + 1
    outputs: dict[str, TypeProto] = {n: k for n, k in graph.outputs.items() if n in produced}
    for name in (name for node in nodes for name in node.makes):
        before = len(graph.consumers.get(name, ()))
        lost = before > counts.get(name, 0) if frontier else before and not counts.get(name, 0)
        kind = graph.type_of(name)
        if name not in outputs and lost and kind is not None and _can_be_output(kind):
            outputs[name] = loosen(kind) if loose and is_cuttable(kind) else kind
    if not outputs:
        for name in reversed([name for node in nodes for name in node.makes]):
            kind = graph.type_of(name)
            if kind is not None and _can_be_output(kind):
                return {name: kind}
    return outputs


def _can_be_output(kind: TypeProto) -> bool:
    return is_cuttable(kind) or kind.WhichOneof("value") in ("sequence_type", "optional_type")


def _drop_uncalled_functions(graph: Graph, nodes: Sequence[Node]) -> tuple[FunctionProto, ...]:
    """The functions, without those that only removed nodes called."""
    if not graph.functions:
        return ()
    before = reachable_functions(graph.functions, (node.proto for node in graph.nodes))
    after = reachable_functions(graph.functions, (node.proto for node in nodes))
    return tuple(
        f
        for f in graph.functions
        if (f.domain, f.name) in after or (f.domain, f.name) not in before
    )


def reachable_functions(
    functions: Sequence[FunctionProto], nodes: Iterable[NodeProto]
) -> set[tuple[str, str]]:
    """Functions that ``nodes`` call, directly or indirectly."""
    known = {(f.domain, f.name): f for f in functions}
    found: set[tuple[str, str]] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        name = (node.domain, node.op_type)
        if name in known and name not in found:
            found.add(name)
            pending.extend(known[name].node)
        for body in bodies_of(node):
            pending.extend(body.node)
    return found


def substitute(graph: Graph, names: Mapping[str, str]) -> Graph | None:
    """G → G[v := w] for each v, w of ``names``, without the nodes that only v needed.

    The caller must ensure that w has v's type and does not depend on v. None if v is an output.
    """
    if any(name in graph.outputs for name in names):
        return None
    # The node that makes v stays here; it is removed below if nothing needs it.
    nodes = [n if names.keys() & n.makes else rename_values(n, names) for n in graph.nodes]
    changed = graph.with_(nodes=tuple(nodes))
    return without_dead(graph, changed, names)


def without_dead(before: Graph, after: Graph, lost: Iterable[str]) -> Graph | None:
    """``after`` without the nodes that only the values ``lost`` kept alive."""
    pending = [before.producer[n] for n in lost if n in before.producer]
    dead: set[int] = set()
    readers = {n: set(c) for n, c in after.consumers.items()}
    while pending:
        index = pending.pop()
        node = after.nodes[index]
        if index in dead or any(n in after.outputs or readers.get(n) for n in node.makes):
            continue
        dead.add(index)
        for name in node.uses:
            readers.get(name, set()).discard(index)
            if name in after.producer:
                pending.append(after.producer[name])
    kept = [node for i, node in enumerate(after.nodes) if i not in dead]
    result = restrict(after, kept)
    if result is None:
        return None
    # A value that only dead nodes read does not become an output: its nodes are to be removed.
    outputs = {n: k for n, k in result.outputs.items() if n in after.outputs}
    return result.with_(outputs=outputs) if outputs else None
