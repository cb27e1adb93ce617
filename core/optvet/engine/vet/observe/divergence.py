"""Where two models begin to compute different things.

All values of both models are recorded on one input, by adding outputs to copies of the models.
Shared values are compared in the order of the second model, each with the noise of this value in
the first model. The first one beyond its noise marks the rewritten region: the nodes of each model
between it and the last values that still agree.

Values are matched by name. A fusion may reuse a name for another value, though: a value that
differs under its name, or whose name is unknown, is searched among all values of its shape.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, ValueInfoProto, numpy_helper

from optvet.engine.judge.judgement import Judgement
from optvet.engine.judge.known_noise import Noise, noise_level
from optvet.engine.judge.outputs import judge
from optvet.engine.judge.thresholds import THRESHOLDS, Thresholds
from optvet.engine.numerics import perturb, rounding
from optvet.engine.vet.observe.layer_statistics import activation_of, rms_of, summaries
from optvet.engine.vet.observe.observation import finite
from optvet.engine.work.sandbox import Sandbox, enter
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inner_values import record_values
from optvet.graph.cost import longest_reduction
from optvet.graph.interface import graph_inputs
from optvet.graph.randomness import seed_operators
from optvet.graph.sites import attributes_of
from optvet.graph.structure import draws_random
from optvet.graph.text import attribute_text, node_text
from optvet.graph.walk import opset_versions, reads
from optvet.graph.weights import constants_of
from optvet.spec.errors import InputError, UsageError
from optvet.spec.protocols import ReadsFiles, TellsInnerValues
from optvet.spec.records import Layer, ModelComparison, Parameter
from optvet.spec.types import Artifact, Inner

Values = Mapping[str, np.ndarray]

INNER_JITTERS = 4
_LOOKED_AT = 1 << 22
"""Values with more elements than this are not searched under other names."""


@dataclass(frozen=True)
class RecordedValues:
    """All values of a model on one input, and their changes under jitter."""

    values: Values
    jitters: tuple[Values, ...] = ()
    discontinuous: frozenset[str] = frozenset()
    longest_reduction: int = 64
    thresholds: Thresholds = THRESHOLDS


def compare_models(
    a: ModelProto, b: ModelProto, feeds: Values, config: RuntimeConfig, sandbox: Sandbox
) -> ModelComparison:
    """Compare all values that ``a`` and ``b`` share on ``feeds``, which are named as in ``a``.

    Raises:
        InputError: One of the models does not run on them.
    """
    renamed = rename_feeds(a, b, feeds)
    ours, theirs = a.SerializeToString(), b.SerializeToString()
    outcome = sandbox.call(_compare, ours, theirs, dict(feeds), renamed, config)
    if outcome.value is not None:
        return outcome.value
    # Find out which of the models failed, if the worker died.
    for which, data, fed in (("first", ours, dict(feeds)), ("second", theirs, renamed)):
        alone = sandbox.call(_runs, data, fed, config)
        if alone.failure is not None:
            words = alone.failure.message
            raise InputError(f"the {which} model does not run on the inputs: {words}")
    words = outcome.failure.message if outcome.failure else "no answer"
    raise InputError(f"the models run, but could not be compared: {words}")


def compare_with_file(
    a: ModelProto,
    file: Path,
    feeds: Values,
    config_a: RuntimeConfig,
    config_b: RuntimeConfig,
    sandbox: Sandbox,
    thresholds: Thresholds,
) -> ModelComparison:
    """Compare ``a`` with a file of another format, whose runtime tells the values inside of it.

    ``thresholds`` are for the rounding of other kernels.

    Raises:
        InputError: One of the models does not run on ``feeds``.
    """
    ours = a.SerializeToString()
    outcome = sandbox.call(_compare_file, ours, file, dict(feeds), config_a, config_b, thresholds)
    if outcome.value is not None:
        return outcome.value
    words = outcome.failure.message if outcome.failure else "no answer"
    if sandbox.call(_runs, ours, dict(feeds), config_a).failure is not None:
        raise InputError(f"the first model does not run on the inputs: {words}")
    raise InputError(f"{file} cannot be compared: {words}")


def _compare_file(
    ours: bytes,
    file: Path,
    feeds: Values,
    by_a: RuntimeConfig,
    by_b: RuntimeConfig,
    thresholds: Thresholds,
) -> ModelComparison:
    """Called in a worker."""
    first = replace(record_with_jitter(ours, feeds, by_a, INNER_JITTERS), thresholds=thresholds)
    enter("run")
    assert isinstance(by_b.runtime, ReadsFiles)
    inside = by_b.runtime.inner_values(file, feeds, by_b.options)
    enter("compare")
    a = onnx.load_from_string(ours)
    b, values = as_graph(inside, first.values.keys())
    return compare_values(a, b, first, RecordedValues(values))


def told_values(
    artifact: Artifact, config: RuntimeConfig, feeds: Values, known: Collection[str]
) -> tuple[ModelProto, RecordedValues] | None:
    """Inner values of an artifact of another format, from its runtime, and their graph.

    None if the runtime reports none. ``known`` are value names of the original model. Called in a
    worker; raises what the runtime raises.
    """
    if not isinstance(config.runtime, TellsInnerValues):
        return None
    enter("run")
    inside = config.runtime.artifact_values(artifact, feeds, config.options)
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


def _compare(
    ours: bytes, theirs: bytes, feeds: Values, renamed: Values, by: RuntimeConfig
) -> ModelComparison:
    """Called in a worker, where all the values stay."""
    first = record_with_jitter(ours, feeds, by, INNER_JITTERS)
    second = record_with_jitter(theirs, renamed, by, 0)
    enter("compare")
    a, b = onnx.load_from_string(ours), onnx.load_from_string(theirs)
    return compare_values(a, b, first, second)


def _with_seeds(data: bytes) -> bytes:
    model = onnx.load_from_string(data)
    copy = seed_operators(model, 0, "name") if draws_random(model) else None
    return data if copy is None else copy.SerializeToString()


def _runs(data: bytes, feeds: Values, by: RuntimeConfig) -> bool:
    record_with_jitter(data, feeds, by, 0)
    return True


def rename_feeds(a: ModelProto, b: ModelProto, feeds: Values) -> dict[str, np.ndarray]:
    """``feeds`` as the second model calls them: by name, else by position.

    Raises:
        UsageError: The second model asks for other inputs.
    """
    ours, theirs = ([i.name for i in graph_inputs(model)] for model in (a, b))
    if set(theirs) <= set(ours):
        return {name: feeds[name] for name in theirs if name in feeds}
    if len(ours) != len(theirs):
        raise UsageError(
            f"the first model has the inputs {', '.join(ours)}, the second {', '.join(theirs)}; "
            "compare models of the same inputs"
        )
    return {new: feeds[old] for old, new in zip(ours, theirs, strict=True) if old in feeds}


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


# --- comparing ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ValuePair:
    """Two values, one of each model, that correspond, and their comparison."""

    a: str
    b: str
    found_by: Literal["name", "position", "value"]
    judgement: Judgement


def compare_values(
    a: ModelProto,
    b: ModelProto,
    first: RecordedValues,
    second: RecordedValues,
    *,
    outputs: Collection[str] = (),
) -> ModelComparison:
    """The comparison, from recorded values.

    With ``outputs``, names of outputs of ``a``, only what leads to them is compared, up to the
    first value that is beyond its noise.
    """
    wanted = _ancestors(b, outputs, a) if outputs else None
    pairs: list[ValuePair] = []
    for pair in _pairs(a, b, first, second, wanted):
        pairs.append(pair)
        if outputs and pair.judgement.call == "fault":
            break
    nodes = _Nodes(a), _Nodes(b)
    layers = [_layer(pair, *nodes, first, second) for pair in pairs]
    paired_a, paired_b = {p.a for p in pairs}, {p.b for p in pairs}
    found = next((p for p in pairs if p.judgement.call == "fault"), None)
    # A region begins at values that agree up to rounding.
    sound = [p for p in pairs if p.judgement.call != "fault"]
    before: list[NodeProto] = []
    after: list[NodeProto] = []
    agreeing: set[str] = set()
    if found is not None:
        before, reached = _region(a, found.a, {p.a for p in sound})
        after, reached_b = _region(b, found.b, {p.b for p in sound})
        back = {p.b: p.a for p in sound}
        agreeing = reached | {back.get(name, name) for name in reached_b}
    return ModelComparison(
        schema="optvet.compare/1",
        nodes=(len(a.graph.node), len(b.graph.node)),
        layers=layers,
        operators=summaries(layers, lambda layer: layer.op_a),
        dtypes=summaries(layers, lambda layer: layer.dtype),
        only_in_a=[n for n in _node_outputs(a) if n not in paired_a],
        only_in_b=[n for n in _node_outputs(b) if n not in paired_b],
        diverges_at=None if found is None else found.a,
        before=[node_text(n, constants_of(a)) for n in before],
        after=[node_text(n, constants_of(b)) for n in after],
        agreeing=sorted(agreeing),
    )


def _ancestors(b: ModelProto, outputs: Collection[str], a: ModelProto) -> set[str]:
    """Values of ``b`` that lead to its outputs at the positions of ``outputs`` in ``a``."""
    places = {o.name: i for i, o in enumerate(a.graph.output)}
    names = [o.name for o in b.graph.output]
    todo = [names[places[n]] for n in outputs if n in places and places[n] < len(names)]
    maker = {name: node for node in b.graph.node for name in node.output}
    found: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            if name in maker:
                todo += reads(maker[name])
    return found


def _pairs(
    a: ModelProto,
    b: ModelProto,
    first: RecordedValues,
    second: RecordedValues,
    wanted: set[str] | None,
) -> Iterable[ValuePair]:
    """Shared values in the order of ``b``, those among ``wanted`` only."""
    outputs = {y.name: x.name for x, y in zip(a.graph.output, b.graph.output, strict=False)}
    by_shape = _Index(a, first)
    for name in _node_outputs(b):
        value = second.values.get(name)
        if value is None or (wanted is not None and name not in wanted):
            continue
        pair: ValuePair | None = None
        twin = outputs.get(name, name)
        if twin in first.values:
            by: Literal["name", "position"] = "name" if twin == name else "position"
            pair = ValuePair(twin, name, by, judge_value(twin, value, first))
        # Outputs are matched by name only; inner names may be reused.
        if (pair is None or pair.judgement.call == "fault") and name not in outputs:
            pair = by_shape.find(name, value) or pair
        if pair is not None:
            yield pair


class _Index:
    """Values of a model by coarse features, for fast search."""

    def __init__(self, model: ModelProto, first: RecordedValues) -> None:
        self._first = first
        self._names: dict[tuple[object, ...], list[str]] = defaultdict(list)
        for name in _node_outputs(model):
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
    (judgement,) = judge(known, {name: value}, _noise(first), first.thresholds)
    return judgement


def _noise(first: RecordedValues) -> Noise:
    return Noise(
        jitters=first.jitters,
        longest_reduction=first.longest_reduction,
        discontinuous=first.discontinuous,
    )


def _node_outputs(model: ModelProto) -> list[str]:
    """Values that nodes make, in their order."""
    return [name for node in model.graph.node for name in node.output if name]


def _region(model: ModelProto, target: str, sound: set[str]) -> tuple[list[NodeProto], set[str]]:
    """Nodes that compute ``target`` from correct values or inputs; and those values."""
    maker = {name: i for i, node in enumerate(model.graph.node) for name in node.output}
    weights = {t.name for t in model.graph.initializer}
    todo, wanted, reached = [target], set[int](), set[str]()
    while todo:
        name = todo.pop()
        if name not in maker or (name in sound and name != target):
            if name and name not in weights:
                reached.add(name)
        elif maker[name] not in wanted:
            wanted.add(maker[name])
            todo += reads(model.graph.node[maker[name]])
    return [model.graph.node[i] for i in sorted(wanted)], reached


# --- layers ---------------------------------------------------------------------------------------


class _Nodes:
    """What makes the values of a model, and from which weights."""

    def __init__(self, model: ModelProto) -> None:
        self._maker = {o: n for n in model.graph.node for o in n.output if o}
        self._weights = constants_of(model)
        self.versions = opset_versions(model)

    def maker(self, name: str) -> NodeProto | None:
        return self._maker.get(name)

    def weights(self, node: NodeProto) -> dict[int, np.ndarray]:
        """Numbers that ``node`` reads, by place."""
        known = {i: self._weights[n] for i, n in enumerate(node.input) if n in self._weights}
        return {
            i: numpy_helper.to_array(t)
            for i, t in known.items()
            if t.data_type != onnx.TensorProto.STRING
        }


def _layer(
    pair: ValuePair, a: _Nodes, b: _Nodes, first: RecordedValues, second: RecordedValues
) -> Layer:
    one, other = a.maker(pair.a), b.maker(pair.b)
    value = first.values[pair.a]
    magnitude: float | None = None
    if value.dtype.kind in "fiu" and value.size:
        wide = np.abs(value.astype(np.float64))
        magnitude = finite(float(wide[np.isfinite(wide)].max(initial=0.0)))
    judgement = pair.judgement
    noise = judgement.noise
    if noise is None and value.dtype.kind == "f":
        noise = noise_level(pair.a, value, _noise(first))
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
        detail=judgement.detail,
        attributes=_attributes(one, other, a, b) if same and one and other else {},
        parameters=_parameters(one, other, a, b) if same and one and other else [],
        activation=activation_of(value, second.values[pair.b]),
    )


def _attributes(one: NodeProto, other: NodeProto, a: _Nodes, b: _Nodes) -> dict[str, str]:
    """Differing attributes as "this → that"; a dash stands for a missing attribute."""
    was, now = attributes_of(one, a.versions), attributes_of(other, b.versions)
    old = {x.name: attribute_text(x) for x in one.attribute}
    new = {x.name: attribute_text(x) for x in other.attribute}
    names = sorted(n for n in was.keys() | now.keys() if was.get(n) != now.get(n))
    return {n: f"{old.get(n, '–')} → {new.get(n, '–')}" for n in names}


def _parameters(one: NodeProto, other: NodeProto, a: _Nodes, b: _Nodes) -> list[Parameter]:
    was, now = a.weights(one), b.weights(other)
    return [
        _parameter(name, was[place], now[place])
        for place, name in enumerate(one.input)
        if place in was and place in now
    ]


def _parameter(name: str, was: np.ndarray, now: np.ndarray) -> Parameter:
    shapes = {"shape": list(was.shape), "shape_in_b": list(now.shape)}
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
    )
