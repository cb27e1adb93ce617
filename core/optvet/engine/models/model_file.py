"""Writing a model as a user gets it: beside its place first, then moved there as a whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import onnx

from optvet.engine.models.large import PROTOBUF_LIMIT
from optvet.engine.models.open_large import beside
from optvet.graph.outline import Spill, fetch, is_outside, location_of, outline_of
from optvet.graph.weights import tensors_of
from optvet.spec.errors import InfrastructureError, UsageError
from optvet.spec.files import file_sha256, refuse_link
from optvet.spec.foreign import load_model, read_file
from optvet.spec.records.saved import SavedFile
from optvet.spec.scratch import made_beside
from optvet.spec.types import Model

_SPILLED_BYTES = 1024
"""Weights from this size on lie in the file beside the model, as ``onnx.save`` has it."""


def data_file(target: Path) -> Path:
    """The file of the weights that lie beside the model ``target``."""
    return target.with_name(f"{target.name}.data")


def refuse_to_overwrite(target: Path, option: str, *inputs: Path) -> None:
    """Refuse a target that is a file of one of the models ``inputs``, a link, or a folder.

    Raises:
        UsageError: It is.
    """
    if target.name in ("", "-"):
        raise UsageError(f"{option} {target} is no file; give one, such as safe.onnx")
    for file in (target, data_file(target)):
        try:
            refuse_link(file)
        except OSError as error:
            raise UsageError(f"{option} {file}: {error.strerror}; give another path") from error
        if file.is_dir():
            raise UsageError(f"{option} {file} is a folder; give a file, such as safe.onnx")
        for model in inputs:
            if any(_is_same(file, each) for each in _files_of(model)):
                words = f"{option} {target} would overwrite {file}, which the model is read from"
                raise UsageError(f"{words}; give another path")
    if not target.parent.is_dir():
        raise UsageError(f"{option} {target}: there is no folder {target.parent}; make it first")


def _is_same(file: Path, other: Path) -> bool:
    return file.exists() and other.exists() and file.samefile(other)


def _files_of(path: Path) -> set[Path]:
    """The file of a model, and those that its weights lie in."""
    outside = beside(path, outline_of(path)) if path.is_file() else []
    return {path, *(path.parent / location_of(tensor) for tensor in outside)}


def keeps_weights_beside(model: Model) -> bool:
    """Whether the user's file of ``model`` has weights in other files."""
    return bool(beside(model.path, outline_of(model.path)))


def save_if_right(
    made: bytes | Path, target: Path, *, outside: bool, why_wrong: Callable[[Path], str]
) -> list[SavedFile] | str:
    """Write a model to ``target`` if it is right as a file; else the reason, and nothing is left.

    Args:
        made: The serialized model, or a file with weights inside or beside it.
        target: The model's file; nothing is there, or a file that is replaced.
        outside: Whether the weights go to a file beside it. They do if the model is too large
            for one message.
        why_wrong: Is given the file, which lies in a folder beside ``target`` under the same name;
            returns an empty text if it is right.

    Raises:
        InfrastructureError: It cannot be written.
    """
    try:
        with made_beside(target) as folder:
            file = folder / target.name
            _write(made, file, outside=outside)
            if words := why_wrong(file):
                return words.replace(str(file), str(target))
            return _move(folder, target)
    except OSError as error:
        words = error.strerror or str(error)
        raise InfrastructureError(
            f"cannot write {target}: {words}; make room, or choose another file"
        ) from error


def _write(made: bytes | Path, file: Path, *, outside: bool) -> None:
    source = made if isinstance(made, Path) else None
    size = len(made) if isinstance(made, bytes) else sum(f.stat().st_size for f in _files_of(made))
    if outside or size > PROTOBUF_LIMIT:
        proto = onnx.load_from_string(made) if isinstance(made, bytes) else outline_of(made)
        _write_beside(proto, source, file)
    elif isinstance(made, bytes):
        file.write_bytes(made)
    else:
        whole = len(_files_of(made)) == 1
        file.write_bytes(read_file(made) if whole else load_model(made).SerializeToString())


def _write_beside(proto: onnx.ModelProto, source: Path | None, file: Path) -> None:
    """``proto`` in ``file``, and weights of its outermost graph in the file beside it.

    Those of inner graphs and attributes stay inside: not every runtime reads them from files.
    """
    data = data_file(file)
    with data.open("wb") as opened:
        spill = Spill(opened, data.name)
        for tensor in proto.graph.initializer:
            if source is not None and is_outside(tensor):
                fetch(tensor, source.parent)
            if len(tensor.raw_data) >= _SPILLED_BYTES:
                spill.put(tensor, tensor.raw_data)
    for tensor in tensors_of(proto):
        if is_outside(tensor) and location_of(tensor) != data.name:
            assert source is not None
            fetch(tensor, source.parent)
    if not data.stat().st_size:
        data.unlink()
    file.write_bytes(proto.SerializeToString(deterministic=True))


def _move(folder: Path, target: Path) -> list[SavedFile]:
    """Move what is in ``folder`` beside ``target``: weights first, since the model names them."""
    files = sorted(folder.iterdir(), key=lambda file: file.name == target.name)
    saved = []
    for file in files:
        place = target.with_name(file.name)
        refuse_link(place)
        digest, size = file_sha256(file), file.stat().st_size
        os.replace(file, place)
        saved.append(SavedFile(path=str(place), digest=digest, size_bytes=size))
    return saved[::-1]
