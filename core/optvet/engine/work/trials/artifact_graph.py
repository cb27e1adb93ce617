"""The graph of an ONNX artifact, without its large weights, and a digest of its bytes."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # ships no types
from onnx import ModelProto

from optvet.engine.work.trials import from_file
from optvet.graph.outline import Message, message_digest, outline_in
from optvet.spec.types import Artifact

# The last artifacts by their digests: hashing hundreds of megabytes again takes longer.
_artifacts: OrderedDict[str, bytes] = OrderedDict()


@dataclass(frozen=True)
class OnnxGraph:
    """The graph of an ONNX artifact, and where the weights lie that it lacks.

    ``layout`` says which of its tensors lie in other files, and where.
    """

    proto: ModelProto
    size_bytes: int
    source: Path | Message | None
    layout: str = ""


_OUTLINED_BYTES = 1 << 20


def _outline(data: bytes) -> OnnxGraph | None:
    """The graph of a model in memory without its weights; None if it is better parsed whole."""
    if len(data) < _OUTLINED_BYTES:
        return None
    try:
        proto, message = outline_in(data)
    except DecodeError:
        return None  # Parsed whole, it is refused with protobuf's reason.
    return OnnxGraph(proto, len(data), message)


_PIECE_BYTES = 1 << 18
"""What the caches of a processor hold."""


def find_equal(file: int, size: int) -> bytes | None:
    """The one of the last artifacts that the ``size`` bytes of ``file`` are equal to, if any.

    They are read piece by piece: most passes do not change the model, and to copy a hundred
    megabytes takes three times as long as to compare them.
    """
    same = (data for data in _artifacts.values() if len(data) == size and _holds(file, data))
    return next(same, None)


def _holds(file: int, data: bytes) -> bool:
    return all(
        os.pread(file, _PIECE_BYTES, at) == data[at : at + _PIECE_BYTES]
        for at in range(0, len(data), _PIECE_BYTES)
    )


def identify(data: bytes) -> tuple[str, OnnxGraph | None]:
    """A digest of ``data``, and its graph if that was looked at for it.

    Most passes do not change the model, so ``data`` is first compared with the last artifacts,
    which is ten times faster than hashing.
    """
    for digest, other in _artifacts.items():
        if len(other) == len(data) and other == data:
            return digest, None
    graph = _outline(data)
    if graph is not None and isinstance(graph.source, Message):
        # The weights are hashed one by one, and then known for the canonical digest too.
        digest = message_digest(graph.proto, graph.source)
    else:
        digest = hashlib.sha256(data).hexdigest()
    _artifacts[digest] = data
    while len(_artifacts) > 3:
        _artifacts.popitem(last=False)
    return digest, graph


def graph_of(artifact: Artifact) -> OnnxGraph:
    """The graph of an ONNX artifact, without its large weights."""
    if artifact.path is None and (graph := _outline(artifact.data)) is not None:
        return graph
    path = artifact.path
    layout = from_file.layout_of(path) if path else ""
    return OnnxGraph(*graph_and_size(artifact), path and path.parent, layout)


def graph_and_size(artifact: Artifact) -> tuple[ModelProto, int]:
    """The graph of an ONNX artifact, without large weights if it is a file; and its size."""
    if artifact.path is not None:
        proto = from_file.graph_of(artifact.path)
        return proto, from_file.size_of(artifact.path, proto)
    return onnx.load_from_string(artifact.data), len(artifact.data)
