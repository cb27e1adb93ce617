"""Mutators of how a model is written: roles, names, versions, optional fields."""

from __future__ import annotations

from random import Random

import numpy as np
import onnx
from onnx import GraphProto, helper, numpy_helper

from optvet.graph import ONNX_DOMAIN, domain_of, reads, rename_node_values, to_opset, type_of
from optvet.plugin import Candidate, Vocabulary
from optvet_mutators.common import (
    add_output,
    copy_of,
    fresh,
    insert,
    made_by,
    onnx_version,
    pick,
)
from optvet_mutators.values import change_type, empty_dimension


def change_role(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """An input as a weight, a weight as an input or Constant, or one that callers may replace."""
    graph = candidate.model.graph
    weights = {t.name: t for t in graph.initializer}
    name = pick(random, [*candidate.feeds, *weights])
    if name is None:
        return False
    value = candidate.feeds.get(name)
    value = numpy_helper.to_array(weights[name]) if value is None else value
    for info in [v for v in graph.input if v.name == name]:
        graph.input.remove(info)
    was_input = candidate.feeds.pop(name, None) is not None
    if name in weights:
        graph.initializer.remove(weights[name])
    info = helper.make_tensor_value_info(name, type_of(value), value.shape)
    role = random.choice(
        ["weight", "weight", "constant", "default"]
        if was_input
        else ["input", "input", "constant", "default"]
    )
    if role == "input":
        candidate.feeds[name] = value
        graph.input.append(info)
        return True
    tensor = numpy_helper.from_array(np.asarray(value), name)
    if role == "constant":
        # First of all nodes, or right before what reads it.
        places = [i for i, n in enumerate(graph.node) if name in reads(n)]
        place = random.choice([0, *places[:1]])
        insert(graph, place, helper.make_node("Constant", [], [name], value=tensor))
        return True
    graph.initializer.append(tensor)
    if role == "default":
        graph.input.append(info)
    return True


def constant_form(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """A Constant or a weight in another form: list, number, sparse, raw or typed data."""
    graph = candidate.model.graph
    weights = [t for t in graph.initializer if t.data_type in (1, 7)]
    if not weights or onnx_version(candidate) < 12:
        return False
    tensor = random.choice(weights)
    value = numpy_helper.to_array(tensor)
    kind = "float" if tensor.data_type == 1 else "int"
    if value.ndim == 1 and value.size and random.random() < 0.6:
        attribute = {f"value_{kind}s": value.tolist()}
    elif value.ndim == 0:
        attribute = {f"value_{kind}": value.item()}
    elif value.size and random.random() < 0.5:
        flat = value.ravel()
        places = np.flatnonzero(flat).astype(np.int64)
        sparse = helper.make_sparse_tensor(
            numpy_helper.from_array(flat[places], tensor.name),
            numpy_helper.from_array(places, f"{tensor.name}_places"),
            value.shape,
        )
        attribute = {"sparse_value": sparse}
    else:
        tensor.CopyFrom(
            helper.make_tensor(tensor.name, tensor.data_type, value.shape, value.ravel().tolist())
        )
        return True
    node = helper.make_node("Constant", [], [tensor.name], **attribute)
    for info in [v for v in graph.input if v.name == tensor.name]:
        graph.input.remove(info)
    graph.initializer.remove(tensor)
    insert(graph, 0, node)
    return True


def share_weight(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """A weight that two nodes share, or of which each has a copy."""
    graph = candidate.model.graph
    weights = {t.name: t for t in graph.initializer}
    places = [(n, i) for n in graph.node for i, name in enumerate(n.input) if name in weights]
    if not places:
        return False
    node, slot = random.choice(places)
    tensor = weights[node.input[slot]]
    alike = [
        t.name
        for t in graph.initializer
        if t.name != tensor.name and (t.data_type, t.dims) == (tensor.data_type, tensor.dims)
    ]
    if alike:
        node.input[slot] = random.choice(alike)
        return True
    name = fresh(graph, "copy")
    graph.initializer.append(numpy_helper.from_array(numpy_helper.to_array(tensor), name))
    node.input[slot] = name
    return True


def rename_values(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """Names of values as tools make them, or that collide with names that tools make."""
    graph = candidate.model.graph
    weights = [t.name for t in graph.initializer]
    names = dict.fromkeys([*(v.name for v in graph.input), *weights, *made_by(graph)])
    style = random.choice(["number", "tool", "odd", "long", "reversed"])
    stems = {"number": "{}", "tool": "_v_{}", "odd": "a/b:{}.0 é", "long": "x" * 60 + "{}"}
    new = (
        {n: stems[style].format(i) for i, n in enumerate(names)}
        if style in stems
        else {n: f"{len(names) - i}" for i, n in enumerate(names)}
    )
    if set(new.values()) & set(names):
        return False
    nodes = [rename_node_values(n, new) for n in graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    for item in (*graph.input, *graph.output, *graph.initializer):
        item.name = new.get(item.name, item.name)
    del graph.value_info[:]
    candidate.feeds = {new.get(n, n): v for n, v in candidate.feeds.items()}
    return True


def invented_name(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """A name that the optimizer gave to a value of its own, for an inner value or a weight."""
    graph = candidate.model.graph
    outside = {*candidate.feeds, *(o.name for o in graph.output)}
    weights = [t.name for t in graph.initializer]
    inner = [n for n in [*made_by(graph), *weights] if n not in outside]
    taken = {*outside, *made_by(graph), *weights}
    free = [n for n in vocabulary.invented if n not in taken]
    if not inner or not free:
        return False
    new = {random.choice(inner): random.choice(free)}
    nodes = [rename_node_values(n, new) for n in graph.node]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    for item in (*graph.input, *graph.initializer):
        item.name = new.get(item.name, item.name)
    return True


def name_nodes(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """Names of nodes: all different, all equal, as their outputs, or empty."""
    style = random.choice(["different", "equal", "outputs", "empty"])
    for number, node in enumerate(candidate.model.graph.node):
        output = next((o for o in node.output if o), "")
        choices = {"different": f"node_{number}", "equal": "node", "outputs": output}
        node.name = choices.get(style, "")
    return True


def change_opset(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """Another version of ONNX's operator set; nodes are written in its form."""
    if not any(domain_of(e) == ONNX_DOMAIN for e in candidate.model.opset_import):
        return False
    was = onnx_version(candidate)
    latest = onnx.defs.onnx_opset_version()
    choices = [7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 18, 21, was - 1, was + 1]
    now = random.choice([c for c in choices if 1 <= c <= latest and c != was])
    to_opset(candidate, ONNX_DOMAIN, now)
    return True


def type_and_opset(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """Another element type and, since older operators may not know it, another operator set."""
    changed = change_opset(candidate, vocabulary, random)
    return change_type(candidate, vocabulary, random) and changed


def old_ir(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """IR version 3, in which all weights are inputs; or another version."""
    model = candidate.model
    if random.random() < 0.3:
        model.ir_version = random.choice([4, 5, 6, 7, 8, 9, 10])
        return True
    model.ir_version = 3
    listed = {v.name for v in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.name not in listed:
            info = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            model.graph.input.append(info)
    return True


def spell_domain(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """ONNX's own domain spelled out in the import; onnx's checker refuses it in nodes."""
    found = [entry for entry in candidate.model.opset_import if not entry.domain]
    for entry in found:
        entry.domain = ONNX_DOMAIN
    return bool(found)


_NONE = np.zeros(())


def symbolic_shapes(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """Dimensions of inputs or outputs by name, or unknown ones."""
    graph = candidate.model.graph
    infos = [v for v in (*graph.input, *graph.output) if v.type.tensor_type.HasField("shape")]
    if not infos:
        return False
    style = random.choice(["named", "one name", "unknown", "first"])
    for info in infos if random.random() < 0.6 else [random.choice(infos)]:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if style == "unknown":
                dim.Clear()
            elif style != "first" or axis == 0:
                # One name is one number, which of outputs is not known.
                sizes = () if style == "named" else candidate.feeds.get(info.name, _NONE).shape
                named = f"n{sizes[axis]}" if axis < len(sizes) else f"{info.name}_{axis}"
                dim.dim_param = named
    return True


def empty_and_open(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """No element along one dimension, and another one left open and fed in another size.

    The model's constants may speak of the size that it had; what has no element fits all the same.
    """
    if not empty_dimension(candidate, random):
        return False
    places = [
        (name, axis)
        for name, value in candidate.feeds.items()
        for axis, size in enumerate(value.shape)
        if size and not value.size
    ]
    if not places:
        return False
    name, axis = random.choice(places)
    shape = list(candidate.feeds[name].shape)
    shape[axis] += 1
    candidate.feeds[name] = np.zeros(shape, candidate.feeds[name].dtype)
    for info in candidate.model.graph.input:
        declared = info.type.tensor_type.shape.dim
        if info.name == name and axis < len(declared):  # its rank may be left open
            declared[axis].dim_param = f"{name}_{axis}"
    return True


def annotate_values(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """Types of inner values declared, all or some of them."""
    graph = candidate.model.graph
    outputs = {o.name for o in graph.output}
    inner = [n for n in made_by(graph) if n not in outputs]
    if not inner or graph.value_info:
        return False
    chosen = inner if random.random() < 0.6 else [random.choice(inner)]
    # Types are filled in, or the entry is left out, when the model is completed.
    graph.value_info.extend(helper.make_empty_tensor_value_info(n) for n in chosen)
    return True


def unused_weight(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """A weight or an input that nothing reads, or a weight that is an output."""
    graph = candidate.model.graph
    kind = random.choice(["weight", "input", "output"])
    name = fresh(graph, "unused")
    value = np.array([1, 2], np.float32)
    if kind == "input":
        candidate.feeds[name] = value
        graph.input.append(helper.make_tensor_value_info(name, type_of(value), value.shape))
        return True
    graph.initializer.append(numpy_helper.from_array(value, name))
    return kind == "weight" or add_output(graph, name)


def pass_through(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """An output that is an input behind Identity, or an output behind two of them."""
    graph = candidate.model.graph
    name = pick(random, [*candidate.feeds, *(o.name for o in graph.output)])
    if name is None:
        return False
    first, second = fresh(graph, "same"), fresh(graph, "alike")
    graph.node.append(helper.make_node("Identity", [name], [first]))
    if random.random() < 0.5:
        graph.node.append(helper.make_node("Identity", [first], [second]))
        return add_output(graph, second)
    return add_output(graph, first)


def order_nodes(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """A node as early or as late as it may stand, or the outputs in reverse order."""
    graph = candidate.model.graph
    outputs = [onnx.ValueInfoProto.FromString(o.SerializeToString()) for o in graph.output]
    edits = [*_moves(graph), *([(-1, -1)] if len(outputs) > 1 else [])]
    if not edits:
        return False
    index, to = random.choice(edits)
    if index < 0:
        del graph.output[:]
        graph.output.extend(reversed(outputs))
    else:
        node = copy_of(graph.node[index])
        del graph.node[index]
        insert(graph, to, node)
    return True


def _moves(graph: GraphProto) -> list[tuple[int, int]]:
    """Indices of nodes, and the first and the last index at which each may stand instead."""
    made = {o: index for index, node in enumerate(graph.node) for o in node.output if o}
    moves = []
    for index, node in enumerate(graph.node):
        first = max((made[name] + 1 for name in reads(node) if name in made), default=0)
        later = range(index + 1, len(graph.node))
        reader = (i for i in later if not {*node.output}.isdisjoint(reads(graph.node[i])))
        last = next(reader, len(graph.node)) - 1
        moves += [(index, to) for to in (first, last) if to != index]
    return moves


def set_field(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """A field of the model, the graph, a node or a value that most models leave unset."""
    model = candidate.model
    graph = model.graph
    kinds = ["metadata", "doc", "producer", "version", "denotation", "annotation", "node doc"]
    kind = random.choice(kinds)
    if kind == "metadata":
        owner = random.choice([model, graph, *graph.node, *graph.input])
        if not hasattr(owner, "metadata_props"):
            return False
        owner.metadata_props.add(key="key", value="value")
    elif kind == "doc":
        if random.random() < 0.5:
            model.doc_string = "hunted"
        else:
            graph.doc_string = "hunted"
    elif kind == "producer":
        model.producer_name, model.producer_version, model.domain = "hunted", "1.0", "hunted.org"
    elif kind == "version":
        model.model_version = 7
    elif kind == "denotation" and graph.input:
        info = random.choice(list(graph.input))
        info.type.denotation = "IMAGE"
        for dim in info.type.tensor_type.shape.dim:
            dim.denotation = "DATA_BATCH"
    elif kind == "annotation" and made_by(graph):
        name = fresh(graph, "scale")
        graph.initializer.append(numpy_helper.from_array(np.array(0.5, np.float32), name))
        entry = graph.quantization_annotation.add(tensor_name=random.choice(made_by(graph)))
        entry.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value=name)
    elif kind == "node doc" and graph.node:
        random.choice(list(graph.node)).doc_string = "hunted"
    else:
        return False
    return True
