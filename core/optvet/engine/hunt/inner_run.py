"""All values of one run of a model, inner ones included; called in a worker."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import ModelProto
from pydantic import BaseModel

from optvet.spec.protocols import Runtime
from optvet.spec.types import Artifact


def inner_values(
    runtime: Runtime, options: BaseModel, model: bytes, feeds: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Every tensor that nodes of the outer graph make, by name; raises what the runtime raises."""
    proto = ModelProto.FromString(model)
    known = {v.name for v in proto.graph.output}
    inferred = onnx.shape_inference.infer_shapes(proto).graph.value_info
    typed = {v.name: v for v in inferred if v.type.HasField("tensor_type")}
    made = {name for node in proto.graph.node for name in node.output if name}
    proto.graph.output.extend(typed[n] for n in sorted(made - known) if n in typed)
    session = runtime.load(Artifact("onnx", proto.SerializeToString()), options)
    # Without sequences among the outputs, and optional values.
    return {n: v for n, v in session.run(feeds).items() if isinstance(v, np.ndarray)}
