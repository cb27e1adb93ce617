"""What is expected of optimized models: what the original gives, if it agrees with itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

from optvet.engine.judge.sample import unlike
from optvet.engine.work.trial import RuntimeConfig, flatten
from optvet.graph import structure
from optvet.graph.interface import Interface, interface_of
from optvet.graph.walk import all_names, nodes_of
from optvet.spec.protocols import Session
from optvet.spec.types import Artifact

ELEMENTS = 20_000
"""Limit of one output."""

Values = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Chance:
    """What two runs of one session tell of outputs that are drawn at random.

    ``drawn`` are outputs that differ, and ``alike`` the groups of them that follow one another:
    two draws must stay two draws, and one draw that is read twice must stay one.
    """

    drawn: frozenset[str] = frozenset()
    alike: frozenset[frozenset[str]] = frozenset()

    def fixed(self, outputs: Values) -> Values:
        """The outputs that are not drawn."""
        return {n: v for n, v in outputs.items() if n not in self.drawn} if self.drawn else outputs


@dataclass(frozen=True)
class Truth:
    """What is expected of optimized models.

    Attributes:
        original: Outputs of the original.
        outputs: Outputs that are expected.
        feeds: The inputs of each.
        interface: What a caller sees.
        facts: Of the original.
        names: All names of the original.
        chance: What is drawn at random.
    """

    original: tuple[Values, ...]
    outputs: tuple[Values, ...]
    feeds: tuple[Values, ...]
    interface: Interface
    facts: structure.Facts
    names: frozenset[str]
    chance: Chance


def chance_of(first: Values, second: Values) -> Chance:
    """What two runs of one session tell."""
    other = unlike(first, second)
    drawn = [n for n in first if n in second and n in other]
    groups: list[list[str]] = []
    for name in drawn:
        for group in groups:
            if _follows([v[name] for v in (first, second)], [v[group[0]] for v in (first, second)]):
                group.append(name)
                break
        else:
            groups.append([name])
    return Chance(frozenset(drawn), frozenset(frozenset(g) for g in groups))


_FEWEST = 6
"""Numbers from which on a line through all of them is no accident."""


def _follows(values: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    """Whether values are others, or a multiple of them and a constant."""
    if any(a.size != b.size for a, b in zip(values, others, strict=True)):
        return False
    a, b = (np.concatenate([v.ravel() for v in both]) for both in (values, others))
    if a.dtype.kind not in "fiu" or b.dtype.kind not in "fiu" or a.size < _FEWEST:
        return bool(np.array_equal(a, b))
    with np.errstate(all="ignore"):
        return bool(abs(np.corrcoef(a.astype(float), b.astype(float))[0, 1]) > 0.9999)


def outputs_of(session: Session, feeds: Values) -> dict[str, np.ndarray]:
    """Outputs as arrays: what a sequence holds, and whether an optional value is there."""
    return flatten(session.run(feeds))


def truth_of(
    config: RuntimeConfig, data: bytes, feeds: Values, *, with_chance: bool
) -> Truth | None:
    """What the original gives; None if it is invalid or does not agree with itself.

    Args:
        config: What runs it.
        data: The model.
        feeds: Its inputs.
        with_chance: Whether models that draw random numbers can be judged.
    """
    proto = ModelProto.FromString(data)
    random = structure.draws_random(proto)
    if random and not with_chance:
        return None
    scales = scales_of(proto)
    if not _is_defined(proto, feeds, scales):
        return None
    several = (feeds, drawn_inputs(feeds, scales))
    try:
        onnx.checker.check_model(data, full_check=True)
        session = config.runtime.load(Artifact("onnx", data), config.options)
        runs = [(outputs_of(session, given), outputs_of(session, given)) for given in several]
    except Exception:  # whatever the checker and a runtime raise, it is no model to hunt with
        return None
    outputs = tuple(first for first, _ in runs)
    chance = chance_of(*runs[0]) if random else Chance()
    if any(unlike(chance.fixed(first), second) for first, second in runs):
        return None
    if any(v.size > ELEMENTS for first in outputs for v in first.values()):
        return None
    names = all_names(proto.graph.node) | {v.name for v in proto.graph.input}
    facts = structure.brief_facts(proto, len(data))
    known = frozenset(names | {t.name for t in proto.graph.initializer} - {""})
    return Truth(
        outputs, outputs, several, interface_of(proto, by_habit=False), facts, known, chance
    )


def drawn_inputs(feeds: Values, scales: Set[str] = frozenset()) -> dict[str, np.ndarray]:
    """Other inputs of the same kind: numbers with a point are drawn, all else stays.

    ``scales`` are drawn as positive numbers.
    """
    generator = np.random.default_rng(0)
    drawn: dict[str, np.ndarray] = {}
    for name, value in feeds.items():
        drawn[name] = value
        if value.dtype.kind == "f":
            made = generator.normal(size=value.shape)
            drawn[name] = np.asarray(abs(made) + 0.01 if name in scales else made, value.dtype)
    return drawn


_SCALES = {
    "QuantizeLinear": (1,),
    "DequantizeLinear": (1,),
    "QLinearConv": (1, 4, 6),
    "QLinearMatMul": (1, 4, 6),
}
"""Places of the scales among the inputs of operators that quantize."""


def scales_of(model: ModelProto) -> frozenset[str]:
    """Names of the values by which operators of a model quantize."""
    return frozenset(
        node.input[place]
        for node in nodes_of(model.graph)
        for place in _SCALES.get(node.op_type, ())
        if place < len(node.input)
    )


def _is_defined(model: ModelProto, feeds: Values, scales: Set[str]) -> bool:
    """Whether it is defined what the model computes, as far as its constants and inputs tell.

    Scales must be positive, and bits be shifted by 0 up to one less than there are.
    """
    shifts = {n.input[1] for n in nodes_of(model.graph) if n.op_type == "BitShift"}
    if not (scales or shifts):
        return True
    known = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for node in nodes_of(model.graph):
        for given in node.attribute if node.op_type == "Constant" else ():
            if given.HasField("t"):
                known[node.output[0]] = numpy_helper.to_array(given.t)
            elif given.name == "value_float":
                known[node.output[0]] = np.array(given.f)
    known |= feeds
    with np.errstate(all="ignore"):
        good = [(v > 0) & np.isfinite(v.astype(float)) for n, v in known.items() if n in scales]
        good += [(v >= 0) & (v < 8 * v.itemsize) for n, v in known.items() if n in shifts]
    return all(np.all(g) for g in good)


def is_repeated(config: RuntimeConfig, data: bytes, truth: Truth) -> bool:
    """Whether another session gives the same, apart from what is known to be drawn."""
    session = config.runtime.load(Artifact("onnx", data), config.options)
    again = (outputs_of(session, feeds) for feeds in truth.feeds)
    return not any(
        unlike(truth.chance.fixed(a), b) for a, b in zip(truth.original, again, strict=True)
    )
