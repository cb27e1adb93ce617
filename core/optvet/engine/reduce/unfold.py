"""Replacing nodes by the nodes inside them: If, Loop, subgraphs, model-local functions.

The values of the new graph may have other types; the caller infers types again before it tests it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    helper,
    numpy_helper,
)

from optvet.engine.reduce.cut import reachable_functions, restrict
from optvet.engine.reduce.graph import Graph, Node, Weight, rename_in_body, rename_values
from optvet.graph.walk import ONNX_DOMAIN, all_names, bodies_of, captured_names, local_names

_KEEPS_TYPE = frozenset(
    """
    Abs Acos Asin Atan BitwiseNot Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish
    Hardmax Identity LeakyRelu Log LogSoftmax Mish Neg Not Reciprocal Relu Round Selu Sigmoid Sign
    Sin Sinh Softmax Softplus Softsign Sqrt Tan Tanh ThresholdedRelu
    """.split()
)
"""Operators whose only output has the type of their first input."""


def unfold(graph: Graph) -> Iterator[Graph | None]:
    """Every way to replace one node by the nodes inside it.

    ``If(c){A}{B} → A`` and ``→ B``; ``Loop(m, c, v){B} → B(0, true, v)`` where no output is
    stacked; ``f(x) → body of f`` for a model-local function.
    """
    functions = {(f.domain, f.name): f for f in graph.functions}
    for index, node in enumerate(graph.nodes):
        if node.type == (ONNX_DOMAIN, "If"):
            for body in bodies_of(node.proto):
                yield _inline(graph, index, body, {})
        elif node.type == (ONNX_DOMAIN, "Loop"):
            yield _one_turn(graph, index)
        elif (node.proto.domain, node.proto.op_type) in functions:
            yield _inline_function(graph, index, functions[node.proto.domain, node.proto.op_type])


def _one_turn(graph: Graph, index: int) -> Graph | None:
    node = graph.nodes[index].proto
    body = next(bodies_of(node))
    carried = len(node.input) - 2
    if len(body.output) - 1 > carried and any(
        name in graph.consumers or name in graph.outputs for name in node.output[carried:]
    ):
        return None
    turn, go_on = graph.fresh_name("turn"), graph.fresh_name("go_on")
    operands = [turn, go_on, *node.input[2:]]
    if len(operands) != len(body.input) or "" in operands:
        return None
    names = {v.name: name for v, name in zip(body.input, operands, strict=True)}
    proto = GraphProto()
    proto.CopyFrom(body)
    del proto.output[0]
    result = _inline(graph, index, proto, names)
    if result is None:
        return None
    constants = {turn: np.array(0, np.int64), go_on: np.array(True)}
    weights = dict(result.weights)
    for name, array in constants.items():
        if name in result.consumers:
            weights[name] = Weight(numpy_helper.from_array(array, name))
    return result.with_(weights=weights)


def _inline(
    graph: Graph, index: int, body: GraphProto, bindings: Mapping[str, str]
) -> Graph | None:
    """``body`` in place of node ``index``; ``bindings`` maps its inputs to names outside."""
    node = graph.nodes[index].proto
    names = dict(bindings)
    for name in sorted(local_names(body) - bindings.keys()):
        names[name] = graph.fresh_name(name) if name in graph.names else name
    aliases: dict[str, str] = {}
    extra: list[Node] = []
    taken: set[str] = set()
    computed = {o for n in body.node for o in n.output}
    for inside, outside in zip((o.name for o in body.output), node.output, strict=False):
        if not outside:
            continue
        if inside in computed and inside not in taken:
            taken.add(inside)
            names[inside] = outside
        elif outside in graph.outputs:
            extra.append(Node(helper.make_node("Identity", [names.get(inside, inside)], [outside])))
        else:
            aliases[outside] = names.get(inside, inside)
    copy = GraphProto()
    copy.CopyFrom(body)
    inner = [_rename_copy(n, names) for n in copy.node]
    nodes = [*graph.nodes[:index], *inner, *extra, *graph.nodes[index + 1 :]]
    weights = dict(graph.weights)
    for tensor in copy.initializer:
        tensor.name = names[tensor.name]
        weights[tensor.name] = Weight(tensor)
    if copy.sparse_initializer:
        return None
    changed = graph.with_(nodes=tuple(rename_values(n, aliases) for n in nodes), weights=weights)
    return _drop_unread(changed)


def _drop_unread(graph: Graph) -> Graph | None:
    """``graph`` without inputs and initializers that it no longer reads."""
    read = {name for node in graph.nodes for name in node.uses}
    keep = read | graph.outputs.keys()
    inputs = {n: k for n, k in graph.inputs.items() if n in keep}
    return graph.with_(
        inputs=inputs,
        weights={n: w for n, w in graph.weights.items() if n in keep},
        listed=graph.listed & keep,
        feeds=None
        if graph.feeds is None
        else {n: f for n, f in graph.feeds.items() if n in inputs},
        value_info={n: k for n, k in graph.value_info.items() if n in graph.producer},
    )


def _rename_copy(proto: NodeProto, names: Mapping[str, str]) -> Node:
    return rename_values(Node(proto), names)


# --- functions ------------------------------------------------------------------------------------


def _inline_function(graph: Graph, index: int, function: FunctionProto) -> Graph | None:
    shell = _with_opsets(graph.shell, function)
    if shell is None:
        return None
    call = graph.nodes[index].proto
    names = {"": ""}
    for inside, outside in zip(function.input, call.input, strict=False):
        names[inside] = outside
    for inside in function.input[len(call.input) :]:
        names[inside] = ""
    for inside, outside in zip(function.output, call.output, strict=False):
        if outside:
            names[inside] = outside
    taken = graph.names | all_names(function.node)
    for name in sorted(all_names(function.node)):
        if name not in names:
            fresh, count = name, 0
            while fresh in graph.names or (count and fresh in taken):
                fresh, count = f"{name}_{count}", count + 1
            names[name] = fresh
            taken.add(fresh)
    attributes = {a.name: a for a in function.attribute_proto}
    attributes |= {a.name: a for a in call.attribute}
    body: list[Node] = []
    for proto in function.node:
        copy = NodeProto()
        copy.CopyFrom(proto)
        _resolve(copy, attributes)
        body.append(rename_values(Node(copy), names))
    nodes = (*graph.nodes[:index], *body, *graph.nodes[index + 1 :])
    called = reachable_functions(graph.functions, (n.proto for n in nodes))
    return _drop_unread(
        graph.with_(
            shell=shell,
            nodes=nodes,
            functions=tuple(f for f in graph.functions if (f.domain, f.name) in called),
        )
    )


def _with_opsets(shell: ModelProto, function: FunctionProto) -> ModelProto | None:
    versions = {o.domain: o.version for o in shell.opset_import}
    missing = [o for o in function.opset_import if o.domain not in versions]
    if any(versions.get(o.domain, o.version) != o.version for o in function.opset_import):
        return None
    if not missing:
        return shell
    copy = ModelProto()
    copy.CopyFrom(shell)
    copy.opset_import.extend(missing)
    return copy


def _resolve(proto: NodeProto, attributes: Mapping[str, AttributeProto]) -> None:
    """Replace references to attributes of the function by the call's attributes, in place."""
    kept: list[AttributeProto] = []
    for attribute in proto.attribute:
        if not attribute.ref_attr_name:
            kept.append(attribute)
        elif attribute.ref_attr_name in attributes:
            value = AttributeProto()
            value.CopyFrom(attributes[attribute.ref_attr_name])
            value.name = attribute.name
            kept.append(value)
    copies = []
    for attribute in kept:
        copy = AttributeProto()
        copy.CopyFrom(attribute)
        copies.append(copy)
    del proto.attribute[:]
    proto.attribute.extend(copies)
    for body in bodies_of(proto):
        for node in body.node:
            _resolve(node, attributes)


# --- inside of subgraphs --------------------------------------------------------------------------


def smaller_bodies(graph: Graph) -> Iterator[Graph | None]:
    """Every way to make one subgraph smaller by one step.

    ``{B} → {Constant}`` with what the node gave when the reference ran; ``y = op(x) → y := x``
    inside of a subgraph for operators that keep their input's type; dead nodes dropped.
    """
    for index, node in enumerate(graph.nodes):
        for a, attribute in enumerate(node.proto.attribute):
            if attribute.type != AttributeProto.GRAPH:
                continue
            for body in _smaller(graph, node, attribute.g):
                proto = NodeProto()
                proto.CopyFrom(node.proto)
                proto.attribute[a].g.CopyFrom(body)
                yield _replace_node(graph, index, Node(proto))


def _replace_node(graph: Graph, index: int, node: Node) -> Graph | None:
    nodes = (*graph.nodes[:index], node, *graph.nodes[index + 1 :])
    # What only the body captured is cut off like what only a removed node read.
    lost = [n for n in graph.nodes[index].uses if n not in node.uses]
    changed = restrict(graph, nodes)
    if changed is None:
        return None
    outputs = dict(graph.outputs)
    outputs |= {n: k for n, k in changed.outputs.items() if n in lost}
    return changed.with_(outputs=outputs)


def _smaller(graph: Graph, node: Node, body: GraphProto) -> Iterator[GraphProto]:
    if node.type == (ONNX_DOMAIN, "If"):
        values = [graph.recorded.values.get(name) for name in node.proto.output]
        if len(body.node) > len(values) and all(v is not None for v in values):
            yield _constant_body(body, [v for v in values if v is not None])
    for index in reversed(range(len(body.node))):
        inner = body.node[index]
        if inner.op_type in _KEEPS_TYPE and len(inner.output) == 1 and inner.input:
            yield from _bypass_node(body, index)
        yield from _without_node(body, index)


def _constant_body(body: GraphProto, values: Sequence[np.ndarray]) -> GraphProto:
    copy = GraphProto()
    copy.name = body.name
    copy.output.extend(body.output)
    for output, value in zip(body.output, values, strict=False):
        tensor = numpy_helper.from_array(np.array(value))
        copy.node.append(helper.make_node("Constant", [], [output.name], value=tensor))
    return copy


def _bypass_node(body: GraphProto, index: int) -> Iterator[GraphProto]:
    node = body.node[index]
    old, new = node.output[0], node.input[0]
    if any(o.name == old for o in body.output):
        maker = [n for n in body.node if new in n.output]
        if not maker or any(o.name == new for o in body.output):
            return
        # The value before it takes the output's name.
        old, new = new, old
    copy = GraphProto()
    copy.CopyFrom(body)
    del copy.node[index]
    for other in copy.node:
        other.input[:] = [new if i == old else i for i in other.input]
        other.output[:] = [new if o == old else o for o in other.output]
        for inner in bodies_of(other):
            rename_in_body(inner, {old: new})
    del copy.value_info[:]
    yield copy


def _without_node(body: GraphProto, index: int) -> Iterator[GraphProto]:
    node = body.node[index]
    read = {o.name for o in body.output}
    for other in body.node:
        read.update(other.input)
        read.update(name for inner in bodies_of(other) for name in captured_names(inner))
    if read.isdisjoint(node.output):
        copy = GraphProto()
        copy.CopyFrom(body)
        del copy.node[index]
        yield copy
