"""Which operators follow each other: sequences along the edges of a graph."""

from __future__ import annotations

from collections import Counter

from onnx import GraphProto, ModelProto

from optvet.graph.walk import graphs, operator_of, qualified_name, reads

Sequence = tuple[str, ...]
"""Operators, each of which reads what the one before makes."""


def sequences_of(model: ModelProto, length: int) -> Counter[Sequence]:
    """Sequences of ``length`` operators by the number of paths, those in nested graphs too."""
    found: Counter[Sequence] = Counter()
    for graph in graphs(model.graph):
        found.update(_paths(graph, length))
    return found


def _paths(graph: GraphProto, length: int) -> Counter[Sequence]:
    maker = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    before = [{maker[n] for n in reads(node) if n in maker} for node in graph.node]
    names = [qualified_name(*operator_of(node)) for node in graph.node]
    # Of each node, the paths that end in it; one step longer each time.
    ending: list[Counter[Sequence]] = [Counter({(name,): 1}) for name in names]
    for _ in range(length - 1):
        longer: list[Counter[Sequence]] = []
        for index, name in enumerate(names):
            paths: Counter[Sequence] = Counter()
            for earlier in before[index]:
                for path, count in ending[earlier].items():
                    paths[*path, name] += count
            longer.append(paths)
        ending = longer
    found: Counter[Sequence] = Counter()
    for paths in ending:
        found.update(paths)
    return found
