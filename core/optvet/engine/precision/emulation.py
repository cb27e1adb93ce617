"""Whether a runtime rounds every value of a half type, or computes several nodes in float32."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper
from pydantic import BaseModel

from optvet.engine.work.sandbox import Sandbox, enter
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.case import Case
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.graph.half_types import half_sums
from optvet.spec.errors import InfrastructureError
from optvet.spec.foreign import read_file
from optvet.spec.optimizer_protocols import Optimizer
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


def count_half_sums(sandbox: Sandbox, case: Case) -> tuple[dict[str, int], dict[str, int]]:
    """Nodes by operator whose sums can be rounded as they grow, with all converted, and cannot.

    Raises:
        InfrastructureError: The optimizer does not convert the whole model.
    """
    data, passes = read_file(case.model.blob), tuple(case.passes.pipeline)
    outcome = sandbox.call(_half_sums, case.optimizer, data, passes, case.options)
    if outcome.value is None:
        words = describe(outcome.failure) if outcome.failure is not None else "no result"
        raise InfrastructureError(
            f"{case.optimizer.name} does not convert the whole model: {words}"
        )
    return outcome.value


def _half_sums(
    optimizer: Optimizer, data: bytes, passes: tuple[str, ...], options: BaseModel
) -> tuple[dict[str, int], dict[str, int]]:
    """Called in a worker."""
    enter("build")
    half = optimizer.apply(Artifact("onnx", data), passes, options).data
    return half_sums(onnx.load_from_string(bytes(half)))


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
