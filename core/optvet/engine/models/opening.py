"""Opening a model: from a file to a ``Model``, or to an error that says what the file is.

Only Python code reads the file here. The native checker may crash on a hostile model, so it runs
later, in the sandbox.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]  # ships no types

from optvet.engine.models import large, open_large
from optvet.engine.models.external_data import embed, is_external, total_size
from optvet.engine.models.file_kind import kind_of_file
from optvet.engine.models.large import PROTOBUF_LIMIT
from optvet.engine.models.sidecar import config_for
from optvet.engine.models.soundness import check_model, check_tensor, is_untyped
from optvet.graph.interface import graph_inputs, graph_outputs, optional_inputs
from optvet.graph.outline import is_outside, location_of, outline_in, outline_of
from optvet.graph.text import undecodable_field
from optvet.graph.walk import ONNX_DOMAIN, node_count, opset_versions
from optvet.graph.weights import tensors_of
from optvet.spec.errors import InfrastructureError, InputError
from optvet.spec.files import private_folder, replacing, sha256_of
from optvet.spec.foreign import check_name, open_file, read_file
from optvet.spec.types import Model, ModelConfig

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
    check_name(path)
    if _size_of(path) >= large.LARGE_BYTES:
        return _open_large(path, source, store, accept)
    if (model := _open_in_place(path, source)) is not None:
        return model
    data = _read(path)
    proto = _parse(path, data)
    external = [tensor for tensor in tensors_of(proto) if is_external(tensor)]
    if external and total_size(path, len(data), external) >= large.LARGE_BYTES:
        return _open_large(path, source, store, accept)
    blob = path
    if external:
        embed(path, external)
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
    total = total_size(path, size_bytes, external)
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
    kind, advice = kind_of_file(data)
    return f"model {path} is {kind}, expected an ONNX model; {advice}"


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
