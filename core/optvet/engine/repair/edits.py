"""Edits of an ONNX model: each makes a changed copy, or says why it does not fit.

A node inside a branch or a body is edited there. Names of values are those of `name_apart`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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

from optvet.graph.unfold import name_apart
from optvet.graph.walk import domain_of, graphs, nodes_of, opset_versions, reads, schema_of
from optvet.graph.weights import tensors_of
from optvet.spec.errors import InputError
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


class DoesNotFit(InputError):
    """An edit names something that the model does not have."""


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
    for edit in edits:
        for operation in edit.operations:
            try:
                _APPLY[type(operation)](copy, operation)
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                # Numbers that no attribute holds, types that there are not.
                words = f"an edit ({operation.operation}) cannot be made: {error}"
                raise DoesNotFit(words[:_WORDS_CHARS]) from error
    # What was inferred of values inside may hold no longer.
    for graph in graphs(copy.graph):
        del graph.value_info[:]
        _sort(graph)
    return copy


def fresh_name(model: ModelProto, like: str) -> str:
    """A name that no value and no node of the model has."""
    taken = _given(model) | {n for node in nodes_of(model.graph) for n in (node.name, *node.output)}
    number = 1
    while f"{like}_repair{number}" in taken:
        number += 1
    return f"{like}_repair{number}"


def maker_of(model: ModelProto, value: str) -> NodeProto:
    """The node that makes ``value``, in whichever graph it is.

    Raises:
        DoesNotFit: There is none.
    """
    return _made(model, value)[1]


def _made(model: ModelProto, value: str) -> tuple[GraphProto, NodeProto]:
    """The node that makes ``value``, and its graph."""
    for graph in graphs(model.graph):
        for node in graph.node:
            if value and value in node.output:
                return graph, node
    raise DoesNotFit(f"no node of the model makes {value!r}; give the model the patch is for")


def _given(model: ModelProto) -> set[str]:
    """Weights and inputs of all graphs."""
    every = [(*graph.initializer, *graph.input) for graph in graphs(model.graph)]
    return {each.name for listed in every for each in listed}


def _set_weight(model: ModelProto, operation: SetWeight) -> None:
    tensor = numpy_helper.from_array(array_of(operation.tensor), operation.name)
    for graph in graphs(model.graph):
        for known in graph.initializer:
            if known.name == operation.name:
                known.CopyFrom(tensor)
                return
    for node in nodes_of(model.graph):
        if operation.name in node.output:
            if node.op_type != "Constant":
                raise DoesNotFit(f"{operation.name!r} is computed, and no weight")
            del node.attribute[:]
            node.attribute.append(helper.make_attribute("value", tensor))
            return
    model.graph.initializer.append(tensor)
    for info in model.graph.input:
        if info.name == operation.name and model.ir_version >= _WEIGHTS_APART:
            model.graph.input.remove(info)
            return


def _set_attribute(model: ModelProto, operation: SetAttribute) -> None:
    node = maker_of(model, operation.node)
    kept = [a for a in node.attribute if a.name != operation.name]
    del node.attribute[:]
    node.attribute.extend(kept)
    if operation.value is not None:
        node.attribute.append(_attribute(model, node, operation.name, operation.value))


def _attribute(model: ModelProto, node: NodeProto, name: str, value: Any) -> onnx.AttributeProto:
    """The attribute in the type that the operator asks for."""
    schema = schema_of(domain_of(node), node.op_type, opset_versions(model))
    if schema is not None and name in schema.attributes:
        kind = schema.attributes[name].type
        if kind == onnx.defs.OpSchema.AttrType.FLOAT:
            value = float(value)
        if kind == onnx.defs.OpSchema.AttrType.FLOATS:
            value = [float(v) for v in value]
    return helper.make_attribute(name, value)


def _set_input(model: ModelProto, operation: SetInput) -> None:
    node = maker_of(model, operation.node)
    _require(model, operation.value)
    while len(node.input) <= operation.index:
        node.input.append("")
    node.input[operation.index] = operation.value


def _require(model: ModelProto, value: str) -> None:
    if value and value not in _given(model):
        maker_of(model, value)


def _remove_node(model: ModelProto, operation: RemoveNode) -> None:
    graph, node = _made(model, operation.node)
    _require(model, operation.value)
    if any(o.name == operation.node for o in graph.output):
        del node.attribute[:]
        node.op_type, node.domain = "Identity", ""
        del node.input[:]
        node.input.append(operation.value)
        return
    _redirect(graph, operation.node, operation.value)
    if not set(node.output) & set(_all_read(graph)):
        graph.node.remove(node)


def _all_read(graph: GraphProto) -> Iterator[str]:
    """What nodes of a graph read, and of those inside it, and what these graphs give."""
    for node in graph.node:
        yield from reads(node)
    yield from (o.name for o in graph.output)


def _redirect(graph: GraphProto, old: str, new: str) -> None:
    for node in nodes_of(graph):
        for i, name in enumerate(node.input):
            if name == old:
                node.input[i] = new
    for inner in list(graphs(graph))[1:]:
        for output in inner.output:
            if output.name == old:
                output.name = new


def _insert_node(model: ModelProto, operation: InsertNode) -> None:
    about = (operation.operator, operation.domain, operation.inputs, operation.attributes)
    if operation.index is not None:
        graph, reader = _made(model, operation.node)
        if operation.index >= len(reader.input):
            raise DoesNotFit(f"{operation.node!r} has no input {operation.index}")
        old = reader.input[operation.index]
        _add(model, graph, about, old, operation.output)
        reader.input[operation.index] = operation.output
        return
    _require(model, operation.node)
    graph = model.graph
    for each in graphs(model.graph):
        made = {name for node in each.node for name in node.output}
        if operation.node in made | {i.name for i in (*each.input, *each.initializer)}:
            graph = each
    if all(o.name != operation.node for o in graph.output):
        _redirect(graph, operation.node, operation.output)
        _add(model, graph, about, operation.node, operation.output)
        return
    # A graph output keeps its name: what made it makes another value.
    maker = maker_of(model, operation.node)
    maker.output[list(maker.output).index(operation.node)] = operation.output
    _redirect(graph, operation.node, operation.output)
    _add(model, graph, about, operation.output, operation.node)


def _add(
    model: ModelProto,
    graph: GraphProto,
    about: tuple[str, str, Sequence[str], Mapping[str, Any]],
    before: str,
    output: str,
) -> None:
    operator, domain, inputs, attributes = about
    read = [before if name == BEFORE else name for name in inputs]
    node = helper.make_node(operator, read, [output], name=output, domain=domain)
    node.attribute.extend(_attribute(model, node, n, v) for n, v in attributes.items())
    graph.node.append(node)


def _replace_node(model: ModelProto, operation: ReplaceNode) -> None:
    node = maker_of(model, operation.node)
    node.op_type, node.domain = operation.operator, operation.domain
    del node.input[:], node.attribute[:]
    node.input.extend(operation.inputs)
    node.attribute.extend(_attribute(model, node, n, v) for n, v in operation.attributes.items())
    del node.output[:]
    node.output.append(operation.node)


def _replace_region(model: ModelProto, operation: ReplaceRegion) -> None:
    around, maker = _made(model, operation.node)
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
        _require(model, name)
    prefix = fresh_name(model, f"{operation.node}_region")
    renamed = {i.name: actual for i, actual in zip(graph.input, operation.inputs, strict=True)}
    renamed |= {graph.output[0].name: operation.node, "": ""}
    old = f"{prefix}_before"
    maker.output[list(maker.output).index(operation.node)] = old
    for tensor in graph.initializer:
        renamed[tensor.name] = f"{prefix}_{tensor.name}"
        model.graph.initializer.add().CopyFrom(tensor)
        model.graph.initializer[-1].name = renamed[tensor.name]
    for node in graph.node:
        copy = around.node.add()
        copy.CopyFrom(node)
        copy.name = f"{prefix}_{node.name or node.output[0]}"
        for names in (copy.input, copy.output):
            names[:] = [renamed.setdefault(n, f"{prefix}_{n}") for n in names]
    _remove_unread(around, old)


def _remove_unread(graph: GraphProto, value: str) -> None:
    """Remove the node that makes ``value``, and those before it, if nothing reads them."""
    todo = [value]
    while todo:
        name = todo.pop()
        maker = next((n for n in graph.node if name and name in n.output), None)
        if maker is not None and not set(maker.output) & set(_all_read(graph)):
            todo += reads(maker)
            graph.node.remove(maker)


def _set_output_type(model: ModelProto, operation: SetOutputType) -> None:
    for output in model.graph.output:
        if output.name == operation.output:
            kind = TypeProto()
            kind.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(operation.type))
            kind.tensor_type.shape.SetInParent()
            for _ in range(operation.axes):
                kind.tensor_type.shape.dim.add()
            output.type.CopyFrom(kind)
            return
    raise DoesNotFit(f"the model has no output {operation.output!r}")


def _sort(graph: GraphProto) -> None:
    """Put nodes behind what they read, otherwise in their order."""
    computed = {name for node in graph.node for name in node.output if name}
    done: set[str] = set()
    ordered: list[NodeProto] = []
    waiting = list(graph.node)
    while waiting:
        left = []
        for node in waiting:
            if (set(reads(node)) & computed) - done:
                left.append(node)
            else:
                ordered.append(node)
                done.update(node.output)
        if len(left) == len(waiting):
            raise DoesNotFit("the edit makes a value depend on itself")
        waiting = left
    nodes = [NodeProto.FromString(n.SerializeToString()) for n in ordered]
    del graph.node[:]
    graph.node.extend(nodes)


_APPLY: Mapping[type, Callable[[ModelProto, Any], None]] = {
    SetWeight: _set_weight,
    SetAttribute: _set_attribute,
    SetInput: _set_input,
    RemoveNode: _remove_node,
    InsertNode: _insert_node,
    ReplaceNode: _replace_node,
    ReplaceRegion: _replace_region,
    SetOutputType: _set_output_type,
}
