from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import optvet
from optvet.spec.errors import UnknownName
from optvet.spec.result import Finding, VetResult
from optvet.testing import check_optimizer
from optvet_ort_optimizer import OrtOptimizer

# (1 / x) * b becomes b / x, which rounds differently where both are integers.
INTEGERS = """
<ir_version: 8, opset_import: ["" : 13]>
net (int32[4] x, int32[4] b) => (int32[4] y)
<int32[1] one = {1}> { q = Div(one, x) y = Mul(q, b) }
"""
# Takes sd / d for d / sd, and makes a LayerNormalization of it, which operator set 13 has not.
NORMALIZATION = """
<ir_version: 8, opset_import: ["" : 13]>
net (float[2,8] x) => (float[2,8] y)
<float two = {2}, float tiny = {0.00001}, float[8] scale = {1,2,3,4,5,6,7,8},
 float[8] shift = {1,1,1,1,2,2,2,2}>
{
    mean = ReduceMean<axes = [-1]>(x)
    d = Sub(x, mean)
    s = Pow(d, two)
    var = ReduceMean<axes = [-1]>(s)
    t = Add(var, tiny)
    sd = Sqrt(t)
    v = Div(sd, d)
    z = Mul(v, scale)
    y = Add(z, shift)
}
"""
SOUND = NORMALIZATION.replace("Div(sd, d)", "Div(d, sd)")
CONVOLUTION = """
<ir_version: 8, opset_import: ["" : 13]>
net (float[1,16,8,8] x) => (float[1,16,8,8] y)
{
    w = ConstantOfShape<value = float[1] {0.1}>(shape)
    c = Conv<pads = [1,1,1,1]>(x, w)
    y = Relu(c)
}
""".replace("{\n    w", "<int64[4] shape = {16,16,3,3}>\n{\n    w", 1)


def written(text: str, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def vet(text: str, folder: Path, **more: object) -> VetResult:
    path = written(text, folder)
    options = {"cache_dir": folder / "cache", "limit": 4, **more}
    return optvet.vet(path, optimizer="onnxruntime", **options)  # type: ignore[arg-type]


def shows(text: str, feeds: dict[str, np.ndarray]) -> None:
    """Skip if the installed ONNX Runtime has repaired what the test is about."""
    import onnxruntime

    data = onnx.parser.parse_model(text).SerializeToString()
    results = []
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        session = onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"])
        results.append(session.run(None, feeds)[0])
    if np.allclose(*results, rtol=1e-3):
        pytest.skip(f"ONNX Runtime {onnxruntime.__version__} does not have this fault")


def faults(result: VetResult) -> list[Finding]:
    return [f for f in result.findings if f.severity == "fault"]


def test_it_conforms() -> None:
    check_optimizer(OrtOptimizer())


def test_levels_contain_each_other() -> None:
    pipelines = OrtOptimizer().pipelines()
    levels = [set(pipelines[n]) for n in ("disable_all", "basic", "extended", "layout", "all")]
    assert levels[0] == set()
    assert all(a <= b for a, b in pairwise(levels))
    assert len(levels[1]) < len(levels[2])
    assert pipelines["default"] == pipelines["all"]


def test_passes_are_rules_and_transformers_with_their_level() -> None:
    kinds = {p.name: p.kind for p in OrtOptimizer().passes()}
    assert kinds["DivMulFusion"] == "level 1 rule"
    assert kinds["ConstantFolding"] == "level 1 transformer"


def test_an_unknown_pass_is_refused_though_onnx_runtime_would_ignore_it(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="DivMulFusion"):
        vet(INTEGERS, tmp_path, pipeline=("DivMulFusio",))


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_a_rule_is_named_not_its_level(mode: str, tmp_path: Path) -> None:
    shows(INTEGERS, {"x": np.int32([2, 3, 4, 5]), "b": np.int32([7, 8, 9, 10])})
    result = vet(INTEGERS, tmp_path, optimizer_options={"mode": mode})
    (fault,) = faults(result)
    assert fault.culprit == ["DivMulFusion"]
    assert fault.confirmed
    assert "DivMulFusion" not in result.safe_pipeline


def test_an_operator_of_its_own_does_not_hide_what_is_wrong(tmp_path: Path) -> None:
    shows(NORMALIZATION, {"x": np.arange(16, dtype=np.float32).reshape(2, 8)})
    result = vet(NORMALIZATION, tmp_path, optimizer_options={"mode": "offline"})
    assert {f.symptom for f in faults(result)} == {"wrong-output"}
    assert all(f.culprit[0].startswith("LayerNormFusion") for f in faults(result))


def test_an_operator_of_its_own_is_noted_and_no_fault(tmp_path: Path) -> None:
    result = vet(SOUND, tmp_path, optimizer_options={"mode": "offline"})
    assert result.verdict in ("clean", "drift")
    (note,) = (f for f in result.findings if f.symptom == "portability")
    assert note.severity == "note"
    assert "LayerNormalization" in note.message
    assert note.culprit[0].startswith("LayerNormFusion")


def test_a_saved_model_that_runs_nowhere_else_is_noted(tmp_path: Path) -> None:
    result = vet(CONVOLUTION, tmp_path, optimizer_options={"mode": "offline"})
    notes = [f for f in result.findings if f.symptom == "portability"]
    assert notes
    assert all("only a runtime that has them" in f.message for f in notes)
    assert not faults(result)


def test_a_session_that_optimizes_as_it_loads_saves_nothing(tmp_path: Path) -> None:
    result = vet(CONVOLUTION, tmp_path)
    assert not [f for f in result.findings if f.symptom == "portability"]
