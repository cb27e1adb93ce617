import pickle
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from pydantic import BaseModel
from tests.answers import elsewhere

import optvet
import optvet_onnxruntime.optimizer
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.plugin import Artifact
from optvet.spec.errors import UnknownName, UsageError
from optvet.spec.records import Finding, VetResult
from optvet.spec.request import VetRequest
from optvet.testing import check_optimizer
from optvet_onnxruntime.optimizer import OrtOptimizer, OrtOptimizerOptions

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
    if np.allclose(results[0], results[1], rtol=1e-3):
        pytest.skip(f"ONNX Runtime {onnxruntime.__version__} does not have this fault")


def faults(result: VetResult) -> list[Finding]:
    return [f for f in result.findings if f.severity == "fault"]


SATURATES = """
<ir_version: 8, opset_import: ["" : 17]>
qdq (uint8[1,4,5,5] q) => (float[1,2,5,5] y)
<int8[2,4,1,1] w = {120, 125, 119, 127, -120, -126, -119, -127}, float a = {0.02}, float b = {0.01},
 float c = {0.2}, uint8 low = {0}, int8 zero = {0}, uint8 middle = {128}>
{
    x = DequantizeLinear(q, a, low)
    wd = DequantizeLinear(w, b, zero)
    v = Conv(x, wd)
    r = QuantizeLinear(v, c, middle)
    y = DequantizeLinear(r, c, middle)
}
"""


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
    shows(INTEGERS, {"x": np.array([2, 3, 4, 5], np.int32), "b": np.array([7, 8, 9, 10], np.int32)})
    result = vet(INTEGERS, tmp_path, optimizer_options={"mode": mode})
    (fault,) = faults(result)
    assert fault.culprit == ["DivMulFusion"]
    assert fault.confirmed
    assert "DivMulFusion" not in result.safe_pipeline


FOLDED = """
<ir_version: 7, opset_import: ["" : 13]>
net () => (float[2] y)
<float[2] x = {1, 2}> { a = Clip(x) y = Identity(a) }
"""
"""Of constants, so that folding them does what a rule leaves undone."""
CASTS = """
<ir_version: 7, opset_import: ["" : 13]>
net (float[2] x) => (float[2] y) { a = Cast<to = 1>(x) y = Cast<to = 1>(a) }
"""
"""One of which a session removes even where no pass is on."""


DANGLING = """
<ir_version: 7, opset_import: ["" : 13]>
net (float[2] x, float[2] u) => (float[2] y)
<float g = {1}> { a = Identity(x) b = Div(g, u) y = Mul(a, b) }
"""
"""Two rules of one set together leave an input of Div that nothing makes."""


def changing(text: str, *passes: str) -> list[str]:
    optimizer = OrtOptimizer()
    source = Artifact("onnx", onnx.parser.parse_model(text).SerializeToString())
    names = passes or optimizer.pipelines()["default"]
    found = optimizer.changing_passes(source, names, optimizer.options)
    assert found is not None
    return list(found)


def test_a_rule_that_another_pass_makes_up_for_is_named_and_no_other_of_its_set() -> None:
    assert changing(FOLDED) == ["EliminateIdentity", "ConstantFolding"]
    assert changing(CASTS) == ["CastElimination"]


def test_rules_are_told_apart_where_the_runtime_refuses_what_they_made_together() -> None:
    assert set(changing(DANGLING)) == {"EliminateIdentity", "DivMulFusion"}


def test_a_pass_that_did_nothing_is_not_named_for_being_the_last() -> None:
    assert changing(FOLDED, "DivMulFusion") == []
    assert changing(INTEGERS, "DivMulFusion") == ["DivMulFusion"]


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


def test_what_runs_nowhere_else_is_told_by_name(tmp_path: Path) -> None:
    result = vet(
        CONVOLUTION,
        tmp_path,
        optimizer_options={"mode": "offline"},
        cross_check=("onnx_reference", "onnxruntime"),
    )
    notes = [f for f in result.findings if f.symptom == "portability"]
    assert notes
    for note in notes:
        assert elsewhere(note)["onnx_reference"].startswith(
            "does-not-run cannot run the optimized model: "
        )
        assert elsewhere(note)["onnxruntime"] == "runs"
        assert not note.location


def test_an_operator_of_its_own_that_others_understand_is_told(tmp_path: Path) -> None:
    result = vet(
        SOUND, tmp_path, optimizer_options={"mode": "offline"}, cross_check="onnx_reference"
    )
    (note,) = (f for f in result.findings if f.symptom == "portability")
    assert elsewhere(note) == {"onnx_reference": "runs"}


def test_a_session_cannot_be_judged_by_a_runtime_that_takes_models(tmp_path: Path) -> None:
    shows(INTEGERS, {"x": np.array([2, 3, 4, 5], np.int32), "b": np.array([7, 8, 9, 10], np.int32)})
    result = vet(INTEGERS, tmp_path, cross_check="onnx_reference")
    (fault,) = faults(result)
    words = "not-judged cannot run onnx-session"
    assert elsewhere(fault) == {"onnx_reference": words}
    assert fault.location == "no other runtime could judge it"


def test_a_runtime_that_takes_models_is_refused_where_the_session_optimizes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'onnx_reference' runs onnx; .* produces onnx-session"):
        vet(INTEGERS, tmp_path, runtime="onnx_reference")


def vet_by(optimizer: OrtOptimizer, path: Path, cross_check: tuple[str, ...] = ()) -> VetResult:
    plugins, cache = Plugins(), path.with_name("cache")
    plugins.register("optimizer", optimizer)
    settings = VetRequest(
        model="model",
        optimizer=optimizer.name,
        cross_check=cross_check,
        limit=2,
        jobs=1,
        cache_dir=cache,
    )
    return vet_model(open_model(path, str(path), cache), settings, plugins)


def without(name: str) -> tuple[str, ...]:
    return tuple(n for n in OrtOptimizer().pipelines()["default"] if n != name)


OFFLINE = {"mode": "offline"}


def test_a_saved_model_is_not_optimized_again(tmp_path: Path) -> None:
    # A session that optimizes would apply the pass that was left out.
    feeds = {"x": np.array([2, 3, 4, 5], np.int32), "b": np.array([7, 8, 9, 10], np.int32)}
    shows(INTEGERS, feeds)
    result = vet(
        INTEGERS,
        tmp_path,
        optimizer_options=OFFLINE,
        pipeline=without("DivMulFusion"),
        save=tmp_path / "safe.onnx",
        structure=True,
    )
    assert not faults(result)
    assert result.saved is not None
    assert "with its defaults but optimization=disable_all" in result.saved.judged
    assert (tmp_path / "safe.onnx").is_file()
    assert result.placements is not None
    assert result.placements.optimized is not None
    assert {o.operator for o in result.placements.optimized.operators} == {"Div", "Mul"}


@pytest.mark.long
def test_what_it_makes_is_of_the_format_that_it_declares() -> None:
    # Online, which is the default, is among what tests/test_conformance.py checks.
    optimizer = OrtOptimizer()
    assert optimizer.configured(optimizer.options).traits.produces == "onnx-session"
    optimizer.options = OrtOptimizerOptions(mode="offline")
    check_optimizer(optimizer)
    assert optimizer.configured(optimizer.options).traits.produces == "onnx"


class Mistaken(OrtOptimizer):
    """Says Gelu, which is another runtime's own, for Relu."""

    name = "mistaken"
    options = OrtOptimizerOptions(mode="offline")

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        proto = onnx.load_from_string(source.data)
        if "DivMulFusion" in passes:
            for node in proto.graph.node:
                node.op_type, node.domain = "Gelu", "com.microsoft"
            proto.opset_import.add(domain="com.microsoft", version=1)
        return Artifact("onnx", proto.SerializeToString(deterministic=True))

    def changing_passes(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> None:
        return None


def test_a_runtime_that_does_not_know_an_operator_is_no_witness(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(pytestconfig.rootpath)
    path = written(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[4] x) => (float[4] y) { y = Relu(x) }',
        tmp_path,
    )
    (fault,) = faults(vet_by(Mistaken(), path, cross_check=("onnx_reference",)))
    assert fault.culprit == ["DivMulFusion"]
    words = "not-judged cannot run the optimized model: "
    assert elsewhere(fault)["onnx_reference"].startswith(words)
    assert fault.location == "no other runtime could judge it"


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_a_fault_is_explained_by_the_nodes_before_and_after(mode: str, tmp_path: Path) -> None:
    shows(INTEGERS, {"x": np.array([2, 3, 4, 5], np.int32), "b": np.array([7, 8, 9, 10], np.int32)})
    (fault,) = faults(vet(INTEGERS, tmp_path, optimizer_options={"mode": mode}))
    assert fault.divergence is not None
    assert fault.divergence.value == "y"
    assert [line.split(" = ")[1][:3] for line in fault.divergence.before] == ["Div", "Mul"]
    (after,) = fault.divergence.after
    assert after.startswith("y = Div (b, x)")


class Unsaved(OrtOptimizer):
    """Cannot say what its session makes of a model."""

    name = "unsaved"

    def saved(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        raise ValueError("no model")


def test_a_fault_whose_model_cannot_be_seen_is_not_explained(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    shows(INTEGERS, {"x": np.array([2, 3, 4, 5], np.int32), "b": np.array([7, 8, 9, 10], np.int32)})
    monkeypatch.syspath_prepend(pytestconfig.rootpath)
    (fault,) = faults(vet_by(Unsaved(), written(INTEGERS, tmp_path)))
    assert fault.culprit == ["DivMulFusion"]
    assert fault.divergence is None


@pytest.mark.long
def test_an_output_that_a_later_round_finds_wrong_is_wrong(tmp_path: Path) -> None:
    # Of a constant input the normalization is infinite, so one sample alone decides nothing.
    text = NORMALIZATION.replace(
        ") => (float[2,8] y)", ", int32[4] a) => (float[2,8] y, int32[4] q)"
    )
    text = text.replace("<float two", "<int32[1] one = {1}, float two")
    text = text.replace("mean = R", "i = Div(one, a) q = Mul(i, a) mean = R", 1)
    shows(
        text,
        {"x": np.arange(16, dtype=np.float32).reshape(2, 8), "a": np.array([2, 3, 4, 5], np.int32)},
    )
    result = vet(text, tmp_path)
    blamed = {name for f in faults(result) for name in f.outputs}
    assert blamed == {"y", "q"}
    assert {o.name for o in result.outputs if o.verdict == "fault"} == blamed


# Of IR version 3: weights are listed among the inputs. What is folded of them is not.
LISTED = """
<ir_version: 3, opset_import: ["" : 13]>
net (float[2] x, float[2,2] w) => (float[2] y) <float[2,2] w = {1,2,3,4}>
{
    half = Constant<value = float[2,2] {0.5,0.5,0.5,0.5}>()
    third = Neg(half)
    m = MatMul(x, third)
    y = Add(m, x)
}
"""


def test_weights_that_a_saved_model_does_not_list_are_noted_and_no_fault(tmp_path: Path) -> None:
    result = vet(LISTED, tmp_path, optimizer_options={"mode": "offline"})
    assert not faults(result)
    (note,) = (f for f in result.findings if f.symptom == "metadata-change")
    assert note.message.startswith("weights missing among the inputs: 0 became ")
    assert "raise the IR version" in note.message


def test_in_a_newer_model_nothing_need_be_listed(tmp_path: Path) -> None:
    text = LISTED.replace("ir_version: 3", "ir_version: 8")
    result = vet(text, tmp_path, optimizer_options={"mode": "offline"})
    assert not [f for f in result.findings if f.symptom == "metadata-change"]


def test_a_worker_gets_the_passes_with_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = OrtOptimizer()
    names = [p.name for p in optimizer.passes()]
    monkeypatch.setattr(
        optvet_onnxruntime.optimizer, "list_installed", lambda: pytest.fail("searched again")
    )
    sent: OrtOptimizer = pickle.loads(pickle.dumps(optimizer.configured(OrtOptimizerOptions())))
    assert [p.name for p in sent.passes()] == names
    source = Artifact("onnx", onnx.parser.parse_model(INTEGERS).SerializeToString())
    assert sent.apply(source, names[:1], OrtOptimizerOptions()).format == "onnx-session"


def test_kernels_that_saturate_are_told_from_a_wrong_graph(tmp_path: Path) -> None:
    """On x86 without VNNI the pass exposes kernels that saturate; elsewhere nothing is wrong."""
    path = tmp_path / "saturates.onnx"
    onnx.save(onnx.parser.parse_model(SATURATES), path)
    feeds = {"q": np.full((1, 4, 5, 5), 255, np.uint8)}
    usual, exact = (
        optvet.vet(path, optimizer="onnxruntime", dataset=feeds, runtime_options=options)
        for options in ({}, {"exact_int8": True})
    )
    assert exact.verdict in ("clean", "drift")
    if usual.verdict == "faulty":
        (finding,) = usual.findings
        assert finding.culprit == ["QDQSelectorActionTransformer"]
        assert "right with --runtime-option exact_int8=true" in finding.location
    else:
        assert usual.verdict == exact.verdict
    other = optvet.vet(path, optimizer="onnxoptimizer", dataset=feeds)
    assert other.verdict in ("clean", "drift")


def test_code_names_only_the_passes_of_its_level_that_are_off() -> None:
    optimizer = OrtOptimizer()
    pipelines = optimizer.pipelines()
    most = [name for name in pipelines["default"] if name != "ConstantFolding"]
    assert "disabled = ['ConstantFolding']\n" in optimizer.snippet(most, optimizer.options)
    basic = optimizer.snippet(pipelines["basic"], optimizer.options)
    assert "disabled = []\n" in basic
    assert "ORT_ENABLE_BASIC" in basic


def test_the_version_is_that_of_the_package_though_it_is_not_imported() -> None:
    import onnxruntime

    assert OrtOptimizer().version() == onnxruntime.__version__
