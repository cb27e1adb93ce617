"""Where two models begin to compute different things.

All values of both models are recorded on one input, by adding outputs to copies of the models.
Shared values are compared in the order of the second model, each with the noise of this value in
the first model. The first one beyond its noise marks the rewritten region: the nodes of each model
between it and the last values that still agree.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto

from optvet.engine.judge.thresholds import Thresholds
from optvet.engine.vet.observe.layer_differences import NodesByValue, layer_of
from optvet.engine.vet.observe.layer_statistics import summaries
from optvet.engine.vet.observe.recorded_values import (
    RecordedValues,
    Values,
    as_graph,
    record_with_jitter,
    rename_feeds,
)
from optvet.engine.vet.observe.value_pairs import ValuePair, find_pairs, node_outputs
from optvet.engine.work.sandbox import Sandbox, enter
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.graph.interface import graph_inputs
from optvet.graph.text import node_text
from optvet.graph.walk import reads
from optvet.graph.weights import constants_of
from optvet.spec.errors import InputError
from optvet.spec.records import ModelComparison
from optvet.spec.runtime_protocols import ReadsFiles

INNER_JITTERS = 4


def compare_models(
    a: ModelProto, b: ModelProto, feeds: Values, config: RuntimeConfig, sandbox: Sandbox
) -> ModelComparison:
    """Compare all values that ``a`` and ``b`` share on ``feeds``, which are named as in ``a``.

    Raises:
        InputError: One of the models does not run on them.
    """
    renamed = rename_feeds(a, b, feeds)
    first_bytes, second_bytes = a.SerializeToString(), b.SerializeToString()
    outcome = sandbox.call(_compare, first_bytes, second_bytes, dict(feeds), renamed, config)
    if outcome.value is not None:
        return outcome.value
    if other := _other_type(a, b):
        raise InputError(other)
    # Find out which of the models failed, if the worker died.
    for which, data, fed in (
        ("first", first_bytes, dict(feeds)),
        ("second", second_bytes, renamed),
    ):
        alone = sandbox.call(_runs, data, fed, config)
        if alone.failure is not None:
            words = alone.failure.message
            raise InputError(f"the {which} model does not run on the inputs: {words}")
    words = outcome.failure.message if outcome.failure else "no answer"
    raise InputError(f"the models run, but could not be compared: {words}")


def _other_type(a: ModelProto, b: ModelProto) -> str:
    """The first input that has another element type in ``b``, in words; empty if there is none.

    Inputs belong together by name, else by position.
    """
    of_a, of_b = graph_inputs(a), {i.name: i for i in graph_inputs(b)}
    by_name = {i.name for i in of_a} >= set(of_b)
    pairs = [(i, of_b[i.name]) for i in of_a if i.name in of_b]
    for first, second in pairs if by_name else zip(of_a, of_b.values(), strict=False):
        if first.dtype != second.dtype:
            return (
                f"input {first.name!r} is {first.dtype} in the first model, {second.name!r} is "
                f"{second.dtype} in the second; compare models that take the same inputs"
            )
    return ""


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
    first_bytes = a.SerializeToString()
    outcome = sandbox.call(
        _compare_file, first_bytes, file, dict(feeds), config_a, config_b, thresholds
    )
    if outcome.value is not None:
        return outcome.value
    words = outcome.failure.message if outcome.failure else "no answer"
    if sandbox.call(_runs, first_bytes, dict(feeds), config_a).failure is not None:
        raise InputError(f"the first model does not run on the inputs: {words}")
    raise InputError(f"{file} cannot be compared: {words}")


def _compare_file(
    first_bytes: bytes,
    file: Path,
    feeds: Values,
    by_a: RuntimeConfig,
    by_b: RuntimeConfig,
    thresholds: Thresholds,
) -> ModelComparison:
    """Called in a worker."""
    first = replace(
        record_with_jitter(first_bytes, feeds, by_a, INNER_JITTERS), thresholds=thresholds
    )
    enter("run")
    assert isinstance(by_b.runtime, ReadsFiles)
    inside = by_b.runtime.inner_values(file, feeds, by_b.options)
    enter("compare")
    a = onnx.load_from_string(first_bytes)
    b, values = as_graph(inside, first.values.keys())
    return compare_values(a, b, first, RecordedValues(values))


def _compare(
    first_bytes: bytes, second_bytes: bytes, feeds: Values, renamed: Values, by: RuntimeConfig
) -> ModelComparison:
    """Called in a worker, where all the values stay."""
    first = record_with_jitter(first_bytes, feeds, by, INNER_JITTERS)
    second = record_with_jitter(second_bytes, renamed, by, 0)
    enter("compare")
    a, b = onnx.load_from_string(first_bytes), onnx.load_from_string(second_bytes)
    return compare_values(a, b, first, second)


def _runs(data: bytes, feeds: Values, by: RuntimeConfig) -> bool:
    record_with_jitter(data, feeds, by, 0)
    return True


# --- comparing ------------------------------------------------------------------------------------


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
    for pair in find_pairs(a, b, first, second, wanted):
        pairs.append(pair)
        if outputs and pair.judgement.call == "fault":
            break
    return comparison_of(a, b, first, second, pairs)


def comparison_of(
    a: ModelProto,
    b: ModelProto,
    first: RecordedValues,
    second: RecordedValues,
    pairs: Sequence[ValuePair],
) -> ModelComparison:
    """The comparison, from pairs of values in the order of ``b``."""
    nodes = NodesByValue(a), NodesByValue(b)
    layers = [layer_of(pair, *nodes, first, second) for pair in pairs]
    paired_a, paired_b = {p.a for p in pairs}, {p.b for p in pairs}
    found = next((p for p in pairs if p.judgement.call == "fault"), None)
    # A region begins at values that agree up to rounding.
    sound = [p for p in pairs if p.judgement.call != "fault"]
    before: list[NodeProto] = []
    after: list[NodeProto] = []
    agreeing: set[str] = set()
    if found is not None:
        before, after, agreeing = _regions(a, b, found, sound)
        weights = layers[pairs.index(found)].parameters
        if node_texts(a, before) == node_texts(b, after) and not any(p.differs for p in weights):
            # Equal nodes make another value of values that agree up to rounding, as behind a
            # decision: then what was rewritten lies before the values that are equal to the bit.
            equal = [p for p in sound if p.judgement.call == "same" and not p.judgement.error]
            before, after, agreeing = _regions(a, b, found, equal)
    return ModelComparison(
        schema="optvet.compare/1",
        nodes=(len(a.graph.node), len(b.graph.node)),
        layers=layers,
        operators=summaries(layers, lambda layer: layer.op_a),
        dtypes=summaries(layers, lambda layer: layer.dtype),
        only_in_a=[n for n in node_outputs(a) if n not in paired_a],
        only_in_b=[n for n in node_outputs(b) if n not in paired_b],
        diverges_at=None if found is None else found.a,
        before=node_texts(a, before),
        after=node_texts(b, after),
        agreeing=sorted(agreeing),
    )


def node_texts(model: ModelProto, nodes: Sequence[NodeProto]) -> list[str]:
    """Nodes as text, with constants."""
    constants = constants_of(model)
    return [node_text(node, constants) for node in nodes]


def _regions(
    a: ModelProto, b: ModelProto, found: ValuePair, sound: Sequence[ValuePair]
) -> tuple[list[NodeProto], list[NodeProto], set[str]]:
    """Nodes of both models between a pair of values and ``sound`` ones; and the values reached."""
    before, reached = region_of(a, found.a, {p.a for p in sound})
    after, reached_b = region_of(b, found.b, {p.b for p in sound})
    back = {p.b: p.a for p in sound}
    return before, after, reached | {back.get(name, name) for name in reached_b}


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


def region_of(model: ModelProto, target: str, sound: set[str]) -> tuple[list[NodeProto], set[str]]:
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
