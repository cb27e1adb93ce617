"""Whether a runtime is wrong in an operator, or only far off where operators follow one another."""

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from optvet.engine.discovery import Plugins
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.resolution import exact_by_operator
from optvet.plugin import Artifact, Session

_SWISH = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x) => (float[2] y) { s = Sigmoid(x)  y = Mul(x, s) }"""


class Turned:
    """ONNX's evaluator, but for an operator that another one stands for."""

    name = "turned"
    accepts = frozenset({"onnx"})

    def __init__(self, operator: str, other: str) -> None:
        self._operator, self._other = operator, other
        self._runtime = Plugins().runtime("onnx_reference")

    def load(self, artifact: Artifact, options: object) -> Session:
        model = onnx.load_from_string(artifact.data)
        for node in model.graph.node:
            if node.op_type == self._operator:
                node.op_type = self._other
        return self._runtime.load(Artifact("onnx", model.SerializeToString()), options)


def _answer(runtime: Any, x: list[float]) -> str:
    data = onnx.parser.parse_model(_SWISH).SerializeToString()
    config = RuntimeConfig(runtime, Plugins().runtime("onnx_reference").options)
    return exact_by_operator(data, {"x": np.array(x, np.float32)}, config)


@pytest.mark.parametrize(
    ("operator", "other", "x", "exact"),
    [
        ("Abs", "Abs", [-39, 2], True),
        # 0 in place of 1e-17, which the range of Sigmoid does not resolve, and in place of 0.12.
        ("Sigmoid", "HardSigmoid", [-39, 40], True),
        ("Sigmoid", "HardSigmoid", [-39, -2], False),
        # Of a product, the smallest number counts.
        ("Mul", "Min", [-39, 40], False),
        ("Mul", "Max", [-39, 40], False),
    ],
)
def test_only_what_each_operator_can_resolve_is_exact(
    operator: str, other: str, x: list[float], exact: bool
) -> None:
    assert bool(_answer(Turned(operator, other), x)) is exact
