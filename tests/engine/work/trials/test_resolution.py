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
    """ONNX's evaluator, but for an operator that another one stands for.

    ``fused``: Only where nobody asks for values between operators.
    """

    name = "turned"
    accepts = frozenset({"onnx"})

    def __init__(self, operator: str, other: str, fused: bool = False) -> None:
        self._operator, self._other, self._fused = operator, other, fused
        self._runtime = Plugins().runtime("onnx_reference")

    def load(self, artifact: Artifact, options: object) -> Session:
        model = onnx.load_from_string(artifact.data)
        for node in () if self._fused and len(model.graph.output) > 1 else model.graph.node:
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


def test_a_runtime_that_fuses_operators_is_judged_by_what_it_computes_then() -> None:
    assert _answer(Turned("Mul", "Add"), [-39, 2]) == ""
    assert _answer(Turned("Mul", "Add", fused=True), [-39, 2]) == ""
    assert _answer(Turned("Mul", "Mul", fused=True), [-39, 2])


_SPECTRUM = """<ir_version: 9, opset_import: ["" : 20]>
g (float[1,N,1] x) => (float[1,N,2] y)
<int64 a = {1}> {
    t = DFT(x, , a)
    y = LpNormalization(t)
}"""


@pytest.mark.parametrize(("off", "exact"), [("1e-7", True), ("1e-4", False)])
def test_a_transform_is_as_exact_as_its_largest_number_lets(off: str, exact: bool) -> None:
    """What is 0 of the spectrum of equal numbers may come out as a roundoff of the largest."""
    spectrum = Plugins().reference_runtime()

    class Off(Turned):
        def load(self, artifact: Artifact, options: object) -> Session:
            model = onnx.load_from_string(artifact.data)
            (node,) = (n for n in model.graph.node if n.op_type == "DFT")
            node.output[0] = "clean"
            model.graph.initializer.append(onnx.helper.make_tensor("off", 1, [], [float(off)]))
            moved = onnx.helper.make_node("Add", ["clean", "off"], ["t"])
            model.graph.node.insert(1, moved)
            return spectrum.load(Artifact("onnx", model.SerializeToString()), spectrum.options)

    data = onnx.parser.parse_model(_SPECTRUM).SerializeToString()
    runtime: Any = Off("", "")
    config = RuntimeConfig(runtime, spectrum.options)
    feeds = {"x": np.full((1, 5, 1), 1.3, np.float32)}
    assert bool(exact_by_operator(data, feeds, config)) is exact


@pytest.mark.parametrize(("other", "exact"), [("LogSoftmax", True), ("Softmax", False)])
def test_where_the_evaluator_has_no_float64_it_is_asked_in_own_types(
    other: str, exact: bool
) -> None:
    text = """<ir_version: 13, opset_import: ["" : 27]>
    g (float[1,4,16] x, float[1,4,4,4] s, float[1,4,1] b) => (float[1,4,4,4] y) {
        o, t = LinearAttention<kv_num_heads = 4, q_num_heads = 4>(x, x, x, s, x, b)
        y = LogSoftmax(t)
    }"""
    runtime: Any = Turned("LogSoftmax", other)
    config = RuntimeConfig(runtime, Plugins().runtime("onnx_reference").options)
    rng = np.random.default_rng(0)
    shapes = {"x": (1, 4, 16), "s": (1, 4, 4, 4), "b": (1, 4, 1)}
    feeds = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    data = onnx.parser.parse_model(text).SerializeToString()
    assert bool(exact_by_operator(data, feeds, config)) is exact
