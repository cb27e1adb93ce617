"""Nodes, attributes and whole graphs as text to read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from optvet.graph.walk import qualified_name
from optvet.graph.weights import large_weights, without_large_weights

SHOWN_IN_LINE = 8
"""Maximal number of elements of a constant that is printed in the line of a node."""
SHOWN_IN_TEXT = 256
"""Maximal number of elements of a weight that is printed in the text of a model."""


def node_text(node: NodeProto, constants: Mapping[str, TensorProto] | None = None) -> str:
    """A node as one line of ONNX text, with long values cut and small ``constants`` as values."""
    attributes = ", ".join(f"{a.name} = {attribute_text(a)}" for a in node.attribute)
    inside = f" <{attributes}>" if attributes else ""
    known = constants or {}
    shown = {n: value_text(known[n], SHOWN_IN_LINE) for n in node.input if n in known}
    read = ", ".join(f"{n} = {shown[n]}" if shown.get(n) else n or '""' for n in node.input)
    operator = qualified_name(node.domain, node.op_type, ".")
    return f"{', '.join(node.output)} = {operator}{inside} ({read})"


def value_text(tensor: TensorProto, limit: int) -> str:
    """The numbers of a tensor; empty if it has more than ``limit`` elements, or strings."""
    if math.prod(tensor.dims) > limit or tensor.data_type == TensorProto.STRING:
        return ""
    value = numpy_helper.to_array(tensor)
    if value.dtype.kind not in "fiub":
        return ""
    numbers = ", ".join(f"{v:.4g}" for v in value.ravel())
    return f"[{numbers}]" if value.ndim else numbers


def attribute_text(attribute: AttributeProto, limit: int | None = 60) -> str:
    """The value of an attribute as text, cut after ``limit`` characters."""
    if attribute.type == AttributeProto.GRAPHS:
        return ", ".join(map(short_value, attribute.graphs))
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, (GraphProto, TensorProto)):
        return short_value(value)
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    # Attributes are float32: 1e-05, not 9.999999747378752e-06.
    if attribute.type == AttributeProto.FLOAT:
        text = str(np.float32(value))
    if attribute.type == AttributeProto.FLOATS:
        text = f"[{', '.join(str(np.float32(each)) for each in value)}]"
    return text if limit is None or len(text) <= limit else f"{text[: limit - 1]}…"


def short_value(value: GraphProto | TensorProto) -> str:
    """A graph, or a tensor, in a few words."""
    if isinstance(value, TensorProto):
        return f"a tensor {list(value.dims)}"
    number = len(value.node)
    return f"{number} node" if number == 1 else f"{number} nodes"


def graph_text(model: ModelProto) -> str:
    """The model as ONNX text; large weights are printed as inputs, with a remark."""
    large = large_weights(model, SHOWN_IN_TEXT)
    if not large:
        return str(onnx.printer.to_text(model))
    words = " ".join(tensor.name for tensor in large)
    shown = without_large_weights(model, SHOWN_IN_TEXT)
    return f"# weights shown as inputs: {words}\n{onnx.printer.to_text(shown)}"


def undecodable_field(message: Any) -> str | None:
    """Name of a field, also of nested messages, whose text is not UTF-8; None if there is none.

    protobuf returns such a text as ``bytes``, where other code expects a ``str``.
    """
    inside: list[Any] = []
    if isinstance(message, TensorProto):  # only some fields: reading its numbers would copy them
        texts: dict[str, Any] = {"name": [message.name], "doc_string": [message.doc_string]}
        inside += message.external_data
    else:
        texts = {}
        for field, value in message.ListFields():
            values = [value] if isinstance(value, (str, bytes)) else value
            if field.type == FieldDescriptor.TYPE_STRING:
                texts[field.name] = values
            elif field.type == FieldDescriptor.TYPE_MESSAGE:
                inside += values if isinstance(values, Sequence) else [values]
    for name, values in texts.items():
        if any(isinstance(value, bytes) for value in values):
            return f"{type(message).__name__}.{name}"
    return next((found for each in inside if (found := undecodable_field(each))), None)
