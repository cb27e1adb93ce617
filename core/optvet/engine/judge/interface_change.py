"""Whether the interface of an optimized model is still the original's."""

from __future__ import annotations

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # ships no types
from onnx import ModelProto

from optvet.graph.interface import Interface, align, interface_of


def changes_interface(original: Interface, data: bytes) -> bool:
    """Whether code that calls the original fails to call the model in ``data``.

    False for data that is no model, since the checker's message says more.
    """
    try:
        changed = interface_of(ModelProto.FromString(data))
    except DecodeError:
        return False
    return bool(align(original, changed, frozenset()).changed)
