"""Lays the control flow of one run flat: branches and iterations as plain nodes.

``If`` becomes the nodes of the branch that was taken, ``Loop`` and ``Scan`` those of their body,
once for each iteration: ``If(c) {a} {b}`` → ``a``, ``Loop(3, c, x) {f}`` → ``f(f(f(x)))``. The
result computes the same on inputs that decide alike, and shows every value on the way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from optvet.graph.walk import (
    ONNX_DOMAIN,
    attribute_of,
    bodies_of,
    graphs,
    is_onnx,
    local_names,
    opset_versions,
    reads,
)

_CONTROL = frozenset({"If", "Loop", "Scan"})
_DEPTH = 8
_MOST_NODES = 512
"""Nodes that the iterations of one loop may become; a longer loop stays as it is."""
_AXES_AS_INPUT = 13
_SCAN_WITHOUT_BATCH = 9
"""Operator set from which on Scan has no batch axis."""
_COUNT = "optvet_iterations_{}"

Evaluate = Callable[[ModelProto], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Joint:
    """A value that control flow passes on from the graph inside of it.

    Attributes:
        operator: ``If``, ``Loop`` or ``Scan``.
        condition: The value that decided, of an ``If``; else empty.
        node: The node of control flow, as the model has it.
        iterations: How often the body ran, of what a loop gives; else None.
    """

    operator: str
    condition: str = ""
    node: NodeProto | None = field(default=None, compare=False)
    iterations: int | None = None


@dataclass(frozen=True)
class Unfolded:
    """A model laid flat for one run.

    Attributes:
        model: The flat model.
        original: Names of its values in the model that it was made of, where they differ.
        paths: Where a value of an inner graph is computed: ``then_branch of If y``.
        joints: Values that control flow passes on, by name.
        made: Constants that the model itself does not have, such as the numbers of iterations.
    """

    model: ModelProto
    original: dict[str, str] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    joints: dict[str, Joint] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)

    def name_of(self, value: str) -> str:
        """The name of a value in the model that this one was made of."""
        return self.original.get(value, value)

    def path_of(self, node: NodeProto) -> str:
        """Where a node of the flat model belongs; empty for the outermost graph."""
        return next((self.paths[name] for name in node.output if name in self.paths), "")

    def joint_of(self, node: NodeProto) -> Joint | None:
        """The joint that a node of the flat model is; None for a node of the model itself."""
        return next((self.joints[name] for name in node.output if name in self.joints), None)


def unfold(model: ModelProto, evaluate: Evaluate, other: str = "") -> Unfolded:
    """``model`` as flat as its run allows; values of inner graphs have names of their own in it.

    Args:
        model: Any model; it is not changed.
        evaluate: Runs a model on the input in question, and returns its outputs.
        other: What the ``If`` gives, in the flat model, that is to take its other branch.
    """
    flat = ModelProto()
    flat.CopyFrom(model)
    name_apart(flat)
    unfolded = Unfolded(flat)
    kept: set[str] = set()
    for _ in range(_DEPTH):
        todo = [n for n in flat.graph.node if _is_control(n) and n.output[0] not in kept]
        if not todo:
            break
        asked = evaluate(_with_decisions(flat, todo))
        nodes: list[NodeProto] = []
        for number, node in enumerate(flat.graph.node):
            laid = None
            if _is_control(node) and node.output[0] not in kept:
                laid = _Laying(unfolded, node, other).nodes(asked, number)
                if laid is None:
                    kept.add(node.output[0])
            nodes += [node] if laid is None else laid
        copies = [NodeProto.FromString(n.SerializeToString()) for n in nodes]
        _name_nodes_apart(copies)
        del flat.graph.node[:]
        flat.graph.node.extend(copies)
    return unfolded


def _is_control(node: NodeProto) -> bool:
    return node.op_type in _CONTROL and is_onnx(node)


def has_control_flow(model: ModelProto) -> bool:
    """Whether a node of the outermost graph has branches or a body."""
    return any(map(_is_control, model.graph.node))


def _with_decisions(model: ModelProto, control: list[NodeProto]) -> ModelProto:
    """The model with what tells which branches are taken, and how often bodies run, as outputs."""
    asked = ModelProto()
    asked.CopyFrom(model)
    wanted: dict[str, None] = {}
    ends = {node.output[0] for node in control}
    for number, node in enumerate(asked.graph.node):
        if not (_is_control(node) and node.output[0] in ends):
            continue
        if node.op_type == "Loop":
            body = next(bodies_of(node))
            name = _COUNT.format(number)
            body.node.append(helper.make_node("Identity", [body.input[0].name], [f"{name}_in"]))
            body.output.append(ValueInfoProto(name=f"{name}_in"))
            node.output.append(name)
            wanted[name] = None
        else:
            wanted[node.input[0 if node.op_type == "If" else -1]] = None
    outputs = {o.name: o for o in model.graph.output}
    del asked.graph.output[:]
    known = {i.name for i in model.graph.input} | {t.name for t in model.graph.initializer}
    for name in wanted:
        if name not in known:
            asked.graph.output.append(outputs.get(name, ValueInfoProto(name=name)))
        else:  # No runtime returns what nothing computes.
            copy = f"{name}_decides"
            asked.graph.node.append(helper.make_node("Identity", [name], [copy]))
            asked.graph.output.append(ValueInfoProto(name=copy))
    return asked


class _Laying:
    """One node of control flow as nodes of the graph around it."""

    def __init__(self, unfolded: Unfolded, node: NodeProto, other: str) -> None:
        self._unfolded, self._node, self._other = unfolded, node, other
        self._iterations: int | None = None
        self._graph = unfolded.model.graph
        self._label = f"{node.op_type} {unfolded.name_of(node.output[0])}"
        self._around = unfolded.path_of(node)

    def nodes(self, asked: Mapping[str, np.ndarray], number: int) -> list[NodeProto] | None:
        """The nodes, given the decisions; None where the node stays as it is."""
        node = self._node
        if node.op_type == "Loop":
            count = asked.get(_COUNT.format(number))
            return None if count is None else self._loop(len(count))
        decides = node.input[0 if node.op_type == "If" else -1]
        value = asked.get(decides, asked.get(f"{decides}_decides"))
        if value is None:
            return None
        if node.op_type == "If":
            return self._branch(bool(value.reshape(-1)[0]) != (self._other in node.output))
        return self._scan(value)

    def _branch(self, taken: bool) -> list[NodeProto]:
        name = "then_branch" if taken else "else_branch"
        body = attribute_of(self._node, name)
        nodes = self._copies(body, f"{name} of {self._label}", {}, first=True)
        ends = zip(self._node.output, body.output, strict=False)
        condition = self._node.input[0]
        return [*nodes, *(self._pass_on(o.name, out, condition) for out, o in ends if out)]

    def _loop(self, count: int) -> list[NodeProto] | None:
        body = attribute_of(self._node, "body")
        states = len(body.input) - 2
        if not self._is_short(body, count):
            return None
        self._iterations = count
        before = list(self._node.input[2 : 2 + states])
        read = {name for node in body.node for name in reads(node)}
        read |= {output.name for output in body.output}
        collected: list[list[str]] = [[] for _ in body.output[1 + states :]]
        nodes: list[NodeProto] = []
        for k in range(count):
            names = self._numbered(body, k)
            for value, fixed in zip(
                body.input, (np.array(k, np.int64), np.array(True)), strict=False
            ):
                if value.name in read:
                    self._constant(names[value.name], fixed)
            given = zip(body.input[2:], before, strict=True)
            nodes += [self._joined(old, names[i.name]) for i, old in given]
            nodes += self._copies(body, self._iteration(k), names, first=k == 0)
            before = [names.get(o.name, o.name) for o in body.output[1 : 1 + states]]
            for one, o in zip(collected, body.output[1 + states :], strict=True):
                one.append(names.get(o.name, o.name))
        axes = [0] * len(collected)
        return nodes + self._ends(before, collected, axes, [0] * len(axes))

    def _scan(self, value: np.ndarray) -> list[NodeProto] | None:
        node, body = self._node, attribute_of(self._node, "body")
        if opset_versions(self._unfolded.model).get(ONNX_DOMAIN, 0) < _SCAN_WITHOUT_BATCH:
            return None
        scanned = attribute_of(node, "num_scan_inputs")
        states = len(node.input) - scanned
        collected: list[list[str]] = [[] for _ in body.output[states:]]
        axes = list(attribute_of(node, "scan_input_axes", [0] * scanned))
        ways = list(attribute_of(node, "scan_input_directions", [0] * scanned))
        count = value.shape[axes[-1]]
        if not self._is_short(body, count):
            return None
        self._iterations = count
        before = list(node.input[:states])
        nodes: list[NodeProto] = []
        for k in range(count):
            names = self._numbered(body, k)
            nodes += [
                self._joined(old, names[i.name])
                for i, old in zip(body.input[:states], before, strict=True)
            ]
            slices = zip(body.input[states:], node.input[states:], axes, ways, strict=True)
            for i, whole, axis, way in slices:
                index = f"{names[i.name]}_index"
                self._constant(index, np.array(count - 1 - k if way else k, np.int64))
                nodes.append(helper.make_node("Gather", [whole, index], [names[i.name]], axis=axis))
                self._join(names[i.name])
            nodes += self._copies(body, self._iteration(k), names, first=k == 0)
            before = [names.get(o.name, o.name) for o in body.output[:states]]
            for one, o in zip(collected, body.output[states:], strict=True):
                one.append(names.get(o.name, o.name))
        plain = [0] * len(collected)
        out_axes = list(attribute_of(node, "scan_output_axes", plain))
        out_ways = list(attribute_of(node, "scan_output_directions", plain))
        return nodes + self._ends(before, collected, out_axes, out_ways)

    def _is_short(self, body: GraphProto, count: int) -> bool:
        """Whether the loop runs at all, and not too often."""
        return 0 < count and count * sum(len(g.node) for g in graphs(body)) <= _MOST_NODES

    def _iteration(self, k: int) -> str:
        return f"iteration {k + 1} of {self._label}"

    def _numbered(self, body: GraphProto, k: int) -> dict[str, str]:
        """Names of what an iteration computes; constants are the same in each."""
        names = {name for graph in graphs(body) for name in local_names(graph)}
        fixed = {t.name for t in body.initializer}
        fixed |= {o for node in body.node if node.op_type == "Constant" for o in node.output}
        numbered = {name: f"{name}@{k + 1}" for name in sorted(names - fixed) if name}
        for name, new in numbered.items():
            self._unfolded.original[new] = self._unfolded.name_of(name)
        return numbered

    def _copies(
        self, body: GraphProto, place: str, names: Mapping[str, str], *, first: bool
    ) -> list[NodeProto]:
        """The nodes of a body under other names; its weights move out when it is copied first."""
        path = f"{place}, {self._around}" if self._around else place
        if first:
            self._graph.initializer.extend(body.initializer)
            self._graph.sparse_initializer.extend(body.sparse_initializer)
        found = []
        for node in body.node:
            if node.op_type == "Constant" and not first:
                continue
            copy = NodeProto()
            copy.CopyFrom(node)
            _rename(copy, names)
            self._unfolded.paths.update((name, path) for name in copy.output if name)
            found.append(copy)
        return found

    def _join(self, name: str, condition: str = "", iterations: int | None = None) -> None:
        joint = Joint(self._node.op_type, condition, self._node, iterations)
        self._unfolded.joints[name] = joint

    def _constant(self, name: str, value: np.ndarray) -> None:
        self._unfolded.made.add(name)
        self._graph.initializer.append(numpy_helper.from_array(value, name))

    def _joined(self, old: str, new: str) -> NodeProto:
        self._join(new)
        return helper.make_node("Identity", [old], [new], name=new)

    def _pass_on(self, inner: str, outer: str, condition: str = "") -> NodeProto:
        self._join(outer, condition, self._iterations)
        if self._around:
            self._unfolded.paths[outer] = self._around
        return helper.make_node("Identity", [inner], [outer], name=outer)

    def _ends(
        self, states: list[str], collected: list[list[str]], axes: list[int], ways: list[int]
    ) -> list[NodeProto]:
        """What gives the outputs of a loop: the last states, and what iterations gave, in a row."""
        outputs = list(self._node.output)
        ends = zip(states, outputs, strict=False)
        nodes = [self._pass_on(inner, outer) for inner, outer in ends if outer]
        for names, axis, way, outer in zip(
            collected, axes, ways, outputs[len(states) :], strict=False
        ):
            if outer:
                nodes += self._row(names[::-1] if way else names, axis, outer)
        return nodes

    def _row(self, names: list[str], axis: int, outer: str) -> Iterator[NodeProto]:
        versions = opset_versions(self._unfolded.model)
        parts = [f"{outer}_part{k}" for k in range(len(names))]
        axes = f"{outer}_axis"
        if versions.get(ONNX_DOMAIN, 0) >= _AXES_AS_INPUT:
            self._constant(axes, np.array([axis], np.int64))
        for name, part in zip(names, parts, strict=True):
            if versions.get(ONNX_DOMAIN, 0) >= _AXES_AS_INPUT:
                yield helper.make_node("Unsqueeze", [name, axes], [part])
            else:
                yield helper.make_node("Unsqueeze", [name], [part], axes=[axis])
            self._join(part)
        self._join(outer, iterations=self._iterations)
        yield helper.make_node("Concat", parts, [outer], axis=axis)


def name_apart(model: ModelProto) -> None:
    """Give values of inner graphs other names, where two graphs use one name for two values.

    The new names depend on the model alone, so an edit that names one fits the same model again.
    """
    taken = local_names(model.graph)
    for node in model.graph.node:
        for body in bodies_of(node):
            _name_body_apart(body, taken)


def _name_body_apart(body: GraphProto, taken: set[str]) -> None:
    renamed = {}
    for name in sorted(local_names(body) & taken):
        number = 1
        while f"{name}_{number}" in taken:
            number += 1
        renamed[name] = f"{name}_{number}"
    if renamed:
        _rename_body(body, renamed)
    taken |= local_names(body)
    for node in body.node:
        for inner in bodies_of(node):
            _name_body_apart(inner, taken)


def _name_nodes_apart(nodes: Iterable[NodeProto]) -> None:
    """Number the names that several nodes have: a runtime refuses two nodes of one name.

    The nodes of a body are one node in each iteration, and graphs may use the same names.
    """
    seen: Counter[str] = Counter()
    for node in nodes:
        seen[node.name] += 1
        if node.name and seen[node.name] > 1:
            node.name = f"{node.name}@{seen[node.name]}"


def _rename(node: NodeProto, names: Mapping[str, str]) -> None:
    for listed in (node.input, node.output):
        listed[:] = [names.get(name, name) for name in listed]
    for body in bodies_of(node):
        _rename_body(body, names)


def _rename_body(body: GraphProto, names: Mapping[str, str]) -> None:
    for value in (*body.input, *body.output, *body.value_info, *body.initializer):
        value.name = names.get(value.name, value.name)
    for sparse in body.sparse_initializer:
        sparse.values.name = names.get(sparse.values.name, sparse.values.name)
    for node in body.node:
        _rename(node, names)
