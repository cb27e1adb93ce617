"""Digests of what a model computes, independent of the names of its parts."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from onnx import GraphProto, ModelProto, TensorProto, numpy_helper

from optvet.graph.outline import Message, content_of, fetch, is_outside
from optvet.graph.walk import bodies_of, graphs
from optvet.graph.weights import tensors_of_nodes


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


def canonical_digest(model: ModelProto, source: Path | Message | None = None) -> str:
    """sha256 of everything that affects a model's results: equal digests mean equal results.

    Node names, doc strings, inferred shapes, the producer and the order of initializers are
    ignored; values are renamed by position. The names of graph inputs and outputs count, in a part
    of the digest that ``computation_of`` leaves out. ``model`` is changed in place. If it is an
    outline, ``source`` is where the data of its large tensors lies: the folder of its files, or the
    message.
    """
    model.doc_string = model.producer_name = model.producer_version = model.domain = ""
    model.graph.name = "g"
    del model.metadata_props[:], model.training_info[:]
    if source is not None:
        for tensor in tensors_of_nodes(model):
            if _is_left_out(tensor, source):
                fetch(tensor, source)
    tensors, graph = hashlib.sha256(), model.graph
    interface = _number_interface(graph)
    _canonicalize(graph, {}, interface, tensors, source)
    names = hashlib.sha256(repr(list(interface)).encode()).hexdigest()
    for value in (*graph.input, *graph.output):
        value.name = interface[value.name]
    computation = hashlib.sha256(model.SerializeToString(deterministic=True) + tensors.digest())
    return f"{computation.hexdigest()}.{names[:16]}"


def computation_of(canonical: str) -> str:
    """What a canonical digest says of the results by position, whatever the interface is named."""
    return canonical.partition(".")[0]


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


def _canonicalize(
    graph: GraphProto,
    outer: Mapping[str, str],
    interface: Mapping[str, str],
    tensors: hashlib._Hash,
    source: Path | Message | None,
) -> None:
    del graph.value_info[:], graph.quantization_annotation[:], graph.metadata_props[:]
    graph.doc_string = ""
    names = {**outer, **interface}
    depth = len(outer)
    weight, value = f"\0w{depth}_", f"\0v{depth}_"
    initializers = sorted(graph.initializer, key=lambda t: t.name)
    used = Counter(i for g in graphs(graph) for n in g.node for i in n.input)
    order: dict[str, None] = {}
    for node in graph.node:
        order.update(dict.fromkeys(node.input))
    for inner in graphs(graph):
        for node in inner.node:
            order.update(dict.fromkeys(node.input))
    rank = {name: i for i, name in enumerate(order)}
    initializers = [t for t in initializers if used[t.name] or t.name in interface]
    initializers.sort(key=lambda t: rank.get(t.name, len(rank)))
    for i, tensor in enumerate(initializers):
        names.setdefault(tensor.name, f"{weight}{i}")
        tensor.doc_string = ""
        tensors.update(names[tensor.name].encode())
        if content := _content_digest(tensor, source):
            tensors.update(f"{(tensor.data_type, *tensor.dims)}{content}".encode())
        else:
            small = TensorProto()
            small.CopyFrom(tensor)
            small.name = ""
            tensors.update(small.SerializeToString(deterministic=True))
    del graph.initializer[:]
    counter = 0
    for node in graph.node:
        node.name = node.doc_string = ""
        del node.metadata_props[:]
        for output in node.output:
            if output and output not in names:
                names[output] = f"{value}{counter}"
                counter += 1
    for node in graph.node:
        for attribute in node.attribute:
            attribute.doc_string = ""
        for body in bodies_of(node):
            own = {v.name: v.name for v in (*body.input, *body.output)}
            _canonicalize(body, names, own, tensors, source)
        node.input[:] = [names.get(i, i) for i in node.input]
        node.output[:] = [names.get(o, o) for o in node.output]
        attributes = sorted(node.attribute, key=lambda a: a.name)
        del node.attribute[:]
        node.attribute.extend(attributes)
