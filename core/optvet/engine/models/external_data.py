"""Data of tensors in files beside the model: its positions are checked before anything is read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
from onnx import TensorProto

from optvet.engine.models.soundness import shape_words
from optvet.graph.types import dtype_name, element_bits
from optvet.spec.errors import InputError
from optvet.spec.foreign import open_file
from optvet.spec.words import quote


@dataclass(frozen=True)
class _Extent:
    """The position of a tensor's external data; ``length`` in bytes."""

    tensor: onnx.TensorProto
    file: Path
    offset: int
    length: int


def is_external(tensor: onnx.TensorProto) -> bool:
    """Whether the data of ``tensor`` is outside of the model's protobuf."""
    return tensor.data_location == TensorProto.EXTERNAL


def total_size(path: Path, size_bytes: int, tensors: Iterable[onnx.TensorProto]) -> int:
    """Size of the model with its external data, in bytes; checks all of that data's positions."""
    return size_bytes + sum(_extent(path, tensor).length for tensor in tensors)


def embed(path: Path, tensors: list[onnx.TensorProto]) -> None:
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
