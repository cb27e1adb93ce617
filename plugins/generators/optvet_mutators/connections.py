"""Mutators of nodes and of how they are connected."""

from __future__ import annotations

import itertools
from random import Random

import numpy as np
from onnx import GraphProto, NodeProto, helper, numpy_helper

from optvet.graph import join
from optvet.plugin import Candidate, Vocabulary
from optvet_mutators.common import (
    add_output,
    available,
    copy_of,
    fresh,
    insert,
    made_by,
    pick,
    readers,
)


def extra_output(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """An inner value, or an input, as a further output."""
    graph = candidate.model.graph
    inner = [n for n in made_by(graph) if readers(graph, n)]
    name = pick(random, inner if random.random() < 0.85 else list(candidate.feeds))
    return name is not None and add_output(graph, name)


def drop_output(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """One output fewer."""
    outputs = candidate.model.graph.output
    if len(outputs) < 2:
        return False
    outputs.remove(random.choice(list(outputs)))
    return True


def extra_consumer(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """A second reader of an inner value, which makes an output."""
    graph = candidate.model.graph
    name = pick(random, made_by(graph))
    if name is None:
        return False
    new = fresh(graph, "seen")
    kind = random.choice(["Identity", "Neg", "Relu", "Shape", "Abs", "Sigmoid"])
    graph.node.append(helper.make_node(kind, [name], [new]))
    return add_output(graph, new)


def append_fragment(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """A fragment behind the model."""
    if not vocabulary.fragments:
        return False
    return any(
        join(candidate, random.choice(vocabulary.fragments), random) is not None for _ in range(4)
    )


def append_same(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """An operator once more behind itself, with the same other inputs and attributes."""
    graph = candidate.model.graph
    nodes = [(i, n) for i, n in enumerate(graph.node) if n.input and n.output and n.input[0]]
    if not nodes:
        return False
    index, node = random.choice(nodes)
    again, new = copy_of(node), fresh(graph, "again")
    name = node.output[0]
    again.input[0] = name
    again.output[:] = [new, *("" for _ in node.output[1:])]
    for reader, slot in readers(graph, name):
        reader.input[slot] = new
    insert(graph, index + 1, again)
    for output in graph.output:
        if output.name == name:
            output.name = new
    return True


def parallel_node(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """A second node of the same inputs; its first weight differs, or nothing does."""
    graph = candidate.model.graph
    nodes = [(i, n) for i, n in enumerate(graph.node) if n.output and n.output[0]]
    if not nodes:
        return False
    index, node = random.choice(nodes)
    again, new = copy_of(node), fresh(graph, "twin")
    again.output[:] = [new, *("" for _ in node.output[1:])]
    weights = {t.name: t for t in graph.initializer}
    for slot, name in enumerate(again.input):
        if name in weights and random.random() < 0.6:
            other = fresh(graph, "weight")
            value = numpy_helper.to_array(weights[name])
            changed = value + np.ones_like(value) if value.dtype.kind in "fi" else value
            graph.initializer.append(numpy_helper.from_array(changed, other))
            again.input[slot] = other
            break
    insert(graph, index + 1, again)
    return add_output(graph, new)


def same_input_twice(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """One value at two inputs of a node."""
    pairs = _pairs(candidate.model.graph)
    edits = [(n, to, source) for n, a, b in pairs for to, source in ((a, b), (b, a))]
    if not edits:
        return False
    node, to, source = random.choice(edits)
    node.input[to] = node.input[source]
    return True


def swap_inputs(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """Two inputs of a node exchanged."""
    pairs = _pairs(candidate.model.graph)
    if not pairs:
        return False
    node, a, b = random.choice(pairs)
    node.input[a], node.input[b] = node.input[b], node.input[a]
    return True


def _pairs(graph: GraphProto) -> list[tuple[NodeProto, int, int]]:
    """Nodes, and two inputs of each that differ."""
    return [
        (node, a, b)
        for node in graph.node
        for a, b in itertools.combinations(range(len(node.input)), 2)
        if node.input[a] != node.input[b]
    ]


def rewire(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """An input of a node from another value."""
    edits = [
        (node, slot, name)
        for index, node in enumerate(candidate.model.graph.node)
        for slot, was in enumerate(node.input)
        for name in available(candidate, index)
        if name != was
    ]
    if not edits:
        return False
    node, slot, name = random.choice(edits)
    node.input[slot] = name
    return True


def drop_node(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """A node less: its readers read its first input."""
    graph = candidate.model.graph
    nodes = [n for n in graph.node if n.input and n.input[0] and n.output and n.output[0]]
    if len(graph.node) < 2 or not nodes:
        return False
    node = random.choice(nodes)
    was, now = node.output[0], node.input[0]
    if any(o.name == was for o in graph.output):
        return False
    for reader, slot in readers(graph, was):
        reader.input[slot] = now
    graph.node.remove(node)
    return True
