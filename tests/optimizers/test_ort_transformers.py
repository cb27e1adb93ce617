from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.needs import needs

import optvet
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.spec.errors import UnknownName, UsageError
from optvet.spec.records import Finding, VetResult
from optvet.spec.request import VetRequest
from optvet.spec.types import Artifact, Pass
from optvet_onnxruntime.transformers import OrtTransformers, OrtTransformersOptions

needs("sympy", reason="needs sympy; install optvet[transformers]")
fusion_options = pytest.importorskip(
    "onnxruntime.transformers.fusion_options", reason="needs ONNX Runtime's transformers tool"
)


def numbers(*shape: int, seed: int = 0) -> str:
    values = np.random.default_rng(seed).normal(0, 0.3, size=shape).ravel()
    return "{" + ", ".join(f"{v:.3f}" for v in values) + "}"


NET = f"""
<ir_version: 8, opset_import: ["" : 13]>
net (float[1,4,8] x) => (float[1,4,8] y)
<float[8,8] w1 = {numbers(8, 8)}, float[8] b1 = {numbers(8)}, float[8,8] w2 = {numbers(8, 8)},
 float[8] b2 = {numbers(8)}, float[8] scale = {numbers(8)}, float[8] shift = {numbers(8)},
 float root = {{1.4142135}}, float one = {{1}}, float half = {{0.5}}, float two = {{2}},
 float tiny = {{0.00001}}>
{{
    a = MatMul(x, w1)
    c = Add(a, b1)
    d = Div(c, root)
    e = Erf(d)
    f = Add(e, one)
    g = Mul(c, f)
    h = Mul(g, half)
    m = MatMul(h, w2)
    n = Add(m, b2)
    p = Add(n, x)
    mean = ReduceMean<axes = [-1]>(p)
    q = Sub(p, mean)
    s = Pow(q, two)
    var = ReduceMean<axes = [-1]>(s)
    t = Add(var, tiny)
    u = Sqrt(t)
    v = Div(q, u)
    z = Mul(v, scale)
    y = Add(z, shift)
}}
"""
"""What follows attention in a transformer: Gelu by Erf, skip connection, normalization."""

FUSE = OrtTransformers()


def as_artifact(text: str) -> Artifact:
    return Artifact("onnx", onnx.parser.parse_model(text).SerializeToString())


def operators(artifact: Artifact) -> Counter[str]:
    return Counter(n.op_type for n in onnx.load_from_string(artifact.data).graph.node)


BEFORE = Counter(n.op_type for n in onnx.parser.parse_model(NET).graph.node)


def apply(*passes: str, **options: Any) -> Artifact:
    return FUSE.apply(as_artifact(NET), passes, OrtTransformersOptions(**options))


def test_passes_are_the_flags_of_the_installed_version() -> None:
    passes = {p.name: p for p in FUSE.passes()}
    flags = vars(fusion_options.FusionOptions("bert"))
    for name, value in flags.items():
        if name.startswith("enable_"):
            assert passes[name].default is value
    assert not passes["enable_nhwc_conv"].default


def test_each_model_type_has_its_pipeline() -> None:
    pipelines = FUSE.pipelines()
    assert pipelines["default"] == pipelines["bert"]
    assert "enable_nhwc_conv" in pipelines["unet"]
    assert "enable_embed_layer_norm" not in pipelines["clip"]


def test_the_approximation_is_declared() -> None:
    approximate = {p.name: p for p in FUSE.passes()}["enable_gelu_approximation"]
    assert (approximate.default, approximate.lossy, approximate.tolerance) == (False, True, 1e-2)


def test_the_default_pipeline_fuses() -> None:
    artifact = apply(*FUSE.pipelines()["default"])
    after = operators(artifact)
    assert after == {"MatMul": 2, "BiasGelu": 1, "SkipLayerNormalization": 1}
    # The tool adds the domain of its operators only when it saves the model.
    imports = {i.domain for i in onnx.load_from_string(artifact.data).opset_import}
    assert imports == {"", "com.microsoft"}


def test_no_flags_leave_every_node() -> None:
    assert operators(apply()) == BEFORE


def test_a_flag_may_need_another() -> None:
    assert operators(apply("enable_bias_gelu")) == BEFORE
    assert operators(apply("enable_gelu"))["Gelu"] == 1
    assert operators(apply("enable_gelu", "enable_bias_gelu"))["BiasGelu"] == 1


def test_a_flag_that_it_would_swallow_is_refused() -> None:
    with pytest.raises(UnknownName, match="did you mean 'enable_gelu'"):
        apply("enable_gelus")
    with pytest.raises(UnknownName, match="flag of model type bert 'enable_nhwc_conv'"):
        apply("enable_nhwc_conv")


def test_a_model_type_that_it_would_ignore_is_refused() -> None:
    with pytest.raises(UsageError, match="'model_type' = 'berd': there is no"):
        apply("enable_gelu", model_type="berd")


# Vetting


def test_a_small_transformer_is_fused_soundly(tmp_path: Path) -> None:
    result = vet(tmp_path, NET, FUSE)
    assert result.verdict == "drift"
    assert faults(result) == []
    # It is worth a note that the result asks for ONNX Runtime.
    (note,) = result.findings
    assert (note.symptom, note.severity) == ("portability", "note")
    assert "in the domain com.microsoft (BiasGelu, SkipLayerNormalization)" in note.message


def test_the_approximation_stays_within_what_it_declares(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(NET), path)
    passes = [*FUSE.pipelines()["default"], "enable_gelu_approximation"]
    result = optvet.vet(
        path, optimizer=FUSE.name, pipeline=passes, jobs=1, limit=2, cache_dir=tmp_path
    )
    assert result.verdict == "drift"
    assert faults(result) == []
    assert result.outputs[0].error is not None
    assert result.outputs[0].error > 1e-6


class PlantedOrtTransformers(OrtTransformers):
    """One more fusion, which waits for BiasGelu: BiasGelu(x, b) → Add(x, b)."""

    name = "planted-ort-transformers"

    def passes(self) -> Sequence[Pass]:
        return [*super().passes(), Pass("planted")]

    def apply(
        self, source: Artifact, passes: Sequence[str], options: OrtTransformersOptions
    ) -> Artifact:
        artifact = super().apply(source, [n for n in passes if n != "planted"], options)
        if "planted" not in passes:
            return artifact
        proto = onnx.load_from_string(artifact.data)
        for node in proto.graph.node:
            if node.op_type == "BiasGelu":
                node.op_type, node.domain = "Add", ""
        return Artifact("onnx", proto.SerializeToString(deterministic=True))

    def pipelines(self) -> dict[str, Sequence[str]]:
        return {"default": (*super().pipelines()["default"], "planted")}


def vet(root: Path, text: str, optimizer: Any) -> VetResult:
    path = root / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    plugins = Plugins()
    if optimizer.name not in plugins.names("optimizer"):
        plugins.register("optimizer", optimizer)
    settings = VetRequest(
        model="model", optimizer=optimizer.name, limit=2, jobs=1, cache_dir=root / "cache"
    )
    return vet_model(open_model(path, str(path), root / "cache"), settings, plugins)


def faults(result: VetResult) -> list[Finding]:
    return [f for f in result.findings if f.severity == "fault"]


def test_a_planted_fusion_is_named_with_what_it_needs(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(pytestconfig.rootpath)
    result = vet(tmp_path, NET, PlantedOrtTransformers())
    assert result.verdict == "faulty"
    needed = ["enable_gelu", "enable_bias_gelu", "planted"]
    assert [(f.culprit, f.confirmed) for f in faults(result)] == [(needed, True)]
    assert set(result.safe_pipeline) == set(FUSE.pipelines()["default"])
