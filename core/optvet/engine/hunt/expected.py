"""What is expected of optimized models: what the original gives, if it agrees with itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import ModelProto

from optvet.engine.judge.dependence import Runs
from optvet.engine.judge.sample import unlike
from optvet.engine.numerics.rounding import random_ops
from optvet.engine.standard.defined import undefined_in
from optvet.engine.standard.numbers import SCALE_PLACES
from optvet.engine.work.trials.inference import RuntimeConfig, flatten, graph_output_of
from optvet.engine.work.trials.undefined_values import undefined_on
from optvet.graph import structure
from optvet.graph.interface import Interface, interface_of
from optvet.graph.walk import all_names, nodes_of
from optvet.spec.runtime_protocols import Session
from optvet.spec.types import Artifact

ELEMENTS = 20_000
"""Limit of one output."""

Values = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class ExpectedOutput:
    """What is expected of optimized models.

    Attributes:
        data: The original.
        original: Outputs of it.
        outputs: Outputs that are expected.
        feeds: The inputs of each.
        interface: What a caller sees.
        facts: Of the original.
        names: All names of the original.
        random: Outputs that depend on what is drawn at random.
        drawn: Runs of the original from known seeds, by what was asked for; see ``SeededSessions``.
    """

    data: bytes
    original: tuple[Values, ...]
    outputs: tuple[Values, ...]
    feeds: tuple[Values, ...]
    interface: Interface
    facts: structure.Facts
    names: frozenset[str]
    random: frozenset[str] = frozenset()
    drawn: dict[object, Runs | None] = field(default_factory=dict, compare=False)

    def drop_random_outputs(self, outputs: Values) -> Values:
        """The outputs that do not depend on what is drawn."""
        return {n: v for n, v in outputs.items() if n not in self.random}


def outputs_of(session: Session, feeds: Values) -> dict[str, np.ndarray]:
    """Outputs as arrays: what a sequence holds, and whether an optional value is there."""
    return flatten(session.run(feeds))


class Unrepeated(Exception):
    """A runtime gives something else each time, though nothing is drawn."""


def truth_of(
    config: RuntimeConfig, data: bytes, feeds: Values, *, with_random: bool
) -> ExpectedOutput | None:
    """What the original gives; None if it is invalid.

    Whether the standard defines that is another question, which takes as long: ``is_defined``.

    Args:
        config: What runs it.
        data: The model.
        feeds: Its inputs.
        with_random: Whether models that draw random numbers can be judged.

    Raises:
        Unrepeated: It does not agree with itself.
    """
    proto = ModelProto.FromString(data)
    draws = structure.draws_random(proto)
    if draws and not with_random:
        return None
    several = several_inputs(proto, feeds)
    try:
        onnx.checker.check_model(data, full_check=True)
        session = config.runtime.load(Artifact("onnx", data), config.options)
        runs = [(outputs_of(session, each), outputs_of(session, each)) for each in several]
    except Exception:  # whatever the checker and a runtime raise, it is no model to hunt with
        return None
    outputs = tuple(first for first, _ in runs)
    depending = random_ops(proto) if draws else frozenset[str]()
    random = frozenset(n for n in outputs[0] if graph_output_of(n) in depending)
    if any(unlike(first, second) - random for first, second in runs):
        raise Unrepeated
    if any(v.size > ELEMENTS for first in outputs for v in first.values()):
        return None
    names = all_names(proto.graph.node) | {v.name for v in proto.graph.input}
    facts = structure.brief_facts(proto, len(data))
    known = frozenset(names | {t.name for t in proto.graph.initializer} - {""})
    interface = interface_of(proto, by_habit=False)
    return ExpectedOutput(data, outputs, outputs, several, interface, facts, known, random)


def is_defined(config: RuntimeConfig, truth: ExpectedOutput) -> bool:
    """Whether the standard has an answer for the original on all its inputs."""
    proto = ModelProto.FromString(truth.data)
    return not any(
        undefined_on(config, proto, feeds, outputs)
        for feeds, outputs in zip(truth.feeds, truth.original, strict=True)
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
            artifact = generator.normal(size=value.shape)
            drawn[name] = np.asarray(
                abs(artifact) + 0.01 if name in scales else artifact, value.dtype
            )
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
    """Whether another session gives the same, apart from what depends on random numbers."""
    session = config.runtime.load(Artifact("onnx", data), config.options)
    again = (outputs_of(session, feeds) for feeds in truth.feeds)
    return not any(
        unlike(truth.drop_random_outputs(a), b) for a, b in zip(truth.original, again, strict=True)
    )
