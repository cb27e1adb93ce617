"""Locates a fault inside a stage: parameter, attribute or operator.

A place explains a verdict and never changes it. An unknown place carries the reason.
"""

from __future__ import annotations

import itertools
import re
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
    first_lacking,
    known_values,
    origin_of,
    plain_name,
    reader_of,
)
from optvet.engine.convert.inside import inside_of, shows_inside
from optvet.engine.convert.match_interface import fed_to
from optvet.engine.convert.preparing import prepares_input
from optvet.engine.work.sandbox import enter
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inner_values import record_values
from optvet.graph.interface import graph_inputs
from optvet.graph.structure import foreign_nodes
from optvet.graph.text import node_text
from optvet.graph.walk import attribute_of, domain_of, opset_versions, reads, schema_of
from optvet.graph.weights import constants_of
from optvet.spec.converters import ShowsInside, SourceInside, SourceValue
from optvet.spec.records.convert import ConversionPlace, DifferingParameter
from optvet.spec.types import Artifact, Sample

INNER_SEEDS = range(3)
_NODES = 12
_FEW = 4
"""Limit of operators to list if the one to blame is unknown; and of arguments of one."""
_CHARS = 40
_HIDDEN = "the source's runtime does not show what it computes inside"
_MLIR = re.compile(r"'([a-z]\w{0,40}\.\w{1,80})' op\b")
_REFUSED = re.compile(r"operator '?(\w+::\w+)|^\w+: (\w+)\(\): argument")
_QUOTED = re.compile(r"""['"]([^'"\n]{1,200})['"]""")


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
    return _describe_region(model, inside, known, region)


def _by_parameters(model: ModelProto, inside: SourceInside, note: str) -> ConversionPlace:
    return ConversionPlace(parameters=_parameters(model, inside), note=note)


def _parameters(model: ModelProto, inside: SourceInside) -> list[DifferingParameter]:
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    return [
        DifferingParameter(name=w.name, weight=w.weight, error=w.error, how=w.how)
        for w in differing_weights(weights, inside.parameters)
    ]


def _describe_region(
    model: ModelProto, inside: SourceInside, known: Known, region: SuspectRegion
) -> ConversionPlace:
    constants = constants_of(model)
    nodes = [node_text(model.graph.node[i], constants) for i in region.nodes[:_NODES]]
    first = None if region.first is None else inside.values[region.first]
    entry = None if region.entry is None else model.graph.node[region.entry]
    attributes: dict[str, tuple[str, str]] = {}
    alike = False
    if first is not None and entry is not None and first.alike == entry.op_type:
        attributes = differing_attributes(model, entry, first.attributes)
        alike = True
    parameters = _near(model, region, _parameters(model, inside)) or _find_exchanged_axes(
        model, inside, first, entry
    )
    return ConversionPlace(
        **_of_source(first),
        nodes=nodes,
        node="" if entry is None else entry.op_type,
        parameters=parameters,
        attributes=attributes,
        alike=alike and not parameters and not attributes,
        preprocessing=region.first is not None and prepares_input(inside, region.first),
    )


def _of_source(value: SourceValue | None) -> dict[str, Any]:
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
    return dict(itertools.islice(((n, t) for n, t in texts if len(t) <= _CHARS), _FEW))


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
        if not _is_same(now, value):
            found[name] = (now, value)
    return found


def _is_same(now: Any, wanted: Any) -> bool:
    if now is None:
        # Without a value ONNX means ones, zeros or nothing.
        listed = wanted if isinstance(wanted, (list, tuple)) else [wanted]
        return all(v in (0, 1, "NOTSET") for v in listed)
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


def place_in_source(source: Artifact, message: str) -> ConversionPlace | None:
    """The operators of an ONNX source that ``message`` names; or its only operator."""
    model = onnx.load_from_string(source.data)
    constants = constants_of(model)
    words = set(re.findall(r"\w+", message))
    nodes = [n for n in model.graph.node if n.op_type != "Constant"]
    named = [n for n in nodes if n.op_type in words] or (nodes if len(nodes) == 1 else [])
    if not named:
        return None
    shown = [node_text(n, constants) for n in named[:_NODES]]
    return ConversionPlace(operator=named[0].op_type, node=named[0].op_type, nodes=shown)


def target_inside(config: RuntimeConfig, artifact: Artifact, sample: Sample) -> SourceInside:
    """A converted model's inner values, from its own runtime. Called in a worker."""
    assert isinstance(config.runtime, ShowsInside)
    enter("run")
    return config.runtime.inside(artifact, sample.feeds, config.options, None)


def locate_in(
    recorded: Sequence[SourceInside],
    target: SourceInside,
    given: Sequence[np.ndarray],
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
    region = broken_operators(target, inside, allowed, given, ends[0], ends[1])
    one, other = _parting(inside, target, allowed, region)
    first = None if one is None else inside.values[one]
    entry = None if other is None else target.values[other]
    shown = [target.values[i] for i in region.nodes[:_NODES]]
    attributes: dict[str, tuple[str, str]] = {}
    if first is not None and entry is not None and plain_name(first) == plain_name(entry):
        names = entry.settings.keys()
        sides = {n: (entry.settings.get(n), first.settings.get(n)) for n in names}
        attributes = {n: (_text(a), _text(b)) for n, (a, b) in sides.items() if a != b}
    return ConversionPlace(
        **_of_source(first),
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


def place_in_message(
    artifact: Artifact, message: str, inputs: Sequence[str] = ()
) -> ConversionPlace | None:
    """The node that an error names, or the operators that no operator set defines.

    Else the inputs of the model that are not among ``inputs``.
    """
    model = onnx.load_from_string(artifact.data)
    constants = constants_of(model)
    named = _find_nodes_in_message(model, message)
    if not named:
        return _asked_for(model, inputs)
    origin = {p.key: p.value for p in named[0].metadata_props}
    line = next((v for k, v in origin.items() if k.endswith("stack_trace")), "")
    places = re.findall(r'File "([^"]+)", line (\d+)', line)
    return ConversionPlace(
        nodes=[node_text(n, constants) for n in named[:_NODES]],
        node=named[0].op_type,
        module=_module(next((v for k, v in origin.items() if k.endswith("name_scopes")), "")),
        line=":".join(places[-1]) if places else "",
    )


def _module(scopes: str) -> str:
    """The path of the module in what PyTorch's exporter notes: ``['', 'c1', 'conv2d']``."""
    names = re.findall(r"'([^']*)'", scopes)
    return names[-2] if len(names) > 1 else ""


def operator_before(
    recorded: Sequence[SourceInside],
    config: RuntimeConfig,
    artifact: Artifact,
    sample: Sample,
    message: str,
) -> ConversionPlace | None:
    """The source's operator behind the node that an error names. Called in a worker.

    It runs the nodes before that node. The operator is the first one whose inputs they compute, but
    not its result.
    """
    model = onnx.load_from_string(artifact.data)
    named = _find_nodes_in_message(model, message)
    if not recorded or len(named) != 1:
        return None
    inside, *moved = recorded
    read = list(reads(named[0]))
    if named[0] not in model.graph.node:
        return None
    number = list(model.graph.node).index(named[0])
    del model.graph.node[number:], model.graph.output[:]
    every = dict(fed_to(artifact, sample.feeds))
    enter("run")
    if number:
        every |= record_values(model.SerializeToString(), every, config)
    values = {name: value for name, value in every.items() if value.dtype != object}
    allowed = Tolerances.of(inside, moved)
    known = known_values(model, values, inside, allowed)
    places = [place for place in inside.outputs if place is not None]
    had = {known.target[name] for name in read if name in known.target}
    first = reader_of(inside, values, allowed, had)
    if first is None:
        first = first_lacking(inside, known, places)
    return None if first is None else ConversionPlace(**_of_source(inside.values[first]))


def _find_nodes_in_message(model: ModelProto, message: str) -> list[NodeProto]:
    """Nodes that an error names: by name, or by the class of their kernel; else foreign ones."""
    quoted = set(_QUOTED.findall(message)) | set(re.findall(r"Name:\s?'?([^'\s]+)", message))
    kernels = set(re.findall(r"::(\w+)", message))
    nodes, foreign = list(model.graph.node), list(foreign_nodes(model))
    return (
        [n for n in nodes if n.name and n.name in quoted]
        or [n for n in nodes if n.op_type in kernels]
        or foreign
    )


def place_in_refusal(message: str) -> ConversionPlace | None:
    """The operator that a compiler built on MLIR names in its error, as ``'dialect.Name' op``."""
    found = _MLIR.search(message)
    return None if found is None else ConversionPlace(operator=found[1])


def with_named_node(place: ConversionPlace | None, message: str) -> ConversionPlace | None:
    """The place, with the ONNX operator that the converter could not create, by its error."""
    known = {schema.name for schema in onnx.defs.get_all_schemas()}
    node = next((word for word in _QUOTED.findall(message) if word in known), "")
    if not node:
        return place
    place = place or ConversionPlace()
    return place.model_copy(update={"node": node, "nodes": [f"_ = {node}"]})


def place_among_operators(
    config: RuntimeConfig, source: Artifact, sample: Sample, message: str
) -> ConversionPlace | None:
    """The operators of the source that ``message`` names; all, if there are only a few.

    Called in a worker, for errors and for formats without inner values.
    """
    if not shows_inside(config, source):
        return None
    enter("run")
    inside = inside_of(config, source, sample.feeds, None)
    names = list(dict.fromkeys(v.operator for v in inside.values if not v.constant))
    words = {word.lower() for word in re.findall(r"[A-Za-z]\w*", message)}
    named = list(
        dict.fromkeys(operator for name in names if (operator := _name_operator(name, words)))
    )
    foreign = _REFUSED.search(message)
    if foreign is not None and not named:
        return ConversionPlace(operator=foreign[1] or foreign[2])
    found = named or (names if len(names) <= _FEW else [])
    if not found:
        return None
    note = "" if named else "its operators; what is converted does not show what it computes inside"
    value = next(v for v in inside.values if found[0] in v.operator)
    if found == [value.operator]:
        return ConversionPlace(**_of_source(value), note=note)
    listed = ", ".join(found)
    return ConversionPlace(operator=listed, module=value.module, line=value.line, note=note)


def _name_operator(operator: str, words: set[str]) -> str:
    """An operator, or the function around it, if ``words`` name it; else empty."""
    name, _, function = operator.partition(" (of ")
    if name.rpartition(".")[2].strip("_").lower() in words:
        return operator
    return function.rstrip(")") if function.rstrip(")").strip("_").lower() in words else ""


def _asked_for(model: ModelProto, inputs: Sequence[str]) -> ConversionPlace | None:
    """Inputs of the model that the source does not have, and the nodes that read them."""
    names = [info.name for info in graph_inputs(model)]
    unknown = [name for name in names if name not in inputs]
    if len(names) <= len(inputs) or not unknown:
        return None
    readers = [n for n in model.graph.node if set(unknown) & set(reads(n))]
    constants = constants_of(model)
    return ConversionPlace(
        nodes=[node_text(n, constants) for n in readers[:_NODES]],
        node=readers[0].op_type if readers else "",
        parameters=[
            DifferingParameter(name=n, weight=n, error=None, how="an input") for n in unknown
        ],
    )
