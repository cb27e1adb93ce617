"""Values of two models that correspond: by name, by position, or by what they are.

A fusion may reuse a name for another value: a value that differs under its name, or whose name is
unknown, is searched among all values of its shape.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from onnx import ModelProto, NodeProto

from optvet.engine.judge.judgement import Judgement
from optvet.engine.judge.known_noise import Noise
from optvet.engine.judge.outputs import judge
from optvet.engine.vet.observe.recorded_values import RecordedValues
from optvet.graph.walk import operator_of, reads

_LOOKED_AT = 1 << 22
"""Values with more elements than this are not searched under other names."""


@dataclass(frozen=True)
class ValuePair:
    """Two values, one of each model, that correspond, and their comparison."""

    a: str
    b: str
    found_by: Literal["name", "position", "value", "likeness"]
    judgement: Judgement


def find_pairs(
    a: ModelProto,
    b: ModelProto,
    first: RecordedValues,
    second: RecordedValues,
    wanted: set[str] | None,
) -> Iterable[ValuePair]:
    """Shared values in the order of ``b``, those among ``wanted`` only."""
    outputs = {y.name: x.name for x, y in zip(a.graph.output, b.graph.output, strict=False)}
    by_shape = _Index(a, first)
    # Two runtimes were given one graph.
    alike = list(a.graph.node) == list(b.graph.node)
    kept = _names_kept(a, b)
    for name in node_outputs(b):
        value = second.values.get(name)
        if value is None or (wanted is not None and name not in wanted):
            continue
        pair: ValuePair | None = None
        twin = outputs.get(name, name)
        if twin in first.values:
            by: Literal["name", "position"] = "name" if twin == name else "position"
            pair = ValuePair(twin, name, by, judge_value(twin, value, first))
        # Outputs are matched by name only; inner names may be reused in another graph. But what the
        # same reader still reads is the same value, and wrong: a Relu that became an Identity
        # gives what the Convolution before it gives, and is no new name of that.
        wrong = pair is not None and pair.judgement.call == "fault" and name not in kept
        if (pair is None or wrong) and name not in outputs and not alike:
            pair = by_shape.find(name, value) or pair
        if pair is not None:
            yield pair


def _names_kept(a: ModelProto, b: ModelProto) -> set[str]:
    """Values of ``b`` that a node reads which ``a`` has too: its operator, and all of its names."""

    def about(node: NodeProto) -> tuple[object, ...]:
        return *operator_of(node), tuple(node.input), tuple(node.output)

    known = {about(node) for node in a.graph.node}
    return {name for node in b.graph.node if about(node) in known for name in reads(node)}


class _Index:
    """Values of a model by coarse features, for fast search."""

    def __init__(self, model: ModelProto, first: RecordedValues) -> None:
        self._first = first
        self._names: dict[tuple[object, ...], list[str]] = defaultdict(list)
        for name in node_outputs(model):
            value = first.values.get(name)
            if value is not None:
                self._names[value.shape, value.dtype].append(name)

    def find(self, name: str, value: np.ndarray) -> ValuePair | None:
        """The only value that agrees with ``value``; None if several do, or for constants."""
        if not 1 < value.size <= _LOOKED_AT or np.all(value == value.flat[0]):
            return None
        found = []
        for other in self._names[value.shape, value.dtype]:
            if _resembles(self._first.values[other], value):
                judgement = judge_value(other, value, self._first)
                if judgement.call in ("same", "drift"):
                    found.append(ValuePair(other, name, "value", judgement))
        return found[0] if len(found) == 1 else None


def _resembles(known: np.ndarray, value: np.ndarray) -> bool:
    """Whether a few elements agree roughly; saves a full comparison of other values."""
    step = max(1, value.size // 64)
    x, y = known.ravel()[::step], value.ravel()[::step]
    if value.dtype.kind not in "fiu":
        return True
    with np.errstate(invalid="ignore", over="ignore"):
        x, y = x.astype(np.float64), y.astype(np.float64)
        scale = float(np.max(np.abs(x), where=np.isfinite(x), initial=0.0))
        return bool(np.allclose(x, y, rtol=0.05, atol=0.05 * scale, equal_nan=True))


def judge_value(name: str, value: np.ndarray, first: RecordedValues) -> Judgement:
    """Compare ``value`` with ``name`` of ``first``, by the noise measured there."""
    known = {name: first.values[name]}
    (judgement,) = judge(known, {name: value}, noise_of(first), first.thresholds)
    return judgement


def noise_of(first: RecordedValues) -> Noise:
    """What the runs of a model say of the noise of its values."""
    return Noise(
        jitters=first.jitters,
        longest_reduction=first.longest_reduction,
        discontinuous=first.discontinuous,
    )


def node_outputs(model: ModelProto) -> list[str]:
    """Values that nodes make, in their order."""
    return [name for node in model.graph.node for name in node.output if name]
