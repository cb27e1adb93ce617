"""Edits of an ONNX model: each makes a changed copy, or says why it does not fit.

Nodes inside branches and loop bodies are edited in place, under the names of `name_apart`.
"""

from __future__ import annotations

import base64
import heapq
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    helper,
    numpy_helper,
)

from optvet.engine.repair.edited_model import DoesNotFit, EditedModel
from optvet.graph.unfold import name_apart
from optvet.graph.walk import domain_of, graphs, nodes_of, reads, schema_of
from optvet.graph.weights import tensors_of
from optvet.spec.records.repair import (
    Edit,
    InsertNode,
    PatchTensor,
    RemoveNode,
    ReplaceNode,
    ReplaceRegion,
    SetAttribute,
    SetInput,
    SetOutputType,
    SetWeight,
)

_WEIGHTS_APART = 4
"""IR version from which on a weight is not listed among the inputs."""
BEFORE = "@"
"""Among the inputs of an inserted node: the value that was there before."""


def tensor_of(value: np.ndarray) -> PatchTensor:
    """``value`` as part of a patch."""
    kept = np.ascontiguousarray(value)
    data = kept.astype(kept.dtype.newbyteorder("<")).tobytes()
    return PatchTensor(
        type=kept.dtype.name, shape=list(value.shape), data=base64.b64encode(data).decode()
    )


_TYPE = re.compile("[a-z][a-z0-9_]{2,19}")
"""How a type may be spelled: numpy evaluates what looks like a structure or a shape."""


def array_of(tensor: PatchTensor) -> np.ndarray:
    """The value of a tensor in a patch.

    Raises:
        DoesNotFit: Type, shape and data do not belong together.
    """
    if not _TYPE.fullmatch(tensor.type):
        raise DoesNotFit(f"a tensor of the patch is of type {tensor.type[:20]!r}, which is none")
    try:
        own = getattr(ml_dtypes, tensor.type, tensor.type)
        flat = np.frombuffer(base64.b64decode(tensor.data, validate=True), np.dtype(own))
        return flat.reshape(tensor.shape).copy()
    except (TypeError, ValueError) as error:
        raise DoesNotFit(f"a tensor of the patch cannot be read: {error}") from error


_WORDS_CHARS = 500


def apply_edits(model: ModelProto, edits: Sequence[Edit]) -> ModelProto:
    """A copy of ``model`` with ``edits`` made in order; nodes are sorted again.

    Raises:
        DoesNotFit: The model has no such node or value, or the result has a circle.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    name_apart(copy)
    edited = EditedModel(copy)
    for edit in edits:
        for operation in edit.operations:
            try:
                _APPLY[type(operation)](edited, operation)
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                # Numbers that no attribute holds, types that there are not.
                words = f"an edit ({operation.operation}) cannot be made: {error}"
                raise DoesNotFit(words[:_WORDS_CHARS]) from error
    edited.finish(_sort)
    return copy


def fresh_name(model: ModelProto, like: str) -> str:
    """A name that no value and no node of the model has."""
    given = {
        each.name for graph in graphs(model.graph) for each in (*graph.initializer, *graph.input)
    }
    taken = given | {n for node in nodes_of(model.graph) for n in (node.name, *node.output)}
    number = 1
    while f"{like}_repair{number}" in taken:
        number += 1
    return f"{like}_repair{number}"


def _set_weight(edited: EditedModel, operation: SetWeight) -> None:
    name = operation.name
    tensor = numpy_helper.from_array(array_of(operation.tensor), name)
    if (known := edited.weights.get(name)) is not None:
        known.CopyFrom(tensor)
        return
    if edited.is_made(name):
        graph, node = edited.made(name)
        if node.op_type != "Constant":
            raise DoesNotFit(f"{name!r} is computed, and no weight")
        with edited.changing(graph, node):
            del node.attribute[:]
            node.attribute.append(helper.make_attribute("value", tensor))
        return
    edited.add_weight(tensor)
    if edited.model.ir_version >= _WEIGHTS_APART:
        edited.remove_input(name)


def _set_attribute(edited: EditedModel, operation: SetAttribute) -> None:
    with edited.changing(*edited.made(operation.node)) as node:
        kept = [a for a in node.attribute if a.name != operation.name]
        del node.attribute[:]
        node.attribute.extend(kept)
        if operation.value is not None:
            node.attribute.append(_attribute(edited, node, operation.name, operation.value))


def _attribute(edited: EditedModel, node: NodeProto, name: str, value: Any) -> onnx.AttributeProto:
    """The attribute in the type that the operator asks for."""
    schema = schema_of(domain_of(node), node.op_type, edited.opsets)
    if schema is not None and name in schema.attributes:
        kind = schema.attributes[name].type
        if kind == onnx.defs.OpSchema.AttrType.FLOAT:
            value = float(value)
        if kind == onnx.defs.OpSchema.AttrType.FLOATS:
            value = [float(v) for v in value]
    return helper.make_attribute(name, value)


def _set_input(edited: EditedModel, operation: SetInput) -> None:
    _, node = edited.made(operation.node)
    edited.require(operation.value)
    node.input.extend([""] * (operation.index + 1 - len(node.input)))
    edited.set_input(node, operation.index, operation.value)


def _remove_node(edited: EditedModel, operation: RemoveNode) -> None:
    graph, node = edited.made(operation.node)
    edited.require(operation.value)
    if edited.is_output(graph, operation.node):
        with edited.changing(graph, node):
            del node.attribute[:]
            node.op_type, node.domain = "Identity", ""
            del node.input[:]
            node.input.append(operation.value)
        return
    edited.redirect(graph, operation.node, operation.value)
    if not edited.is_read(node):
        edited.remove(node)


def _insert_node(edited: EditedModel, operation: InsertNode) -> None:
    if operation.index is not None:
        graph, reader = edited.made(operation.node)
        if operation.index >= len(reader.input):
            raise DoesNotFit(f"{operation.node!r} has no input {operation.index}")
        _add(edited, graph, operation, reader.input[operation.index], operation.output)
        edited.set_input(reader, operation.index, operation.output)
        return
    edited.require(operation.node)
    graph = edited.home(operation.node)
    if not edited.is_output(graph, operation.node):
        edited.redirect(graph, operation.node, operation.output)
        _add(edited, graph, operation, operation.node, operation.output)
        return
    # A graph output keeps its name: what made it makes another value.
    around, maker = edited.made(operation.node)
    with edited.changing(around, maker):
        maker.output[list(maker.output).index(operation.node)] = operation.output
    edited.redirect(graph, operation.node, operation.output)
    _add(edited, graph, operation, operation.output, operation.node)


def _add(
    edited: EditedModel, graph: GraphProto, about: InsertNode, before: str, output: str
) -> None:
    read = [before if name == BEFORE else name for name in about.inputs]
    node = helper.make_node(about.operator, read, [output], name=output, domain=about.domain)
    node.attribute.extend(_attribute(edited, node, n, v) for n, v in about.attributes.items())
    edited.append(graph, node)


def _replace_node(edited: EditedModel, operation: ReplaceNode) -> None:
    with edited.changing(*edited.made(operation.node)) as node:
        node.op_type, node.domain = operation.operator, operation.domain
        del node.input[:], node.attribute[:]
        node.input.extend(operation.inputs)
        made = (_attribute(edited, node, n, v) for n, v in operation.attributes.items())
        node.attribute.extend(made)
        del node.output[:]
        node.output.append(operation.node)


def _replace_region(edited: EditedModel, operation: ReplaceRegion) -> None:
    around, maker = edited.made(operation.node)
    try:
        part = onnx.load_from_string(base64.b64decode(operation.model, validate=True))
    except Exception as error:
        raise DoesNotFit(f"a region of the patch cannot be read: {error}") from error
    if any(t.data_location == TensorProto.EXTERNAL for t in tensors_of(part)):
        raise DoesNotFit("a region of the patch has its weights in a file, which no patch may name")
    graph = part.graph
    if len(graph.input) != len(operation.inputs) or len(graph.output) != 1:
        raise DoesNotFit("a region of the patch has other inputs or outputs than the patch says")
    for name in operation.inputs:
        edited.require(name)
    prefix = edited.fresh_name(f"{operation.node}_region")
    renamed = {i.name: actual for i, actual in zip(graph.input, operation.inputs, strict=True)}
    renamed |= {graph.output[0].name: operation.node, "": ""}
    with edited.changing(around, maker):
        maker.output[list(maker.output).index(operation.node)] = f"{prefix}_before"
    for tensor in graph.initializer:
        renamed[tensor.name] = tensor.name = f"{prefix}_{tensor.name}"
        edited.add_weight(tensor)
    for node in graph.node:
        node.name = f"{prefix}_{node.name or node.output[0]}"
        for names in (node.input, node.output):
            names[:] = [renamed.setdefault(n, f"{prefix}_{n}") for n in names]
        edited.append(around, node)
    _remove_unread(edited, around, f"{prefix}_before")


def _remove_unread(edited: EditedModel, graph: GraphProto, value: str) -> None:
    """Remove the node that makes ``value``, and those before it, if nothing reads them."""
    todo = [value]
    while todo:
        name = todo.pop()
        owner, maker = edited.made(name) if edited.is_made(name) else (None, None)
        if owner is graph and maker is not None and not edited.is_read(maker):
            todo += reads(maker)
            edited.remove(maker)


def _set_output_type(edited: EditedModel, operation: SetOutputType) -> None:
    for graph, output in edited.outputs.get(operation.output, ()):
        if graph is edited.model.graph:
            kind = TypeProto()
            kind.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(operation.type))
            kind.tensor_type.shape.SetInParent()
            for _ in range(operation.axes):
                kind.tensor_type.shape.dim.add()
            output.type.CopyFrom(kind)
            return
    raise DoesNotFit(f"the model has no output {operation.output!r}")


def _sort(graph: GraphProto, kept: Sequence[NodeProto]) -> None:
    """Give a graph these nodes, each behind what it reads, otherwise in their order."""
    # What was inferred of values inside may hold no longer.
    del graph.value_info[:]
    makers = {name: place for place, node in enumerate(kept) for name in node.output if name}
    waits: list[set[int]] = [{makers[n] for n in reads(node) if n in makers} for node in kept]
    followers: list[list[int]] = [[] for _ in kept]
    for place, before in enumerate(waits):
        for earlier in before:
            followers[earlier].append(place)
    left = [len(before) for before in waits]
    ready = [place for place, number in enumerate(left) if not number]
    ordered: list[bytes] = []
    while ready:
        place = heapq.heappop(ready)
        ordered.append(kept[place].SerializeToString())
        for follower in followers[place]:
            left[follower] -= 1
            if not left[follower]:
                heapq.heappush(ready, follower)
    if len(ordered) < len(kept):
        raise DoesNotFit("the edit makes a value depend on itself")
    del graph.node[:]
    graph.node.extend(NodeProto.FromString(data) for data in ordered)


_APPLY: Mapping[type, Callable[[EditedModel, Any], None]] = {
    SetWeight: _set_weight,
    SetAttribute: _set_attribute,
    SetInput: _set_input,
    RemoveNode: _remove_node,
    InsertNode: _insert_node,
    ReplaceNode: _replace_node,
    ReplaceRegion: _replace_region,
    SetOutputType: _set_output_type,
}
