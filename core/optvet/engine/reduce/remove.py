"""Removing nodes: from one end, in chunks, one by one, and whole stretches by substitution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optvet.engine.reduce.cut import cut, restrict, substitute
from optvet.engine.reduce.graph import Graph, Node, rename_values
from optvet.graph.types import same_type

_COLLAPSED = 48
"""Maximal number of substitutions that are tried in a row; the longest stretches first."""


def first_nodes(graph: Graph, count: int) -> Graph | None:
    """G → G[0 … count): values that removed nodes read become outputs."""
    return cut(graph, range(count))


def last_nodes(graph: Graph, count: int) -> Graph | None:
    """G → G[n - count … n): values of removed nodes become inputs."""
    return cut(graph, range(len(graph.nodes) - count, len(graph.nodes)))


def without_chunk(graph: Graph, chunk: Sequence[int]) -> Iterator[Graph | None]:
    """G → G without ``chunk``: its values become inputs; or ``y := x`` where types allow."""
    gone = set(chunk)
    yield cut(graph, [i for i in range(len(graph.nodes)) if i not in gone])
    yield _bridge(graph, gone)


def _bridge(graph: Graph, gone: set[int]) -> Graph | None:
    names: dict[str, str] = {}
    for index in sorted(gone):
        node = graph.nodes[index]
        for output in node.makes:
            for read in node.proto.input:
                source = names.get(read, read)
                if source and same_type(graph.type_of(source), graph.type_of(output)):
                    names[output] = source
                    break
    if not names:
        return None
    nodes: list[Node] = []
    for i, node in enumerate(graph.nodes):
        if i not in gone:
            nodes.append(rename_values(node, {n: s for n, s in names.items() if n in node.uses}))
    return restrict(graph, nodes)


def collapse_values(graph: Graph) -> Iterator[Graph | None]:
    """``v := w`` for values v, w of one type, w made before v; removes nodes that only v needed.

    This removes groups of which no single node can be removed: a pair of Transposes, a block.
    """
    order = [*graph.inputs, *(name for node in graph.nodes for name in node.makes)]
    pairs: list[tuple[int, Graph]] = []
    for j, later in enumerate(order):
        if later not in graph.producer or later not in graph.consumers:
            continue
        for earlier in order[:j]:
            if graph.producer.get(earlier) == graph.producer[later]:
                continue
            if same_type(graph.type_of(earlier), graph.type_of(later)):
                smaller = substitute(graph, {later: earlier})
                if smaller is not None and len(smaller.nodes) < len(graph.nodes):
                    pairs.append((len(smaller.nodes), smaller))
        if len(pairs) > 8 * _COLLAPSED:
            break
    pairs.sort(key=lambda pair: pair[0])
    yield from (smaller for _, smaller in pairs[:_COLLAPSED])


def without_node(graph: Graph, index: int) -> Iterator[Graph | None]:
    """Every way to remove one node y = op(x …).

    In order: y and its other outputs become inputs (initializers, if they do not depend on inputs);
    ``y := x`` for an x of y's type; initializers (or inputs) instead; the values that it read
    become outputs too; the new inputs have unknown dimensions.
    """
    node = graph.nodes[index]
    rest = [i for i in range(len(graph.nodes)) if i != index]
    yield cut(graph, rest)
    used = [n for n in node.makes if n in graph.consumers or n in graph.outputs]
    if len(used) == 1:
        kind = graph.type_of(used[0])
        for name in node.proto.input:
            if name and same_type(graph.type_of(name), kind):
                yield _bypass(graph, index, used[0], name)
    yield cut(graph, rest, fixed=True)
    yield cut(graph, rest, fixed=False)
    yield cut(graph, rest, frontier=True)
    yield cut(graph, rest, loose=True)


def _bypass(
    graph: Graph,
    index: int,
    output: str,
    read: str,
) -> Graph | None:
    if output not in graph.outputs:
        return substitute(graph, {output: read})
    if read in graph.outputs or read not in graph.producer:
        return None
    # y is an output: x takes its name.
    nodes = [rename_values(n, {read: output}) for i, n in enumerate(graph.nodes) if i != index]
    result = restrict(graph, nodes)
    if result is None:
        return None
    return result.with_(outputs={n: k for n, k in result.outputs.items() if n in graph.outputs})
