"""Mutators that put nodes into the bodies of If, Loop and functions."""

from __future__ import annotations

from random import Random

import numpy as np
import onnx
from onnx import helper, numpy_helper

from optvet.graph import opset_versions, type_of, types_of
from optvet.plugin import Candidate, Vocabulary
from optvet_mutators.common import add_output, copy_of, filled, fresh, insert, onnx_version, slots


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
