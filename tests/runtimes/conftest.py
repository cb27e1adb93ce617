"""Small models that every runtime is compared on with ONNX Runtime, in worker processes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from pydantic import BaseModel

from optvet.engine.models.opening import open_model
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.engine.work.trials import candidate
from optvet.engine.work.trials.building import BuildSpec
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.trial import TrialReport, TrialSpec, run_trial
from optvet.spec.runtime_protocols import Runtime
from optvet.spec.types import Sample
from optvet_onnxruntime.runtime import OrtRuntime

Feeds = dict[str, np.ndarray]
Run = Callable[..., TrialReport]


def numbers(*shape: int, seed: int = 0) -> str:
    values = np.random.default_rng(seed).uniform(-1, 1, size=shape).ravel()
    return "{" + ", ".join(f"{v:.4f}" for v in values) + "}"


def conv_bn(opset: int) -> str:
    return f"""
<ir_version: 8, opset_import: ["" : {opset}]>
conv_bn (float[N,3,8,8] x) => (float[N,4,4,4] y, float[N,4,8,8] r)
<float[4,3,3,3] w = {numbers(4, 3, 3, 3)}, float[4] s = {{1, 1.2, 0.8, 1.1}},
 float[4] b = {{0.1, -0.2, 0.3, 0}}, float[4] m = {{0.1, 0, 0.2, -0.1}},
 float[4] v = {{1, 0.5, 1.5, 0.7}}>
{{
    c = Conv<pads = [1, 1, 1, 1]>(x, w)
    n = BatchNormalization(c, s, b, m, v)
    r = Relu(n)
    y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)
}}
"""


def softmax(opset: int) -> str:
    return f"""
<ir_version: 8, opset_import: ["" : {opset}]>
softmax (float[2,3,4] x) => (float[2,3,4] y)
{{
    y = Softmax<axis = 1>(x)
}}
"""


GEMM = f"""
<ir_version: 8, opset_import: ["" : 13]>
gemm (float[N,5] x) => (float[N,3] y)
<float[3,5] w = {numbers(3, 5)}, float[3] b = {{1, -2, 3}}>
{{
    y = Gemm<transB = 1, alpha = 0.5>(x, w, b)
}}
"""
NAMES = """
<ir_version: 8, opset_import: ["" : 13]>
names (float[N] x, float[2] unused, int64[3] i, bool b)
    => (float[N] first, float[N] second, int64[3] j, bool c)
{
    first = Identity(x)
    second = Dropout(x)
    j = Add(i, i)
    c = Not(b)
}
"""
IF = """
<ir_version: 8, opset_import: ["" : 13]>
choice (float[3] x, bool b) => (float[3] y)
{
    y = If (b) <
        then_branch = yes () => (float[3] p) { p = Exp(x) },
        else_branch = no () => (float[3] q) { q = Neg(x) }
    >
}
"""
LOOP = """
<ir_version: 8, opset_import: ["" : 13]>
loop (float[3] x, int64 n) => (float[3] y, float[k,3] steps)
<bool go = {1}>
{
    y, steps = Loop (n, go, x) <
        body = step (int64 i, bool c, float[3] a) => (bool d, float[3] e, float[3] f) {
            d = Identity(c)
            e = Add(a, x)
            f = Mul(e, a)
        }
    >
}
"""
HALF = f"""
<ir_version: 8, opset_import: ["" : 13]>
half (float16[2,4] x) => (float16[2,3] y)
<float[4,3] w = {numbers(4, 3)}>
{{
    h = Cast<to = 10>(w)
    m = MatMul(x, h)
    y = Relu(m)
}}
"""
QDQ = f"""
<ir_version: 8, opset_import: ["" : 13]>
qdq (float[1,2,6,6] x) => (float[1,3,4,4] y)
<int8[3,2,3,3] w = {{{", ".join(str(v) for v in np.random.default_rng(0).integers(-99, 99, 54))}}},
 float one = {{0.01}}, float two = {{0.02}}, float three = {{0.05}}, int8 zero = {{0}}>
{{
    xq = QuantizeLinear(x, two, zero)
    xd = DequantizeLinear(xq, two, zero)
    wd = DequantizeLinear(w, one, zero)
    c = Conv(xd, wd)
    cq = QuantizeLinear(c, three, zero)
    y = DequantizeLinear(cq, three, zero)
}}
"""


def floats(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(dtype)


MODELS: dict[str, tuple[str, Feeds]] = {
    "conv_bn_9": (conv_bn(9), {"x": floats(2, 3, 8, 8)}),
    "conv_bn_15": (conv_bn(15), {"x": floats(1, 3, 8, 8)}),
    "gemm": (GEMM, {"x": floats(3, 5)}),
    "half": (HALF, {"x": floats(2, 4, dtype=np.float16)}),
    "if_else": (IF, {"x": floats(3), "b": np.array(False)}),
    "if_then": (IF, {"x": floats(3), "b": np.array(True)}),
    "loop": (LOOP, {"x": floats(3), "n": np.array(3)}),
    "names": (
        NAMES,
        {
            "x": floats(3),
            "unused": floats(2),
            "i": np.array([1, 2, 3]),
            "b": np.array(True),
        },
    ),
    "qdq": (QDQ, {"x": floats(1, 2, 6, 6)}),
    "softmax_9": (softmax(9), {"x": floats(2, 3, 4)}),
    "softmax_11": (softmax(11), {"x": floats(2, 3, 4)}),
    "softmax_13": (softmax(13), {"x": floats(2, 3, 4)}),
}
TOLERANCES = {"half": 2e-3, "qdq": 0.051}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(jobs=1, limits=Limits(timeout_s=60), preload=("onnx", "onnxruntime")) as sandbox:
        yield sandbox


@pytest.fixture
def run(sandbox: Sandbox, tmp_path: Path) -> Run:
    """Runs a model, text or a name from MODELS, once: (runtime, model, feeds=, options=)."""

    def run(
        runtime: Runtime,
        model: str,
        feeds: Feeds | None = None,
        options: BaseModel | None = None,
    ) -> TrialReport:
        text, usual = MODELS.get(model, (model, {}))
        path = tmp_path / "model.onnx"
        onnx.save(onnx.parser.parse_model(text), path)
        opened = open_model(path, "test", tmp_path / "cache")
        judge = RuntimeConfig(runtime, options or runtime.options)
        samples = (Sample("s", feeds if feeds is not None else usual),)
        order = TrialSpec(BuildSpec(opened.blob, opened.digest), judge, samples, full_check=False)
        outcome = candidate.submit(sandbox, order.build_spec, run_trial, order).result()
        if outcome.value is None:
            raise AssertionError(f"the worker died: {outcome.failure}")
        return outcome.value

    return run


@pytest.fixture
def agrees(run: Run) -> Callable[..., None]:
    """Asserts that a runtime's outputs are those of ONNX Runtime without optimization."""

    def agrees(runtime: Runtime, model: str, options: BaseModel | None = None) -> None:
        seen, expected = run(runtime, model, options=options), run(OrtRuntime(), model)
        assert seen.failure is None
        assert list(seen.outputs["s"]) == list(expected.outputs["s"])
        tolerance = TOLERANCES.get(model, 1e-5)
        for name, value in expected.outputs["s"].items():
            assert seen.outputs["s"][name].dtype == value.dtype
            np.testing.assert_allclose(seen.outputs["s"][name], value, tolerance, tolerance)

    return agrees


@pytest.fixture
def models() -> dict[str, tuple[str, Feeds]]:
    """The models and their inputs."""
    return MODELS
