"""Trials of large models: what is built, looked at and loaded is a file, never its bytes.

The functions here run in workers, and are to a ``Subject`` with a ``scratch`` folder what those of
``trial`` are to one without.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import ModelProto
from pydantic import BaseModel

from optvet.graph.outline import inline_small, is_outside, outline_of, place_of
from optvet.graph.weights import tensors_of
from optvet.spec.errors import InfrastructureError
from optvet.spec.protocols import Optimizer, TakesFiles
from optvet.spec.types import Artifact

_GRAPH_BYTES = 64 << 20
"""A file of more holds its weights."""


def stamp_of(path: Path) -> tuple[int, int]:
    """Size and time of change of a file: what tells that it is the same, where reading is dear."""
    about = path.stat()
    return about.st_size, about.st_mtime_ns


def original(model: Path, stamp: tuple[int, int] | None) -> Artifact:
    """The model as it is.

    Raises:
        InfrastructureError: It was changed since it was opened.
    """
    if stamp is not None and stamp != stamp_of(model):
        raise InfrastructureError(
            f"{model} has changed since it was opened; keep the model as it is while it is "
            "vetted, and start again"
        )
    return Artifact("onnx", path=model)


def applied(
    model: Path, optimizer: Optimizer, passes: tuple[str, ...], options: BaseModel, folder: Path
) -> Artifact:
    """What the optimizer makes of the model, in ``folder``; as bytes if it takes no files."""
    if not isinstance(optimizer, TakesFiles):
        return optimizer.apply(Artifact("onnx", model.read_bytes()), passes, options)
    artifact = optimizer.apply_file(Artifact("onnx", path=model), passes, options, folder)
    path = artifact.path
    if path is not None and path != model and path.stat().st_size <= _GRAPH_BYTES:
        # Some writers put every tensor outside, shapes too, which shape inference reads.
        proto = onnx.load(str(path), load_external_data=False)
        inline_small(proto, path.parent)
        path.write_bytes(proto.SerializeToString())
    return artifact


def graph_of(path: Path) -> ModelProto:
    """The model in a file, whose large tensors alone are in files."""
    proto = outline_of(path)
    inline_small(proto, path.parent)
    return proto


def size_of(path: Path, outline: ModelProto) -> int:
    """Bytes of the model in a file, with weights that are in files beside it."""
    places = (place_of(t, path.parent) for t in tensors_of(outline) if is_outside(t))
    return path.stat().st_size + sum(length for file, _, length in places if file != path)


def whole(path: Path) -> bytes:
    """The model in a file as one message, for a runtime that takes nothing else."""
    outside = [t for t in tensors_of(outline_of(path)) if is_outside(t)]
    if all(place_of(t, path.parent)[0] == path for t in outside):
        return path.read_bytes()
    data: bytes = onnx.load(str(path)).SerializeToString()
    return data
