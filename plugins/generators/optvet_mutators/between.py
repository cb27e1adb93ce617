"""Mutators that put an operator between a value and what reads it."""

from __future__ import annotations

from random import Random

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from optvet.graph import types_of
from optvet.plugin import Candidate, Vocabulary
from optvet_mutators.common import filled, fresh, insert, onnx_version, slots

_UNARY = "Identity Neg Abs Relu Sigmoid Tanh Exp Sqrt Floor Not Transpose Dropout Cast"


def insert_unary(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """An operator of one input between a value and one of its readers, or all of them."""
    graph = candidate.model.graph
    places = slots(graph, bool)
    if not places:
        return False
    index, slot = random.choice(places)
    reader = graph.node[index]
    name, new = reader.input[slot], fresh(graph, "mid")
    kind = random.choice(_UNARY.split())
    node = helper.make_node(kind, [name], [new])
    if kind == "Cast":
        node.attribute.append(helper.make_attribute("to", random.choice([1, 1, 7, 11, 10])))
    reader.input[slot] = new
    insert(graph, index, node)
    return True


def insert_idle(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """An operator that does nothing between a value and one of its readers: it will be removed."""
    graph = candidate.model.graph
    typed = types_of(candidate.model)
    places = slots(graph, lambda n: n in typed and None not in typed[n][1])
    if not places:
        return False
    index, slot = random.choice(places)
    reader = graph.node[index]
    name, new = reader.input[slot], fresh(graph, "idle")
    element, dims = typed[name]
    version, rank = onnx_version(candidate), len(dims)
    kind = random.choice(_idle(element, rank, version))
    node = helper.make_node(kind, [name], [new])
    if kind == "Cast":
        node.attribute.append(helper.make_attribute("to", element))
    elif kind == "Concat":
        node.attribute.append(helper.make_attribute("axis", 0))
    elif kind == "Transpose":
        node.attribute.append(helper.make_attribute("perm", list(range(rank))))
    for number in _IDLE.get(kind, ()):
        long = kind in _OF_SHAPES
        size = {"Pad": [2 * rank], "Slice": [1]}.get(kind, [rank]) if long else []
        value = filled(size, TensorProto.INT64 if long else element, number)
        node.input.append(fresh(graph, "nothing"))
        graph.initializer.append(numpy_helper.from_array(value, node.input[-1]))
    reader.input[slot] = new
    insert(graph, index, node)
    return True


_IDLE = {
    **{"Mul": (1,), "Div": (1,), "Add": (0,), "Sub": (0,)},
    **{"Reshape": (0,), "Expand": (1,), "Pad": (0,), "Slice": (0, 2**62)},
}
"""Values of the further inputs with which an operator does nothing."""
_OF_SHAPES = {"Reshape": 5, "Expand": 8, "Pad": 11, "Slice": 10}
"""Operators whose further inputs are shapes, with the version since which these are inputs."""


def _idle(element: int, rank: int, version: int) -> list[str]:
    """Operators that may do nothing with a tensor of the type and rank."""
    found = ["Identity", "Cast"]
    if element in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16):
        found.append("Dropout")
    if element not in (TensorProto.BOOL, TensorProto.STRING):
        found += ["Mul", "Div", "Add", "Sub"]
    if rank:
        found += [
            "Concat",
            "Transpose",
            *(n for n, since in _OF_SHAPES.items() if version >= since),
        ]
    return found


def insert_reshape(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """The elements in other places between a value and one of its readers: moved, or regrouped."""
    graph = candidate.model.graph
    typed = types_of(candidate.model)
    places = slots(graph, lambda n: n in typed and len(typed[n][1]) > 1 and None not in typed[n][1])
    if not places or onnx_version(candidate) < 5:
        return False
    index, slot = random.choice(places)
    reader = graph.node[index]
    name, new = reader.input[slot], fresh(graph, "moved")
    shape = [d or 0 for d in typed[name][1]]
    rank = len(shape)
    kind = random.choice(["turned", "ends", "last", "reversed", "flat", "copied", "same"])
    orders = {"turned": [rank - 1, *range(rank - 1)], "ends": [*range(rank)][::-1]}
    orders["last"] = [*range(rank - 2), rank - 1, rank - 2]
    if kind in orders:
        node = helper.make_node("Transpose", [name], [new], perm=orders[kind])
    else:
        sizes = {"reversed": shape[::-1], "flat": [-1], "copied": [0] * rank}.get(kind, shape)
        numbers = fresh(graph, "sizes")
        graph.initializer.append(numpy_helper.from_array(np.array(sizes, np.int64), numbers))
        node = helper.make_node("Reshape", [name, numbers], [new])
    reader.input[slot] = new
    insert(graph, index, node)
    return True
