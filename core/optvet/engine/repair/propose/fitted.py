"""Attributes that hold what an estimator was fitted to, and what is done to its scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from onnx import NodeProto
from onnx.defs import OpSchema

from optvet.engine.repair.aligned_run import AlignedRun
from optvet.engine.repair.candidates import RepairCandidate, attribute, insert_operator, propose
from optvet.graph.walk import attribute_of, domain_of, opset_versions, schema_of
from optvet.spec.records.repair import Operation, ReplaceNode

_ML = "ai.onnx.ml"
_LONGEST = 1 << 16
"""Numbers of a list that a patch holds in full."""
_STRUCTURE = ("ids", "modes")
"""What the name of a list ends in that says how trees hang together: it is never exchanged."""
_TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
_LINKS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("", "", "", {}),
    ("rows divided by their sum", "Normalizer", _ML, {"norm": "L1"}),
    ("sigmoid", "Sigmoid", "", {}),
    ("softmax", "Softmax", "", {"axis": 1}),
)
"""What may stand behind scores: in words, the operator, its domain and attributes."""
_EXCHANGED: Mapping[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "Sigmoid": (("Softmax", {"axis": -1}),),
    "Softmax": (("Sigmoid", {}), ("LogSoftmax", {"axis": -1})),
    "LogSoftmax": (("Softmax", {"axis": -1}),),
}
"""Operators that make probabilities of scores, and the others."""


def fitted(aligned: AlignedRun, nodes: tuple[int, ...]) -> Iterator[RepairCandidate]:
    """What was fitted, in place of lists of the same length."""
    for index in nodes:
        node = aligned.node_of(index)
        schema = schema_of(domain_of(node), node.op_type, opset_versions(aligned.model))
        if domain_of(node) == _ML and schema is not None:
            yield from _lists(aligned, node, schema)


def links(aligned: AlignedRun, nodes: tuple[int, ...]) -> Iterator[RepairCandidate]:
    """Scores that become probabilities in another way."""
    for index in nodes:
        node = aligned.node_of(index)
        for operator, attributes in _EXCHANGED.get(node.op_type, ()):
            replacement = ReplaceNode(
                node=node.output[0],
                operator=operator,
                inputs=list(node.input),
                attributes=attributes,
            )
            about = f"{node.op_type} {node.output[0]} replaced by {operator}"
            yield propose("operator", about, replacement)
        yield from _links(aligned, node)


def _lists(aligned: AlignedRun, node: NodeProto, schema: OpSchema) -> Iterator[RepairCandidate]:
    types = OpSchema.AttrType
    lengths = {len(a.ints) or len(a.floats) for a in node.attribute}
    for name, about in schema.attributes.items():
        if about.type not in (types.INTS, types.FLOATS) or name.endswith(_STRUCTURE):
            continue
        now = attribute_of(node, name, None)
        length = {len(now)} if now else lengths
        for label, value in aligned.inside.parameters.items():
            if value.size not in length or value.dtype.kind not in "fiub":
                continue
            whole = about.type == types.INTS
            for how, turned in _turns(value.reshape(-1), whole):
                if now and np.array_equal(np.asarray(now, turned.dtype), turned):
                    continue
                operation = attribute(node.output[0], name, turned.tolist())
                words = f"{node.op_type}.{name} = {label}{how} at {node.output[0]}"
                yield propose("attribute", words, operation)


def _turns(value: np.ndarray, whole: bool) -> Iterator[tuple[str, np.ndarray]]:
    """A list as it is, and as what undoes it: subtracted for added, divided for multiplied."""
    if value.size > _LONGEST:
        return
    if whole:
        if value.dtype.kind in "iub":
            yield "", value.astype(np.int64)
        return
    wide = value.astype(np.float64)
    yield "", wide
    yield ", negative", -wide
    if np.all(wide):
        yield ", inverse", 1 / wide


def _links(aligned: AlignedRun, node: NodeProto) -> Iterator[RepairCandidate]:
    """The scores of a node transformed in another way, with another operator behind it."""
    schema = schema_of(domain_of(node), node.op_type, opset_versions(aligned.model))
    transforms: list[str | None] = [None]
    if schema is not None and "post_transform" in schema.attributes:
        transforms += list(_TRANSFORMS)
    elif not aligned.inside.values or domain_of(node) != _ML:
        return
    for name in [n for n in node.output if n][::-1]:
        value = aligned.values.get(name)
        if value is None or value.ndim != 2 or value.dtype.kind != "f":
            continue
        for transform in transforms:
            for words, operator, domain, attributes in _LINKS:
                if transform is None and not operator:
                    continue
                operations: list[Operation] = []
                if transform is not None:
                    operations.append(attribute(node.output[0], "post_transform", transform))
                if operator:
                    operations += insert_operator(
                        aligned, name, None, operator, (), attributes, domain
                    )
                said = [f"{node.op_type}.post_transform = {transform}"] * (transform is not None)
                about = f"{', '.join([*said, *[words] * bool(words)])} at {name}"
                yield propose("attribute" if transform else "insertion", about, *operations)
