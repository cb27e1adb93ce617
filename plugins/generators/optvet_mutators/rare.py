"""Mutators of what models rarely have: new element types, training information, regions twice."""

from __future__ import annotations

from random import Random

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from optvet.graph import ONNX_DOMAIN, bodies_of, to_opset, types_of
from optvet.plugin import Candidate, Vocabulary
from optvet_mutators.common import add_output, filled, fresh, onnx_version

_SINCE = {
    **dict.fromkeys(("UINT16", "UINT32", "UINT64", "INT16", "DOUBLE", "STRING"), 13),
    "BFLOAT16": 13,
    **dict.fromkeys(("FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT8E4M3FNUZ", "FLOAT8E5M2FNUZ"), 19),
    **dict.fromkeys(("UINT4", "INT4"), 21),
    "FLOAT4E2M1": 23,
    "FLOAT8E8M0": 24,
}
"""Element types, with the operator set since which Cast knows them."""
_LARGEST_REGION = 8


def rare_type(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """A weight of a rare element type, cast to float as a further output, or read by nothing."""
    name = random.choice(list(_SINCE))
    to_opset(candidate, ONNX_DOMAIN, max(onnx_version(candidate), _SINCE[name]))
    graph = candidate.model.graph
    element = TensorProto.DataType.Value(name)
    weight, read = fresh(graph, "rare"), fresh(graph, "plain")
    graph.initializer.append(numpy_helper.from_array(filled([2], element, 1), weight))
    if random.random() < 0.5:
        return True
    graph.node.append(helper.make_node("Cast", [weight], [read], to=TensorProto.FLOAT))
    return add_output(graph, read)


def training_info(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """Information for training: an algorithm that updates a weight."""
    model = candidate.model
    weights = [t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT]
    if not weights or model.training_info:
        return False
    chosen = random.choice(weights)
    info = model.training_info.add()
    new = f"{chosen.name}_new"
    info.algorithm.name = "step"
    info.algorithm.node.append(helper.make_node("Neg", [chosen.name], [new]))
    info.algorithm.output.append(
        helper.make_tensor_value_info(new, chosen.data_type, tuple(chosen.dims))
    )
    info.update_binding.add(key=chosen.name, value=new)
    return True


def equation_letters(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """One letter of an Einsum in place of another one, here or everywhere: a diagonal, a sum."""
    texts = [a for n in candidate.model.graph.node for a in n.attribute if a.name == "equation"]
    # An equation of scalars, as `,->`, or of dots alone has no letter to replace.
    found = [a for a in texts if any(map(str.isalpha, a.s.decode()))]
    if not found:
        return False
    equation = random.choice(found)
    text = equation.s.decode()
    place = random.choice([i for i, letter in enumerate(text) if letter.isalpha()])
    letter = random.choice(sorted({c for c in text if c.isalpha()} - {text[place]}) or ["a"])
    here = f"{text[:place]}{letter}{text[place + 1 :]}"
    equation.s = random.choice([here, text.replace(text[place], letter)]).encode()
    return True


def repeat_in_branch(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """A copy of all nodes in a branch of an If, so that what fires outside fires inside too."""
    graph = candidate.model.graph
    nodes = list(graph.node)
    outputs = [o.name for o in graph.output]
    results = {o for node in nodes for o in node.output if o}
    typed = types_of(candidate.model)
    ends = [name for name in outputs if name in results and name in typed]
    if not ends or not 0 < len(nodes) <= _LARGEST_REGION or onnx_version(candidate) < 11:
        return False
    if any(True for node in nodes for _ in bodies_of(node)):
        return False
    end = random.choice(ends)
    element, shape = typed[end]
    stem, chosen = fresh(graph, "again"), fresh(graph, "either")
    inner = [_renamed(node, results, stem) for node in nodes]
    copies = [TensorProto.FromString(t.SerializeToString()) for t in graph.initializer]
    owned = random.random() < 0.5
    if owned:
        own = {t.name for t in copies}
        for tensor in copies:
            tensor.name = f"{stem}_{tensor.name}"
        for node in inner:
            node.input[:] = [f"{stem}_{i}" if i in own else i for i in node.input]
    first = helper.make_graph(
        inner,
        "then",
        [],
        [helper.make_tensor_value_info(f"{stem}_{end}", element, shape)],
        copies if owned else [],
    )
    other = helper.make_node("Identity", [end], [f"{stem}_else"])
    last = helper.make_tensor_value_info(f"{stem}_else", element, shape)
    second = helper.make_graph([other], "else", [], [last])
    condition = fresh(graph, "condition")
    candidate.feeds[condition] = np.array(True)
    graph.input.append(helper.make_tensor_value_info(condition, TensorProto.BOOL, ()))
    graph.node.append(
        helper.make_node("If", [condition], [chosen], then_branch=first, else_branch=second)
    )
    return add_output(graph, chosen)


def _renamed(node: NodeProto, results: set[str], stem: str) -> NodeProto:
    """A copy of a node whose results have other names, and which reads those of its copies."""
    copied: NodeProto = NodeProto.FromString(node.SerializeToString())
    copied.input[:] = [f"{stem}_{i}" if i in results else i for i in node.input]
    copied.output[:] = [f"{stem}_{o}" if o else "" for o in node.output]
    return copied
