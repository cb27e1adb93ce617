"""Mutators of inputs and outputs that an operator's schema declares optional or repeats."""

from __future__ import annotations

from random import Random

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, helper, numpy_helper

from optvet.graph import ONNX_DOMAIN, Typed, domain_of, schema_of, to_opset, types_of
from optvet.plugin import Candidate, Vocabulary
from optvet_mutators.common import (
    add_output,
    filled,
    fresh,
    onnx_version,
    schema,
    version_with,
)
from optvet_mutators.values import values_of_attribute


def omit_input(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """An input less that the operator's schema declares optional."""
    places = []
    for node in candidate.model.graph.node:
        known = schema(candidate, node)
        formal = list(known.inputs)[: len(node.input)] if known else []
        places += [(node, i) for i, f in enumerate(formal) if _is_optional(f) and node.input[i]]
    if not places:
        return False
    node, slot = random.choice(places)
    node.input[slot] = ""
    while node.input and not node.input[-1]:
        del node.input[-1]
    return True


def add_input(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """A weight as an input that the operator's schema declares optional, and that is not given."""
    typed = types_of(candidate.model)
    edits: list[tuple[NodeProto, int, np.ndarray]] = []
    for node in candidate.model.graph.node:
        known = schema(candidate, node)
        for slot, formal in enumerate(known.inputs if known and node.input else ()):
            present = slot < len(node.input) and node.input[slot]
            if _is_optional(formal) and not present:
                edits += [(node, slot, v) for v in _values_of_input(node, formal, known, typed)]
    if not edits:
        return False
    give_input(candidate, *random.choice(edits))
    return True


def _values_of_input(
    node: NodeProto,
    formal: onnx.defs.OpSchema.FormalParameter,
    known: onnx.defs.OpSchema | None,
    typed: Typed,
) -> list[np.ndarray]:
    """Small weights for an input: of few shapes, and lists of axes or of places."""
    element = _element_of(node, formal, known, typed)
    if not element:
        return []
    _, dims = typed.get(node.input[0], (0, ()))
    kind = helper.tensor_dtype_to_np_dtype(element)
    numbers = [1, 0, 0.5] if kind.kind == "f" else [1, 0]
    shapes = dict.fromkeys([(), (1,), (len(dims),), *((d,) for d in (*dims[1:2], *dims[-1:]) if d)])
    values = [filled(shape, element, number) for shape in shapes for number in numbers]
    if kind.kind == "i" and len(dims) > 1:
        order = [*range(len(dims))]
        values += [np.array(each, kind) for each in (order, [*order[:-2], order[-1], order[-2]])]
        values += [np.array(each, kind) for each in (order[::-1], order[-1:], order[:-1])]
    return values


def give_input(candidate: Candidate, node: NodeProto, slot: int, value: np.ndarray) -> None:
    """Let the input of a node be a new weight of this value."""
    name = fresh(candidate.model.graph, "added")
    candidate.model.graph.initializer.append(numpy_helper.from_array(value, name))
    node.input.extend([""] * (slot + 1 - len(node.input)))
    node.input[slot] = name


_Part = tuple[str, str, AttributeProto | tuple[int, np.ndarray]]
"""The output of a node, the name of a part, and the attribute, or slot and value of the input."""


def newer_part(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """An attribute or an optional input that a newer operator set has, at that operator set."""
    was, latest = onnx_version(candidate), onnx.defs.onnx_opset_version()
    if not any(domain_of(entry) == ONNX_DOMAIN for entry in candidate.model.opset_import):
        return False
    typed = types_of(candidate.model)
    edits: list[_Part] = []
    for node in candidate.model.graph.node:
        now, then = (
            schema_of(domain_of(node), node.op_type, {ONNX_DOMAIN: v}) for v in (was, latest)
        )
        if now is None or then is None or domain_of(node) != ONNX_DOMAIN or not node.output[0]:
            continue
        output = node.output[0]
        for name, formal in then.attributes.items():
            if name not in now.attributes:
                made = values_of_attribute(node, formal, vocabulary)
                edits += [(output, name, attribute) for attribute in made]
        for slot, given in enumerate(then.inputs):
            if slot >= len(now.inputs) and node.input and _is_optional(given):
                values = _values_of_input(node, given, then, typed)
                edits += [(output, given.name, (slot, value)) for value in values]
    if not edits:
        return False
    output, name, part = random.choice(edits)
    graph = candidate.model.graph
    kind = next(n.op_type for n in graph.node if output in n.output)
    to_opset(candidate, ONNX_DOMAIN, version_with(kind, name, was))
    node = next(n for n in graph.node if output in n.output)
    if isinstance(part, AttributeProto):
        node.attribute.append(part)
    else:
        give_input(candidate, node, *part)
    return True


def _is_optional(formal: onnx.defs.OpSchema.FormalParameter) -> bool:
    return bool(formal.option == onnx.defs.OpSchema.FormalParameterOption.Optional)


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
