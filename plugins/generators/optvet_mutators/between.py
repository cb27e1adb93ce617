"""Mutators that put an operator between a value and what reads it."""

from __future__ import annotations

from random import Random

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from optvet.graph import types_of
from optvet.plugin import Candidate, Vocabulary
from optvet_mutators.common import (
    add_output,
    filled,
    fresh,
    insert,
    insert_behind,
    made_by,
    onnx_version,
    readers,
    slots,
)

_UNARY = "Identity Neg Abs Relu Sigmoid Tanh Exp Sqrt Floor Not Transpose Dropout"
_CASTS = (1, 7, 11, 10)


def insert_unary(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """An operator of one input between a value and one of its readers, or all of them."""
    graph = candidate.model.graph
    places = slots(graph, bool)
    if not places:
        return False
    index, slot = random.choice(places)
    reader = graph.node[index]
    name, new = reader.input[slot], fresh(graph, "mid")
    kind = random.choice([*_UNARY.split(), *_CASTS])
    node = (
        helper.make_node(kind, [name], [new])
        if isinstance(kind, str)
        else helper.make_node("Cast", [name], [new], to=kind)
    )
    reader.input[slot] = new
    insert_behind(graph, name, node)
    return True


def insert_returned(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """An operator between a value and all its readers, whose result is an output too.

    What a pass moves across an operator, it must not move across an output of the model.
    """
    graph = candidate.model.graph
    outputs = {o.name for o in graph.output}
    places = [n for n in (*candidate.feeds, *made_by(graph)) if n not in outputs]
    read = [(name, found) for name in places if (found := readers(graph, name))]
    if not read:
        return False
    (name, found), kind = random.choice(read), random.choice(_RETURNED)
    new = fresh(graph, "returned")
    for reader, slot in found:
        reader.input[slot] = new
    insert_behind(graph, name, helper.make_node(kind, [name], [new]))
    return add_output(graph, new)


_RETURNED = ("Identity", "Neg", "Sigmoid")
"""The last makes numbers that no grid of a quantizer has."""


def insert_idle(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """An operator that does nothing between a value and one of its readers: it will be removed."""
    graph = candidate.model.graph
    typed, version = types_of(candidate.model), onnx_version(candidate)
    edits = []
    for index, slot in slots(graph, lambda n: n in typed and None not in typed[n][1]):
        element, dims = typed[graph.node[index].input[slot]]
        edits += [(index, slot, kind) for kind in _idle(element, len(dims), version)]
    if not edits:
        return False
    index, slot, kind = random.choice(edits)
    reader = graph.node[index]
    name, new = reader.input[slot], fresh(graph, "idle")
    element, dims = typed[name]
    rank = len(dims)
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
    insert_behind(graph, name, node)
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
    insert_behind(graph, name, node)
    return True


def hold_value(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """A value in an optional type or a sequence: before one of its readers, or as an output."""
    graph = candidate.model.graph
    typed = types_of(candidate.model)
    places = slots(graph, lambda n: n in typed)
    kinds = ["sequence", "optional"][: 2 if onnx_version(candidate) >= 15 else 1]
    if not places or onnx_version(candidate) < 11:
        return False
    (index, slot), kind = random.choice(places), random.choice(kinds)
    name, kept = graph.node[index].input[slot], fresh(graph, "held")
    put = {"sequence": "SequenceConstruct", "optional": "Optional"}[kind]
    holding = helper.make_node(put, [name], [kept])
    place = random.choice(["between", "output", "nothing"])
    if place == "between":
        taken, read = f"{kept}_taken", [kept]
        if kind == "sequence":
            read.append(f"{kept}_place")
            graph.initializer.append(numpy_helper.from_array(np.array(0), read[1]))
        take = {"sequence": "SequenceAt", "optional": "OptionalGetElement"}[kind]
        graph.node[index].input[slot] = taken
        insert(graph, index, holding, helper.make_node(take, read, [taken]))
        return True
    if place == "nothing":
        element = typed[name][0]
        without = helper.make_tensor_type_proto(element, None)
        holding = (
            helper.make_node("SequenceEmpty", [], [kept], dtype=element)
            if kind == "sequence"
            else helper.make_node("Optional", [], [kept], type=without)
        )
    graph.node.append(holding)
    return add_output(graph, kept)


def quantize_edge(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """QuantizeLinear and DequantizeLinear between a float value and one of its readers."""
    graph = candidate.model.graph
    typed = types_of(candidate.model)
    places = slots(graph, lambda n: n in typed and typed[n][0] == TensorProto.FLOAT)
    if not places or onnx_version(candidate) < 10:
        return False
    index, slot = random.choice(places)
    name, stem = graph.node[index].input[slot], fresh(graph, "q")
    zero = np.array(random.choice([0, 3]), random.choice([np.uint8, np.int8]))
    scale = np.array(random.choice([0.05, 0.1, 1.0]), np.float32)
    graph.initializer.append(numpy_helper.from_array(scale, f"{stem}_scale"))
    graph.initializer.append(numpy_helper.from_array(zero, f"{stem}_zero"))
    pair = [f"{stem}_scale", f"{stem}_zero"]
    graph.node[index].input[slot] = f"{stem}_float"
    insert_behind(
        graph,
        name,
        helper.make_node("QuantizeLinear", [name, *pair], [f"{stem}_integer"]),
        helper.make_node("DequantizeLinear", [f"{stem}_integer", *pair], [f"{stem}_float"]),
    )
    return True
