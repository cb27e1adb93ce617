"""Attributes of a node that differ from those of the source's operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto
from onnx.defs import OpSchema

from optvet.graph.text import short_value
from optvet.graph.walk import attribute_of, domain_of, opset_versions, schema_of
from optvet.spec.converters import SourceValue

_UNSET = (0, 1, "NOTSET")
_SIDES, _SCANNED = ("input", "output"), ("axes", "directions")
_ZEROS = ("pads", "output_padding", *(f"scan_{s}_{w}" for s in _SIDES for w in _SCANNED))
_UNSET_LISTS = {"strides": (1,), "dilations": (1,), **dict.fromkeys(_ZEROS, (0,))}
"""What ONNX means by lists that are not set; of others, any of ``_UNSET``."""


def differing_attributes(
    model: ModelProto, node: NodeProto, source: SourceValue
) -> dict[str, tuple[str, str]]:
    """Attributes of ``node`` that differ from the source's: actual and expected value."""
    found = attribute_differences(model, node, source)
    return {name: (value_words(now), value_words(value)) for name, (now, value) in found.items()}


def attribute_differences(
    model: ModelProto, node: NodeProto, source: SourceValue
) -> dict[str, tuple[Any, Any]]:
    """The same as values; None for an attribute that is not set."""
    found: dict[str, tuple[Any, Any]] = {}
    schema = schema_of(domain_of(node), node.op_type, opset_versions(model))
    for name, value in source.attributes.items():
        if schema is not None and name not in schema.attributes:
            continue
        now = attribute_of(node, name, None)
        if now is None:
            now = _default_of(schema, name)
        if not (_is_meant(node, name, value) if now is None else _is_same(now, value)):
            found[name] = (now, value)
    for each in node.attribute:
        if each.name not in source.unset or each.type == onnx.AttributeProto.GRAPH:
            continue
        now, value = onnx.helper.get_attribute_value(each), _default_of(schema, each.name)
        if not (_is_meant(node, each.name, now) if value is None else _is_same(value, now)):
            found[each.name] = (now, value)
    return found


def _default_of(schema: OpSchema | None, name: str) -> Any:
    """The value that an operator's schema gives an attribute that is not set; None without."""
    if schema is None or name not in schema.attributes:
        return None
    default = schema.attributes[name].default_value
    return onnx.helper.get_attribute_value(default) if default.type else None


def _is_meant(node: NodeProto, name: str, wanted: Any) -> bool:
    """Whether ONNX may mean ``wanted`` where an attribute is not set."""
    automatic = name == "pads" and attribute_of(node, "auto_pad", b"NOTSET") != b"NOTSET"
    meant = _UNSET if automatic else _UNSET_LISTS.get(name, _UNSET)
    wanted = wanted.decode() if isinstance(wanted, bytes) else wanted
    return all(v in meant for v in (wanted if isinstance(wanted, (list, tuple)) else [wanted]))


def _is_same(now: Any, wanted: Any) -> bool:
    now = now.decode() if isinstance(now, bytes) else now
    wanted = wanted.decode() if isinstance(wanted, bytes) else wanted
    if isinstance(wanted, (list, tuple)):
        return list(now) == list(wanted)
    if isinstance(wanted, float):
        return bool(np.float32(now) == np.float32(wanted))
    return bool(now == wanted)


def value_words(value: Any) -> str:
    """A value of an attribute or an argument in a few words."""
    if value is None:
        return "not set"
    if isinstance(value, (GraphProto, TensorProto)):
        return short_value(value)
    value = value.decode() if isinstance(value, bytes) else value
    return str(list(value) if isinstance(value, (list, tuple)) else value)
