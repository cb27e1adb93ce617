"""What is expected of optimized models: what the original gives, if it agrees with itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import ModelProto

from optvet.engine.judge.defined import undefined_in
from optvet.engine.judge.defined_rules import SCALE_PLACES
from optvet.engine.judge.sample import unlike
from optvet.engine.work.trials.trial import RuntimeConfig, flatten
from optvet.engine.work.trials.undefined_values import undefined_on
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

    def drop_random_outputs(self, outputs: Values) -> Values:
        """The outputs that are not drawn."""
        return {n: v for n, v in outputs.items() if n not in self.drawn} if self.drawn else outputs


@dataclass(frozen=True)
class ExpectedOutput:
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
) -> ExpectedOutput | None:
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
    if undefined_in(proto, feeds):
        return None
    several = several_inputs(proto, feeds)
    try:
        onnx.checker.check_model(data, full_check=True)
        session = config.runtime.load(Artifact("onnx", data), config.options)
        runs = [(outputs_of(session, given), outputs_of(session, given)) for given in several]
    except Exception:  # whatever the checker and a runtime raise, it is no model to hunt with
        return None
    outputs = tuple(first for first, _ in runs)
    for given, made in zip(several, outputs, strict=True):
        if undefined_on(config, proto, given, made):
            return None
    chance = chance_of(*runs[0]) if random else Chance()
    if any(unlike(chance.drop_random_outputs(first), second) for first, second in runs):
        return None
    if any(v.size > ELEMENTS for first in outputs for v in first.values()):
        return None
    names = all_names(proto.graph.node) | {v.name for v in proto.graph.input}
    facts = structure.brief_facts(proto, len(data))
    known = frozenset(names | {t.name for t in proto.graph.initializer} - {""})
    return ExpectedOutput(
        outputs, outputs, several, interface_of(proto, by_habit=False), facts, known, chance
    )


def several_inputs(model: ModelProto, feeds: Values) -> tuple[Values, ...]:
    """``feeds``, and others drawn like them, if the standard has an answer for these too.

    Numbers with a point are drawn, and all else stays; scales of quantizers are positive.
    """
    generator = np.random.default_rng(0)
    scales = _scales_of(model)
    drawn: dict[str, np.ndarray] = {}
    for name, value in feeds.items():
        drawn[name] = value
        if value.dtype.kind == "f":
            made = generator.normal(size=value.shape)
            drawn[name] = np.asarray(abs(made) + 0.01 if name in scales else made, value.dtype)
    return (feeds,) if undefined_in(model, drawn) else (feeds, drawn)


def _scales_of(model: ModelProto) -> frozenset[str]:
    """Names of the values by which operators of a model quantize."""
    return frozenset(
        node.input[place]
        for node in nodes_of(model.graph)
        for place in SCALE_PLACES.get(node.op_type, ())
        if place < len(node.input)
    )


def is_repeated(config: RuntimeConfig, data: bytes, truth: ExpectedOutput) -> bool:
    """Whether another session gives the same, apart from what is known to be drawn."""
    session = config.runtime.load(Artifact("onnx", data), config.options)
    again = (outputs_of(session, feeds) for feeds in truth.feeds)
    return not any(
        unlike(truth.chance.drop_random_outputs(a), b)
        for a, b in zip(truth.original, again, strict=True)
    )
