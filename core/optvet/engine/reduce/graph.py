"""A graph that is cheap to cut: immutable, with weights shared by all graphs made from it.

A reduction makes hundreds of candidates from one model, most of which are never serialized. So a
``Graph`` refers to the messages of the model it came from, and a ``ModelProto`` is built only for a
candidate that is tested.

The type of a value, and its content in a run of the reference, are *recorded* beside the graph.
They make cuts well-typed: a value whose producer was removed becomes an input of the recorded type,
fed with the recorded content. No native code is called here.

A message that is referred to is never changed: a changed node is a copy.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from optvet.graph.cost import count_nodes
from optvet.graph.plain import odd_parts
from optvet.graph.types import agrees, declared_elements, is_cuttable, open_dims, type_of_array
from optvet.graph.walk import (
    RANDOM_OPERATORS,
    all_names,
    bodies_of,
    captured_names,
    local_names,
    operator_of,
)

Size = tuple[int, ...]
"""The measure that a reduction makes smaller, compared in order; see ``Graph.size``."""

_GRADED_ELEMENTS = 1 << 16


# --- parts ----------------------------------------------------------------------------------------


class Node:
    """One node with derived facts that are often needed.

    Attributes:
        proto: The message; not to be changed.
        uses: Names it reads, including those that its subgraphs capture; each once, in order.
        makes: Names of its outputs, without omitted ones.
        size: Number of nodes: itself and all nodes of its subgraphs.
        attributes: Number of attributes of these nodes.
        constant: The tensor of a Constant, if it has one.
    """

    def __init__(self, proto: NodeProto) -> None:
        self.proto = proto
        bodies = list(bodies_of(proto))
        names = [*proto.input, *(name for body in bodies for name in captured_names(body))]
        self.uses = tuple(dict.fromkeys(name for name in names if name))
        self.makes = tuple(name for name in proto.output if name)
        inner = [Node(node) for body in bodies for node in body.node]
        self.size: int = 1 + sum(node.size for node in inner)
        self.attributes: int = len(proto.attribute) + sum(node.attributes for node in inner)
        self.constant: Weight | None = None
        if proto.op_type == "Constant" and not proto.domain:
            tensors = [a for a in proto.attribute if a.type == AttributeProto.TENSOR]
            self.constant = Weight(tensors[0].t) if tensors else None

    @cached_property
    def key(self) -> bytes:
        """The serialized node."""
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
        """How complicated its contents are; see ``grade``."""
        if self.elements > _GRADED_ELEMENTS:
            return 4
        try:
            return grade(self.array)
        except (ValueError, TypeError):
            return 4


class Feed:
    """The array for one input."""

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
        """How complicated its contents are; see ``grade``."""
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


def rename_values(node: Node, names: Mapping[str, str]) -> Node:
    """``node`` with values renamed by ``names``, also where subgraphs capture them."""
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
    """Rename captured values of ``body``, in place; its own names hide those outside."""
    own = local_names(body)
    visible = {old: new for old, new in names.items() if old not in own}
    if not visible:
        return
    for node in body.node:
        _rename(node, visible)
    for output in body.output:
        output.name = visible.get(output.name, output.name)


# --- the graph ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recorded:
    """Types of values, and their contents in a run of the reference."""

    types: Mapping[str, TypeProto] = field(default_factory=dict)
    values: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Graph:
    """A model and its inputs.

    Attributes:
        shell: The model without its graph and functions: versions, metadata.
        inputs: Inputs that must be fed, by name, in order, without initializers.
        listed: Initializers that are also listed among the inputs, as IR 3 requires for all.
        feeds: Arrays for the inputs; None if the condition does not run the model.
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
        graph.input.extend(self._list_inputs())
        graph.output.extend(_value(name, kind) for name, kind in self.outputs.items())
        graph.value_info.extend(_value(name, kind) for name, kind in self.value_info.items())
        model.functions.extend(self.functions)
        return model

    def _list_inputs(self) -> Iterator[ValueInfoProto]:
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
        """The arrays for the inputs, by name."""
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
        """Values that do not depend on inputs: weights, and values computed from them."""
        known = {*self.weights, *self.sparse}
        for node in self.nodes:
            if node.type[1] not in RANDOM_OPERATORS and all(name in known for name in node.uses):
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
        """The measure of size, compared in order.

        Nodes (of subgraphs and functions too), outputs, elements of initializers and Constants,
        elements of inputs, inputs and initializers, attributes, names read, grades of contents,
        odd parts, open dimensions, bytes of everything else (names, text, declared types of inner
        values).
        """
        nodes = sum(node.size for node in self.nodes) + count_nodes(self.functions)
        weights = sum(weight.elements for weight in self.weights.values())
        weights += sum(math.prod(t.values.dims) for t in self.sparse.values())
        constants = [node.constant for node in self.nodes if node.constant is not None]
        weights += sum(constant.elements for constant in constants)
        kinds = [*self.inputs.values(), *self.outputs.values()]
        feeds = self.feeds
        fed = sum(
            feeds[name].array.size if feeds and name in feeds else declared_elements(kind)
            for name, kind in self.inputs.items()
        )
        grades = sum(weight.grade for weight in (*self.weights.values(), *constants))
        return (
            nodes,
            len(self.outputs),
            weights,
            fed,
            len(self.inputs) + len(self.weights) + len(self.sparse),
            sum(node.attributes for node in self.nodes),
            sum(len(node.proto.input) for node in self.nodes),
            grades + sum(feed.grade for feed in (feeds or {}).values()),
            self._odd_parts,
            sum(map(open_dims, kinds)),
            self._text_bytes,
        )

    @cached_property
    def _odd_parts(self) -> int:
        names = [*self.inputs, *self.outputs, *self.weights, *self.sparse]
        names += [name for node in self.nodes for name in node.makes if name not in self.outputs]
        return odd_parts(self.shell, (node.proto for node in self.nodes), self.functions, names)

    @cached_property
    def _text_bytes(self) -> int:
        names = sum(len(name) for name in (*self.inputs, *self.outputs, *self.weights))
        inner = sum(len(n) + k.ByteSize() for n, k in self.value_info.items())
        nodes = sum(node.proto.ByteSize() for node in self.nodes)
        functions = sum(f.ByteSize() for f in self.functions)
        return int(self.shell.ByteSize() + names + inner + nodes + functions + len(self.listed))

    @cached_property
    def digest(self) -> bytes:
        """Digest of the whole model and of its inputs."""
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
        """A name that is not used in this graph."""
        taken = self.names
        name, count = stem, 0
        while name in taken:
            name, count = f"{stem}_{count}", count + 1
        return name

    @cached_property
    def names(self) -> set[str]:
        """All names of values, including those in subgraphs."""
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
