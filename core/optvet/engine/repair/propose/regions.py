"""Regions of another model of the same source, between values that both models have."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, ValueInfoProto

from optvet.engine.convert.align import equal_up_to_layout
from optvet.engine.repair.aligned_run import AlignedRun, ReferenceModel
from optvet.engine.repair.candidates import RepairCandidate, propose
from optvet.graph.walk import domain_of, opset_versions, reads, schema_of
from optvet.spec.records.repair import Operation, ReplaceRegion, SetOutputType

_ENDS = 8
_NODES = 64
_BYTES = 1 << 24
_PUT_BACK = 2
"""Largest number of missing values that the nodes of an ONNX source compute again."""


def regions(aligned: AlignedRun, nodes: tuple[int, ...]) -> Iterator[RepairCandidate]:
    """What computes a missing value in another model, in place of a value of this one."""
    for reference in aligned.references:
        have = _find_shared_values(aligned, reference)
        places = (*aligned.missing[:_ENDS], aligned.place)
        if reference.is_source:
            # All of the source in the place of all of the model would repair nothing.
            places = aligned.missing[:_PUT_BACK]
        for place in dict.fromkeys(places):
            for value in _values_at(aligned, reference, place):
                part = _part(aligned.model, reference.model, value, have)
                if part is None:
                    continue
                model, inputs = part
                for name in replaceable_values(aligned, nodes, place, reference.values[value]):
                    yield _candidate(aligned, reference, value, name, model, inputs)


def _candidate(
    aligned: AlignedRun,
    reference: ReferenceModel,
    source_value: str,
    name: str,
    model: ModelProto,
    inputs: list[str],
) -> RepairCandidate:
    encoded = base64.b64encode(model.SerializeToString()).decode()
    operations: list[Operation] = [ReplaceRegion(node=name, inputs=inputs, model=encoded)]
    value = reference.values[source_value]
    for output in aligned.model.graph.output:
        declared = output.type.tensor_type.elem_type
        if output.name == name and declared != onnx.helper.np_dtype_to_tensor_dtype(value.dtype):
            kind = SetOutputType(output=name, type=value.dtype.name, axes=value.ndim)
            operations.append(kind)
    kinds = ", ".join(node.op_type for node in model.graph.node[:_ENDS])
    return propose("region", f"{name} computed as by {reference.name}: {kinds}", *operations)


def _find_shared_values(aligned: AlignedRun, reference: ReferenceModel) -> dict[str, str]:
    """Values of the reference that this model has too, in one layout: their names in it."""
    wrong = {name for i in aligned.region.nodes for name in aligned.node_of(i).output}
    found: dict[str, str] = {}
    mine = [i.name for i in aligned.model.graph.input if i.name in aligned.values]
    theirs = [i.name for i in reference.model.graph.input if i.name in reference.values]
    if len(mine) == len(theirs):
        found.update(zip(theirs, mine, strict=True))
    places = {name: i for name, i in aligned.known.target.items() if name not in wrong}
    for name, value in reference.values.items():
        for other, place in places.items():
            if name not in found and _same(
                value, aligned.values[other], aligned.allowed.values[place]
            ):
                found[name] = other
    return found


def _same(a: np.ndarray, b: np.ndarray, allowed: float) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or a.size <= 1:
        return False
    if a.dtype.kind not in "fiu":
        return bool(np.array_equal(a, b))
    with np.errstate(invalid="ignore"):
        off = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return bool(np.all((off <= allowed) | (a == b) | (np.isnan(a) & np.isnan(b))))


def _values_at(aligned: AlignedRun, reference: ReferenceModel, place: int) -> Iterator[str]:
    """Values of the reference that are the source's at ``place``."""
    wanted = aligned.inside.values[place].value
    for name, value in reference.values.items():
        if value.size == wanted.size and value.dtype.kind == wanted.dtype.kind:
            if equal_up_to_layout(wanted, value, aligned.allowed.values[place]):
                yield name


def replaceable_values(
    aligned: AlignedRun, nodes: tuple[int, ...], place: int, value: np.ndarray
) -> Iterator[str]:
    """Values of this model that the reference's may replace: an output, or a wrong one alike."""
    wanted = aligned.inside.values[place].value
    # Graphs of TensorFlow end in operators that pass on what they are given.
    if value.shape == wanted.shape and _is_passed_on(aligned, wanted):
        yield aligned.output
    for index in nodes:
        for name in aligned.node_of(index).output:
            now = aligned.values.get(name)
            alike = now is None or (now.shape, now.dtype) == (value.shape, value.dtype)
            if name and name != aligned.output and alike:
                yield name


def _is_passed_on(aligned: AlignedRun, value: np.ndarray) -> bool:
    """Whether the wrong output should be this value of the source."""
    end = aligned.inside.values[aligned.place].value
    return value is end or (
        value.dtype == end.dtype
        and value.shape == end.shape
        and np.array_equal(value, end, equal_nan=value.dtype.kind == "f")
    )


def _part(
    target: ModelProto, reference: ModelProto, end: str, have: Mapping[str, str]
) -> tuple[ModelProto, list[str]] | None:
    """The nodes that compute ``end`` from values that the target has, as a model; and those values.

    None where they are too many, or what they are is another operator in the target's sets.
    """
    nodes = reference.graph.node
    makers = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    weights = {t.name: t for t in reference.graph.initializer}
    chosen: set[int] = set()
    inputs: dict[str, str] = {}
    kept: dict[str, onnx.TensorProto] = {}
    todo = [end]
    while todo:
        name = todo.pop()
        if name in have and name != end:
            inputs[name] = have[name]
        elif name in weights:
            kept[name] = weights[name]
        elif name not in makers:
            return None
        elif makers[name] not in chosen:
            chosen.add(makers[name])
            todo += reads(nodes[makers[name]])
        if len(chosen) > _NODES:
            return None
    if not inputs or not all(_fits(nodes[i], target, reference) for i in chosen):
        return None
    part = ModelProto(ir_version=reference.ir_version)
    part.opset_import.extend(reference.opset_import)
    part.graph.name = "region"
    part.graph.node.extend(nodes[i] for i in sorted(chosen))
    part.graph.initializer.extend(kept.values())
    part.graph.input.extend(ValueInfoProto(name=name) for name in inputs)
    part.graph.output.append(ValueInfoProto(name=end))
    return None if part.ByteSize() > _BYTES else (part, list(inputs.values()))


def _fits(node: NodeProto, target: ModelProto, reference: ModelProto) -> bool:
    """Whether a node means the same in both models, and reads nothing from around it."""
    if any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.attribute):
        return False
    about = (domain_of(node), node.op_type)
    schemas = [schema_of(*about, opset_versions(model)) for model in (target, reference)]
    if schemas[0] is None or schemas[1] is None:
        return False
    return bool(schemas[0].since_version == schemas[1].since_version)
