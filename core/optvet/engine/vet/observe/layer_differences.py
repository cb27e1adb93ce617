"""A pair of values as a layer of the comparison: what makes it, and how the nodes differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, numpy_helper

from optvet.engine.judge.known_noise import noise_level
from optvet.engine.numerics.floats import is_float
from optvet.engine.numerics.lost_parts import LostParts
from optvet.engine.vet.observe.layer_statistics import activation_of, rms_of
from optvet.engine.vet.observe.observation import finite
from optvet.engine.vet.observe.recorded_values import RecordedValues
from optvet.engine.vet.observe.value_pairs import ValuePair, noise_of
from optvet.graph.sites import attributes_of
from optvet.graph.text import attribute_text
from optvet.graph.walk import opset_versions
from optvet.graph.weights import constants_of
from optvet.spec.records import Layer, Parameter


class NodesByValue:
    """What makes the values of a model, and from which weights."""

    def __init__(self, model: ModelProto) -> None:
        self._maker = {o: n for n in model.graph.node for o in n.output if o}
        self._weights = constants_of(model)
        self.versions = opset_versions(model)

    def maker(self, name: str) -> NodeProto | None:
        """The node that makes the value; None for inputs and weights."""
        return self._maker.get(name)

    def weights(self, node: NodeProto) -> dict[int, np.ndarray]:
        """Numbers that ``node`` reads, by place."""
        known = {i: self._weights[n] for i, n in enumerate(node.input) if n in self._weights}
        return {
            i: numpy_helper.to_array(t)
            for i, t in known.items()
            if t.data_type != onnx.TensorProto.STRING
        }


def layer_of(
    pair: ValuePair, a: NodesByValue, b: NodesByValue, first: RecordedValues, second: RecordedValues
) -> Layer:
    """The record of ``pair``."""
    one, other = a.maker(pair.a), b.maker(pair.b)
    value = first.values[pair.a]
    magnitude: float | None = None
    if value.dtype.kind in "fiu" and value.size:
        wide = np.abs(value.astype(np.float64))
        magnitude = finite(float(wide[np.isfinite(wide)].max(initial=0.0)))
    judgement = pair.judgement
    noise = judgement.noise
    if noise is None and value.dtype.kind == "f":
        noise = noise_level(pair.a, value, noise_of(first))
    lost = ""
    if judgement.call != "same" and is_float(value.dtype):
        seen = LostParts()
        seen.add({"": {pair.a: value}}, {"": {pair.a: second.values[pair.b]}})
        lost = "; ".join(seen.words())
    same = one is not None and other is not None and one.op_type == other.op_type
    same = same and bool(b.versions)  # what stands for another format has only names
    return Layer(
        name=pair.a,
        name_in_b=pair.b,
        found_by=pair.found_by,
        op_a="" if one is None else one.op_type,
        op_b="" if other is None else other.op_type,
        dtype=value.dtype.name,
        shape=list(value.shape),
        magnitude=magnitude,
        error=finite(judgement.error),
        noise=finite(noise),
        call=judgement.call,
        detail="; ".join(part for part in (judgement.detail, lost) if part),
        attributes=_attributes(one, other, a, b) if same and one and other else {},
        parameters=_parameters(one, other, a, b) if same and one and other else [],
        activation=activation_of(value, second.values[pair.b]),
    )


def _attributes(
    one: NodeProto, other: NodeProto, a: NodesByValue, b: NodesByValue
) -> dict[str, str]:
    """Differing attributes as "this → that"; a dash stands for a missing attribute."""
    was, now = attributes_of(one, a.versions), attributes_of(other, b.versions)
    old = {x.name: attribute_text(x) for x in one.attribute}
    new = {x.name: attribute_text(x) for x in other.attribute}
    names = sorted(n for n in was.keys() | now.keys() if was.get(n) != now.get(n))
    return {n: f"{old.get(n, '–')} → {new.get(n, '–')}" for n in names}


def _parameters(
    one: NodeProto, other: NodeProto, a: NodesByValue, b: NodesByValue
) -> list[Parameter]:
    was, now = a.weights(one), b.weights(other)
    return [
        _parameter(name, was[place], now[place])
        for place, name in enumerate(one.input)
        if place in was and place in now
    ]


def _parameter(name: str, was: np.ndarray, now: np.ndarray) -> Parameter:
    shapes: dict[str, Any] = {"shape": list(was.shape), "shape_in_b": list(now.shape)}
    if was.shape != now.shape:
        return Parameter(name=name, **shapes, max_difference=None, rms_difference=None)
    x, y = was.astype(np.float64), now.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
        largest, rms = float(np.abs(x).max(initial=0.0)), rms_of(x)
    return Parameter(
        name=name,
        **shapes,
        max_difference=finite(float(difference.max(initial=0.0)) / (largest or 1.0)),
        rms_difference=finite(rms_of(difference) / (rms or 1.0)),
        mean_difference=finite(float(difference.mean())) if difference.size else 0.0,
    )
