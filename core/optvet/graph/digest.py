"""Digests of what programs read of a model: when two models are equal for one of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from optvet.graph.outline import Message, content_of, fetch, is_outside
from optvet.graph.walk import bodies_of, graphs
from optvet.graph.weights import tensors_of_nodes
from optvet.spec.types import ModelPart


def tensor_digest(tensor: TensorProto) -> str:
    """Equal for tensors of equal type, shape and content, however they are stored."""
    if tensor.data_type == TensorProto.STRING:
        content = repr(list(tensor.string_data)).encode()
    elif tensor.HasField("raw_data"):
        content = tensor.raw_data
    elif tensor.data_location == TensorProto.EXTERNAL:
        content = tensor.SerializeToString(deterministic=True)
    else:
        content = numpy_helper.to_array(tensor).tobytes()
    about = f"{tensor.data_type}{list(tensor.dims)}".encode()
    return hashlib.sha256(about + content).hexdigest()


_LARGE_BYTES = 1 << 12


@dataclass(frozen=True)
class Contents:
    """Digests of a model, by what a program may read.

    Attributes:
        computation: Of what every program reads: operators in their order, the constants that they
            use, and types of inputs and outputs. Values are numbered by position.
        parts: Of each further part that the model has.
    """

    computation: str = ""
    parts: Mapping[ModelPart, str] = field(default_factory=dict)

    def read_by(self, reads: Collection[ModelPart]) -> str:
        """Equal for models that are equal in all that a program reads; empty if nothing is known.

        Args:
            reads: The parts that the program reads, beside the computation.
        """
        if not self.computation:
            return ""
        read = sorted(item for item in self.parts.items() if item[0] in reads)
        return hashlib.sha256(repr((self.computation, read)).encode()).hexdigest()


UNKNOWN = Contents()


def contents_of(
    model: ModelProto, source: Path | Message | None = None, layout: str = ""
) -> Contents:
    """What programs read of ``model``, which is changed in place.

    Args:
        model: The model. If it is an outline, the data of its large tensors lies in ``source``.
        source: The folder of its files, or the message.
        layout: Which tensors lie in other files, and where.
    """
    parts = _Parts()
    if source is not None:
        for tensor in tensors_of_nodes(model):
            if _is_left_out(tensor, source):
                fetch(tensor, source)
    parts.add("layout", layout)
    _take_metadata(model, parts)
    graph, tensors = model.graph, hashlib.sha256()
    interface = _number_interface(graph)
    _canonicalize(graph, {}, interface, _Taken(tensors, parts, source))
    parts.add("names", *interface)
    for value in (*graph.input, *graph.output):
        value.name = interface[value.name]
    content = model.SerializeToString(deterministic=True)
    computation = hashlib.sha256(content + tensors.digest())
    return Contents(computation.hexdigest(), parts.digests())


class _Parts:
    """Digests of the parts of a model, which are read graph by graph."""

    def __init__(self) -> None:
        self._hashes: dict[ModelPart, hashlib._Hash] = {}
        self._present: set[ModelPart] = set()

    def add(self, part: ModelPart, *items: object) -> None:
        """Count ``items`` to ``part``; what is empty counts by its place alone."""
        self._hashes.setdefault(part, hashlib.sha256()).update(repr(items).encode())
        if any(items):
            self._present.add(part)

    def digests(self) -> dict[ModelPart, str]:
        """Of the parts that the model has."""
        return {part: self._hashes[part].hexdigest() for part in sorted(self._present)}


def _take_metadata(model: ModelProto, parts: _Parts) -> None:
    """Move what describes the model from it to ``parts``."""
    about = ("doc_string", "producer_name", "producer_version", "domain", "model_version")
    parts.add("metadata", *(getattr(model, name) for name in about))
    several = (*model.metadata_props, *model.training_info)
    parts.add("metadata", *(item.SerializeToString(deterministic=True) for item in several))
    for name in (*about, "metadata_props", "training_info"):
        model.ClearField(name)


def _number_interface(graph: GraphProto) -> dict[str, str]:
    """The names of inputs and outputs by position."""
    # The null byte keeps these apart from names in the model: an input may be called "i0".
    numbered = {f"\0i{i}": v.name for i, v in enumerate(graph.input)}
    numbered |= {f"\0o{i}": v.name for i, v in enumerate(graph.output)}
    # A value that is several of them has the name of the first.
    return {name: number for number, name in reversed(numbered.items())}


def _is_left_out(tensor: TensorProto, source: Path | Message) -> bool:
    return source.holds(tensor) if isinstance(source, Message) else is_outside(tensor)


def _content_digest(tensor: TensorProto, source: Path | Message | None) -> str:
    """sha256 of a large tensor's data, wherever it lies; empty for a small one."""
    if source is not None and _is_left_out(tensor, source):
        if isinstance(source, Message):
            return source.digest_of(tensor)
        digest = hashlib.sha256()
        for piece in content_of(tensor, source):
            digest.update(piece)
        return digest.hexdigest()
    raw = tensor.raw_data  # a copy
    return hashlib.sha256(raw).hexdigest() if len(raw) > _LARGE_BYTES else ""


def _whole_content(tensor: TensorProto, source: Path | Message | None) -> bytes:
    """Equal for tensors of equal type, shape and data, whatever they are called."""
    if content := _content_digest(tensor, source):
        return f"{(tensor.data_type, *tensor.dims)}{content}".encode()
    small = TensorProto()
    small.CopyFrom(tensor)
    small.name = small.doc_string = ""
    return bytes(small.SerializeToString(deterministic=True))


@dataclass(frozen=True)
class _Taken:
    """What is taken out of a model: the tensors that it uses, and its parts."""

    tensors: hashlib._Hash
    parts: _Parts
    source: Path | Message | None


def _canonicalize(
    graph: GraphProto, outer: Mapping[str, str], interface: Mapping[str, str], taken: _Taken
) -> None:
    """Leave only the computation in ``graph``, with its values numbered."""
    names = {**outer, **interface}
    depth, parts = len(outer), taken.parts
    listed = [t.name for t in graph.initializer]
    for i, tensor in enumerate(_take_initializers(graph, interface, taken)):
        names.setdefault(tensor.name, f"\0w{depth}_{i}")
        taken.tensors.update(names[tensor.name].encode())
        taken.tensors.update(_whole_content(tensor, taken.source))
    parts.add("order", *(names[name] for name in listed if name in names))
    counter = 0
    for node in graph.node:
        for output in node.output:
            if output and output not in names:
                names[output] = f"\0v{depth}_{counter}"
                counter += 1
    _take_types(graph, names, parts)
    _take_descriptions(graph, parts)
    for node in graph.node:
        for body in bodies_of(node):
            own = {v.name: v.name for v in (*body.input, *body.output)}
            _canonicalize(body, names, own, taken)
        parts.add("names", *node.input, *node.output)
        node.input[:] = [names.get(i, i) for i in node.input]
        node.output[:] = [names.get(o, o) for o in node.output]
        attributes = sorted(node.attribute, key=lambda a: a.name)
        del node.attribute[:]
        node.attribute.extend(attributes)


def _take_initializers(
    graph: GraphProto, interface: Mapping[str, str], taken: _Taken
) -> list[TensorProto]:
    """Those that the computation uses, in the order of their use; ``graph`` keeps none."""
    parts = taken.parts
    used = Counter(i for g in graphs(graph) for n in g.node for i in n.input)
    order: dict[str, None] = {}
    for node in graph.node:
        order.update(dict.fromkeys(node.input))
    for inner in graphs(graph):
        for node in inner.node:
            order.update(dict.fromkeys(node.input))
    rank = {name: i for i, name in enumerate(order)}
    every = sorted(graph.initializer, key=lambda t: t.name)
    every.sort(key=lambda t: rank.get(t.name, len(rank)))
    kept = [t for t in every if used[t.name] or t.name in interface]
    unused = [t for t in every if not (used[t.name] or t.name in interface)]
    parts.add("names", *(t.name for t in kept))
    parts.add("unused", *((t.name, _whole_content(t, taken.source)) for t in unused))
    parts.add("metadata", *_descriptions(every))
    del graph.initializer[:]
    return kept


def _take_types(graph: GraphProto, names: Mapping[str, str], parts: _Parts) -> None:
    """Move what ``graph`` says of values inside of it to ``parts``."""
    values = sorted(graph.value_info, key=lambda v: v.name)
    kinds = [v.type.SerializeToString(deterministic=True) for v in values]
    named = [names.get(v.name, v.name) for v in values]
    parts.add("inner types", *sorted(zip(named, kinds, strict=True)))
    parts.add("order", *(names.get(v.name, v.name) for v in graph.value_info))
    notes = graph.quantization_annotation
    parts.add("annotations", *(n.SerializeToString(deterministic=True) for n in notes))
    parts.add("metadata", *_descriptions(values))
    del graph.value_info[:], graph.quantization_annotation[:]


def _take_descriptions(graph: GraphProto, parts: _Parts) -> None:
    """Move names and descriptions of ``graph`` and its nodes from them to ``parts``."""
    parts.add("names", graph.name)
    parts.add("node names", *(n.name for n in graph.node))
    parts.add("metadata", *_descriptions((graph, *graph.node)))
    parts.add("metadata", *(a.doc_string for n in graph.node for a in n.attribute))
    parts.add("order", *(tuple(a.name for a in n.attribute) for n in graph.node))
    graph.name, graph.doc_string = "g", ""
    del graph.metadata_props[:]
    for node in graph.node:
        node.name = node.doc_string = ""
        del node.metadata_props[:]
        for attribute in node.attribute:
            attribute.doc_string = ""


def _descriptions(
    items: Iterable[GraphProto | NodeProto | TensorProto | ValueInfoProto],
) -> list[object]:
    """Text and properties of those that have any, with name and number."""
    return [
        (i, item.name, item.doc_string, [(p.key, p.value) for p in item.metadata_props])
        for i, item in enumerate(items)
        if item.doc_string or item.metadata_props
    ]
