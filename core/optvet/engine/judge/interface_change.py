"""Whether the interface of an optimized model is still the original's."""

from __future__ import annotations

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # ships no types
from onnx import ModelProto

from optvet.graph.interface import Interface, align, interface_of


def changes_interface(original: Interface, data: bytes) -> bool:
    """Whether a caller of the original could not call the model of ``data`` so.

    Of what is no model the checker tells more.
    """
    try:
        changed = interface_of(ModelProto.FromString(data))
    except DecodeError:
        return False
    return bool(align(original, changed, frozenset()).changed)
