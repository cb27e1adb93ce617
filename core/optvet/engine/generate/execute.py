"""Nodes as a checked model, and what a runtime makes of it; called in a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import NodeProto, ValueInfoProto, helper, numpy_helper

from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.graph.compose import ir_version_of, type_of
from optvet.graph.synthetic import GRAPH, PRODUCER
from optvet.graph.types import infer_types
from optvet.graph.walk import ONNX_DOMAIN
from optvet.spec.types import Artifact

Values = dict[str, np.ndarray]
_WORDS = 200


class Refused(Exception):
    """Nodes that the checker or the runtime refuses, or whose results cannot be used."""


def executed(
    config: RuntimeConfig,
    nodes: Sequence[NodeProto],
    weights: Mapping[str, np.ndarray],
    feeds: Mapping[str, np.ndarray],
    outputs: Sequence[str],
    opsets: Mapping[str, int],
) -> tuple[bytes, Values]:
    """A serialized model that passes the checker, and its outputs on ``feeds``.

    Outputs have their inferred types. Where inference tells none, the run tells the element type
    and the rank.

    Raises:
        Refused: The checker or the runtime refuses it, or an output is no tensor.
    """
    inputs = [helper.make_tensor_value_info(n, type_of(v), v.shape) for n, v in feeds.items()]
    tensors = [numpy_helper.from_array(v, n) for n, v in weights.items()]
    declared = [ValueInfoProto(name=n) for n in outputs]
    graph = helper.make_graph(nodes, GRAPH, inputs, declared, tensors)
    imports = [helper.make_opsetid("" if d == ONNX_DOMAIN else d, v) for d, v in opsets.items()]
    model = helper.make_model(graph, opset_imports=imports, producer_name=PRODUCER)
    model.ir_version = ir_version_of(opsets)
    inferred = infer_types(model)
    if inferred is None:
        raise Refused("its types cannot be inferred")
    for output, found in zip(model.graph.output, inferred.graph.output, strict=True):
        if found.type.tensor_type.HasField("shape"):
            output.type.CopyFrom(found.type)
    values = results(config, model.SerializeToString(), feeds)
    for output in model.graph.output:
        if not output.HasField("type"):
            value = values[output.name]
            output.CopyFrom(
                helper.make_tensor_value_info(output.name, type_of(value), [None] * value.ndim)
            )
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # native code raises what it raises
        raise Refused(_first_line(error)) from None
    return bytes(model.SerializeToString(deterministic=True)), values


def results(config: RuntimeConfig, model: bytes, feeds: Mapping[str, np.ndarray]) -> Values:
    """The outputs of one run in a session of its own.

    Raises:
        Refused: The runtime refuses the model or its inputs, or an output is no tensor.
    """
    try:
        session = config.runtime.load(Artifact("onnx", model), config.options)
        computed = dict(session.run(feeds))
    except Exception as error:  # a runtime raises what it likes
        raise Refused(_first_line(error)) from None
    if not all(isinstance(v, np.ndarray | np.generic) for v in computed.values()):
        raise Refused("its results are no tensors")
    return {name: np.asarray(value) for name, value in computed.items()}


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:_WORDS]


def is_finite(values: Mapping[str, np.ndarray]) -> bool:
    """Whether no number is NaN or infinite."""
    return all(np.isfinite(v).all() for v in values.values() if v.dtype.kind in "fc")


def same(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    """Whether values are equal bit for bit."""
    return one.keys() == other.keys() and all(_equal(one[n], other[n]) for n in one)


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if one.dtype == object:
        return bool(one.tolist() == other.tolist())
    return one.tobytes() == other.tobytes()
