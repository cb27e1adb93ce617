"""Reading models of gigabytes without loading their weights.

An *outline* is a model whose large tensors refer to their position in a file, as ONNX's external
data does, even if that file is the model itself::

    model.onnx  ──►  outline: initializer "w" at model.onnx, offset 1,024, length 67,108,864

Functions that only read the graph take an outline like any other model; the content of a large
tensor is read from its file. A model in memory has an outline too, so that its weights are neither
parsed nor copied: then the content of a large tensor is read from the message.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # ships no types
from onnx import ModelProto, TensorProto

from optvet.graph.types import element_bits
from optvet.graph.weights import tensors_of
from optvet.spec.files import file_sha256
from optvet.spec.foreign import open_file

_LARGE_BYTES = 1 << 16
"""Tensors up to this size stay in the outline, since shapes and scales are often read."""
_READ_BYTES = 1 << 22
_ALIGNMENT = 64
_MAX_DEPTH = 400

# Numbers of the fields that contain tensors, as in onnx.proto.
_WITHIN: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph"},
    "tensor": {},
}
_RAW_DATA = 9


def outline_of(path: Path) -> ModelProto:
    """The outline of the model in the file ``path``.

    Raises:
        DecodeError: It is not a protobuf message of a model.
        OSError: It cannot be read.
    """
    model = ModelProto()
    with open_file(path) as file:
        if not os.fstat(file.fileno()).st_size:
            raise DecodeError(f"{path} is empty")
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            parts = list(_outline(mapped, 0, len(mapped), "model", path.name, 0))
    model.ParseFromString(b"".join(parts))
    return model


@dataclass(frozen=True)
class Message:
    """A serialized model in memory, to which its outline refers.

    Attributes:
        data: The message.
        location: Where tensors of the outline say that their data is, if it is in the message.
            It is drawn anew for each outline, so a tensor that refers to a file cannot name it.
        skeleton: sha256 of the message without the contents of large tensors.
    """

    data: bytes | bytearray | mmap.mmap
    location: str
    skeleton: str
    _digests: dict[tuple[int, int], str] = field(default_factory=dict)

    def holds(self, tensor: TensorProto) -> bool:
        """Whether the data of ``tensor`` was left out of the outline."""
        return is_outside(tensor) and location_of(tensor) == self.location

    def piece(self, tensor: TensorProto) -> memoryview:
        """The data of a tensor that the message holds."""
        _, offset, length = place_of(tensor, Path())
        return memoryview(self.data)[offset : offset + length]

    def digest_of(self, tensor: TensorProto) -> str:
        """sha256 of the data of a tensor that the message holds; computed once."""
        _, offset, length = place_of(tensor, Path())
        if (offset, length) not in self._digests:
            self._digests[offset, length] = hashlib.sha256(self.piece(tensor)).hexdigest()
        return self._digests[offset, length]


def outline_in(data: bytes | mmap.mmap) -> tuple[ModelProto, Message]:
    """The outline of a serialized model, and what its large tensors refer to.

    Raises:
        DecodeError: It is not a protobuf message of a model, or has a large tensor that names a
            file too.
    """
    location = secrets.token_hex(16)
    whole = b"".join(_outline(data, 0, len(data), "model", location, 0))
    model = ModelProto()
    model.ParseFromString(whole)
    nameless = whole.replace(location.encode(), bytes(len(location)))
    message = Message(data, location, hashlib.sha256(nameless).hexdigest())
    own = len(_reference("", 0, 0).external_data)
    if any(message.holds(t) and len(t.external_data) > own for t in tensors_of(model)):
        raise DecodeError("a tensor has data and names a file: the outline does not tell which")
    return model, message


def message_digest(outline: ModelProto, message: Message) -> str:
    """Equal for equal messages alone; large tensors are hashed one by one, each once."""
    digests = [message.digest_of(t) for t in tensors_of(outline) if message.holds(t)]
    return hashlib.sha256("|".join([message.skeleton, *digests]).encode()).hexdigest()


def _outline(
    data: bytes | mmap.mmap, start: int, end: int, kind: str, name: str, depth: int
) -> Iterator[bytes]:
    """The bytes ``start`` to ``end``, a message, without the contents of large tensors."""
    if depth > _MAX_DEPTH:
        raise DecodeError("graphs are nested too deeply")
    at = kept = start
    reference = b""
    while at < end:
        begin = at
        tag, at = _varint(data, at, end)
        field, wire = tag >> 3, tag & 7
        if wire != 2:
            at = _skip(data, at, end, wire)
            continue
        length, at = _varint(data, at, end)
        stop = at + length
        if stop > end:
            raise DecodeError(f"a field ends at {stop}, beyond {end}")
        inner = _WITHIN[kind].get(field)
        if length > _LARGE_BYTES and (inner or (kind == "tensor" and field == _RAW_DATA)):
            yield data[kept:begin]
            kept = stop
            if inner:
                body = b"".join(_outline(data, at, stop, inner, name, depth + 1))
                yield _as_varint(tag) + _as_varint(len(body)) + body
            else:
                reference = _reference(name, at, length).SerializeToString()
        at = stop
    yield data[kept:end]
    # At the end, since the last value of a field counts: the tensor's own data_location loses.
    yield reference


def _varint(data: bytes | mmap.mmap, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise DecodeError("a number is cut short")


def _as_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _skip(data: bytes | mmap.mmap, at: int, end: int, wire: int) -> int:
    if wire == 0:
        return _varint(data, at, end)[1]
    if wire not in (1, 5):
        raise DecodeError(f"there is no wire type {wire}")
    return at + (8 if wire == 1 else 4)


def _reference(location: str, offset: int, length: int) -> TensorProto:
    """A tensor message with only the position of its data."""
    tensor = TensorProto(data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def is_outside(tensor: TensorProto) -> bool:
    """Whether the data of ``tensor`` is external, that is, in a file."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def location_of(tensor: TensorProto) -> str:
    """The file name in the tensor's ``external_data``; empty if there is none."""
    return next((e.value for e in reversed(tensor.external_data) if e.key == "location"), "")


def place_of(tensor: TensorProto, folder: Path) -> tuple[Path, int, int]:
    """File, offset and length of external data; a missing length follows from type and shape."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    length_entry = entries.get("length")
    length = (
        int(length_entry)
        if length_entry
        else -(-math.prod(tensor.dims) * element_bits(tensor.data_type) // 8)
    )
    return folder / entries["location"], int(entries.get("offset") or 0), length


def digest_of(path: Path) -> str:
    """sha256 over a model's file and the files of its weights, hexadecimal."""
    places = {
        place_of(tensor, path.parent)[0]
        for tensor in tensors_of(outline_of(path))
        if is_outside(tensor)
    }
    digests = [file_sha256(file) for file in (path, *sorted(places - {path}))]
    return hashlib.sha256("|".join(digests).encode()).hexdigest()


def content_of(tensor: TensorProto, folder: Path) -> Iterator[bytes]:
    """The external data of a tensor, in pieces."""
    path, offset, left = place_of(tensor, folder)
    with open_file(path) as file:
        file.seek(offset)
        while left > 0 and (piece := file.read(min(left, _READ_BYTES))):
            yield piece
            left -= len(piece)


class Spill:
    """A file to which the data of tensors is written, aligned so that it can be mapped."""

    def __init__(self, file: IO[bytes], location: str) -> None:
        self._file, self._location = file, location

    def put(self, tensor: TensorProto, data: bytes | memoryview) -> None:
        """Write ``data`` to the file, and make it the external data of ``tensor``."""
        self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
        place = _reference(self._location, self._file.tell(), len(data))
        self._file.write(data)
        tensor.ClearField("raw_data")
        tensor.ClearField("external_data")
        tensor.MergeFrom(place)


def write_whole(model: ModelProto, folder: Path, file: IO[bytes]) -> None:
    """Write an outline as one message, with the data that its initializers refer to.

    Args:
        model: An outline in which only initializers of the outermost graph are external.
        folder: The folder of the external data.
        file: Open for writing.
    """
    file.writelines(whole_parts(model, folder))


def whole_parts(model: ModelProto, source: Path | Message) -> Iterator[bytes | memoryview]:
    """The message that ``write_whole`` writes, of data in the folder or the message ``source``."""
    graph = type(model.graph)()
    graph.CopyFrom(model.graph)
    del graph.initializer[:]
    rest = ModelProto()
    rest.CopyFrom(model)
    rest.ClearField("graph")
    heads = [_head(tensor, source) for tensor in model.graph.initializer]
    body = graph.SerializeToString(deterministic=True)
    sizes = [len(head) + size for head, size in heads]
    total = len(body) + sum(1 + len(_as_varint(n)) + n for n in sizes)
    yield rest.SerializeToString(deterministic=True)
    yield b"\x3a" + _as_varint(total) + body  # field 7, graph
    for tensor, (head, _), size in zip(model.graph.initializer, heads, sizes, strict=True):
        yield b"\x2a" + _as_varint(size) + head  # field 5, initializer
        if isinstance(source, Message) and source.holds(tensor):
            yield source.piece(tensor)
        elif isinstance(source, Path) and is_outside(tensor):
            yield from content_of(tensor, source)


def _head(tensor: TensorProto, source: Path | Message) -> tuple[bytes, int]:
    """The serialized tensor without data of ``source``, and the number of bytes that follow."""
    if not (source.holds(tensor) if isinstance(source, Message) else is_outside(tensor)):
        return tensor.SerializeToString(deterministic=True), 0
    size = place_of(tensor, Path())[2]
    bare = TensorProto()
    bare.CopyFrom(tensor)
    bare.ClearField("data_location")
    bare.ClearField("external_data")
    head = bare.SerializeToString(deterministic=True)
    return head + b"\x4a" + _as_varint(size), size  # field 9, raw_data


def inline_small(model: ModelProto, folder: Path) -> bool:
    """Load small external initializers into ``model``, in place; returns whether there were any.

    Some writers make all initializers external, even shapes.
    """
    found = False
    for tensor in model.graph.initializer:
        if is_outside(tensor) and place_of(tensor, folder)[2] <= _LARGE_BYTES:
            fetch(tensor, folder)
            found = True
    return found


def fetch(tensor: TensorProto, source: Path | Message) -> None:
    """Load the data of a tensor into it, from a file in the folder ``source`` or from a message."""
    pieces = content_of(tensor, source) if isinstance(source, Path) else [source.piece(tensor)]
    data = b"".join(pieces)
    tensor.ClearField("data_location")
    tensor.ClearField("external_data")
    tensor.raw_data = data


def cut_weights(data: bytes) -> bytes:
    """A serialized model in which every large tensor has few elements, and no other is changed.

    The first dimension stays, unless it is large by itself; all others become 1. What that model
    computes, if anything, says nothing of the original.

    Raises:
        DecodeError: See ``outline_in``.
    """
    outline, message = outline_in(data)
    for tensor in tensors_of(outline):
        if not message.holds(tensor):
            continue
        bits = element_bits(tensor.data_type) or 8
        rows = tensor.dims[0] if tensor.dims and tensor.dims[0] * bits <= 8 * _LARGE_BYTES else 1
        kept = bytes(message.piece(tensor)[: -(-rows * bits // 8)])
        tensor.dims[:] = [rows, *(1 for _ in tensor.dims[1:])]
        tensor.ClearField("data_location")
        tensor.ClearField("external_data")
        tensor.raw_data = kept
    return bytes(outline.SerializeToString(deterministic=True))
