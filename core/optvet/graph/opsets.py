"""A node as another operator-set version writes it, as far as the schemas tell."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from optvet.graph.walk import domain_of, schema_of

_INTEGERS = (onnx.AttributeProto.INT, onnx.AttributeProto.INTS)


def at_opset(
    node: NodeProto, was: int, now: int, values: Mapping[str, np.ndarray], domain: str = ""
) -> list[NodeProto]:
    """``node`` of version ``was`` of its domain in the form of version ``now``.

    What was an attribute and is an input now becomes a Constant node, which is the first in the
    list; what was an input and is an attribute now is taken from ``values``. All else stays as it
    is, so the result may be invalid where the operator has changed in another way.
    """
    domain = domain or domain_of(node)
    old = schema_of(domain, node.op_type, {domain: was})
    new = schema_of(domain, node.op_type, {domain: now})
    if old is None or new is None or old.since_version == new.since_version:
        return [node]
    copy = NodeProto.FromString(node.SerializeToString())
    constants = _attributes_as_inputs(copy, new)
    _inputs_as_attributes(copy, old, new, values)
    return [*constants, copy]


def _attributes_as_inputs(node: NodeProto, new: onnx.defs.OpSchema) -> list[NodeProto]:
    places = {attribute.name: i for i, attribute in enumerate(new.inputs)}
    constants = []
    for attribute in [a for a in node.attribute if a.name not in new.attributes]:
        node.attribute.remove(attribute)
        place = places.get(attribute.name)
        if place is None or (place < len(node.input) and node.input[place]):
            continue
        value = helper.get_attribute_value(attribute)
        kind = np.int64 if attribute.type in _INTEGERS else np.float32
        tensor = numpy_helper.from_array(np.array(value, kind))
        name = f"{next(o for o in node.output if o)}_{attribute.name}"
        constants.append(helper.make_node("Constant", [], [name], value=tensor))
        node.input.extend([""] * (place + 1 - len(node.input)))
        node.input[place] = name
    return constants


def _inputs_as_attributes(
    node: NodeProto,
    old: onnx.defs.OpSchema,
    new: onnx.defs.OpSchema,
    values: Mapping[str, np.ndarray],
) -> None:
    taken = {attribute.name for attribute in new.inputs}
    for place in reversed(range(min(len(node.input), len(old.inputs)))):
        name = old.inputs[place].name
        if name in taken or name not in new.attributes:
            continue
        value = values.get(node.input[place])
        # Of no elements the type of the attribute could not be told; none holds a matrix, or bools.
        if value is not None and value.size and value.ndim < 2 and value.dtype.kind in "fiuO":
            node.attribute.append(helper.make_attribute(name, value.tolist()))
        del node.input[place]
