"""What the mutators share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from optvet.graph import (
    ONNX_DOMAIN,
    all_names,
    domain_of,
    opset_versions,
    schema_of,
    type_of,
)
from optvet.plugin import Candidate, Vocabulary

Change = Callable[[Candidate, Vocabulary, Random], bool]
"""Changes a candidate in place; False if there is nothing to change."""


@dataclass
class FunctionMutator:
    """A mutator made of a function; see ``Mutator`` and ``prepares``."""

    name: str
    change: Change
    weight: float = 1.0
    prepares: bool = False

    def mutate(
        self, candidate: Candidate, vocabulary: Vocabulary, random: Random
    ) -> Candidate | None:
        """The changed candidate; None if nothing was changed."""
        return candidate if self.change(candidate, vocabulary, random) else None


def schema(candidate: Candidate, node: NodeProto) -> onnx.defs.OpSchema | None:
    """Schema of a node's operator at the model's operator sets."""
    return schema_of(domain_of(node), node.op_type, opset_versions(candidate.model))


def fresh(graph: GraphProto, stem: str = "v") -> str:
    """A name that nothing in the graph has."""
    taken = all_names(graph.node) | {v.name for v in (*graph.input, *graph.output)}
    taken |= {t.name for t in graph.initializer}
    return next(n for i in range(len(taken) + 1) if (n := f"{stem}_{i}") not in taken)


def made_by(graph: GraphProto) -> list[str]:
    """Values that nodes make, in order."""
    return [o for node in graph.node for o in node.output if o]


def available(candidate: Candidate, before: int) -> list[str]:
    """Values that a node at the index ``before`` may read."""
    graph = candidate.model.graph
    names = [*candidate.feeds, *(t.name for t in graph.initializer)]
    return names + [o for node in graph.node[:before] for o in node.output if o]


def add_output(graph: GraphProto, name: str) -> bool:
    """Make a value an output; False if it is one."""
    if any(o.name == name for o in graph.output):
        return False
    graph.output.append(helper.make_empty_tensor_value_info(name))
    return True


def readers(graph: GraphProto, name: str) -> list[tuple[NodeProto, int]]:
    """Nodes of the outer graph that read a value, and at which of their inputs."""
    return [(n, i) for n in graph.node for i, read in enumerate(n.input) if read == name]


def slots(graph: GraphProto, fits: Callable[[str], bool]) -> list[tuple[int, int]]:
    """Index of a node, and of an input of it whose name ``fits``, for all such inputs."""
    nodes = enumerate(graph.node)
    return [(i, k) for i, node in nodes for k, name in enumerate(node.input) if fits(name)]


def insert(graph: GraphProto, index: int, *nodes: NodeProto) -> None:
    """Put nodes before the one at ``index``."""
    for offset, node in enumerate(nodes):
        graph.node.insert(index + offset, node)


def insert_behind(graph: GraphProto, name: str, *nodes: NodeProto) -> None:
    """Put nodes right behind the one that makes a value, where exporters write them; else first.

    The order of a file matters: many passes visit nodes in it.
    """
    made = (i + 1 for i, node in enumerate(graph.node) if name in node.output)
    insert(graph, next(made, 0), *nodes)


def constants(graph: GraphProto) -> list[TensorProto]:
    """Tensors that can be changed in place: weights, and those in Constant nodes."""
    found = list(graph.initializer)
    for node in graph.node:
        if node.op_type == "Constant":
            found += [a.t for a in node.attribute if a.name == "value"]
    return found


def filled(shape: Sequence[int | None], element: int, number: float) -> np.ndarray:
    """Elements that are all one number, or text of it; open dimensions are 0."""
    dims = [d or 0 for d in shape]
    if element == TensorProto.STRING:
        return np.full(dims, f"{number:g}", object)
    return np.full(dims, number).astype(helper.tensor_dtype_to_np_dtype(element))


def set_value(candidate: Candidate, tensor: TensorProto, value: np.ndarray) -> None:
    """Give a weight another value; a declared input of its name follows."""
    tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    for info in candidate.model.graph.input:
        if info.name == tensor.name:
            info.CopyFrom(helper.make_tensor_value_info(info.name, type_of(value), value.shape))


def onnx_version(candidate: Candidate) -> int:
    """The version of ONNX's own operator set."""
    return opset_versions(candidate.model).get(ONNX_DOMAIN, 1)


def version_with(operator: str, name: str, after: int = 0) -> int:
    """The first operator set after a version in which an operator has an attribute or input."""
    latest = onnx.defs.onnx_opset_version()
    for version in range(after + 1, latest):
        known = schema_of(ONNX_DOMAIN, operator, {ONNX_DOMAIN: version})
        if known and name in {*known.attributes, *(formal.name for formal in known.inputs)}:
            return version
    return latest


def pick(random: Random, items: Sequence[str]) -> str | None:
    """One of ``items``; None if there is none."""
    return random.choice(items) if items else None


def copy_of(node: NodeProto) -> NodeProto:
    """A copy of a node."""
    copied = NodeProto()
    copied.CopyFrom(node)
    return copied
