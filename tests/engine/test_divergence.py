from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx.parser
import pytest

from optvet.engine.divergence import Comparison, compare_models
from optvet.engine.sandbox import Limits, Sandbox
from optvet.engine.trial import Judge
from optvet.spec.errors import InputError
from optvet_ort_runtime import OrtRuntime

HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'
WRONG = """g (float[1,1,4,4] x) => (float[1,1,6,6] z)
    <float[1,1,1,1] w = {1.5}, int64[8] pads = {0, 0, 0, 2, 0, 0, 2, 0}, float zero = {0},
     int64[4] axes = {0, 1, 3, 2}> {
    r = Relu(x)  q = Pad <mode = "constant"> (r, pads, zero, axes)
    y = Conv(q, w)  s = Sigmoid(y)  z = Tanh(s) }"""
NORMALISED = """g (float[1,2,4,4] x) => (float[1,2,4,4] z)
    <float[2,2,1,1] w = {1, 2, 3, 4}, float[2] s = {2, 3}, float[2] b = {1, 1}, float[2] m = {0, 1},
     float[2] v = {1, 4}> {
    r = Relu(x)  c = Conv(r, w)  n = BatchNormalization(c, s, b, m, v)  z = Tanh(n) }"""


def optimized(model: onnx.ModelProto, passes: list[str]) -> onnx.ModelProto:
    import onnxoptimizer

    return onnxoptimizer.optimize(model, passes)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    preload = ("numpy", "onnx", "onnxruntime")
    with Sandbox(jobs=1, limits=Limits(60, 2 << 30), preload=preload) as shared:
        yield shared


def compared(a: onnx.ModelProto, b: onnx.ModelProto, sandbox: Sandbox) -> Comparison:
    shape = [d.dim_value for d in a.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    runtime = OrtRuntime()
    return compare_models(a, b, {"x": x}, Judge(runtime, runtime.options), sandbox)


def test_a_wrong_fusion_is_shown_where_it_happened(sandbox: Sandbox) -> None:
    a = onnx.parser.parse_model(HEAD + WRONG)
    b = optimized(a, ["fuse_pad_into_conv"])
    found = compared(a, b, sandbox)
    assert found.diverges_at == "y"
    assert [t.split(" = ")[1].split()[0] for t in found.before] == ["Pad", "Conv"]
    assert [t.split(" = ")[1].split()[0] for t in found.after] == ["Conv"]
    assert found.agreeing == ["r"]
    assert [(layer.name, layer.call) for layer in found.layers][:2] == [
        ("r", "same"),
        ("y", "fault"),
    ]
    assert "pads" in found.layers[1].attributes


def test_a_right_fusion_that_takes_over_a_name_does_not_diverge(sandbox: Sandbox) -> None:
    a = onnx.parser.parse_model(HEAD + NORMALISED)
    b = optimized(a, ["fuse_bn_into_conv"])
    found = compared(a, b, sandbox)
    assert found.diverges_at is None
    assert {layer.call for layer in found.layers} <= {"same", "drift"}


def test_a_value_under_another_name_is_found(sandbox: Sandbox) -> None:
    a = onnx.parser.parse_model(HEAD + NORMALISED)
    b = onnx.parser.parse_model(
        HEAD + NORMALISED.replace("n = Batch", "c2 = Batch").replace("(n)", "(c2)")
    )
    layers = {layer.name_in_b: layer for layer in compared(a, b, sandbox).layers}
    assert (layers["c2"].name, layers["c2"].found_by) == ("n", "value")


def test_other_weights_are_told_with_their_size(sandbox: Sandbox) -> None:
    a = onnx.parser.parse_model(HEAD + NORMALISED)
    b = onnx.parser.parse_model(HEAD + NORMALISED.replace("{1, 2, 3, 4}", "{1, 2, 3, 6}"))
    found = compared(a, b, sandbox)
    assert found.diverges_at == "c"
    assert found.layers[1].parameters == {"w": 0.5}


def test_a_model_that_does_not_run_is_no_comparison(sandbox: Sandbox) -> None:
    a = onnx.parser.parse_model(HEAD + NORMALISED)
    b = onnx.parser.parse_model(HEAD + NORMALISED.replace("4,4] x", "4,4,4] x"))
    with pytest.raises(InputError, match="the second model does not run"):
        compared(a, b, sandbox)
