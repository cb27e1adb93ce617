"""Steps of trials for large models, which are passed as files and not as bytes.

They run in workers. ``building`` calls them for a ``BuildSpec`` with a ``scratch`` folder,
``inference`` for an artifact with a path.
"""

from __future__ import annotations

import json
from pathlib import Path

from onnx import ModelProto
from pydantic import BaseModel

from optvet.graph.outline import inline_small, is_outside, outline_of, place_of
from optvet.graph.weights import tensors_of
from optvet.spec.errors import InfrastructureError
from optvet.spec.foreign import load_model, read_file
from optvet.spec.optimizer_protocols import Optimizer, TakesFiles
from optvet.spec.types import Artifact

_GRAPH_BYTES = 64 << 20
"""A model file above this size has its weights inside."""


def stamp_of(path: Path) -> tuple[int, int]:
    """Size and modification time of a file, to detect changes without reading it."""
    about = path.stat()
    return about.st_size, about.st_mtime_ns


def original(model: Path, stamp: tuple[int, int] | None) -> Artifact:
    """The original model as an artifact.

    Raises:
        InfrastructureError: Its file has changed since it was opened.
    """
    if stamp is not None and stamp != stamp_of(model):
        raise InfrastructureError(
            f"{model} has changed since it was opened; keep the model as it is while it is "
            "vetted, and start again"
        )
    return Artifact("onnx", path=model)


def apply_to_file(
    model: Path, optimizer: Optimizer, passes: tuple[str, ...], options: BaseModel, folder: Path
) -> Artifact:
    """The optimized model, in ``folder``; as bytes if the optimizer cannot take files."""
    if not isinstance(optimizer, TakesFiles):
        return optimizer.apply(Artifact("onnx", read_file(model)), passes, options)
    artifact = optimizer.apply_file(Artifact("onnx", path=model), passes, options, folder)
    path = artifact.path
    own = path is not None and path.is_relative_to(folder)
    if path is not None and own and path.stat().st_size <= _GRAPH_BYTES:
        # Some writers make every tensor external, even shapes, which shape inference needs.
        proto = load_model(path, weights=False)
        inline_small(proto, path.parent)
        path.write_bytes(proto.SerializeToString())
    return artifact


def graph_of(path: Path) -> ModelProto:
    """The model in a file, with small tensors loaded and large ones external."""
    proto = outline_of(path)
    inline_small(proto, path.parent)
    return proto


def layout_of(path: Path) -> str:
    """Which tensors of a model lie in other files than ``path``, and where; equal for no others."""
    outside = [t for t in tensors_of(outline_of(path)) if is_outside(t)]
    places = {t.name: {e.key: e.value for e in t.external_data} for t in outside}
    places = {n: place for n, place in places.items() if place.get("location") != path.name}
    return json.dumps(places, sort_keys=True) if places else ""


def size_of(path: Path, outline: ModelProto) -> int:
    """Size of a model's file and of its external weights, in bytes."""
    places = (place_of(t, path.parent) for t in tensors_of(outline) if is_outside(t))
    return path.stat().st_size + sum(length for file, _, length in places if file != path)


def whole(path: Path) -> bytes:
    """The model in a file as one message, for a runtime that cannot load files."""
    outside = [t for t in tensors_of(outline_of(path)) if is_outside(t)]
    if all(place_of(t, path.parent)[0] == path for t in outside):
        return read_file(path)
    data: bytes = load_model(path).SerializeToString()
    return data
