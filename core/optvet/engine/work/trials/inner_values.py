"""Values and types of all tensors inside a model. Called in workers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import ModelProto, ValueInfoProto

from optvet.engine.work.sandbox import enter
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.graph.types import inferred_types
from optvet.spec.types import Artifact


def record_values(
    data: bytes, feeds: Mapping[str, np.ndarray], config: RuntimeConfig
) -> dict[str, np.ndarray]:
    """All array values of a model in one run, by name. Called in a worker."""
    enter("load")
    proto = onnx.load_from_string(data)
    try:
        values = _run_with_all(proto, None, feeds, config)
    except Exception:  # the runtime cannot return some value: ask for plain tensors only
        known = inferred_types(proto, strict=False) or {}
        plain = {n for n, k in known.items() if k.WhichOneof("value") == "tensor_type"}
        values = _run_with_all(proto, plain, feeds, config)
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def _run_with_all(
    proto: ModelProto, only: set[str] | None, feeds: Mapping[str, np.ndarray], config: RuntimeConfig
) -> dict[str, np.ndarray]:
    model = ModelProto()
    model.CopyFrom(proto)
    graph = model.graph
    outputs = {o.name: o for o in proto.graph.output}
    del graph.output[:]
    computed = [o for node in graph.node for o in node.output if o]
    for name in dict.fromkeys((*computed, *outputs)):
        # Without a type: the declared type of an output may be wrong.
        if only is None or name in only or name in outputs:
            graph.output.append(ValueInfoProto(name=name))
    artifact = Artifact("onnx", model.SerializeToString())
    return config.runtime.load(artifact, config.options).run(feeds)


def infer(data: bytes, partial: bool = False) -> dict[str, bytes]:
    """Serialized types of inner values. Called in a worker: shape inference may crash.

    With ``partial``, also of values in nested graphs and of unknown rank.
    """
    enter("check")
    proto = onnx.load_from_string(data)
    types = (
        inferred_types(proto, partial=partial)
        or inferred_types(proto, strict=False, partial=partial)
        or {}
    )
    return {name: bytes(kind.SerializeToString()) for name, kind in types.items()}
