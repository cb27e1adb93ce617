"""All values of a model on one input, recorded in a worker, with their changes under jitter."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import ModelProto, ValueInfoProto

from optvet.engine.judge.thresholds import THRESHOLDS, Thresholds
from optvet.engine.numerics import perturb, rounding
from optvet.engine.work.sandbox import enter
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inner_values import record_values
from optvet.graph.cost import longest_reduction
from optvet.graph.interface import graph_inputs
from optvet.graph.randomness import seed_operators
from optvet.graph.structure import draws_random
from optvet.spec.errors import UsageError
from optvet.spec.extras import given
from optvet.spec.runtime_protocols import RuntimeExtras
from optvet.spec.types import Artifact, Inner

Values = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class RecordedValues:
    """All values of a model on one input, and their changes under jitter."""

    values: Values
    jitters: tuple[Values, ...] = ()
    discontinuous: frozenset[str] = frozenset()
    longest_reduction: int = 64
    thresholds: Thresholds = THRESHOLDS


def told_values(
    artifact: Artifact, config: RuntimeConfig, feeds: Values, known: Collection[str]
) -> tuple[ModelProto, RecordedValues] | None:
    """Inner values of an artifact of another format, from its runtime, and their graph.

    None if the runtime reports none. ``known`` are value names of the original model. Called in a
    worker; raises what the runtime raises.
    """
    values_of = given(config.runtime, RuntimeExtras.artifact_values)
    if values_of is None:
        return None
    enter("run")
    inside = values_of(artifact, feeds, config.options)
    graph, values = as_graph(inside, known)
    return graph, RecordedValues(values)


def as_graph(
    inside: Sequence[Inner], known: Collection[str]
) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """Values of another format as a graph that cannot run, and their contents."""
    name_of = {i.names[0]: next((n for n in i.names if n in known), i.names[0]) for i in inside}
    model = ModelProto()
    for inner in inside:
        inputs = [name_of.get(n, n) for n in inner.reads]
        node = onnx.helper.make_node(inner.operator, inputs, [name_of[inner.names[0]]])
        model.graph.node.append(node)
    outputs = sorted((i.output, name_of[i.names[0]]) for i in inside if i.output is not None)
    model.graph.output.extend(ValueInfoProto(name=name) for _, name in outputs)
    return model, {name_of[i.names[0]]: i.value for i in inside}


def _with_seeds(data: bytes) -> bytes:
    model = onnx.load_from_string(data)
    copy = seed_operators(model, 0, "name") if draws_random(model) else None
    return data if copy is None else copy.SerializeToString()


def rename_feeds(a: ModelProto, b: ModelProto, feeds: Values) -> dict[str, np.ndarray]:
    """``feeds`` as the second model calls them: by name, else by position.

    Raises:
        UsageError: The second model asks for other inputs.
    """
    first_names, second_names = ([i.name for i in graph_inputs(model)] for model in (a, b))
    if set(second_names) <= set(first_names):
        return {name: feeds[name] for name in second_names if name in feeds}
    if len(first_names) != len(second_names):
        raise UsageError(
            f"the first model has the inputs {', '.join(first_names)}, "
            f"the second {', '.join(second_names)}; compare models of the same inputs"
        )
    return {
        new: feeds[old] for old, new in zip(first_names, second_names, strict=True) if old in feeds
    }


def record_with_jitter(
    data: bytes, feeds: Values, by: RuntimeConfig, jitters: int
) -> RecordedValues:
    """All values of a model, from one run and from ``jitters`` perturbed ones.

    Random values are seeded by name, so that two models draw the same.
    Called in a worker; raises what the runtime raises.
    """
    data = _with_seeds(data)
    values = record_values(data, feeds, by)
    runs = []
    for seed in range(jitters):
        moved = perturb.jitter_feeds(feeds, np.random.default_rng(seed), 1.0)
        try:
            runs.append(record_values(perturb.jitter_bytes(data, seed, 1.0), moved, by))
        except Exception as error:  # not every perturbed input is legal; the others still measure
            if isinstance(error, MemoryError):
                raise
    if not jitters:
        return RecordedValues(values)
    enter("check")
    model = onnx.load_from_string(data)
    longest = longest_reduction(model)
    outputs = {o.name for o in model.graph.output}
    model.graph.output.extend(ValueInfoProto(name=n) for n in values if n not in outputs)
    return RecordedValues(values, tuple(runs), frozenset(rounding.discontinuous(model)), longest)
