"""Nodes that runtimes have no kernel of, written in forms that they do have."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from optvet.engine.repair.aligned_run import AlignedRun
from optvet.engine.repair.candidates import RepairCandidate, propose
from optvet.engine.repair.propose.forms import OperatorForm
from optvet.engine.repair.propose.templates import replacement
from optvet.graph.types import inferred_types
from optvet.graph.walk import (
    ONNX_DOMAIN,
    attribute_of,
    domain_of,
    operator_of,
    opset_versions,
    reads,
)
from optvet.spec.converters import SourceValue
from optvet.spec.records.repair import Operation, ReplaceRegion

_NODES = 4
_WIDER = {"float": "float32", "bool": "int64", "int": "int64", "uint": "int64"}
_RECURRENT = {"RNN": (0, 5), "GRU": (0, 5), "LSTM": (0, 5, 6)}
"""Inputs of recurrent operators whose axes ``layout`` orders: the sequence and the first states."""
_SEQUENCE_FIRST, _BATCH_FIRST = [1, 0, 2], [2, 0, 1, 3]


def kernels(aligned: AlignedRun, nodes: tuple[int, ...]) -> Iterator[RepairCandidate]:
    """The first nodes, and those that cannot run, in a form that runtimes have kernels of."""
    for index in dict.fromkeys((*nodes[:_NODES], *_not_run(aligned))):
        node = aligned.node_of(index)
        yield from _in_wider_type(aligned, node)
        yield from _in_first_layout(aligned, node)
        yield from _with_indices_from_the_end(aligned, node)


def _not_run(aligned: AlignedRun) -> Iterator[int]:
    """Nodes that give nothing although all that they read is there."""
    for index in aligned.region.nodes:
        node = aligned.node_of(index)
        known = (n in aligned.values or n in aligned.constants for n in reads(node))
        if not any(n in aligned.values for n in node.output) and all(known):
            yield index


def _in_wider_type(aligned: AlignedRun, node: NodeProto) -> Iterator[RepairCandidate]:
    """The node in a type that runtimes have kernels of, and the result in the source's."""
    read = list(dict.fromkeys(reads(node)))
    recorded = {n: v.dtype for n, v in (*aligned.constants.items(), *aligned.values.items())}
    declared = {} if all(n in recorded for n in read) else _declared(aligned)
    kinds = {n: k for n in read if (k := recorded.get(n, declared.get(n))) is not None}
    narrow = {n: k for n, k in kinds.items() if k.name not in ("float32", "int64")}
    if not narrow or len(node.output) != 1 or len(kinds) != len(read):
        return
    for operator in aligned.operators(1):
        form = _form(aligned, operator)
        wide = {}
        for name, kind in kinds.items():
            to = next((w for k, w in _WIDER.items() if kind.name.startswith(k)), "float32")
            wide[name] = form.cast(f"given {name}", to) if name in narrow else f"given {name}"
        copy = form.op(node.op_type, *(wide.get(name, "") for name in node.input))
        form.nodes[-1].domain = node.domain
        form.nodes[-1].attribute.extend(node.attribute)
        form.read.update({i: f"given {name}" for i, name in enumerate(kinds)})
        result = declared.get(node.output[0], operator.value.dtype)
        model, _ = form.model(form.cast(copy, result), aligned.model.ir_version)
        about = f"{node.op_type} {node.output[0]} computed in a wider type"
        made = replacement(aligned, node.output[0], list(kinds), model, operator)
        # Values of some types, such as bfloat16, are given to no one: only the whole model tells.
        explains = all(name in recorded for name in kinds)
        yield replace(propose("template", about, *made), explains=explains)


def _declared(aligned: AlignedRun) -> dict[str, np.dtype[Any]]:
    """Types by shape inference, of values that the runtime does not give too."""
    known = inferred_types(aligned.model, strict=False) or {}
    found = {name: kind.tensor_type.elem_type for name, kind in known.items()}
    return {n: np.dtype(helper.tensor_dtype_to_np_dtype(k)) for n, k in found.items() if k}


def _in_first_layout(aligned: AlignedRun, node: NodeProto) -> Iterator[RepairCandidate]:
    """A recurrent node of layout 1, which few runtimes know, as one of layout 0.

    RNN(x, h; layout=1) → Transpose(RNN(Transpose(x), Transpose(h)))
    """
    turned = _RECURRENT.get(node.op_type)
    if turned is None or domain_of(node) != ONNX_DOMAIN or attribute_of(node, "layout") != 1:
        return
    operator = next(aligned.operators(1), None)
    if operator is None:
        return
    operations: list[Operation] = []
    given = list(dict.fromkeys(reads(node)))
    for index, output in enumerate(node.output):
        if not output:
            continue
        form = _form(aligned, operator)
        inputs = [f"given {name}" if name else "" for name in node.input]
        for place in turned:
            if place < len(inputs) and inputs[place]:
                inputs[place] = form.op("Transpose", inputs[place], perm=_SEQUENCE_FIRST)
        form.op(node.op_type, *inputs)
        copy = form.nodes[-1]
        copy.attribute.extend(a for a in node.attribute if a.name != "layout")
        copy.output[:] = [f"{node.op_type}_{i}" for i in range(len(node.output))]
        # The sequence of states has an axis more than the last state.
        order = _SEQUENCE_FIRST if index else _BATCH_FIRST
        result = form.op("Transpose", copy.output[index], perm=order)
        form.read.update({i: f"given {name}" for i, name in enumerate(given)})
        model, _ = form.model(result, aligned.model.ir_version)
        encoded = base64.b64encode(model.SerializeToString()).decode()
        operations.append(ReplaceRegion(node=output, inputs=given, model=encoded))
    about = f"{node.op_type} {node.output[0]} computed in layout 0, between Transposes"
    yield propose("template", about, *operations)


def _with_indices_from_the_end(aligned: AlignedRun, node: NodeProto) -> Iterator[RepairCandidate]:
    """A selection of columns whose indices may be negative, by the operator that takes such.

    ArrayFeatureExtractor(x, i) → Gather(x, Reshape(i, [-1]), axis=-1)
    """
    operator = next(aligned.operators(1), None)
    if operator is None or operator_of(node) != ("ai.onnx.ml", "ArrayFeatureExtractor"):
        return
    table, indices = node.input
    known = aligned.constants.get(table, aligned.values.get(table))
    if known is None:
        return
    form = _form(aligned, operator)
    flat = form.op("Reshape", f"given {indices}", form.shape(-1))
    result = form.op("Gather", f"given {table}", flat, axis=known.ndim - 1)
    if known.ndim == 1:  # A list counts as a table of one row.
        result = form.op("Reshape", result, form.shape(1, -1))
    form.read.update({0: f"given {table}", 1: f"given {indices}"})
    model, _ = form.model(result, aligned.model.ir_version)
    about = f"{node.op_type} {node.output[0]} computed by Gather"
    made = replacement(aligned, node.output[0], [table, indices], model, operator)
    yield replace(propose("template", about, *made), explains=False)


def _form(aligned: AlignedRun, operator: SourceValue) -> OperatorForm:
    return OperatorForm(operator, opset_versions(aligned.model).get(ONNX_DOMAIN, 0), {}, {})
