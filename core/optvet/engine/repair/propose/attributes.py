"""Attributes, and small constants that are as good as attributes, set as the source has them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto
from onnx.defs import OpSchema

from optvet.engine.convert.other_attributes import attribute_differences
from optvet.engine.repair.aligned_run import AlignedRun
from optvet.engine.repair.candidates import (
    RepairCandidate,
    attribute,
    give_constant,
    propose,
    short,
)
from optvet.graph.walk import attribute_of, domain_of, opset_versions, reads, schema_of
from optvet.spec.converters import SourceValue

_OPERATORS = 6
_TURNS = 24
"""Permutations of a list of at most four numbers."""
_INTEGERS = 16
"""Constants of so many integers or fewer are shapes, axes, pads, indices."""

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "approximate": ("none", "tanh"),
    "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"),
    "mode": ("constant", "reflect", "edge", "wrap", "nearest", "linear", "cubic", "DCR", "CRD"),
    "coordinate_transformation_mode": (
        *("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"),
        *("half_pixel_symmetric", "tf_crop_and_resize", "output_half_pixel"),
    ),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
    "reduction": ("none", "add", "mul", "max", "min", "mean", "sum"),
    "direction": ("forward", "reverse", "bidirectional", "LEFT", "RIGHT"),
    "post_transform": ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"),
    "aggregate_function": ("SUM", "AVERAGE", "MIN", "MAX"),
    "norm": ("MAX", "L1", "L2"),
    "kernel_type": ("LINEAR", "POLY", "RBF", "SIGMOID"),
    "padding_mode": ("zeros", "border", "reflection"),
}
"""Values that ONNX gives a text attribute; which of them an operator takes, the checker says."""


def attributes(aligned: AlignedRun, nodes: tuple[int, ...]) -> Iterator[RepairCandidate]:
    """Those that the source's operator asks for."""
    for index in nodes:
        node = aligned.node_of(index)
        for operator in aligned.operators(_OPERATORS):
            if operator.alike == node.op_type:
                yield from _as_in_source(aligned, node, operator)
    yield from _of_control_flow(aligned, nodes)


def _of_control_flow(aligned: AlignedRun, nodes: tuple[int, ...]) -> Iterator[RepairCandidate]:
    """Those of the scans and loops whose values the nodes read: a direction, an axis."""
    read = (name for index in nodes for name in reads(aligned.node_of(index)))
    joints = (aligned.unfolded.joints[name] for name in read if name in aligned.unfolded.joints)
    control = {j.node.output[0]: j.node for j in joints if j.node is not None}
    for node in control.values():
        for operator in aligned.inside.values:
            if operator.alike == node.op_type:
                for each in _as_in_source(aligned, node, operator):
                    # The flat model has no such node: only the whole model can tell.
                    yield replace(each, explains=False)


def _words(node: NodeProto, name: str, value: str) -> str:
    return f"{node.op_type}.{name} = {value} at {node.output[0]}"


def other_attributes(aligned: AlignedRun, nodes: tuple[int, ...]) -> Iterator[RepairCandidate]:
    """Every attribute in other values that it may have, one at a time."""
    for index in nodes:
        yield from _search_values(aligned, aligned.node_of(index))


def _as_in_source(
    aligned: AlignedRun, node: NodeProto, operator: SourceValue
) -> Iterator[RepairCandidate]:
    found = attribute_differences(aligned.model, node, operator)
    each = [
        (
            _words(node, name, "its default" if wanted is None else short(wanted)),
            attribute(node.output[0], name, wanted),
        )
        for name, (_, wanted) in found.items()
        if not isinstance(wanted, (GraphProto, TensorProto))
    ]
    if len(each) > 1:
        yield propose("attribute", "; ".join(w for w, _ in each), *(o for _, o in each))
    for words, operation in each:
        yield propose("attribute", words, operation)


def _search_values(aligned: AlignedRun, node: NodeProto) -> Iterator[RepairCandidate]:
    schema = schema_of(domain_of(node), node.op_type, opset_versions(aligned.model))
    if schema is None:
        return
    constants = list(_constants_of(aligned.operators(_OPERATORS)))
    for name, about in schema.attributes.items():
        now = attribute_of(node, name, None)
        now = now.decode(errors="replace") if isinstance(now, bytes) else now
        for value in _alternatives(aligned, node, name, about.type, now, constants):
            words = _words(node, name, short(value))
            yield propose("attribute", words, attribute(node.output[0], name, value))
        if now is not None and not about.required:
            words = _words(node, name, "its default")
            yield propose("attribute", words, attribute(node.output[0], name, None))


def _constants_of(operators: Iterable[SourceValue]) -> Iterator[Any]:
    """Numbers and lists that are written in the source, and those of alike attributes."""
    for operator in operators:
        for operand in operator.operands:
            if operand.constant is not None:
                yield operand.constant
        yield from operator.attributes.values()


def _alternatives(
    aligned: AlignedRun, node: NodeProto, name: str, kind: Any, now: Any, constants: list[Any]
) -> Iterator[Any]:
    """Other values of an attribute, each once."""
    types = OpSchema.AttrType
    seen = [now]
    if kind == types.STRING:
        ways: Iterable[Any] = _CHOICES.get(name, ())
    elif kind == types.FLOAT:
        ways = [float(c) for c in constants if isinstance(c, (int, float))]
    elif kind == types.INT:
        ways = _integers(aligned, node, name, constants)
    elif kind == types.INTS:
        ways = _lists(now, [c for c in constants if _is_list(c)], _rank(aligned, node))
    else:
        return
    for value in ways:
        if value not in seen:
            seen.append(value)
            yield value


def _rank(aligned: AlignedRun, node: NodeProto) -> int:
    value = aligned.values.get(node.input[0]) if node.input else None
    return 0 if value is None else value.ndim


def _integers(
    aligned: AlignedRun, node: NodeProto, name: str, constants: list[Any]
) -> Iterator[int]:
    yield from (0, 1)
    if "axis" in name or "dim" in name:
        yield from range(_rank(aligned, node) + 1)
    for c in constants:
        if isinstance(c, int):
            yield int(c)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(_is_integer(v) for v in value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _lists(now: Any, constants: list[Any], rank: int) -> Iterator[list[int]]:
    """Lists of the source, as they are and twice over; the present one in other orders."""
    spatial = max(rank - 2, 1)
    for c in constants:
        each = list(c) * spatial if len(c) == 1 else list(c)
        yield from (list(c), each, each + each, each[::-1], [v for v in each for _ in range(2)])
    if isinstance(now, list) and now:
        half = len(now) // 2
        yield now[half:] + now[:half]
        yield from _orders(now)
        yield from _steps(now)
    for value in (0, 1, 2):
        yield [value] * (len(now) if isinstance(now, list) else 2 * spatial)
    if 2 <= rank <= 4:
        yield from (list(order) for order in itertools.permutations(range(rank)))


def _orders(now: list[int]) -> Iterator[list[int]]:
    for order in itertools.islice(itertools.permutations(now), _TURNS):
        yield list(order)


def _steps(now: list[int]) -> Iterator[list[int]]:
    """One number, or every number, one larger or smaller."""
    for step in (1, -1):
        yield [v + step for v in now]
        for i in range(len(now)):
            yield [v + step * (i == j) for j, v in enumerate(now)]


def constants(aligned: AlignedRun, nodes: tuple[int, ...]) -> Iterator[RepairCandidate]:
    """Small constants of integers, and factors of sizes, in other values."""
    listed = list(_constants_of(aligned.operators(_OPERATORS)))
    for index in nodes:
        node = aligned.node_of(index)
        for place, name in enumerate(node.input):
            now = aligned.constants.get(name)
            if now is None or not now.size or now.size > _INTEGERS or now.ndim > 1:
                continue
            for value in _other_constants(aligned, node, now, listed):
                about = f"input {place} of {node.op_type} {node.output[0]} = {short(value)}"
                yield propose("constant", about, *give_constant(aligned, index, place, value))


def _other_constants(
    aligned: AlignedRun, node: NodeProto, now: np.ndarray, listed: list[Any]
) -> Iterator[np.ndarray]:
    flat = now.reshape(-1).tolist()
    ways: list[list[Any]] = []
    shapes = [o.value.shape for o in aligned.operators(_OPERATORS)]
    if now.dtype.kind in "iu":
        for shape in shapes:
            if len(shape) == now.size:
                ways += [[0, *shape[1:]], [-1, *shape[1:]], list(shape)]
        if node.op_type == "Reshape":
            ways += _open_shapes(flat)
        fitting = (c for c in listed if _is_list(c))
        ways += [w for w in _lists(flat, list(fitting), _rank(aligned, node)) if len(w) == now.size]
        ways += [[int(c)] for c in listed if _is_integer(c) and now.size == 1]
    elif now.dtype.kind == "f" and node.op_type in ("Resize", "Upsample"):
        before = aligned.values.get(node.input[0])
        for shape in shapes:
            if before is not None and len(shape) == before.ndim == now.size:
                ways.append([b / a for a, b in zip(before.shape, shape, strict=True)])
    seen = [flat]
    for way in ways:
        if way not in seen:
            seen.append(way)
            yield np.asarray(way).astype(now.dtype).reshape(now.shape)


def _open_shapes(flat: list[int]) -> Iterator[list[int]]:
    """A shape with one number left open, or taken from the value."""
    for i in range(len(flat)):
        if -1 not in flat[:i] + flat[i + 1 :]:
            yield [-1 if i == j else v for j, v in enumerate(flat)]
        yield [0 if i == j else v for j, v in enumerate(flat)]
