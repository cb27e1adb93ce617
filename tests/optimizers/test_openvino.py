"""OpenVINO's switches as passes: what they are, what they change, how they are judged."""

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from tests.answers import detail

import optvet
from optvet import Unsupported, VetResult
from optvet.engine.discovery import Plugins
from optvet.engine.vetting import GivenInputs, vetted
from optvet.plugin import Artifact
from optvet.spec.request import VetRequest
from optvet_openvino.optimizer import OpenVinoOptimizer, changed_by
from optvet_openvino.runtime import OpenVinoRuntime

if importlib.util.find_spec("openvino") is None:
    pytest.skip("needs openvino; install optvet[openvino]", allow_module_level=True)

OPTIMIZER = OpenVinoOptimizer()


def numbers(*shape: int, seed: int = 0) -> str:
    values = np.random.default_rng(seed).uniform(-1, 1, size=shape).ravel()
    return "{" + ", ".join(f"{v:.4f}" for v in values) + "}"


CONV = f"""
<ir_version: 8, opset_import: ["" : 13]>
conv (float[N,3,8,8] x) => (float[N,8,6,6] y)
<float[8,3,3,3] w = {numbers(8, 3, 3, 3)}, float[8] s = {{1, 1.2, 0.8, 1, 1, 1, 1, 1.1}},
 float[8] b = {numbers(8)}, float[8] m = {numbers(8, seed=1)},
 float[8] v = {{1, 0.5, 1.5, 1, 1, 1, 1, 0.7}}>
{{
    c = Conv(x, w)
    n = BatchNormalization(c, s, b, m, v)
    r = Relu(n)
    g = Sigmoid(r)
    h = Mul(g, r)
    y = Add(h, n)
}}
"""
QDQ = f"""
<ir_version: 8, opset_import: ["" : 13]>
qdq (float[1,2,6,6] x) => (float[1,3,4,4] y)
<int8[3,2,3,3] w = {{{", ".join(str(v) for v in np.random.default_rng(0).integers(-63, 64, 54))}}},
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
SOFTMAX = """
<ir_version: 8, opset_import: ["" : 11]>
softmax (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis = 1>(x) }
"""


def serialized(text: str) -> bytes:
    data: bytes = onnx.parser.parse_model(text).SerializeToString()
    return data


def vet(folder: Path, text: str, pipeline: str | Sequence[str] = "default") -> VetResult:
    (folder / "model.onnx").write_bytes(serialized(text))
    options: dict[str, Any] = {"limit": 4, "jobs": 1, "cache": False, "cache_dir": folder}
    return optvet.vet(folder / "model.onnx", optimizer="openvino", pipeline=pipeline, **options)


def test_every_lossy_pass_is_off_by_default() -> None:
    lossy = {p.name for p in OPTIMIZER.passes() if p.lossy}
    assert lossy == {"compress_to_fp16", "inference_bf16", "inference_f16"}
    assert lossy.isdisjoint(OPTIMIZER.pipelines()["default"])


def test_two_precisions_at_once_are_refused() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        OPTIMIZER.apply(Artifact("onnx"), ["inference_bf16", "inference_f16"], OPTIMIZER.options)


def test_pass_order_does_not_make_another_artifact() -> None:
    data = Artifact("onnx", serialized(CONV))
    one, other = (
        OPTIMIZER.apply(data, names, OPTIMIZER.options)
        for names in (["moc", "snippets"], ["snippets", "moc"])
    )
    assert one.fingerprint == other.fingerprint


def test_a_float_model_is_not_faulty(tmp_path: Path) -> None:
    result = vet(tmp_path, CONV)
    assert result.verdict in ("clean", "drift")
    assert result.runtime.name == "openvino"
    control = result.control("empty pipeline")
    assert control is not None
    assert control.state == "passed"


@pytest.mark.parametrize("name", ["compress_to_fp16", "inference_bf16", "inference_f16"])
def test_a_lossy_pass_is_judged_by_what_it_declares(name: str, tmp_path: Path) -> None:
    result = vet(tmp_path, CONV, ["moc", name])
    assert result.verdict in ("clean", "drift")
    assert not result.findings


def test_integers_instead_of_floats_are_no_fault(tmp_path: Path) -> None:
    assert vet(tmp_path, QDQ).verdict in ("clean", "drift")


@pytest.mark.long
def test_an_import_fault_is_blamed_on_the_import(tmp_path: Path) -> None:
    """Seen in 2026.4: Softmax of opset 11 is taken for that of opset 13, which flattens nothing."""
    result = vet(tmp_path, SOFTMAX)
    if result.verdict == "clean":
        pytest.skip("this release reads Softmax-11 as the standard says")
    (finding,) = result.findings
    assert (finding.symptom, finding.culprit) == ("wrong-output", [])
    assert finding.divergence is not None
    assert (finding.divergence.value, finding.divergence.agreeing) == ("y", ["x"])
    assert detail(result, "empty pipeline") == ("openvino's import and lowering show wrong-output")
    assert not result.safe_pipeline
    request = optvet.VetRequest(model=str(tmp_path / "model.onnx"), optimizer="openvino", limit=4)
    (bundle,) = optvet.write_bundles(result, request, tmp_path / "bundles")
    assert optvet.replay(bundle.path).outcome == "still there"


QLINEAR = """
<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
add (uint8[1,8] a, uint8[1,8] b) => (uint8[1,8] y)
<float sa = {0.1}, uint8 za = {128}, float sb = {0.2}, uint8 zb = {128}, float sy = {0.15},
 uint8 zy = {120}>
{ y = com.microsoft.QLinearAdd (a, sa, za, b, sb, zb, sy, zy) }
"""


@pytest.mark.release
def test_a_wrong_layer_is_reduced_to_one_and_not_to_scales_that_define_nothing(
    tmp_path: Path,
) -> None:
    """Seen in 2026.4: QLinearAdd cuts off what it should round."""
    result = vet(tmp_path, QLINEAR)
    if result.verdict in ("clean", "drift"):
        pytest.skip("this release rounds QLinearAdd")
    path = str(tmp_path / "model.onnx")
    request = optvet.VetRequest(model=path, optimizer="openvino", limit=4, reduce=True)
    (bundle,) = optvet.write_bundles(result, request, tmp_path / "bundles")
    small = onnx.load(bundle.path / "model.onnx")
    weights = {t.name: numpy_helper.to_array(t) for t in small.graph.initializer}
    (node,) = small.graph.node
    assert all(weights[node.input[i]] > 0 for i in (1, 4, 6))
    assert bundle.record.finding.layer is not None


DEEP = """
<ir_version: 8, opset_import: ["" : 13]>
deep (float[1,3,16,16] x) => (float[1,3,16,16] y)
<float[3] scale = {1, 1, 1}, float[3] bias = {-26, -28, -60}, float far = {1000}>
{
    a = Add(x, far)
    z = InstanceNormalization(a, scale, bias)
    y = Sigmoid(z)
}
"""


def test_a_kernel_that_is_nearer_to_the_exact_result_is_no_fault(tmp_path: Path) -> None:
    """Sigmoid of −28: 0 in one runtime, 7e-13 in the other, and 0 is the wrong one."""
    result = vet(tmp_path, DEEP)
    assert result.verdict in ("clean", "drift")
    assert detail(result, "empty pipeline") == "import and lowering agree with the original"


@pytest.mark.parametrize(
    "model",
    [
        "(double[3] x) => (double[3] y) { y = Neg(x) }",
        "(float[3] x) => (float[3] y) { r = RandomUniformLike(x)  y = Add(x, r) }",
    ],
    ids=["double", "random"],
)
def test_what_the_runtime_cannot_be_judged_on_is_no_fault(model: str, tmp_path: Path) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 13]> g {model}'
    with pytest.raises(Unsupported, match="choose another runtime; nothing was tested"):
        vet(tmp_path, text)


def test_an_operator_that_openvino_lacks_is_no_fault(tmp_path: Path) -> None:
    text = """
<ir_version: 8, opset_import: ["" : 13, "ai.onnx.ml" : 2]>
g (float[2,3] x) => (float[2,3] y) { y = ai.onnx.ml.Binarizer<threshold = 0.5>(x) }
"""
    with pytest.raises(Unsupported, match=r"OpenVINO has no operator for ai\.onnx\.ml\.Binarizer"):
        vet(tmp_path, text)


OPEN_WEIGHTS = """
<ir_version: 8, opset_import: ["" : 13]>
g (float[1,A,B] x, float[C,D,E] w) => (float[1,C,F] y) { y = Conv(x, w) }
"""


def test_what_openvino_says_it_does_not_implement_is_no_fault(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="Convolution for processors: Doesn't support dynamic"):
        vet(tmp_path, OPEN_WEIGHTS)


def test_what_a_pass_makes_that_cannot_be_compiled_is_a_fault() -> None:
    made = OPTIMIZER.apply(Artifact("onnx", serialized(OPEN_WEIGHTS)), (), OPTIMIZER.options)
    plain = replace(made, data=serialized(CONV))
    runtime = OpenVinoRuntime()
    with pytest.raises(RuntimeError, match="Unsupported operation of type"):
        runtime.load(plain, runtime.options)


def test_a_zero_that_is_rounded_at_the_ends_of_its_grid_is_no_fault(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 13]>
g (float s, uint8 z, float[1,1] x) => (float[1,1] y) {
    q = QuantizeLinear(x, s, z)
    d = DequantizeLinear(q, s, z)
    y = Abs(d)
}"""
    (tmp_path / "model.onnx").write_bytes(serialized(text))
    feeds = {"s": np.float32(1.3), "z": np.uint8(128), "x": np.zeros((1, 1), np.float32)}
    inputs = GivenInputs(({name: np.asarray(value) for name, value in feeds.items()},))
    request = VetRequest(
        model=str(tmp_path / "model.onnx"),
        optimizer="runtime:openvino",
        dataset=(inputs.name,),
        cache_dir=tmp_path / "cache",
    )
    with vetted(request, Plugins().extend("dataset", inputs)) as answer:
        assert (answer.result.verdict, answer.result.findings) == ("clean", [])


def test_the_log_says_which_transformations_changed_the_graph() -> None:
    changed = changed_by(serialized(QDQ), OPTIMIZER.pipelines()["default"])
    assert changed is not None
    steps = {step for step, _ in changed}
    assert {"moc", "low_precision", "compile"} <= steps
    assert any(name.startswith("ov::pass::low_precision") for _, name in changed)


def test_passes_whose_transformations_found_nothing_are_not_reported() -> None:
    default = OPTIMIZER.pipelines()["default"]
    changing_passes = OPTIMIZER.changing_passes(
        Artifact("onnx", serialized(CONV)), default, OPTIMIZER.options
    )
    assert changing_passes is not None
    assert "low_precision" not in changing_passes  # nothing is quantized
    assert {"moc", "snippets", "performance_mode"} <= set(changing_passes)


def test_a_model_that_cannot_be_compiled_leaves_no_log() -> None:
    assert changed_by(b"no model", ["moc"]) is None


def test_values_inside_of_what_it_made_are_told(tmp_path: Path) -> None:
    runtime = OpenVinoRuntime()
    source = Artifact("onnx", onnx.parser.parse_model(CONV).SerializeToString())
    made = OPTIMIZER.apply(source, OPTIMIZER.pipelines()["default"], OPTIMIZER.options)
    feeds = {"x": np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)}
    before = runtime.load(made, runtime.options).run(feeds)
    inside = runtime.artifact_values(made, feeds, runtime.options)
    (last,) = (i for i in inside if i.output == 0)
    np.testing.assert_allclose(last.value, next(iter(before.values())), rtol=1e-5, atol=1e-6)
    again = runtime.load(made, runtime.options).run(feeds)
    assert again.keys() == before.keys(), "the artifact stays as it was"


def test_either_entry_point_is_a_pipeline() -> None:
    named = OPTIMIZER.pipelines()
    assert named["default"] == named["convert_model"]
    assert set(named["convert_model"]) - set(named["read_model"]) == {"moc", "constant_folding"}
