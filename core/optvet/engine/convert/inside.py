"""Inner values of a source: from its runtime, or node by node for ONNX."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, helper, numpy_helper

from optvet.engine.numerics import perturb
from optvet.engine.numerics.inject import injected_bytes
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inner_values import record_values, unfold_run
from optvet.graph.walk import domain_of, opset_versions, reads, schema_of
from optvet.graph.weights import constants_of
from optvet.spec.converters import SourceExtras, SourceInside, SourceOperand, SourceValue
from optvet.spec.extras import extras, given
from optvet.spec.types import Artifact


def shows_inside(config: RuntimeConfig, source: Artifact) -> bool:
    """Whether ``inside_of`` works for this source."""
    return source.format == "onnx" or given(config.runtime, SourceExtras.inside) is not None


def inside_of(
    config: RuntimeConfig, source: Artifact, feeds: Mapping[str, np.ndarray], seed: int | None
) -> SourceInside:
    """The inner values of one run; with a ``seed``, of a run perturbed by rounding."""
    if source.format == "onnx":
        return _of_onnx(config, source, feeds, seed)
    return extras(config.runtime, SourceExtras).inside(source, feeds, config.options, seed)


def _of_onnx(
    config: RuntimeConfig, source: Artifact, feeds: Mapping[str, np.ndarray], seed: int | None
) -> SourceInside:
    """Every output of every node, in order; those of branches and iterations where they run."""
    unfolded = unfold_run(onnx.load_from_string(source.data), feeds, config)
    model = unfolded.model
    fed = dict(feeds)
    data = model.SerializeToString()
    if seed is not None:
        data = injected_bytes(data, seed)
        fed = perturb.jitter_feeds(feeds, np.random.default_rng(seed))
    values = {**fed, **record_values(data, fed, config)}
    constants, versions = constants_of(model), opset_versions(model)
    places: dict[str, int] = {}
    found: list[SourceValue] = []
    for node in model.graph.node:
        operands = tuple(
            SourceOperand(
                str(i),
                places.get(name),
                name if name in feeds else "",
                name if name in constants else "",
            )
            for i, name in enumerate(node.input)
            if name
        )
        joint = unfolded.joint_of(node)
        operator = node.op_type if joint is None else joint.operator
        # Of a joint, those of the node of control flow; its graph is compared node by node.
        own = node if joint is None or joint.node is None else joint.node
        settings = dict(_settings(own))
        schema = schema_of(domain_of(own), own.op_type, versions)
        if joint is not None:
            settings = {n: v for n, v in settings.items() if not isinstance(v, GraphProto)}
        about = SourceValue(
            operator=operator,
            value=np.zeros(0),
            reads=tuple(dict.fromkeys(places[n] for n in reads(node) if n in places)),
            constant=all(_is_constant(n, constants, places, found) for n in reads(node)),
            module=unfolded.path_of(node),
            line=node.name if joint is None else "",
            alike=operator,
            attributes=settings,
            unset=frozenset(() if schema is None else schema.attributes).difference(settings),
            inputs=tuple(str(i) for i in range(len(node.input))),
            operands=operands,
            decides=None if joint is None else places.get(joint.condition),
            iterations=None if joint is None else joint.iterations,
        )
        for number, name in enumerate(node.output):
            value = values.get(name)
            if value is not None and value.dtype != object:
                places[name] = len(found)
                found.append(replace(about, value=value, output=number))
    return SourceInside(
        tuple(found),
        tuple(places.get(o.name) for o in model.graph.output),
        {name: numpy_helper.to_array(tensor) for name, tensor in constants.items()},
    )


def _settings(node: NodeProto) -> Iterator[tuple[str, object]]:
    """Attributes by name."""
    for each in node.attribute:
        value = helper.get_attribute_value(each)
        yield each.name, value.decode(errors="replace") if isinstance(value, bytes) else value


def _is_constant(
    name: str,
    constants: Mapping[str, object],
    places: Mapping[str, int],
    found: list[SourceValue],
) -> bool:
    return name in constants or (name in places and found[places[name]].constant)
