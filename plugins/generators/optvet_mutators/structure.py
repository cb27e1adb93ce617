"""Mutators of nodes and of how they are connected."""

from __future__ import annotations

from random import Random

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from optvet.graph import Typed, join, opset_versions, type_of, types_of
from optvet.plugin import Candidate, Vocabulary
from optvet_mutators.common import (
    add_output,
    available,
    filled,
    fresh,
    insert,
    made_by,
    onnx_version,
    pick,
    readers,
    schema,
    slots,
)


def copy_of(node: NodeProto) -> NodeProto:
    """A copy of a node."""
    copied = NodeProto()
    copied.CopyFrom(node)
    return copied


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
    nodes = [n for n in candidate.model.graph.node if len({i for i in n.input if i}) > 1]
    if not nodes:
        return False
    node = random.choice(nodes)
    to, source = random.sample(range(len(node.input)), 2)
    node.input[to] = node.input[source]
    return True


def swap_inputs(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """Two inputs of a node exchanged."""
    nodes = [n for n in candidate.model.graph.node if len(n.input) > 1]
    if not nodes:
        return False
    node = random.choice(nodes)
    a, b = random.sample(range(len(node.input)), 2)
    node.input[a], node.input[b] = node.input[b], node.input[a]
    return True


def rewire(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """An input of a node from another value."""
    graph = candidate.model.graph
    places = [(i, k) for i, n in enumerate(graph.node) for k in range(len(n.input))]
    if not places:
        return False
    index, slot = random.choice(places)
    name = pick(
        random, [n for n in available(candidate, index) if n != graph.node[index].input[slot]]
    )
    if name is None:
        return False
    graph.node[index].input[slot] = name
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


def wrap_in_if(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """A node inside a branch of an If, which captures what it reads, and a copy in the other."""
    graph = candidate.model.graph
    index = _single_output(candidate, random)
    if index is None:
        return False
    node = graph.node[index]
    (name,) = (o for o in node.output if o)
    inner = copy_of(node)
    branch = fresh(graph, "branch")
    inner.output[:] = [branch if o == name else o for o in inner.output]
    bodies = [helper.make_graph([inner], "then", [], [helper.make_empty_tensor_value_info(branch)])]
    other = copy_of(inner)
    other.output[:] = [f"{o}_else" if o else "" for o in inner.output]
    nodes = [other]
    if random.random() < 0.4:
        nodes.append(helper.make_node("Identity", [f"{branch}_else"], [f"{branch}_end"]))
    end = helper.make_empty_tensor_value_info(next(o for o in nodes[-1].output if o))
    bodies.append(helper.make_graph(nodes, "else", [], [end]))
    condition = fresh(graph, "condition")
    _condition(candidate, condition, random)
    outputs = [name]
    kind = random.choice(["plain", "plain", "twice", "nested"])
    if kind == "twice":  # each branch returns one value twice
        outputs.append(fresh(graph, "twice"))
        for body in bodies:
            body.output.append(body.output[0])
        add_output(graph, outputs[1])
    _type_bodies(candidate, name, bodies)
    if kind == "nested":
        inner = helper.make_node(
            "If", [condition], [f"{branch}_in"], then_branch=bodies[0], else_branch=bodies[1]
        )
        outer = [helper.make_empty_tensor_value_info(f"{branch}_in")]
        bodies = [helper.make_graph([inner], "outer", [], outer), bodies[1]]
        _type_bodies(candidate, name, bodies)
    graph.node[index].CopyFrom(
        helper.make_node("If", [condition], outputs, then_branch=bodies[0], else_branch=bodies[1])
    )
    return True


def branch_of_values(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """An If between a value and its readers, whose branches return it, a weight, or a new value."""
    graph = candidate.model.graph
    typed = types_of(candidate.model)
    places = slots(graph, lambda n: n in typed and None not in typed[n][1])
    if not places or onnx_version(candidate) < 16:
        return False
    index, slot = random.choice(places)
    name, new, condition = (
        graph.node[index].input[slot],
        fresh(graph, "either"),
        fresh(graph, "condition"),
    )
    element, shape = typed[name]
    _condition(candidate, condition, random)
    bodies = []
    for label in ("then", "else"):
        kind = random.choice(["captured", "weight"])
        body = helper.make_graph([], label, [], [])
        branch_name = f"{new}_{label}"
        if kind == "weight":
            body.initializer.append(numpy_helper.from_array(filled(shape, element, 1), branch_name))
        else:
            body.node.append(helper.make_node("Identity", [name], [branch_name]))
        body.output.append(helper.make_tensor_value_info(branch_name, element, shape))
        bodies.append(body)
    node = helper.make_node("If", [condition], [new], then_branch=bodies[0], else_branch=bodies[1])
    graph.node[index].input[slot] = new
    insert(graph, index, node)
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


def wrap_in_loop(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """A node inside a Loop of one turn, which captures what it reads.

    The Loop gives its value as it is, or as one of a list; what follows tells its shape, which is
    not inferred.
    """
    graph = candidate.model.graph
    index = _single_output(candidate, random)
    if index is None:
        return False
    node = graph.node[index]
    (name,) = (o for o in node.output if o)
    typed = types_of(candidate.model).get(name)
    if typed is None or None in typed[1]:
        return False
    element, shape = typed
    stem = fresh(graph, "turn")
    inner = copy_of(node)
    inner.output[:] = [f"{stem}_made" if o == name else o for o in inner.output]
    goes = helper.make_node("Identity", [f"{stem}_goes"], [f"{stem}_goes_on"])
    flag, number = onnx.TensorProto.BOOL, onnx.TensorProto.INT64
    body = helper.make_graph(
        [inner, goes],
        "turn",
        [
            helper.make_tensor_value_info(f"{stem}_number", number, []),
            helper.make_tensor_value_info(f"{stem}_goes", flag, []),
            helper.make_tensor_value_info(f"{stem}_was", element, shape),
        ],
        [
            helper.make_tensor_value_info(f"{stem}_goes_on", flag, []),
            helper.make_tensor_value_info(f"{stem}_made", element, shape),
        ],
    )
    start = filled(shape, element, 0)
    listed = random.random() < 0.5
    if listed:
        del body.input[2]
    sizes = np.array([d or 0 for d in shape], np.int64)
    weights = {"turns": np.array(1), "on": np.array(True), "start": start, "sizes": sizes}
    if listed:
        del weights["start"]
    for label, value in weights.items():
        graph.initializer.append(numpy_helper.from_array(value, f"{stem}_{label}"))
    inputs = [f"{stem}_{label}" for label in weights if label != "sizes"]
    reshape = helper.make_node("Reshape", [f"{stem}_end", f"{stem}_sizes"], [name])
    graph.node[index].CopyFrom(helper.make_node("Loop", inputs, [f"{stem}_end"], body=body))
    insert(graph, index + 1, reshape)
    return True


def _single_output(candidate: Candidate, random: Random) -> int | None:
    graph = candidate.model.graph
    found = [i for i, n in enumerate(graph.node) if len([o for o in n.output if o]) == 1]
    return random.choice(found) if found and onnx_version(candidate) >= 11 else None


def _condition(candidate: Candidate, name: str, random: Random) -> None:
    graph, value = candidate.model.graph, np.array(random.random() < 0.5)
    if random.random() < 0.5:
        graph.initializer.append(numpy_helper.from_array(value, name))
    else:
        candidate.feeds[name] = value
        graph.input.append(helper.make_tensor_value_info(name, type_of(value), ()))


def _type_bodies(candidate: Candidate, name: str, bodies: list[onnx.GraphProto]) -> None:
    typed = types_of(candidate.model).get(name)
    for body in bodies:
        for output in body.output:
            if typed is not None:
                output.CopyFrom(helper.make_tensor_value_info(output.name, typed[0], typed[1]))


def quantize_edge(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """QuantizeLinear and DequantizeLinear between a float value and one of its readers."""
    graph = candidate.model.graph
    typed = types_of(candidate.model)
    places = slots(graph, lambda n: n in typed and typed[n][0] == onnx.TensorProto.FLOAT)
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
    insert(
        graph,
        index,
        helper.make_node("QuantizeLinear", [name, *pair], [f"{stem}_integer"]),
        helper.make_node("DequantizeLinear", [f"{stem}_integer", *pair], [f"{stem}_float"]),
    )
    return True


def make_function(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """A node as a function of the model; it may be called as one of ONNX's operators is."""
    graph = candidate.model.graph
    nodes = [
        n
        for n in graph.node
        if n.domain == "" and n.input and not any(a.HasField("g") for a in n.attribute)
    ]
    if not nodes or any(f.domain == "hunted" for f in candidate.model.functions):
        return False
    node = random.choice(nodes)
    inner = copy_of(node)
    read = [n for n in dict.fromkeys(node.input) if n]
    outputs = [o for o in node.output if o]
    name = random.choice(["Wrapped", "Wrapped", node.op_type, "Identity"])
    imports = [helper.make_opsetid(d, v) for d, v in opset_versions(candidate.model).items()]
    for entry in imports:
        entry.domain = "" if entry.domain == "ai.onnx" else entry.domain
    function = helper.make_function("hunted", name, read, outputs, [inner], imports)
    candidate.model.functions.append(function)
    candidate.model.opset_import.append(helper.make_opsetid("hunted", 1))
    candidate.model.ir_version = max(candidate.model.ir_version, 8)
    node.CopyFrom(helper.make_node(name, read, outputs, domain="hunted"))
    return True
