"""The place of a fault that an error message names, in source or target."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import ModelProto, NodeProto

from optvet.engine.convert.align import Tolerances, first_lacking, known_values, reader_of
from optvet.engine.convert.inside import inside_of, shows_inside
from optvet.engine.convert.locate import FEW, LISTED_NODES, of_source
from optvet.engine.convert.match_interface import fed_to
from optvet.engine.work.sandbox import enter
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inner_values import record_values
from optvet.graph.interface import graph_inputs
from optvet.graph.structure import foreign_nodes
from optvet.graph.text import node_text
from optvet.graph.walk import reads
from optvet.graph.weights import constants_of
from optvet.spec.converters import SourceInside
from optvet.spec.records.convert import ConversionPlace, DifferingParameter
from optvet.spec.types import Artifact, Sample

_MLIR = re.compile(r"'([a-z]\w{0,40}\.\w{1,80})' op\b")
_REFUSED = re.compile(r"operator '?(\w+::\w+)|^\w+: (\w+)\(\): argument")
_NAMED = re.compile(r"\b(?:[Nn]ode|[Nn]ame)(?:\s*:\s*|\s*\(|\s+)'?([^\s'()]{1,200})")
"""``node name: /CumSum``, ``Name:'/CumSum'``, ``in node (/CumSum)``."""
_RESULTS = re.compile(r"-> \(([^)]{1,400})\)")
"""``-> ("y",)``, what a node computes that may have no name."""
_OPERATOR = re.compile(
    r"\b(?:op_type|OpType|Op|Optype|operator|running|OP|for)(?:\s*:\s*|\s*\(|\s+)([A-Z]\w{1,80})"
)
"""``op_type:CumSum``, ``Optype (Add)``, ``No Op registered for SiluV2``."""
_QUOTED = re.compile(r"""['"]([^'"\n]{1,200})['"]""")


def place_in_source(source: Artifact, message: str) -> ConversionPlace | None:
    """The operators of an ONNX source that ``message`` names; or its only operator."""
    model = onnx.load_from_string(source.data)
    constants = constants_of(model)
    words = set(re.findall(r"\w+", message))
    nodes = [n for n in model.graph.node if n.op_type != "Constant"]
    named = [n for n in nodes if n.op_type in words] or (nodes if len(nodes) == 1 else [])
    if not named:
        return None
    shown = [node_text(n, constants) for n in named[:LISTED_NODES]]
    return ConversionPlace(operator=named[0].op_type, node=named[0].op_type, nodes=shown)


def place_in_message(
    artifact: Artifact, message: str, inputs: Sequence[str] = ()
) -> ConversionPlace | None:
    """The node that an error names, or the operators that no operator set defines.

    Else the inputs of the model that are not among ``inputs``.
    """
    model = onnx.load_from_string(artifact.data)
    constants = constants_of(model)
    named = find_nodes_in_message(model, message)
    if not named:
        return _asked_for(model, inputs)
    origin = {p.key: p.value for p in named[0].metadata_props}
    line = next((v for k, v in origin.items() if k.endswith("stack_trace")), "")
    places = re.findall(r'File "([^"]+)", line (\d+)', line)
    return ConversionPlace(
        nodes=[node_text(n, constants) for n in named[:LISTED_NODES]],
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
    named = find_nodes_in_message(model, message)
    if not recorded or len(named) != 1 or named[0] not in model.graph.node:
        return None
    inside, *moved = recorded
    enter("run")
    fed = fed_to(artifact, sample.feeds)
    allowed = Tolerances.of(inside, moved)
    first = source_operator_of(model, named[0], fed, config, inside, allowed)
    return None if first is None else ConversionPlace(**of_source(inside.values[first]))


def source_operator_of(
    model: ModelProto,
    node: NodeProto,
    fed: Mapping[str, np.ndarray],
    config: RuntimeConfig,
    inside: SourceInside,
    allowed: Tolerances,
) -> int | None:
    """The place in the source of what ``node`` should compute, by what the nodes before it do."""
    before = ModelProto()
    before.CopyFrom(model)
    number = list(model.graph.node).index(node)
    del before.graph.node[number:], before.graph.output[:]
    every = dict(fed)
    if number:
        every |= record_values(before.SerializeToString(), every, config)
    values = {name: value for name, value in every.items() if value.dtype != object}
    known = known_values(before, values, inside, allowed)
    places = [place for place in inside.outputs if place is not None]
    had = {known.target[name] for name in reads(node) if name in known.target}
    inputs = frozenset(reads(node)) & {info.name for info in graph_inputs(model)}
    first = reader_of(inside, values, allowed, had, inputs)
    return first_lacking(inside, known, places) if first is None else first


def find_nodes_in_message(model: ModelProto, message: str) -> list[NodeProto]:
    """Nodes that an error names: by name or result, by the class of their kernel, or by operator.

    Else those that no operator set defines. A checker and a runtime may each have a word for the
    same node; the first node named is the one that they stopped at.
    """
    named = {word.rstrip(".:,") for word in (*_QUOTED.findall(message), *_NAMED.findall(message))}
    made = {word for results in _RESULTS.findall(message) for word in _QUOTED.findall(results)}
    kernels = set(re.findall(r"::(\w+)", message))
    operators = set(_OPERATOR.findall(message))
    nodes = list(model.graph.node)
    return (
        [n for n in nodes if n.name and n.name in named]
        or [n for n in nodes if made.intersection(n.output)]
        or [n for n in nodes if n.op_type in kernels]
        or list(foreign_nodes(model))
        or [n for n in nodes if n.op_type in operators]
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
    found = named or (names if len(names) <= FEW else [])
    if not found:
        return None
    note = "" if named else "its operators; what is converted does not show what it computes inside"
    meant = [v for v in inside.values if not v.constant and _names(v.operator) & set(found)]
    if found == [meant[0].operator]:
        return ConversionPlace(**of_source(meant[0]), note=note)
    lines = {v.line for v in meant}
    return ConversionPlace(
        operator=", ".join(found),
        module=_shared([v.module for v in meant]),
        line=lines.pop() if len(lines) == 1 else "",
        note=note,
    )


def _shared(modules: Sequence[str]) -> str:
    """The innermost module that has all of these."""
    steps = zip(*(module.split(".") for module in modules), strict=False)
    return ".".join(
        same[0] for same in itertools.takewhile(lambda names: len(set(names)) == 1, steps)
    )


def _names(operator: str) -> set[str]:
    """An operator, and the function around it."""
    return {operator, operator.partition(" (of ")[2].rstrip(")")}


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
        nodes=[node_text(n, constants) for n in readers[:LISTED_NODES]],
        node=readers[0].op_type if readers else "",
        parameters=[
            DifferingParameter(name=n, weight=n, error=None, how="an input") for n in unknown
        ],
    )
