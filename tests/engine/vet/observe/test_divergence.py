from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.data import DATA

from optvet.engine.vet.observe.divergence import compare_models, compare_values
from optvet.engine.vet.observe.recorded_values import RecordedValues
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.spec.errors import InputError, UsageError
from optvet.spec.records import ModelComparison
from optvet_onnxruntime.runtime import OrtRuntime

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

    optimized: onnx.ModelProto = onnxoptimizer.optimize(model, passes)
    return optimized


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    preload = ("numpy", "onnx", "onnxruntime", "optvet.engine.work.trials.preload")
    with Sandbox(jobs=1, limits=Limits(60, 2 << 30), preload=preload) as shared:
        yield shared


def compared(a: onnx.ModelProto, b: onnx.ModelProto, sandbox: Sandbox) -> ModelComparison:
    shape = [d.dim_value for d in a.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    runtime = OrtRuntime()
    return compare_models(a, b, {"x": x}, RuntimeConfig(runtime, runtime.options), sandbox)


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
    (weight,) = found.layers[1].parameters
    assert (weight.name, weight.shape, weight.max_difference) == ("w", [2, 2, 1, 1], 0.5)
    assert weight.rms_difference == pytest.approx(2 / 30**0.5)
    assert weight.mean_difference == 0.5  # of |4 - 6| over four values


def test_a_layer_tells_statistics_of_its_value_in_both_models(sandbox: Sandbox) -> None:
    a = onnx.parser.parse_model(HEAD + "g (float[1,2,4,4] x) => (float[1,2,4,4] y) { y = Neg(x) }")
    b = onnx.parser.parse_model(HEAD + "g (float[1,2,4,4] x) => (float[1,2,4,4] y) { y = Abs(x) }")
    (layer,) = compared(a, b, sandbox).layers
    x = np.random.default_rng(0).normal(size=[1, 2, 4, 4]).astype(np.float32)
    found = layer.activation
    assert found is not None
    assert found.mean == pytest.approx((-x.mean(), np.abs(x).mean()))
    assert found.std == pytest.approx((x.std(), np.abs(x).std()))
    assert (found.minimum[0], found.maximum[1]) == pytest.approx((-x.max(), np.abs(x).max()))
    assert found.cosine == pytest.approx(-(x * np.abs(x)).sum() / (x * x).sum())
    assert found.rms_difference == pytest.approx(
        np.sqrt(np.square(x + np.abs(x)).sum() / np.square(x).sum())
    )


def test_an_attribute_that_repeats_its_default_is_no_difference(sandbox: Sandbox) -> None:
    a = onnx.parser.parse_model(
        HEAD + "g (float[1,2,4,4] x) => (float[1,2,4,4] y) { y = Softmax(x) }"
    )
    b = onnx.parser.parse_model(
        HEAD + "g (float[1,2,4,4] x) => (float[1,2,4,4] y) { y = Softmax <axis = -1> (x) }"
    )
    (layer,) = compared(a, b, sandbox).layers
    assert layer.attributes == {}


TWO = "g (float[2] x, float[2] z) => (float[2] y) { y = Sub(x, z) }"


def compared_on(a: str, b: str, sandbox: Sandbox) -> ModelComparison:
    feeds = {"x": np.array([1, 2], np.float32), "z": np.array([5, 7], np.float32)}
    one, other = (onnx.parser.parse_model(HEAD + text) for text in (a, b))
    runtime = OrtRuntime()
    return compare_models(one, other, feeds, RuntimeConfig(runtime, runtime.options), sandbox)


def test_inputs_in_another_order_are_fed_by_name(sandbox: Sandbox) -> None:
    swapped = TWO.replace("float[2] x, float[2] z", "float[2] z, float[2] x")
    assert compared_on(TWO, swapped, sandbox).diverges_at is None


def test_renamed_inputs_are_fed_by_position(sandbox: Sandbox) -> None:
    renamed = "g (float[2] p, float[2] q) => (float[2] y) { y = Sub(p, q) }"
    assert compared_on(TWO, renamed, sandbox).diverges_at is None


def test_models_of_other_inputs_are_not_compared(sandbox: Sandbox) -> None:
    with pytest.raises(UsageError, match="inputs x, z, the second p; compare models of the same"):
        compared_on(TWO, "g (float[2] p) => (float[2] y) { y = Neg(p) }", sandbox)


def test_a_model_that_does_not_run_is_no_comparison(sandbox: Sandbox) -> None:
    a = onnx.parser.parse_model(HEAD + NORMALISED)
    b = onnx.parser.parse_model(HEAD + NORMALISED.replace("4,4] x", "4,4,4] x"))
    with pytest.raises(InputError, match="the second model does not run"):
        compared(a, b, sandbox)


# --- a single node that was rewritten -------------------------------------------------------------

IDENTITY = """g (float[1,2,4,4] x) => (float[1,2,2,2] z)
    <float[2,2,1,1] w = {1, -2, 3, -4}> {
    c = Conv(x, w)  r = Relu(c)  p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)
    z = Tanh(p) }"""
AMPLIFIED = """g (float[1,8] x) => (float[1,8] z) <float two = {2}> {
    b = Mul(x, two)  s = Exp(b)  z = Identity(s) }"""
MODELS = DATA / "models"
REAL = ("mnist-8", "resnet8-cifar10", "kws-dscnn-fp32", "go1-policy", "self-attention-mnist")
ACTIVATIONS = frozenset("Relu LeakyRelu Sigmoid Tanh Clip Softmax".split())


def test_an_activation_that_became_an_identity_is_named_and_not_its_reader(
    sandbox: Sandbox,
) -> None:
    a = onnx.parser.parse_model(HEAD + IDENTITY)
    b = onnx.parser.parse_model(HEAD + IDENTITY.replace("Relu(c)", "Identity(c)"))
    found = compared(a, b, sandbox)
    assert found.diverges_at == "r"
    assert (found.before, found.after) == (["r = Relu (c)"], ["r = Identity (c)"])


def test_where_equal_nodes_differ_the_rewrite_before_them_is_shown() -> None:
    a = onnx.parser.parse_model(HEAD + AMPLIFIED)
    b = onnx.parser.parse_model(HEAD + AMPLIFIED.replace("Mul(x, two)", "Add(x, x)"))
    x = np.linspace(1, 2, 8, dtype=np.float32).reshape(1, 8)
    # By a rounding only, which the next node makes more of than its own noise.
    first = {"b": x, "s": np.exp(x), "z": np.exp(x)}
    second = {"b": np.nextafter(x, np.float32(9)), "s": np.exp(x) + 1, "z": np.exp(x) + 1}
    found = compare_values(a, b, RecordedValues(first), RecordedValues(second))
    assert found.diverges_at == "s"
    assert any("b = Mul" in line for line in found.before)
    assert any("b = Add" in line for line in found.after)


@pytest.mark.parametrize("name", REAL)
def test_a_rewritten_node_of_a_real_model_is_named(name: str, sandbox: Sandbox) -> None:
    if not (file := MODELS / f"{name}.onnx").is_file():
        pytest.skip(f"no {file}")
    model = onnx.load(file)
    weights = {t.name for t in model.graph.initializer}
    (given,) = [i for i in model.graph.input if i.name not in weights]
    shape = [d.dim_value or 1 for d in given.type.tensor_type.shape.dim]
    feeds = {given.name: np.random.default_rng(0).normal(size=shape).astype(np.float32)}
    runtime = OrtRuntime()
    config = RuntimeConfig(runtime, runtime.options)
    places = [i for i, n in enumerate(model.graph.node) if n.op_type in ACTIVATIONS][:6]
    assert places
    for place in places:
        other = onnx.ModelProto()
        other.CopyFrom(model)
        node = other.graph.node[place]
        node.op_type = "Identity"
        del node.input[1:], node.attribute[:]
        found = compare_models(model, other, feeds, config, sandbox)
        assert found.diverges_at == node.output[0]
        assert len(found.before) == len(found.after) == 1
        assert found.before != found.after
