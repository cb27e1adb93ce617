"""A graph that is cheap to cut: immutable, its weights shared by all the graphs made from it.

A reduction makes hundreds of candidates from one model, most of which are never serialized. So a
``Graph`` holds references to the messages of the model it came from, and a ``ModelProto`` is built
only for a candidate that is really looked at.

What a value is, its type and what it was when the reference ran, is *recorded* beside the graph
and is what keeps cuts well-typed: a value whose producer is gone becomes an input of the recorded
type that is fed what was recorded. No native code is called here.

A message that is referred to is never changed: a changed node is a copy.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    TensorShapeProto,
    TypeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from optvet.graph.walk import all_names, bodies_of, captured, local_names, operator_of

Size = tuple[int, ...]
"""What a reduction makes smaller, compared in order; see ``Graph.size``."""

_GRADED_ELEMENTS = 1 << 16
_RANDOM = frozenset(
    "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split()
)


# --- parts ----------------------------------------------------------------------------------------


class Node:
    """One node with what is asked of it again and again.

    Attributes:
        proto: The message; not to be changed.
        uses: Names it reads, those that its subgraphs capture included; each once, in order.
        makes: Names of its outputs, without omitted ones.
        size: Itself and all nodes of its subgraphs.
        attributes: Attributes of those.
        constant: What a Constant holds, if that is a tensor.
    """

    def __init__(self, proto: NodeProto) -> None:
        self.proto = proto
        bodies = list(bodies_of(proto))
        names = [*proto.input, *(name for body in bodies for name in captured(body))]
        self.uses = tuple(dict.fromkeys(name for name in names if name))
        self.makes = tuple(name for name in proto.output if name)
        inner = [Node(node) for body in bodies for node in body.node]
        self.size: int = 1 + sum(node.size for node in inner)
        self.attributes: int = len(proto.attribute) + sum(node.attributes for node in inner)
        self.constant: Weight | None = None
        if proto.op_type == "Constant" and not proto.domain:
            held = [a for a in proto.attribute if a.type == AttributeProto.TENSOR]
            self.constant = Weight(held[0].t) if held else None

    @cached_property
    def key(self) -> bytes:
        """What it is, byte for byte."""
        return bytes(self.proto.SerializeToString(deterministic=True))

    @property
    def type(self) -> tuple[str, str]:
        """Domain and operator."""
        return operator_of(self.proto)


class Weight:
    """An initializer."""

    def __init__(self, proto: TensorProto) -> None:
        self.proto = proto
        self.elements = math.prod(proto.dims)

    @cached_property
    def key(self) -> bytes:
        """Digest of its name, type and contents."""
        return hashlib.blake2b(self.proto.SerializeToString(deterministic=True)).digest()

    @cached_property
    def array(self) -> np.ndarray:
        """Its contents."""
        return numpy_helper.to_array(self.proto)

    @cached_property
    def grade(self) -> int:
        """How far its contents are from simple; see ``grade``."""
        if self.elements > _GRADED_ELEMENTS:
            return 4
        try:
            return grade(self.array)
        except (ValueError, TypeError):
            return 4


class Feed:
    """What one input is fed."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    @cached_property
    def key(self) -> bytes:
        """Digest of dtype, shape and contents."""
        array = np.ascontiguousarray(self.array)
        data = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
        head = f"{array.dtype}|{self.array.shape}|".encode()
        return hashlib.blake2b(head + data).digest()

    @cached_property
    def grade(self) -> int:
        """How far its contents are from simple; see ``grade``."""
        return 4 if self.array.size > _GRADED_ELEMENTS else grade(self.array)


def grade(array: np.ndarray) -> int:
    """0: zeros; 1: ones; 2: whole numbers below 1000; 3: one decimal; 4: anything else."""
    if array.dtype.kind not in "fiub":
        return 0 if array.dtype.kind in "OUS" else 4
    if not array.any():
        return 0
    if bool(np.all(array == 1)):
        return 1
    wide = array.astype(np.float64)
    if not np.isfinite(wide).all() or float(np.max(np.abs(wide))) >= 1000:
        return 4
    if bool(np.all(wide == np.round(wide))):
        return 2
    return 3 if bool(np.all(array == np.round(wide, 1).astype(array.dtype))) else 4


def renamed(node: Node, names: Mapping[str, str]) -> Node:
    """``node`` with the values in ``names`` called otherwise, also where subgraphs capture them."""
    if names.keys().isdisjoint(node.uses) and names.keys().isdisjoint(node.makes):
        return node
    proto = NodeProto()
    proto.CopyFrom(node.proto)
    _rename(proto, names)
    return Node(proto)


def _rename(proto: NodeProto, names: Mapping[str, str]) -> None:
    proto.input[:] = [names.get(i, i) for i in proto.input]
    proto.output[:] = [names.get(o, o) for o in proto.output]
    for body in bodies_of(proto):
        rename_in_body(body, names)


def rename_in_body(body: GraphProto, names: Mapping[str, str]) -> None:
    """Rename what ``body`` captures, in place; its own names hide those outside."""
    own = local_names(body)
    visible = {old: new for old, new in names.items() if old not in own}
    if not visible:
        return
    for node in body.node:
        _rename(node, visible)
    for output in body.output:
        output.name = visible.get(output.name, output.name)


# --- types ----------------------------------------------------------------------------------------


def type_of_array(array: np.ndarray) -> TypeProto | None:
    """Tensor type of an array; None for what ONNX has no element type for."""
    if array.dtype.kind in "OUS":
        kind = int(TensorProto.STRING)
    else:
        try:
            kind = int(helper.np_dtype_to_tensor_dtype(array.dtype))
        except (KeyError, ValueError):
            return None
    return helper.make_tensor_type_proto(kind, list(array.shape))


def is_cuttable(kind: TypeProto | None) -> bool:
    """Whether a value of this type may be a graph input: a tensor of known rank."""
    if kind is None or kind.WhichOneof("value") != "tensor_type":
        return False
    return bool(kind.tensor_type.elem_type != 0 and kind.tensor_type.HasField("shape"))


def same_type(a: TypeProto | None, b: TypeProto | None) -> bool:
    """Whether two types are tensors of one element type and of equal, known shape."""
    if a is None or b is None or not is_cuttable(a) or not is_cuttable(b):
        return False
    if a.tensor_type.elem_type != b.tensor_type.elem_type:
        return False
    left, right = a.tensor_type.shape.dim, b.tensor_type.shape.dim
    return len(left) == len(right) and all(map(_same_dim, left, right))


def _same_dim(a: TensorShapeProto.Dimension, b: TensorShapeProto.Dimension) -> bool:
    if a.HasField("dim_value") and b.HasField("dim_value"):
        return bool(a.dim_value == b.dim_value)
    return bool(a.dim_param and a.dim_param == b.dim_param)


def agrees(declared: TypeProto, seen: TypeProto) -> bool:
    """Whether a declared tensor type allows one that was seen."""
    if not is_cuttable(declared):
        return bool(declared.WhichOneof("value") != "tensor_type")
    a, b = declared.tensor_type, seen.tensor_type
    if a.elem_type != b.elem_type or len(a.shape.dim) != len(b.shape.dim):
        return False
    return all(
        not x.HasField("dim_value")
        or not y.HasField("dim_value")
        or bool(x.dim_value == y.dim_value)
        for x, y in zip(a.shape.dim, b.shape.dim, strict=True)
    )


def corrected(declared: TypeProto, seen: TypeProto) -> TypeProto:
    """``seen``, with the dimensions that ``declared`` leaves open left open."""
    if agrees(declared, seen):
        return declared
    if not is_cuttable(declared) or not is_cuttable(seen):
        return seen
    kind = TypeProto()
    kind.CopyFrom(seen)
    old, new = declared.tensor_type.shape.dim, kind.tensor_type.shape.dim
    if len(old) == len(new):
        for x, y in zip(old, new, strict=True):
            if not x.HasField("dim_value"):
                y.CopyFrom(x)
    return kind


def loosened(kind: TypeProto) -> TypeProto:
    """The type with all dimensions unknown."""
    loose = TypeProto()
    loose.CopyFrom(kind)
    for dim in loose.tensor_type.shape.dim:
        dim.Clear()
    return loose


def open_dims(kind: TypeProto) -> int:
    """Number of dimensions that have no value."""
    if not is_cuttable(kind):
        return 0
    return sum(not d.HasField("dim_value") for d in kind.tensor_type.shape.dim)


def has_negative(kind: TypeProto) -> bool:
    """Whether shape inference ran below zero, as for a window larger than its input."""
    return is_cuttable(kind) and any(d.dim_value < 0 for d in kind.tensor_type.shape.dim)


def _declared_elements(kind: TypeProto) -> int:
    if not is_cuttable(kind):
        return 1
    return math.prod(max(d.dim_value, 1) for d in kind.tensor_type.shape.dim)


# --- the graph ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recorded:
    """What is known of values: their types, and what they were when the reference ran."""

    types: Mapping[str, TypeProto] = field(default_factory=dict)
    values: Mapping[str, np.ndarray] = field(default_factory=dict)


def count_nodes(model: ModelProto) -> int:
    """Nodes of a model, those of subgraphs and functions included."""
    return _count([model.graph, *model.functions])


def _count(bodies: Iterable[GraphProto | FunctionProto]) -> int:
    return sum(Node(n).size for body in bodies for n in body.node)


@dataclass(frozen=True, eq=False)
class Graph:
    """A model and what it is fed.

    Attributes:
        shell: The model without its graph and functions: versions, metadata.
        inputs: What must be fed, by name, in order; initializers listed as inputs are not here.
        listed: Initializers that are also listed among the inputs, as IR 3 wants all of them.
        feeds: None where the condition does not run the model.
        recorded: Facts about values of this graph, and of graphs it was cut from.
    """

    shell: ModelProto
    nodes: tuple[Node, ...]
    inputs: Mapping[str, TypeProto]
    outputs: Mapping[str, TypeProto]
    weights: Mapping[str, Weight]
    sparse: Mapping[str, SparseTensorProto]
    listed: frozenset[str]
    value_info: Mapping[str, TypeProto]
    functions: tuple[FunctionProto, ...]
    feeds: Mapping[str, Feed] | None
    recorded: Recorded = field(default_factory=Recorded)

    @classmethod
    def of_model(cls, model: ModelProto, feeds: Mapping[str, np.ndarray] | None) -> Graph:
        """The graph of ``model``, which must not be changed afterwards."""
        shell = ModelProto()
        for descriptor, value in model.ListFields():
            if descriptor.name in ("graph", "functions"):
                continue
            if isinstance(value, (int, str)):
                setattr(shell, descriptor.name, value)
            else:
                getattr(shell, descriptor.name).extend(value)
        graph = model.graph
        shell.graph.name, shell.graph.doc_string = graph.name, graph.doc_string
        shell.graph.metadata_props.extend(graph.metadata_props)
        shell.graph.quantization_annotation.extend(graph.quantization_annotation)
        weights = {t.name: Weight(t) for t in graph.initializer}
        sparse = {t.values.name: t for t in graph.sparse_initializer}
        constant = weights.keys() | sparse.keys()
        return cls(
            shell,
            tuple(Node(n) for n in graph.node),
            {i.name: i.type for i in graph.input if i.name not in constant},
            {o.name: o.type for o in graph.output},
            weights,
            sparse,
            frozenset(i.name for i in graph.input if i.name in constant),
            {v.name: v.type for v in graph.value_info},
            tuple(model.functions),
            None if feeds is None else {n: Feed(np.asarray(a)) for n, a in feeds.items()},
        )

    @cached_property
    def model(self) -> ModelProto:
        """The whole model; do not change it."""
        model = ModelProto()
        model.CopyFrom(self.shell)
        graph = model.graph
        graph.node.extend(node.proto for node in self.nodes)
        graph.initializer.extend(weight.proto for weight in self.weights.values())
        graph.sparse_initializer.extend(self.sparse.values())
        graph.input.extend(_value(name, kind) for name, kind in self.inputs.items())
        graph.input.extend(self._listed_inputs())
        graph.output.extend(_value(name, kind) for name, kind in self.outputs.items())
        graph.value_info.extend(_value(name, kind) for name, kind in self.value_info.items())
        model.functions.extend(self.functions)
        return model

    def _listed_inputs(self) -> Iterator[ValueInfoProto]:
        for name, weight in self.weights.items():
            if name in self.listed or self.shell.ir_version < 4:
                yield helper.make_tensor_value_info(
                    name, weight.proto.data_type, list(weight.proto.dims)
                )
        for name, tensor in self.sparse.items():
            if name in self.listed:
                kind = tensor.values.data_type
                yield helper.make_sparse_tensor_value_info(name, kind, list(tensor.dims))

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """What is fed."""
        return {name: feed.array for name, feed in (self.feeds or {}).items()}

    @cached_property
    def producer(self) -> dict[str, int]:
        """Index of the node that makes a value."""
        return {name: i for i, node in enumerate(self.nodes) for name in node.makes}

    @cached_property
    def consumers(self) -> dict[str, list[int]]:
        """Indexes of the nodes that read a value."""
        found: dict[str, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for name in node.uses:
                found.setdefault(name, []).append(i)
        return found

    @cached_property
    def constants(self) -> frozenset[str]:
        """Values that are the same for all inputs: weights, and what is computed from them."""
        known = {*self.weights, *self.sparse}
        for node in self.nodes:
            if node.type[1] not in _RANDOM and all(name in known for name in node.uses):
                known.update(node.makes)
        return frozenset(known)

    def type_of(self, name: str) -> TypeProto | None:
        """Type of a value, as declared if that is possible, else as recorded."""
        seen = self.recorded.types.get(name)
        if name in self.recorded.values:
            seen = type_of_array(self.recorded.values[name]) or seen
        for declared in (
            self.inputs.get(name),
            self.outputs.get(name),
            self.value_info.get(name),
            self.recorded.types.get(name),
        ):
            if declared is None or (not is_cuttable(declared) and seen is not None):
                continue
            if seen is None or agrees(declared, seen):
                return declared
        if name in self.weights:
            proto = self.weights[name].proto
            return helper.make_tensor_type_proto(proto.data_type, list(proto.dims))
        return seen

    @cached_property
    def size(self) -> Size:
        """What is compared, in order, when a candidate claims to be smaller.

        Nodes (of subgraphs and functions too), outputs, elements of initializers and Constants,
        elements of inputs, inputs and initializers, attributes, names read, grades of contents,
        open dimensions, bytes of everything else (names, text, declared types of inner values).
        """
        nodes = sum(node.size for node in self.nodes) + _count(self.functions)
        weights = sum(weight.elements for weight in self.weights.values())
        weights += sum(math.prod(t.values.dims) for t in self.sparse.values())
        held = [node.constant for node in self.nodes if node.constant is not None]
        weights += sum(constant.elements for constant in held)
        kinds = [*self.inputs.values(), *self.outputs.values()]
        feeds = self.feeds
        fed = sum(
            feeds[name].array.size if feeds and name in feeds else _declared_elements(kind)
            for name, kind in self.inputs.items()
        )
        grades = sum(weight.grade for weight in (*self.weights.values(), *held))
        return (
            nodes,
            len(self.outputs),
            weights,
            fed,
            len(self.inputs) + len(self.weights) + len(self.sparse),
            sum(node.attributes for node in self.nodes),
            sum(len(node.proto.input) for node in self.nodes),
            grades + sum(feed.grade for feed in (feeds or {}).values()),
            sum(map(open_dims, kinds)),
            self._text_bytes,
        )

    @cached_property
    def _text_bytes(self) -> int:
        names = sum(len(name) for name in (*self.inputs, *self.outputs, *self.weights))
        inner = sum(len(n) + k.ByteSize() for n, k in self.value_info.items())
        nodes = sum(node.proto.ByteSize() for node in self.nodes)
        functions = sum(f.ByteSize() for f in self.functions)
        return int(self.shell.ByteSize() + names + inner + nodes + functions + len(self.listed))

    @cached_property
    def digest(self) -> bytes:
        """Digest of the whole model and of what it is fed."""
        content = hashlib.blake2b(self.shell.SerializeToString(deterministic=True))
        for node in self.nodes:
            content.update(hashlib.blake2b(node.key).digest())
        for kinds in (self.inputs, self.outputs, self.value_info):
            for name, kind in kinds.items():
                content.update(f"|{name}|".encode() + kind.SerializeToString(deterministic=True))
            content.update(b"||")
        for weight in self.weights.values():
            content.update(weight.key)
        for tensor in self.sparse.values():
            content.update(tensor.SerializeToString(deterministic=True))
        for function in self.functions:
            content.update(function.SerializeToString(deterministic=True))
        content.update(repr(sorted(self.listed)).encode())
        for name, feed in sorted((self.feeds or {}).items()):
            content.update(f"|{name}|".encode() + feed.key)
        return content.digest()

    def with_(self, **changes: Any) -> Graph:
        """A copy with some parts replaced."""
        return replace(self, **changes)

    def fresh_name(self, stem: str) -> str:
        """A name that nothing in this graph has."""
        taken = self.names
        name, count = stem, 0
        while name in taken:
            name, count = f"{stem}_{count}", count + 1
        return name

    @cached_property
    def names(self) -> set[str]:
        """All names of values, those in subgraphs included."""
        names = {*self.inputs, *self.outputs, *self.weights, *self.sparse}
        return names | all_names(node.proto for node in self.nodes)


def with_constant(node: Node, tensor: TensorProto) -> Node:
    """The Constant ``node`` with another tensor in it."""
    proto = NodeProto()
    proto.CopyFrom(node.proto)
    for attribute in proto.attribute:
        if attribute.type == AttributeProto.TENSOR:
            attribute.t.CopyFrom(tensor)
    return Node(proto)


def _value(name: str, kind: TypeProto) -> ValueInfoProto:
    value = ValueInfoProto(name=name)
    if kind.WhichOneof("value") is not None:
        value.type.CopyFrom(kind)
    return value


# --- cutting --------------------------------------------------------------------------------------


def closed(graph: Graph, kept: Iterable[int]) -> list[int]:
    """``kept`` and the nodes without which a value would be cut that cannot be an input."""
    chosen = set(kept)
    pending = list(chosen)
    while pending:
        for name in graph.nodes[pending.pop()].uses:
            maker = graph.producer.get(name)
            if maker is None or maker in chosen:
                continue
            if not _can_be_fed(graph, name):
                chosen.add(maker)
                pending.append(maker)
    return sorted(chosen)


def _can_be_fed(graph: Graph, name: str) -> bool:
    if not is_cuttable(graph.type_of(name)):
        return False
    return graph.feeds is None or name in graph.recorded.values


def cut(
    graph: Graph,
    kept: Iterable[int],
    *,
    frontier: bool = False,
    fixed: bool | None = None,
    loose: bool = False,
) -> Graph | None:
    """G → G[kept]: these nodes alone, what they read fed, what nobody reads any more an output.

    Args:
        graph: Where to cut.
        kept: Indexes of nodes; more are kept where a value cannot be fed (a sequence, say).
        frontier: Values that a removed node read become outputs even if a kept one reads them.
        fixed: Whether a cut value becomes an initializer; None: if it is the same for all inputs.
        loose: Leave the dimensions of new inputs and outputs open.

    Returns:
        None if nothing would be left, or an output would have no known type.
    """
    indexes = closed(graph, kept)
    return restricted(
        graph, [graph.nodes[i] for i in indexes], frontier=frontier, fixed=fixed, loose=loose
    )


def restricted(
    graph: Graph,
    nodes: Sequence[Node],
    *,
    frontier: bool = False,
    fixed: bool | None = None,
    loose: bool = False,
) -> Graph | None:
    """``graph`` with ``nodes`` in place of its own; see ``cut``."""
    if not nodes:
        return None
    made = {name for node in nodes for name in node.makes}
    read = dict.fromkeys(name for node in nodes for name in node.uses)
    idle = {n for n in (*graph.inputs, *graph.weights, *graph.sparse) if n not in graph.consumers}
    # An input that nobody read before may matter (or is an output itself); it goes in its own turn.
    stays = read.keys() | idle
    inputs = {n: kind for n, kind in graph.inputs.items() if n in stays}
    weights = {n: weight for n, weight in graph.weights.items() if n in stays}
    feeds = None
    if graph.feeds is not None:
        feeds = {n: feed for n, feed in graph.feeds.items() if n in inputs}
    for name in read:
        if name in made or name in inputs or name in weights or name in graph.sparse:
            continue
        kind, value = graph.type_of(name), graph.recorded.values.get(name)
        if kind is None or not is_cuttable(kind) or (value is None and feeds is not None):
            return None
        constant = name in graph.constants if fixed is None else fixed
        if constant and value is not None:
            weights[name] = Weight(numpy_helper.from_array(np.array(value), name))
            continue
        inputs[name] = loosened(kind) if loose else kind
        if feeds is not None and value is not None:
            feeds[name] = Feed(value)
    outputs = _outputs(graph, nodes, made, read.keys(), frontier=frontier, loose=loose)
    if not outputs:
        return None
    return graph.with_(
        nodes=tuple(nodes),
        inputs=inputs,
        outputs=outputs,
        weights=weights,
        sparse={n: t for n, t in graph.sparse.items() if n in stays},
        listed=graph.listed & (weights.keys() | graph.sparse.keys()),
        value_info={n: k for n, k in graph.value_info.items() if n in made and n not in outputs},
        functions=_called(graph, nodes),
        feeds=feeds,
    )


def _outputs(
    graph: Graph,
    nodes: Sequence[Node],
    made: set[str],
    read: Iterable[str],
    *,
    frontier: bool,
    loose: bool,
) -> dict[str, TypeProto]:
    """Outputs that remain, and values that lost their readers."""
    counts: dict[str, int] = {}
    for node in nodes:
        for name in node.uses:
            counts[name] = counts.get(name, 0) + 1
    outputs: dict[str, TypeProto] = {n: k for n, k in graph.outputs.items() if n in made}
    for name in (name for node in nodes for name in node.makes):
        before = len(graph.consumers.get(name, ()))
        lost = before > counts.get(name, 0) if frontier else before and not counts.get(name, 0)
        kind = graph.type_of(name)
        if name not in outputs and lost and kind is not None and _can_be_output(kind):
            outputs[name] = loosened(kind) if loose and is_cuttable(kind) else kind
    if not outputs:
        for name in reversed([name for node in nodes for name in node.makes]):
            kind = graph.type_of(name)
            if kind is not None and _can_be_output(kind):
                return {name: kind}
    return outputs


def _can_be_output(kind: TypeProto) -> bool:
    return is_cuttable(kind) or kind.WhichOneof("value") in ("sequence_type", "optional_type")


def _called(graph: Graph, nodes: Sequence[Node]) -> tuple[FunctionProto, ...]:
    """Functions without those that only removed nodes called."""
    if not graph.functions:
        return ()
    before = reached(graph.functions, (node.proto for node in graph.nodes))
    after = reached(graph.functions, (node.proto for node in nodes))
    return tuple(
        f
        for f in graph.functions
        if (f.domain, f.name) in after or (f.domain, f.name) not in before
    )


def reached(functions: Sequence[FunctionProto], nodes: Iterable[NodeProto]) -> set[tuple[str, str]]:
    """Functions that ``nodes`` call, directly or not."""
    known = {(f.domain, f.name): f for f in functions}
    found: set[tuple[str, str]] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        name = (node.domain, node.op_type)
        if name in known and name not in found:
            found.add(name)
            pending.extend(known[name].node)
        for body in bodies_of(node):
            pending.extend(body.node)
    return found


def substituted(graph: Graph, names: Mapping[str, str]) -> Graph | None:
    """G → G[v := w] for each v, w of ``names``, without the nodes that only v needed.

    The caller sees to it that w is of v's type and does not depend on v. Not where v is an output.
    """
    if any(name in graph.outputs for name in names):
        return None
    # Whoever makes v keeps doing so, until it is found dead.
    nodes = [n if names.keys() & n.makes else renamed(n, names) for n in graph.nodes]
    changed = graph.with_(nodes=tuple(nodes))
    return without_dead(graph, changed, names)


def without_dead(before: Graph, after: Graph, lost: Iterable[str]) -> Graph | None:
    """``after`` without the nodes that only the values ``lost`` kept alive."""
    pending = [before.producer[n] for n in lost if n in before.producer]
    dead: set[int] = set()
    readers = {n: set(c) for n, c in after.consumers.items()}
    while pending:
        index = pending.pop()
        node = after.nodes[index]
        if index in dead or any(n in after.outputs or readers.get(n) for n in node.makes):
            continue
        dead.add(index)
        for name in node.uses:
            readers.get(name, set()).discard(index)
            if name in after.producer:
                pending.append(after.producer[name])
    kept = [node for i, node in enumerate(after.nodes) if i not in dead]
    result = restricted(after, kept)
    if result is None:
        return None
    # What was read by a dead node and by nothing else is no new output: it is what we came for.
    outputs = {n: k for n, k in result.outputs.items() if n in after.outputs}
    return result.with_(outputs=outputs) if outputs else None


def parsed_types(value_info: Iterable[ValueInfoProto]) -> dict[str, TypeProto]:
    """Types by name."""
    return {v.name: v.type for v in value_info}


def load(data: bytes) -> ModelProto:
    """Decode a serialized model."""
    return onnx.load_from_string(data)
