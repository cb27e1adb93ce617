"""Whether a runtime rounds every value of a half type, or computes several nodes in float32."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper

from optvet.engine.work.sandbox import Sandbox, enter
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.spec.types import Artifact

TYPES: Mapping[str, int] = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
"""Half types by the names that ``--to`` takes."""
_LITTLE = 2.0**-13
"""Less than half a unit of 1 in either type: added to 1, it is lost if the sum is rounded."""


def rounds(sandbox: Sandbox, config: RuntimeConfig, precision: str) -> bool:
    """Whether ``config`` rounds between two nodes of this type; False if it cannot run them."""
    if precision not in TYPES:
        return True
    outcome = sandbox.call(_loses_little, config, TYPES[precision])
    return outcome.value is True


def _loses_little(config: RuntimeConfig, kind: int) -> bool:
    """Whether ``(1 + little) - 1`` is 0. Called in a worker; raises what the runtime raises."""
    enter("load")
    session = config.runtime.load(Artifact("onnx", _probe(kind)), config.options)
    outputs = session.run({"x": np.ones(4, np.float32), "little": np.full(4, _LITTLE, np.float32)})
    return bool(np.all(outputs["y"] == 0))


def _probe(kind: int) -> bytes:
    nodes = [
        helper.make_node("Cast", ["x"], ["one"], to=kind),
        helper.make_node("Cast", ["little"], ["small"], to=kind),
        helper.make_node("Add", ["one", "small"], ["sum"]),
        helper.make_node("Sub", ["sum", "one"], ["rest"]),
        helper.make_node("Cast", ["rest"], ["y"], to=TensorProto.FLOAT),
    ]
    vectors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("x", "little")]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    graph = helper.make_graph(nodes, "probe", vectors, [result])
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())
