"""Locates a fault inside a stage: parameter, attribute or operator.

A place explains a verdict and never changes it. An unknown place carries the reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, numpy_helper

from optvet.engine.convert.align import (
    Known,
    SuspectRegion,
    Tolerances,
    broken_operators,
    broken_region,
    differing_weights,
    equal_up_to_layout,
    known_values,
    origin_of,
    plain_name,
)
from optvet.engine.convert.inside import inside_of, shows_inside
from optvet.engine.convert.lost_inputs import input_name, lost_output, other_inputs
from optvet.engine.convert.match_interface import fed_to
from optvet.engine.convert.other_attributes import differing_attributes, value_words
from optvet.engine.convert.preparing import prepares_input
from optvet.engine.numerics.texts import is_text
from optvet.engine.work.sandbox import enter
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inner_values import record_values, unfold_run
from optvet.graph.text import node_text
from optvet.graph.types import NUMPY_FLOATS
from optvet.graph.unfold import Joint, Unfolded
from optvet.graph.walk import opset_versions, reads
from optvet.graph.weights import constants_of
from optvet.spec.converters import SourceExtras, SourceInside, SourceValue
from optvet.spec.extras import extras
from optvet.spec.records.convert import ConversionPlace, DifferingParameter
from optvet.spec.types import Artifact, Sample

INNER_SEEDS = range(3)
LISTED_NODES = 12
FEW = 4
"""Limit of operators to list if the one to blame is unknown; and of arguments of one."""
_CHARS = 40
_LAYERS = ("Pool", "Normalization")
_HIDDEN = "the source's runtime does not show what it computes inside"


def source_inside(
    config: RuntimeConfig, source: Artifact, sample: Sample
) -> tuple[SourceInside, ...]:
    """The source's inner values, plain and perturbed by roundoffs; empty if it shows none.

    Called in a worker.
    """
    if not shows_inside(config, source):
        return ()
    enter("run")
    return tuple(inside_of(config, source, sample.feeds, seed) for seed in (None, *INNER_SEEDS))


def locate_beside(
    source_config: RuntimeConfig,
    source: Artifact,
    config: RuntimeConfig,
    artifact: Artifact,
    sample: Sample,
    outputs: Sequence[int],
    output_names: Sequence[str] = (),
) -> ConversionPlace:
    """Like ``locate``, with source and target in one worker: no inner values are sent."""
    recorded = source_inside(source_config, source, sample)
    return locate(recorded, config, artifact, sample, outputs, output_names)


def locate(
    recorded: Sequence[SourceInside],
    config: RuntimeConfig,
    artifact: Artifact,
    sample: Sample,
    outputs: Sequence[int],
    output_names: Sequence[str] = (),
) -> ConversionPlace:
    """The place of the fault in an ONNX model with wrong ``outputs`` (numbers).

    Called in a worker. ``recorded`` is the result of ``source_inside``, ``output_names`` are those
    of the source.
    """
    if not recorded:
        return ConversionPlace(note=_HIDDEN)
    inside, *moved = recorded
    enter("run")
    fed = fed_to(artifact, sample.feeds)
    whole = onnx.load_from_string(artifact.data)
    unfolded = unfold_run(whole, fed, config)
    model, values = unfolded.model, inner_values(unfolded, fed, config)
    allowed = Tolerances.of(inside, moved)
    known = known_values(model, values, inside, allowed)
    place = next((inside.outputs[i] for i in outputs if i < len(inside.outputs)), None)
    if place is None:
        return _by_parameters(model, inside, "the outputs of the source are not known inside it")
    names = [o.name for o in model.graph.output]
    region = broken_region(model, inside, known, names[outputs[0]], place)
    run = LocatedRun(unfolded, inside, allowed, values, known, region)
    gone = _gone(run, whole, tuple(sample.feeds), output_names)
    if gone is not None:
        return gone
    decision = wrong_decision(run, whole, fed, config)
    if decision is None:
        return _describe_loop(run) or describe_region(run)
    if decision.region is not None:
        return describe_region(replace(run, region=decision.region))
    return _exchanged(run, decision)


def _gone(
    run: LocatedRun, whole: ModelProto, feeds: Sequence[str], output_names: Sequence[str]
) -> ConversionPlace | None:
    """The place of an input or an output of the source that the model lacks; else None."""
    inside, outputs = run.inside, run.inside.outputs
    made = [run.values.get(output.name) for output in whole.graph.output]
    lost = [i for i, p in enumerate(outputs) if p is not None and not _is_made(run, p, made)]
    # As many as are missing: an output that is wrong is lost, too.
    if len(made) < len(outputs) == len(output_names) and len(lost) == len(outputs) - len(made):
        place = outputs[lost[0]]
        assert place is not None
        words = ", ".join(f"output {output_names[i]} is gone" for i in lost)
        return ConversionPlace(**of_source(inside.values[place]), difference=words)
    taken = {info.name for info in whole.graph.input}
    lost_inputs = [name for name in feeds if name not in taken] if taken.issubset(feeds) else []
    if not lost_inputs:
        return None
    readers = (v for v in inside.values if any(o.input in lost_inputs for o in v.operands))
    # None reads an input that the source makes a number of, as by float().
    reader, found = next(readers, None), describe_region(run)
    if reader is not None and found.difference and found.operator == reader.operator:
        return found
    words = ", ".join(f"input {name} is gone" for name in lost_inputs)
    return ConversionPlace(**of_source(reader), difference=words)


def _is_made(run: LocatedRun, place: int, made: Sequence[np.ndarray | None]) -> bool:
    """Whether one of the outputs ``made`` is the value at ``place`` of the source."""
    wanted, allowed = run.inside.values[place].value, run.allowed.values[place]
    return any(
        value is not None
        and value.shape == wanted.shape
        and equal_up_to_layout(wanted, value, allowed)
        for value in made
    )


def inner_values(
    unfolded: Unfolded, fed: Mapping[str, np.ndarray], config: RuntimeConfig
) -> dict[str, np.ndarray]:
    """The values of a model that was laid flat, its inputs included.

    What the source merely copies is an input of the converted model.
    """
    every = {**fed, **record_values(unfolded.model.SerializeToString(), fed, config)}
    return {name: value for name, value in every.items() if value.dtype != object}


@dataclass(frozen=True)
class LocatedRun:
    """A source and a converted model on one input, and the region of the fault."""

    unfolded: Unfolded
    inside: SourceInside
    allowed: Tolerances
    values: Mapping[str, np.ndarray]
    known: Known
    region: SuspectRegion


_COMMUTES = frozenset({"Add", "Mul", "Max", "Min", "And", "Or", "Xor", "Equal", "Sum", "Mean"})
_BRANCHES = 4
"""Branches of a broken region that are tried exchanged."""


@dataclass(frozen=True)
class WrongDecision:
    """An ``If`` that would give what the source has if it took its other branch.

    Attributes:
        joint: What it gives.
        place: What it should give, in the source.
        condition: Its condition, and that in the source; None where the source shows none.
        region: What computes a condition that is not the source's; None where it is, so that the
            branches are exchanged.
    """

    joint: str
    place: int
    condition: tuple[str, int] | None = None
    region: SuspectRegion | None = None


def wrong_decision(
    run: LocatedRun, whole: ModelProto, fed: Mapping[str, np.ndarray], config: RuntimeConfig
) -> WrongDecision | None:
    """The first ``If`` of the region that takes the wrong branch; None if each takes its own.

    ``whole`` is the model before it was laid flat.
    """
    unfolded, inside = run.unfolded, run.inside
    passed = (n for i in run.region.nodes for n in unfolded.model.graph.node[i].output)
    joints = [n for n in passed if n in unfolded.joints and unfolded.joints[n].condition]
    for name in joints[:_BRANCHES]:
        try:
            # In this iteration alone: the other branch may be right in the one before.
            other = unfold_run(whole, fed, config, name)
            values = inner_values(other, fed, config)
        except Exception:  # whatever a runtime raises: the other branch cannot run
            continue
        place = known_values(other.model, values, inside, run.allowed).target.get(name)
        if place is None or name in run.known.target or inside.values[place].constant:
            continue
        return _decision(run, name, place)
    return None


def _decision(run: LocatedRun, name: str, place: int) -> WrongDecision:
    """What is wrong about an ``If`` whose other branch gives the value at ``place``."""
    inside, wanted = run.inside, run.inside.values[place].value
    decided = ((i, v.decides) for i, v in enumerate(inside.values) if v.decides is not None)
    for i, decides in decided:
        if not equal_up_to_layout(inside.values[i].value, wanted, run.allowed.values[i]):
            continue
        condition = run.unfolded.joints[name].condition
        now, then = run.values.get(condition), inside.values[decides].value
        if now is None or bool(now.reshape(-1)[0]) == bool(then.reshape(-1)[0]):
            return WrongDecision(name, i, (condition, decides))
        region = broken_region(run.unfolded.model, inside, run.known, condition, decides)
        return WrongDecision(name, i, (condition, decides), region)
    return WrongDecision(name, place)


def _exchanged(run: LocatedRun, decision: WrongDecision) -> ConversionPlace:
    """The place of an ``If`` with exchanged branches."""
    model = run.unfolded.model
    condition = run.unfolded.joints[decision.joint].condition
    nodes = [node for node in model.graph.node if condition in node.output]
    return ConversionPlace(
        **of_source(run.inside.values[decision.place]),
        nodes=[node_text(node, constants_of(model)) for node in nodes],
        node="If",
        difference="branches exchanged",
        inside=run.unfolded.paths.get(decision.joint, ""),
    )


def first_wrong_output(
    model: ModelProto,
    inside: SourceInside,
    allowed: Tolerances,
    values: Mapping[str, np.ndarray],
) -> tuple[str, int] | None:
    """The first output that is not the source's, with its place there; None if all are right."""
    for output, place in zip(model.graph.output, inside.outputs, strict=False):
        if place is None:
            continue
        value, wanted = values.get(output.name), inside.values[place].value
        if is_text(wanted.dtype):
            continue  # texts inside of converted models are not recorded
        if value is None or value.shape != wanted.shape or value.dtype != wanted.dtype:
            return output.name, place
        with np.errstate(invalid="ignore"):
            off = np.abs(value.astype(np.float64) - wanted.astype(np.float64))
        same = (off <= allowed.values[place]) | (value == wanted)
        if not bool(np.all(same | (np.isnan(off) & np.isnan(value) & np.isnan(wanted)))):
            return output.name, place
    return None


def _by_parameters(model: ModelProto, inside: SourceInside, note: str) -> ConversionPlace:
    return ConversionPlace(parameters=_parameters(model, inside), note=note)


def _parameters(model: ModelProto, inside: SourceInside) -> list[DifferingParameter]:
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    return [
        DifferingParameter(name=w.name, weight=w.weight, error=w.error, how=w.how)
        for w in differing_weights(weights, inside.parameters)
    ]


def describe_region(run: LocatedRun) -> ConversionPlace:
    """The place of a fault between values that are known and a wrong output."""
    model, inside, region = run.unfolded.model, run.inside, run.region
    constants = constants_of(model)
    shown = [model.graph.node[i] for i in region.nodes]
    # What only passes a value on out of a branch or an iteration is no node of the model.
    shown = [n for n in shown if not run.unfolded.joints.keys() & set(n.output)] or shown
    nodes = [node_text(node, constants) for node in shown[:LISTED_NODES]]
    first = None if region.first is None else inside.values[region.first]
    entry = None if region.entry is None else model.graph.node[region.entry]
    attributes: dict[str, tuple[str, str]] = {}
    alike, difference = False, ""
    if first is not None and entry is not None and first.alike == entry.op_type:
        attributes = differing_attributes(model, entry, first)
        others = other_inputs(inside, first, entry, constants, opset_versions(model))
        difference = ", ".join(other.words() for other in others)
        difference = difference or _exchanged_inputs(run, first, entry)
        alike = True
    elif first is not None and first.overwrites is not None:
        # The node does what comes behind the write, to what was there before it.
        behind = {inside.values[i].alike for i in region.operators}
        difference = "its write is lost" if entry is not None and entry.op_type in behind else ""
    elif region.first is not None:
        lost = lost_output(inside, region.first, run.known, model.graph, opset_versions(model))
        if lost is not None:
            entry, difference = lost
    found = [p for p in _parameters(model, inside) if p.weight not in run.unfolded.made]
    if attributes and entry is not None:
        # What another node reads is another fault.
        parameters = [p for p in found if p.weight in entry.input]
    else:
        parameters = _near(model, region, found)
    parameters = parameters or _find_other_constants(model, inside, first, entry)
    return ConversionPlace(
        **of_source(first),
        nodes=nodes,
        node="" if entry is None else entry.op_type,
        parameters=parameters,
        attributes=attributes,
        alike=alike and not parameters and not attributes and not difference,
        difference=difference,
        inside="" if entry is None else run.unfolded.path_of(entry),
        preprocessing=region.first is not None
        and not _is_layer(entry, constants)
        and prepares_input(inside, region.first),
    )


def _describe_loop(run: LocatedRun) -> ConversionPlace | None:
    """The place of a loop that runs another number of times, or reads other slices; else None."""
    region, unfolded = run.region, run.unfolded
    if region.entry is None or region.first is None:
        return None
    nodes = unfolded.model.graph.node
    entry, first = unfolded.joint_of(nodes[region.entry]), run.inside.values[region.first]
    if entry is None and first.alike == nodes[region.entry].op_type:
        misread = _misread_slice(run, first, nodes[region.entry])
        entry, first = misread or (entry, first)
    passed = map(unfolded.joint_of, (nodes[i] for i in region.nodes))
    loops = [j for j in passed if j is not None and j.iterations is not None]
    missing = [run.inside.values[i] for i in region.operators]
    sources = [v for v in missing if v.iterations is not None]
    counts, wanted = {j.iterations for j in loops}, {v.iterations for v in sources}
    # All that one side of the two loops gives is known on the other: it goes on, or stops, there.
    if entry is not None and entry.iterations is not None and entry.iterations not in wanted:
        return _other_count(run, entry, sources[0]) if sources else None
    if first.iterations is not None and first.iterations not in counts:
        return _other_count(run, loops[0], first) if loops else None
    if entry is None or entry.node is None or first.alike != entry.operator:
        return None
    attributes = differing_attributes(unfolded.model, entry.node, first)
    if not attributes:
        return None
    return _at_control(run, entry, first).model_copy(update={"attributes": attributes})


def _other_count(run: LocatedRun, loop: Joint, source: SourceValue) -> ConversionPlace:
    """The place of a loop that runs more or less often than that of the source."""
    words = f"{loop.iterations} iterations, in the source {source.iterations}"
    return _at_control(run, loop, source).model_copy(update={"difference": words})


def _at_control(run: LocatedRun, joint: Joint, source: SourceValue) -> ConversionPlace:
    """The place of a node of control flow, with what decides how often its body runs."""
    assert joint.node is not None
    model = run.unfolded.model
    read = set(joint.node.input[:2]) - constants_of(model).keys()
    makers = (n for n in model.graph.node if set(n.output) & read)
    return ConversionPlace(
        **of_source(source),
        nodes=[node_text(node, constants_of(model)) for node in (*makers, joint.node)],
        node=joint.operator,
        inside=run.unfolded.path_of(joint.node),
    )


def _exchanged_inputs(run: LocatedRun, first: SourceValue, entry: NodeProto) -> str:
    """Which two inputs of a node the source gives the other way round, in words; else empty.

    Both are known, so that only the order tells.
    """
    given = {operand.name: operand.place for operand in first.operands}
    places = [given.get(label) for label in first.inputs]
    pairs = [
        (i, p, run.values[name])
        for i, (p, name) in enumerate(zip(places, entry.input, strict=False))
        if p is not None and name in run.values
    ]
    if len(pairs) != 2 or entry.op_type in _COMMUTES:
        return ""

    def is_same(place: int, value: np.ndarray) -> bool:
        wanted = run.inside.values[place].value
        return wanted.shape == value.shape and equal_up_to_layout(
            wanted, value, run.allowed.values[place]
        )

    (i, p, one), (j, q, other) = pairs
    if is_same(p, one) or is_same(q, other) or not (is_same(p, other) and is_same(q, one)):
        return ""
    versions = opset_versions(run.unfolded.model)
    return f"inputs {input_name(entry, i, versions)} and {input_name(entry, j, versions)} exchanged"


def _misread_slice(
    run: LocatedRun, first: SourceValue, entry: NodeProto
) -> tuple[Joint, SourceValue] | None:
    """The scan of which a node reads another slice than the source's operator, and its slice."""
    given = {operand.name: operand.place for operand in first.operands}
    makers = {name: node for node in run.unfolded.model.graph.node for name in node.output}
    for label, name in zip(first.inputs, entry.input, strict=False):
        place, joint = given.get(label), run.unfolded.joints.get(name)
        if place is None or joint is None or joint.node is None or name not in run.values:
            continue
        wanted = run.inside.values[place]
        is_slice = makers[name].op_type == "Gather" and wanted.alike == joint.operator
        if is_slice and not equal_up_to_layout(
            wanted.value, run.values[name], run.allowed.values[place]
        ):
            return joint, wanted
    return None


def _is_layer(node: NodeProto | None, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Whether a node has weights of its own, or pools or normalizes as layers do."""
    if node is None:
        return False
    weights = (constants[name] for name in node.input if name in constants)
    return node.op_type.endswith(_LAYERS) or any(
        sum(size > 1 for size in weight.dims) > 1 and weight.data_type in NUMPY_FLOATS
        for weight in weights
    )


def of_source(value: SourceValue | None) -> dict[str, Any]:
    """The fields of a place that describe the source's operator."""
    if value is None:
        return {}
    return {
        "operator": value.operator,
        "arguments": _arguments(value),
        "module": value.module,
        "line": value.line,
    }


def _arguments(value: SourceValue) -> dict[str, str]:
    """Arguments of an operator by name: the first few short ones."""
    texts = ((n, value_words(v)) for n, v in value.settings.items())
    return dict(itertools.islice(((n, t) for n, t in texts if len(t) <= _CHARS), FEW))


def _near(
    model: ModelProto, region: SuspectRegion, found: list[DifferingParameter]
) -> list[DifferingParameter]:
    """The differences that the broken region reads, if any; others may be correct changes."""
    read = {name for i in region.nodes for name in reads(model.graph.node[i])}
    return [p for p in found if p.weight in read] or found


def _find_other_constants(
    model: ModelProto, inside: SourceInside, first: SourceValue | None, entry: NodeProto | None
) -> list[DifferingParameter]:
    """Constants of the first wrong node that differ, if only in the order of axes of one size."""
    if first is None or entry is None or first.alike != entry.op_type:
        return []
    constants = constants_of(model)
    found = []
    for name in entry.input:
        parameter = inside.parameters.get(name)
        weight = numpy_helper.to_array(constants[name]) if name in constants else None
        if parameter is None or weight is None or weight.shape != parameter.shape:
            continue
        if not np.array_equal(weight, parameter, equal_nan=weight.dtype.kind == "f"):
            off = np.abs(weight.astype(np.float64) - parameter.astype(np.float64)).max()
            top = float(np.abs(parameter.astype(np.float64)).max())
            error = float(off) / top if top else None
            turned = np.array_equal(np.sort(weight, axis=None), np.sort(parameter, axis=None))
            how = "transposed" if turned else ""
            found.append(DifferingParameter(name=name, weight=name, error=error, how=how))
    return found


def target_inside(config: RuntimeConfig, artifact: Artifact, sample: Sample) -> SourceInside:
    """A converted model's inner values, from its own runtime. Called in a worker."""
    enter("run")
    return extras(config.runtime, SourceExtras).inside(artifact, sample.feeds, config.options, None)


def locate_in(
    recorded: Sequence[SourceInside],
    target: SourceInside,
    input_values: Sequence[np.ndarray],
    outputs: Sequence[int],
) -> ConversionPlace:
    """Like ``locate``, from the values of the converted model instead of its graph."""
    if not recorded:
        return ConversionPlace(note=_HIDDEN)
    inside, *moved = recorded
    number = outputs[0]
    ends = [i.outputs[number] if number < len(i.outputs) else None for i in (inside, target)]
    if ends[0] is None or ends[1] is None:
        return ConversionPlace(note="the outputs are not known inside the models")
    allowed = Tolerances.of(inside, moved)
    region = broken_operators(target, inside, allowed, input_values, ends[0], ends[1])
    one, other = _parting(inside, target, allowed, region)
    first = None if one is None else inside.values[one]
    entry = None if other is None else target.values[other]
    shown = [target.values[i] for i in region.nodes[:LISTED_NODES]]
    attributes: dict[str, tuple[str, str]] = {}
    if first is not None and entry is not None and plain_name(first) == plain_name(entry):
        names = entry.settings.keys()
        sides = {n: (entry.settings.get(n), first.settings.get(n)) for n in names}
        attributes = {n: (value_words(a), value_words(b)) for n, (a, b) in sides.items() if a != b}
    return ConversionPlace(
        **of_source(first),
        nodes=[f"{value.module or '_'} = {value.operator}" for value in shown],
        node="" if entry is None else entry.operator,
        attributes=attributes,
        preprocessing=one is not None and prepares_input(inside, one),
    )


def _parting(
    inside: SourceInside, target: SourceInside, allowed: Tolerances, region: SuspectRegion
) -> tuple[int | None, int | None]:
    """The first wrong operator on both sides, or the operator that feeds it."""
    if region.first is None:
        return None, region.entry
    operator = plain_name(inside.values[region.first])
    same = (i for i in region.nodes if plain_name(target.values[i]) == operator)
    pair = (region.first, next(same, region.nodes[0]))
    found = origin_of(inside, target, allowed, pair)
    return (region.first, region.entry) if found == pair else found
