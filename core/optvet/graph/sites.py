"""The sites of a rewrite: the places where the graph after a pass differs from the one before.

Nodes are equal if their texts are, with weights compared by content. The other nodes of both graphs
form *sites*: groups connected by values that only one graph has, or whose name means another value
in the other graph (a fusion may reuse a name). A single site can be put into the graph before; this
shows which sites are wrong.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto

from optvet.graph.digest import tensor_digest
from optvet.graph.walk import (
    bodies_of,
    captured_names,
    operator_of,
    opset_versions,
    reads,
    schema_of,
)
from optvet.graph.weights import constants_of, held_tensor


@dataclass(frozen=True)
class Site:
    """One site: indices of its nodes in the graph before and in the graph after."""

    before: tuple[int, ...]
    after: tuple[int, ...]


def find_rewrites(before: ModelProto, after: ModelProto) -> list[Site]:
    """The sites of ``after``, in the order of ``before``; no two share an inner value."""
    one, other = _SiteGraph(before), _SiteGraph(after)
    shared = one.keys & other.keys
    changed = one.find_changed(shared), other.find_changed(shared)
    groups = _Groups()
    for letter, indices in zip("ab", changed, strict=True):
        for index in indices:
            groups.find((letter, index))
    _join(groups, one, other, *changed)
    sites = []
    for members in groups.sets():
        was = tuple(sorted(i for letter, i in members if letter == "a"))
        now = tuple(sorted(i for letter, i in members if letter == "b"))
        sites.append(Site(was, now))
    return sorted(sites, key=lambda s: (s.before or (len(before.graph.node),), s.after))


Key = tuple[object, ...]
Member = tuple[str, int]


class _SiteGraph:
    """One graph: producers and readers of its values, and each node as a text to compare."""

    def __init__(self, model: ModelProto) -> None:
        self.nodes: Sequence[NodeProto] = model.graph.node
        self.outputs = [o.name for o in model.graph.output]
        constants = constants_of(model)
        self.constants = {name: tensor_digest(t) for name, t in constants.items()}
        self.maker = {o: i for i, n in enumerate(self.nodes) for o in n.output if o}
        versions = opset_versions(model)
        self.key_of = {
            i: _key(node, self.constants, versions)
            for i, node in enumerate(self.nodes)
            if held_tensor(node) is None
        }
        self.keys = set(self.key_of.values())
        self.readers: dict[str, list[int]] = defaultdict(list)
        for i in self.key_of:
            for name in reads(self.nodes[i]):
                self.readers[name].append(i)

    def find_changed(self, shared: set[Key]) -> set[int]:
        return {i for i, key in self.key_of.items() if key not in shared}


def _key(node: NodeProto, constants: Mapping[str, str], versions: Mapping[str, int]) -> Key:
    inputs = [constants.get(name, f"\0{name}") for name in node.input]
    while inputs and inputs[-1] == "\0":
        inputs.pop()
    attributes = tuple(sorted(attributes_of(node, versions).items()))
    return *operator_of(node), tuple(inputs), tuple(node.output), attributes


def attributes_of(node: NodeProto, versions: Mapping[str, int]) -> dict[str, bytes]:
    """Attributes as comparable bytes, without those that are equal to their default."""
    defaults: Mapping[str, AttributeProto] = {}
    schema = schema_of(*operator_of(node), versions)
    if schema is not None:
        defaults = {name: a.default_value for name, a in schema.attributes.items()}
    plain = {a.name: _plain(a) for a in node.attribute}
    return {k: v for k, v in plain.items() if k not in defaults or v != _plain(defaults[k])}


def _plain(attribute: AttributeProto) -> bytes:
    copy = AttributeProto()
    copy.CopyFrom(attribute)
    copy.doc_string = ""
    copy.name = ""
    if copy.HasField("t"):
        return tensor_digest(copy.t).encode()
    for body in (copy.g, *copy.graphs) if copy.HasField("g") or copy.graphs else ():
        body.doc_string = body.name = ""
        for node in body.node:
            node.doc_string = node.name = ""
    return bytes(copy.SerializeToString(deterministic=True))


class _Groups:
    """Disjoint sets with union (union-find)."""

    def __init__(self) -> None:
        self._parent: dict[Member, Member] = {}

    def find(self, member: Member) -> Member:
        parent = self._parent.setdefault(member, member)
        while parent != self._parent[parent]:
            self._parent[parent] = parent = self._parent[self._parent[parent]]
        return parent

    def join(self, members: Iterable[Member]) -> None:
        first: Member | None = None
        for member in members:
            if first is None:
                first = self.find(member)
            self._parent[self.find(member)] = first

    def sets(self) -> list[list[Member]]:
        found: dict[Member, list[Member]] = defaultdict(list)
        for member in list(self._parent):
            found[self.find(member)].append(member)
        return list(found.values())


def _join(
    groups: _Groups, one: _SiteGraph, other: _SiteGraph, changed_a: set[int], changed_b: set[int]
) -> None:
    reused = _find_reused_names(one, other)
    sides = (("a", one, changed_a, other), ("b", other, changed_b, one))
    makers: dict[str, list[Member]] = defaultdict(list)
    for letter, side, changed, _ in sides:
        for index in changed:
            for name in side.nodes[index].output:
                if name:
                    makers[name].append((letter, index))
    for members in makers.values():
        groups.join(members)  # the producers of one name in both graphs belong together
    for x, y in zip(one.outputs, other.outputs, strict=False):
        if x != y:
            groups.join([*makers[x], *makers[y]])
    for name, members in makers.items():
        for letter, side, changed, twin in sides:
            if name in reused or name not in twin.maker:
                readers = [(letter, i) for i in side.readers[name] if i in changed]
                groups.join([*members, *readers])


def _find_reused_names(one: _SiteGraph, other: _SiteGraph) -> set[str]:
    """Names that both graphs define, but apparently for different values.

    Either a node that both graphs have reads the name in only one of them, or the name is read in
    only one of the graphs at all and is unused in the other.
    """
    pairs = [
        (one.nodes[i], other.nodes[other.maker[name]])
        for i in one.key_of
        for name in list(one.nodes[i].output)[:1]
        if name in other.maker
    ]
    slots = [
        (x, y)
        for a, b in pairs
        if a.op_type == b.op_type
        for x, y in zip(a.input, b.input, strict=False)
    ]
    slots += zip(one.outputs, other.outputs, strict=False)
    live = [set(side.readers) | set(side.outputs) for side in (one, other)]
    dead = {n for n in one.maker.keys() & other.maker.keys() if (n in live[0]) != (n in live[1])}
    return dead | {
        name
        for x, y in slots
        if x != y and x not in one.constants and y not in other.constants
        for name in (x, y)
        if name in one.maker and name in other.maker
    }


# --- one site alone -------------------------------------------------------------------------------


def splice(before: ModelProto, after: ModelProto, site: Site) -> ModelProto | None:
    """``before`` with only this site rewritten as in ``after``; None if that is not possible."""
    model = ModelProto()
    model.CopyFrom(before)
    versions = opset_versions(before)
    for domain, version in opset_versions(after).items():
        if versions.setdefault(domain, version) != version:
            return None  # the pass changed what operators mean, everywhere at once
    del model.opset_import[:]
    model.opset_import.extend(onnx.helper.make_opsetid(d, v) for d, v in versions.items())
    gone = set(site.before)
    kept = [n for i, n in enumerate(before.graph.node) if i not in gone]
    new = [_copy(after.graph.node[i]) for i in site.after]
    weights = _weights(before, after, kept, new)
    nodes = None if weights is None else _sort(before, [*kept, *new], weights.keys())
    if weights is None or nodes is None:
        return None
    del model.graph.node[:], model.graph.value_info[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(weights.values())
    for function in after.functions:
        if all((f.domain, f.name) != (function.domain, function.name) for f in model.functions):
            model.functions.append(function)
    return model


def _copy(node: NodeProto) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    return copy


def _weights(
    before: ModelProto, after: ModelProto, kept: Sequence[NodeProto], new: Sequence[NodeProto]
) -> dict[str, TensorProto] | None:
    """Further weights that ``new`` needs; renames what ``new`` reads. None if names clash."""
    has, needs = constants_of(before), constants_of(after)
    taken = {o for n in kept for o in n.output} | has.keys()
    if any(o in taken for n in new for o in n.output if o):
        return None
    weights: dict[str, TensorProto] = {}
    for node in new:
        if any(
            n in needs for body in bodies_of(node) for n in captured_names(body) if n not in has
        ):
            return None
        for place, name in enumerate(node.input):
            if name not in needs or (
                name in has and tensor_digest(has[name]) == tensor_digest(needs[name])
            ):
                continue
            fresh = f"{name}__new" if name in taken else name
            tensor = TensorProto()
            tensor.CopyFrom(needs[name])
            tensor.name = fresh
            weights[fresh] = tensor
            node.input[place] = fresh
    return weights


def _sort(
    model: ModelProto, nodes: Sequence[NodeProto], weights: Iterable[str]
) -> list[NodeProto] | None:
    """``nodes`` in topological order; None if there is none."""
    known = {i.name for i in model.graph.input} | {t.name for t in model.graph.initializer}
    known |= {t.values.name for t in model.graph.sparse_initializer} | set(weights)
    waiting = {i: {n for n in reads(node) if n not in known} for i, node in enumerate(nodes)}
    readers: dict[str, list[int]] = defaultdict(list)
    for i, names in waiting.items():
        for name in names:
            readers[name].append(i)
    ready = [i for i, names in waiting.items() if not names]
    order: list[NodeProto] = []
    while ready:
        node = nodes[ready.pop(0)]
        order.append(node)
        for output in node.output:
            for i in readers.pop(output, []):
                waiting[i].discard(output)
                if not waiting[i]:
                    ready.append(i)
    computed = known | {o for n in order for o in n.output}
    complete = len(order) == len(nodes) and all(o.name in computed for o in model.graph.output)
    return order if complete else None


def kind_of(before: ModelProto, after: ModelProto, site: Site) -> str:
    """The operators that the site lost; if it lost none, all of its operators."""
    was = Counter(before.graph.node[i].op_type for i in site.before)
    now = Counter(after.graph.node[i].op_type for i in site.after)
    lost = was - now or was or now
    return " + ".join(f"{op} x {n}" if n > 1 else op for op, n in sorted(lost.items()))
