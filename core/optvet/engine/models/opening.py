"""Opening a model: from a file to a ``Model``, or to an error that says what the file is.

Only Python code reads the file here. The native checker may crash on a hostile model, so it runs
later, in the sandbox.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import mmap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
from google.protobuf.message import (  # type: ignore[import-untyped]  # ships no types
    DecodeError,
    EncodeError,
)
from onnx import TensorProto

from optvet.engine.models import large, open_large
from optvet.engine.models.large import PROTOBUF_LIMIT
from optvet.engine.models.sidecar import config_for
from optvet.engine.models.soundness import check_model, check_tensor, is_untyped, shape_words
from optvet.graph.interface import graph_inputs, graph_outputs, optional_inputs
from optvet.graph.outline import is_outside, location_of, outline_in, outline_of
from optvet.graph.text import undecodable_field
from optvet.graph.types import dtype_name, element_bits
from optvet.graph.walk import ONNX_DOMAIN, node_count, opset_versions
from optvet.graph.weights import tensors_of
from optvet.spec.errors import InfrastructureError, InputError
from optvet.spec.files import private_folder, replacing, sha256_of
from optvet.spec.foreign import open_file, read_file
from optvet.spec.types import Model, ModelConfig
from optvet.spec.words import quote

OPSET_FLOOR = 7
"""Runtimes and optimizers do not support older operator sets reliably."""


def refuse_beyond_protobuf(source: str, size_bytes: int) -> None:
    """Refuse a model that is larger than a protobuf message can be."""
    if size_bytes > PROTOBUF_LIMIT:
        raise InputError(
            f"model {source} has {size_bytes:,} bytes with its external data, but a protobuf holds "
            f"at most 2 GiB ({PROTOBUF_LIMIT:,} bytes); give a smaller model"
        )


def open_model(
    path: Path,
    source: str,
    store: Path,
    *,
    accept: Callable[[str, int], None] = refuse_beyond_protobuf,
) -> Model:
    """The model in the file ``path``.

    Args:
        path: An ONNX file; external data is looked for in its folder.
        source: What the user asked for.
        store: Folder for self-contained copies (``store/blobs/<digest>.onnx``), which are
            written only for models with external data.
        accept: Raises if a model of this name and size is refused; called before it is read.

    Raises:
        InputError: The file is not a complete ONNX model, its external data cannot be used, or the
            TOML beside it is invalid.
        InfrastructureError: The copy cannot be written.
    """
    if _size_of(path) >= large.LARGE_BYTES:
        return _open_large(path, source, store, accept)
    if (model := _open_in_place(path, source)) is not None:
        return model
    data = _read(path)
    proto = _parse(path, data)
    external = [tensor for tensor in tensors_of(proto) if _is_external(tensor)]
    if external and _total(path, len(data), external) >= large.LARGE_BYTES:
        return _open_large(path, source, store, accept)
    blob = path
    if external:
        _embed(path, external)
        data = _serialize(path, proto)
    for tensor in tensors_of(proto):
        check_tensor(path, tensor)
    check_model(path, proto)
    digest = hashlib.sha256(data).hexdigest()
    if external:
        blob = _store(store, digest, data)
    return model_of(path, source, proto, blob, digest, len(data), config_for(path))


_IN_PLACE_BYTES = 1 << 20


def is_for_evaluator(outline: onnx.ModelProto) -> bool:
    """Whether the evaluator's answer counts for a model that its runtime cannot load.

    The evaluator has the oldest forms of few operators and would judge by newer ones, and it runs
    a graph whose outputs have no element type, which is no valid model.
    """
    opset = opset_versions(outline).get(ONNX_DOMAIN, OPSET_FLOOR)
    return opset >= OPSET_FLOOR and not any(map(is_untyped, outline.graph.output))


def _open_in_place(path: Path, source: str) -> Model | None:
    """The model in ``path``, whose weights are hashed where they lie, neither parsed nor copied.

    None for a small model, for one with external data, and if anything is wrong with the model:
    parsed whole, it is refused with the reason.
    """
    try:
        size_bytes = _size_of(path)
        if size_bytes < _IN_PLACE_BYTES:
            return None
        with open_file(path) as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            proto, message = outline_in(data)
            digest = sha256_of(file)
    except (DecodeError, OSError):
        return None
    if not _is_complete(proto):
        return None
    _check_texts(path, proto)
    for tensor in tensors_of(proto):
        if message.holds(tensor):
            if not open_large.fits(path, tensor):
                return None
        elif is_outside(tensor):
            return None
        else:
            check_tensor(path, tensor)
    check_model(path, proto)
    return model_of(path, source, proto, path, digest, size_bytes, config_for(path))


def _is_complete(proto: onnx.ModelProto) -> bool:
    """Whether ``proto`` has all that every model has."""
    return bool(proto.HasField("graph") and proto.HasField("ir_version") and proto.opset_import)


def _open_large(path: Path, source: str, store: Path, accept: Callable[[str, int], None]) -> Model:
    size_bytes = _size_of(path)
    if size_bytes > PROTOBUF_LIMIT:
        raise InputError(
            f"model {path} has {size_bytes:,} bytes, but a protobuf holds at most 2 GiB "
            f"({PROTOBUF_LIMIT:,} bytes); give a model whose weights are in files beside it"
        )
    accept(str(path), size_bytes)
    try:
        proto = outline_of(path)
    except (DecodeError, OSError):
        proto = onnx.ModelProto()
    if not _is_complete(proto):
        proto = _parse(path, _read(path))  # says what is wrong
    _check_texts(path, proto)
    external = open_large.beside(path, proto)
    total = _total(path, size_bytes, external)
    accept(str(path), total)
    for tensor in tensors_of(proto):
        if not is_outside(tensor):
            check_tensor(path, tensor)
        elif location_of(tensor) == path.name:
            open_large.check_inside(path, tensor)
    check_model(path, proto)
    try:
        blob, digest = open_large.hash_file(path, proto, external, total, store)
    except OSError as error:
        raise InputError(f"model {path} cannot be read: {error}") from error
    return model_of(path, source, proto, blob, digest, total, config_for(path))


def model_of(
    path: Path,
    source: str,
    proto: onnx.ModelProto,
    blob: Path,
    digest: str,
    size_bytes: int,
    config: ModelConfig,
) -> Model:
    """A ``Model`` with facts from its graph; ``blob`` has the weights, ``proto`` need not."""
    return Model(
        source=source,
        path=path,
        blob=blob,
        digest=digest,
        inputs=graph_inputs(proto),
        outputs=graph_outputs(proto),
        ir_version=proto.ir_version,
        opsets=opset_versions(proto),
        size_bytes=size_bytes,
        nodes=node_count(proto),
        config=config,
        optional=optional_inputs(proto),
    )


# ── Reading and parsing ────────────────────────────────────────────────────────────────────────


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise InputError(f"model {path} cannot be read: {error.strerror or error}") from error


def _read(path: Path) -> bytes:
    try:
        return read_file(path)
    except OSError as error:
        raise InputError(f"model {path} cannot be read: {error.strerror or error}") from error


def _parse(path: Path, data: bytes) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        if "MaxDepth" in str(error) or "recursion" in str(error):
            raise InputError(
                f"model {path} nests graphs or types more deeply than protobuf reads (100 levels); "
                "flatten it"
            ) from error
        raise InputError(_not_onnx(path, data)) from error
    if not proto.HasField("graph"):
        raise InputError(_not_onnx(path, data))
    for field, present in (
        ("ir_version", proto.HasField("ir_version")),
        ("opset_import", bool(proto.opset_import)),
    ):
        if not present:
            raise InputError(
                f"model {path} has a graph but no {field}, expected a complete ONNX model; "
                "it may be cut short, else export it again with a current exporter"
            )
    _check_texts(path, proto)
    return proto


def _check_texts(path: Path, proto: onnx.ModelProto) -> None:
    if field := undecodable_field(proto):
        raise InputError(
            f"model {path}: a text in a field {field} is not UTF-8; it may be damaged, "
            "else export it again"
        )


def _not_onnx(path: Path, data: bytes) -> str:
    kind, advice = _kind_of(data)
    return f"model {path} is {kind}, expected an ONNX model; {advice}"


def _kind_of(data: bytes) -> tuple[str, str]:
    """What the file seems to be, and what the user can do."""
    again = "download or export it again"
    text = data[:512].lstrip().lower()
    if not data:
        return "an empty file", again
    if data.startswith(b"version https://git-lfs"):
        return "a git-lfs pointer, not the file itself", "run 'git lfs pull' in its repository"
    if text.startswith((b"<!doctype html", b"<html")) or b"<html" in text:
        return "an HTML page (an error or login page?)", "download the file itself"
    if data.startswith(b"PK\x03\x04"):
        if b"data.pkl" in data[:4096]:
            return "a PyTorch checkpoint", "export it with torch.onnx.export"
        return "a zip archive", "unpack it and give the .onnx file inside"
    if data.startswith(b"\x1f\x8b"):
        return "a gzip archive", "unpack it and give the .onnx file inside"
    if data[:1] == b"\x80" and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "a Python pickle", "export the model to ONNX; optvet never unpickles"
    if data[4:8] == b"TFL3":
        return "a TensorFlow Lite model", "convert it with tf2onnx"
    if data[4:8] == b"ORTM":
        return "an ONNX Runtime (ORT format) model", "give the ONNX file it was made from"
    if data.startswith(b"\x89HDF"):
        return "an HDF5 file (Keras weights?)", "convert it with tf2onnx"
    if data.startswith(b"GGUF"):
        return "a GGUF file", "give an ONNX export of the model"
    if data[8:9] == b"{" and int.from_bytes(data[:8], "little") < 10**8:
        return "a safetensors file (weights without a graph)", "export the model to ONNX"
    if text.startswith((b"<", b"ir_version")) and b"ir_version" in text:
        return "ONNX text", "convert it with onnx.parser.parse_model and onnx.save"
    if text.startswith((b"{", b"[")) and _is_json(data):
        return "JSON text", "give the .onnx file"
    return _kind_of_protobuf(data)


def _is_json(data: bytes) -> bool:
    with contextlib.suppress(ValueError, RecursionError):
        json.loads(data)
        return True
    return False


def _kind_of_protobuf(data: bytes) -> tuple[str, str]:
    """Distinguishes a truncated model from other data, by its outermost protobuf fields."""
    fields, end = _outer_fields(data)
    if end > len(data) and data[:1] == b"\x08":
        return (
            f"cut short (it announces at least {end:,} bytes and has {len(data):,})",
            "download or export it again",
        )
    if end == len(data) and fields:
        return "another kind of protobuf (it has no graph)", "give the model's .onnx file"
    return "no ONNX file", "check that this is the right file"


def _outer_fields(data: bytes) -> tuple[list[int], int]:
    """Numbers of the outermost protobuf fields, and the end of the last one (-1: not found).

    An end beyond the data means that the last field is truncated.
    """
    fields: list[int] = []
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        field, wire = tag >> 3, tag & 7
        if not 1 <= field <= 100 or wire not in (0, 1, 2, 5):
            return fields, -1
        if wire == 0:
            _, at = _varint(data, at)
        elif wire == 2:
            length, at = _varint(data, at)
            at += length
        else:
            at += 8 if wire == 1 else 4
        fields.append(field)
    return fields, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The varint at offset ``at``, and its end; that is beyond the data if it is truncated."""
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    return value, len(data) + 1


# ── External data ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Extent:
    """The position of a tensor's external data; ``length`` in bytes."""

    tensor: onnx.TensorProto
    file: Path
    offset: int
    length: int


def _is_external(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == TensorProto.EXTERNAL


def _total(path: Path, size_bytes: int, tensors: Iterable[onnx.TensorProto]) -> int:
    """Size of the model with its external data, in bytes; checks all of that data's positions."""
    return size_bytes + sum(_extent(path, tensor).length for tensor in tensors)


def _embed(path: Path, tensors: list[onnx.TensorProto]) -> None:
    """Load the external data into the tensors, after checking all of its positions."""
    for extent in [_extent(path, tensor) for tensor in tensors]:
        try:
            with open_file(extent.file) as file:
                file.seek(extent.offset)
                data = file.read(extent.length)
                if len(data) < extent.length:
                    raise _unusable(path, extent.tensor, "became shorter while it was read")
                extent.tensor.raw_data = data
        except OSError as error:
            raise _unusable(path, extent.tensor, f"cannot be read: {error}") from error
        extent.tensor.ClearField("data_location")
        extent.tensor.ClearField("external_data")


def _extent(path: Path, tensor: onnx.TensorProto) -> _Extent:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    file = _external_file(path, tensor, entries.get("location", ""))
    offset = _count(path, tensor, entries, "offset") or 0
    needed = _needed_bytes(path, tensor)
    length = _count(path, tensor, entries, "length")
    if length is not None and length != needed:
        shape = shape_words(tensor)
        raise _unusable(path, tensor, f"gives length {length:,}, but {shape} has {needed:,} bytes")
    try:
        size = file.stat().st_size
    except OSError as error:
        raise _unusable(path, tensor, f"cannot be read: {error.strerror}") from error
    if offset + needed > size:
        raise _unusable(
            path,
            tensor,
            f"needs bytes {offset:,} to {offset + needed:,} of {file.name}, which has only "
            f"{size:,}; download or export the model again",
        )
    return _Extent(tensor, file, offset, needed)


def _external_file(path: Path, tensor: onnx.TensorProto, location: str) -> Path:
    if not location:
        raise _unusable(path, tensor, "names no file (no 'location')")
    if PurePosixPath(location).is_absolute() or PureWindowsPath(location).anchor:
        raise _unusable(path, tensor, f"lies at {quote(location)}; only relative paths are read")
    if "\0" in location:
        raise _unusable(path, tensor, f"lies at {quote(location)}: no path holds a zero byte")
    if (length := len(location.encode("utf-8", "replace"))) > _PATH_BYTES:
        detail = f"which has {length:,} bytes, and a path at most {_PATH_BYTES:,}"
        raise _unusable(path, tensor, f"lies at {quote(location)}, {detail}")
    folder = path.parent.resolve()
    file = folder / location
    if not _is_inside(file, folder):
        raise _unusable(
            path,
            tensor,
            f"lies at {quote(location)}, outside of the model's folder; copy the model and its "
            "data into one folder (cp -L follows links)",
        )
    if not _is_file(file):
        raise _unusable(
            path, tensor, f"lies in {quote(location)}, which is not in the model's folder"
        )
    return file


_PATH_BYTES = 4095


def _is_inside(file: Path, folder: Path) -> bool:
    try:
        return file.resolve().is_relative_to(folder)
    except (OSError, RuntimeError):  # a loop of links, a part that is too long
        return False


def _is_file(file: Path) -> bool:
    try:
        return file.is_file()
    except OSError:
        return False


def _count(path: Path, tensor: onnx.TensorProto, entries: dict[str, str], key: str) -> int | None:
    """The value of ``key``, a number of bytes; None if it is missing."""
    text = entries.get(key, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise _unusable(path, tensor, f"gives {key} {quote(text)}, expected a number of bytes")
    if len(text) > 18:  # more than any file has
        raise _unusable(path, tensor, f"gives {key} {quote(text)}, beyond the end of any file")
    return int(text)


def _needed_bytes(path: Path, tensor: onnx.TensorProto) -> int:
    bits = element_bits(tensor.data_type)
    if bits is None:
        kind = dtype_name(tensor.data_type)
        raise _unusable(path, tensor, f"has element type {kind}, which cannot be external")
    if any(dimension < 0 for dimension in tensor.dims):
        raise _unusable(path, tensor, f"has the negative shape {shape_words(tensor)}")
    elements: int = math.prod(tensor.dims)
    return -(-elements * bits // 8)


def _unusable(path: Path, tensor: onnx.TensorProto, problem: str) -> InputError:
    return InputError(f"model {path}: external data of tensor {quote(tensor.name)} {problem}")


def _serialize(path: Path, proto: onnx.ModelProto) -> bytes:
    try:
        data: bytes = proto.SerializeToString(deterministic=True)
        return data
    except (EncodeError, ValueError) as error:
        raise InputError(
            f"model {path} does not fit into one protobuf with its external data (2 GiB)"
        ) from error


def _store(store: Path, digest: str, data: bytes) -> Path:
    """Write ``data`` to ``store/blobs/<digest>.onnx``, atomically."""
    blob = store / "blobs" / f"{digest}.onnx"
    try:
        if blob.is_file() and blob.stat().st_size == len(data):
            return blob
        private_folder(blob.parent)
        with replacing(blob, private=True) as file:
            file.write(data)
    except OSError as error:
        raise InfrastructureError(
            f"cannot write a self-contained copy ({len(data):,} bytes) to {blob}: {error}; "
            "make room, or choose another cache folder"
        ) from error
    return blob
