"""Locates a fault inside a stage: parameter, attribute or operator.

A place explains a verdict and never changes it. An unknown place carries the reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
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
    known_values,
    origin_of,
    plain_name,
)
from optvet.engine.convert.inside import inside_of, shows_inside
from optvet.engine.convert.match_interface import fed_to
from optvet.engine.convert.preparing import prepares_input
from optvet.engine.numerics.texts import is_text
from optvet.engine.work.sandbox import enter
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inner_values import record_values
from optvet.graph.text import node_text
from optvet.graph.walk import attribute_of, domain_of, opset_versions, reads, schema_of
from optvet.graph.weights import constants_of
from optvet.spec.converters import ShowsInside, SourceInside, SourceValue
from optvet.spec.records.convert import ConversionPlace, DifferingParameter
from optvet.spec.types import Artifact, Sample

INNER_SEEDS = range(3)
LISTED_NODES = 12
FEW = 4
"""Limit of operators to list if the one to blame is unknown; and of arguments of one."""
_CHARS = 40
_LAYERS = ("Pool", "Normalization")
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16)
_UNSET = (0, 1, "NOTSET")
_UNSET_LISTS = {"strides": (1,), "dilations": (1,), "pads": (0,), "output_padding": (0,)}
"""What ONNX means by lists that are not set; of others, any of ``_UNSET``."""
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
) -> ConversionPlace:
    """Like ``locate``, with source and target in one worker: no inner values are sent."""
    return locate(source_inside(source_config, source, sample), config, artifact, sample, outputs)


def locate(
    recorded: Sequence[SourceInside],
    config: RuntimeConfig,
    artifact: Artifact,
    sample: Sample,
    outputs: Sequence[int],
) -> ConversionPlace:
    """The place of the fault in an ONNX model with wrong ``outputs`` (numbers).

    Called in a worker. ``recorded`` is the result of ``source_inside``.
    """
    if not recorded:
        return ConversionPlace(note=_HIDDEN)
    model = onnx.load_from_string(artifact.data)
    inside, *moved = recorded
    enter("run")
    fed = fed_to(artifact, sample.feeds)
    # What the source merely copies is an input of the converted model.
    every = {**fed, **record_values(artifact.data, fed, config)}
    values = {name: value for name, value in every.items() if value.dtype != object}
    known = known_values(model, values, inside, Tolerances.of(inside, moved))
    place = next((inside.outputs[i] for i in outputs if i < len(inside.outputs)), None)
    if place is None:
        return _by_parameters(model, inside, "the outputs of the source are not known inside it")
    names = [o.name for o in model.graph.output]
    region = broken_region(model, inside, known, names[outputs[0]], place)
    return describe_region(model, inside, known, region)


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


def describe_region(
    model: ModelProto, inside: SourceInside, known: Known, region: SuspectRegion
) -> ConversionPlace:
    """The place of a fault between values that are known and a wrong output."""
    constants = constants_of(model)
    nodes = [node_text(model.graph.node[i], constants) for i in region.nodes[:LISTED_NODES]]
    first = None if region.first is None else inside.values[region.first]
    entry = None if region.entry is None else model.graph.node[region.entry]
    attributes: dict[str, tuple[str, str]] = {}
    alike = False
    if first is not None and entry is not None and first.alike == entry.op_type:
        attributes = differing_attributes(model, entry, first.attributes)
        alike = True
    found = _parameters(model, inside)
    if attributes and entry is not None:
        # What another node reads is another fault.
        parameters = [p for p in found if p.weight in entry.input]
    else:
        parameters = _near(model, region, found)
    parameters = parameters or _find_exchanged_axes(model, inside, first, entry)
    return ConversionPlace(
        **of_source(first),
        nodes=nodes,
        node="" if entry is None else entry.op_type,
        parameters=parameters,
        attributes=attributes,
        alike=alike and not parameters and not attributes,
        preprocessing=region.first is not None
        and not _is_layer(entry, constants)
        and prepares_input(inside, region.first),
    )


def _is_layer(node: NodeProto | None, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Whether a node has weights of its own, or pools or normalizes as layers do."""
    if node is None:
        return False
    weights = (constants[name] for name in node.input if name in constants)
    return node.op_type.endswith(_LAYERS) or any(
        sum(size > 1 for size in weight.dims) > 1 and weight.data_type in _FLOATS
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
    texts = ((n, _text(v)) for n, v in value.settings.items())
    return dict(itertools.islice(((n, t) for n, t in texts if len(t) <= _CHARS), FEW))


def _near(
    model: ModelProto, region: SuspectRegion, found: list[DifferingParameter]
) -> list[DifferingParameter]:
    """The differences that the broken region reads, if any; others may be correct changes."""
    read = {name for i in region.nodes for name in reads(model.graph.node[i])}
    return [p for p in found if p.weight in read] or found


def _find_exchanged_axes(
    model: ModelProto, inside: SourceInside, first: SourceValue | None, entry: NodeProto | None
) -> list[DifferingParameter]:
    """Weights of the first wrong node that are their parameter with axes of one size exchanged."""
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
            found.append(DifferingParameter(name=name, weight=name, error=error, how="transposed"))
    return found


def differing_attributes(
    model: ModelProto, node: NodeProto, wanted: Mapping[str, Any]
) -> dict[str, tuple[str, str]]:
    """Attributes of ``node`` that differ from the source's: actual and expected value."""
    found = attribute_differences(model, node, wanted)
    return {name: (_text(now), _text(value)) for name, (now, value) in found.items()}


def attribute_differences(
    model: ModelProto, node: NodeProto, wanted: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """The same as values; None for an attribute that is not set."""
    found = {}
    schema = schema_of(domain_of(node), node.op_type, opset_versions(model))
    for name, value in wanted.items():
        if schema is not None and name not in schema.attributes:
            continue
        now = attribute_of(node, name, None)
        if now is None and schema is not None:
            default = schema.attributes[name].default_value
            now = onnx.helper.get_attribute_value(default) if default.type else None
        if not (_is_meant(node, name, value) if now is None else _is_same(now, value)):
            found[name] = (now, value)
    return found


def _is_meant(node: NodeProto, name: str, wanted: Any) -> bool:
    """Whether ONNX may mean ``wanted`` where an attribute is not set."""
    automatic = name == "pads" and attribute_of(node, "auto_pad", b"NOTSET") != b"NOTSET"
    meant = _UNSET if automatic else _UNSET_LISTS.get(name, _UNSET)
    return all(v in meant for v in (wanted if isinstance(wanted, (list, tuple)) else [wanted]))


def _is_same(now: Any, wanted: Any) -> bool:
    now = now.decode() if isinstance(now, bytes) else now
    if isinstance(wanted, (list, tuple)):
        return list(now) == list(wanted)
    if isinstance(wanted, float):
        return bool(np.float32(now) == np.float32(wanted))
    return bool(now == wanted)


def _text(value: Any) -> str:
    if value is None:
        return "not set"
    value = value.decode() if isinstance(value, bytes) else value
    return str(list(value) if isinstance(value, (list, tuple)) else value)


def target_inside(config: RuntimeConfig, artifact: Artifact, sample: Sample) -> SourceInside:
    """A converted model's inner values, from its own runtime. Called in a worker."""
    assert isinstance(config.runtime, ShowsInside)
    enter("run")
    return config.runtime.inside(artifact, sample.feeds, config.options, None)


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
        attributes = {n: (_text(a), _text(b)) for n, (a, b) in sides.items() if a != b}
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
