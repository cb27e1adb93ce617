"""Opening a large model: the graph is read; the weights are only hashed, in pieces."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import onnx
from onnx import TensorProto

from optvet.engine.models.large import PROTOBUF_LIMIT
from optvet.engine.models.soundness import MAX_RANK, shape_words
from optvet.graph.outline import digest_of, fetch, is_outside, location_of, place_of, write_whole
from optvet.graph.types import element_bits
from optvet.graph.weights import tensors_of, tensors_of_nodes
from optvet.spec.errors import InfrastructureError, InputError
from optvet.spec.files import file_sha256
from optvet.spec.memory import in_units
from optvet.spec.words import quote


def beside(path: Path, outline: onnx.ModelProto) -> list[TensorProto]:
    """Tensors of a model's outline whose data is in files other than the model's."""
    return [
        tensor
        for tensor in tensors_of(outline)
        if is_outside(tensor) and location_of(tensor) != path.name
    ]


def fits(path: Path, tensor: TensorProto) -> bool:
    """Whether the data of a tensor inside the model has the length of the tensor's shape."""
    bits = element_bits(tensor.data_type)
    odd = tensor.HasField("segment") or any(size < 0 for size in tensor.dims)
    if bits is None or len(tensor.dims) > MAX_RANK or odd:
        return False
    return _length(path, tensor) == int(-(-math.prod(tensor.dims) * bits // 8))


def _length(path: Path, tensor: TensorProto) -> int:
    try:
        return place_of(tensor, path.parent)[2]
    except ValueError:
        return -1


def check_inside(path: Path, tensor: TensorProto) -> None:
    """Refuse a tensor inside the model whose data does not have the length of its shape."""
    if not fits(path, tensor):
        length = _length(path, tensor)
        raise InputError(
            f"model {path}: tensor {quote(tensor.name)} has {length:,} bytes of data, which is "
            f"not what {shape_words(tensor)} has; export or download the model again"
        )


def hash_file(
    path: Path, outline: onnx.ModelProto, external: Iterable[TensorProto], total: int, store: Path
) -> tuple[Path, str]:
    """The file to use in place of ``path``, and its digest.

    Args:
        path: The model.
        outline: Its outline; changed in place.
        external: Tensors whose data is in other files.
        total: Size of the model with these, in bytes.
        store: Folder for a self-contained copy, which is written if it fits into one message.

    Raises:
        InfrastructureError: The copy cannot be written.
    """
    external = list(external)
    if not external:
        return path, file_sha256(path)
    if total > PROTOBUF_LIMIT:
        return path, digest_of(path)
    for tensor in tensors_of_nodes(outline):
        if is_outside(tensor):
            fetch(tensor, path.parent)
    return _copy(store / "blobs", total, lambda file: write_whole(outline, path.parent, file))


def _copy(
    folder: Path, size_bytes: int, write: Callable[[tempfile._TemporaryFileWrapper[bytes]], None]
) -> tuple[Path, str]:
    """Write ``folder/<digest>.onnx`` by ``write``, atomically; returns the path and the digest."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".", delete=False) as file:
            temporary = Path(file.name)
            try:
                write(file)
                file.close()
                digest = file_sha256(temporary)
                blob = folder / f"{digest}.onnx"
                os.replace(temporary, blob)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise InfrastructureError(
            f"cannot write a self-contained copy ({in_units(size_bytes)}) to {folder}: {error}; "
            "make room, or choose another cache folder"
        ) from error
    return blob, digest
