"""Mutators of inputs and outputs that an operator's schema declares optional or repeats."""

from __future__ import annotations

from random import Random

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from optvet.graph import Typed, types_of
from optvet.plugin import Candidate, Vocabulary
from optvet_mutators.common import add_output, filled, fresh, schema


def omit_input(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """An input less that the operator's schema declares optional."""
    option = onnx.defs.OpSchema.FormalParameterOption.Optional
    places = []
    for node in candidate.model.graph.node:
        known = schema(candidate, node)
        formal = list(known.inputs)[: len(node.input)] if known else []
        places += [(node, i) for i, f in enumerate(formal) if f.option == option and node.input[i]]
    if not places:
        return False
    node, slot = random.choice(places)
    node.input[slot] = ""
    while node.input and not node.input[-1]:
        del node.input[-1]
    return True


def add_input(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """A weight as an input that the operator's schema declares optional, and that is not given."""
    option = onnx.defs.OpSchema.FormalParameterOption.Optional
    graph = candidate.model.graph
    typed = types_of(candidate.model)
    places = []
    for node in graph.node:
        known = schema(candidate, node)
        for slot, formal in enumerate(known.inputs if known and node.input else ()):
            present = slot < len(node.input) and node.input[slot]
            element = _element_of(node, formal, known, typed)
            if formal.option == option and not present and element:
                places.append((node, slot, element))
    if not places:
        return False
    node, slot, element = random.choice(places)
    _, dims = typed.get(node.input[0], (0, ()))
    shapes = [(), (1,), (len(dims),), *((d,) for d in (*dims[1:2], *dims[-1:]) if d)]
    kind = helper.tensor_dtype_to_np_dtype(element)
    numbers = [1, 0, 0.5] if kind.kind == "f" else [1, 0]
    shape = random.choice(shapes)
    value = filled(shape, element, random.choice(numbers))
    if kind.kind == "i" and shape == (len(dims),) and random.random() < 0.5:
        # A list of axes, or of places: in order, or with the last two exchanged.
        order = [*range(len(dims))]
        if random.random() < 0.5:
            order[-2:] = order[:-3:-1]
        value = np.array(order, kind)
    name = fresh(graph, "added")
    graph.initializer.append(numpy_helper.from_array(value, name))
    node.input.extend([""] * (slot + 1 - len(node.input)))
    node.input[slot] = name
    return True


def _element_of(
    node: NodeProto,
    formal: onnx.defs.OpSchema.FormalParameter,
    known: onnx.defs.OpSchema | None,
    typed: Typed,
) -> int:
    """The element type of an input: that of another one of its kind, or one it may have."""
    alike = zip(known.inputs if known else (), node.input, strict=False)
    for other, name in alike:
        if other.type_str == formal.type_str and name in typed:
            return typed[name][0]
    kinds = {"tensor(bool)": 9, "tensor(int64)": 7, "tensor(float)": 1, "tensor(uint8)": 2}
    return next((kinds[k] for k in kinds if k in formal.types), 0)


def variadic_input(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """One input more or less where the schema takes any number: the same again, or an empty one."""
    option = onnx.defs.OpSchema.FormalParameterOption.Variadic
    graph = candidate.model.graph
    places = []
    for index, node in enumerate(graph.node):
        known = schema(candidate, node)
        if known is not None and known.inputs and known.inputs[-1].option == option and node.input:
            places.append((index, node))
    if not places:
        return False
    index, node = random.choice(places)
    kind = random.choice(["less", "again", "empty", "only empty"])
    slot = random.randrange(len(node.input))
    if kind == "less":
        del node.input[slot]
        return bool(node.input)
    if kind == "again":
        node.input.append(node.input[slot])
        return True
    typed = types_of(candidate.model).get(node.input[slot])
    if typed is None or not typed[1]:
        return False
    element, shape = typed
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0) % len(shape)
    dims = [0 if i == axis else d or 1 for i, d in enumerate(shape)]
    name = fresh(graph, "none")
    graph.initializer.append(numpy_helper.from_array(filled(dims, element, 0), name))
    if kind == "only empty":
        node.input[:] = [name]
    else:
        node.input.insert(slot, name)
    return True


def more_outputs(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """An output that the schema declares optional."""
    places = []
    for node in candidate.model.graph.node:
        known = schema(candidate, node)
        if known is not None and len(node.output) < len(known.outputs):
            places.append(node)
    if not places:
        return False
    node, name = random.choice(places), fresh(candidate.model.graph, "more")
    node.output.append(name)
    return random.random() < 0.5 or add_output(candidate.model.graph, name)
