import textwrap
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from tests.needs import needs
from tests.optimizers.small_network import BEFORE, NET, as_artifact, operators, vet

import optvet
from optvet.spec.errors import UnknownName
from optvet.spec.types import Artifact
from optvet_onnxscript import Onnxscript, OnnxscriptOptions, _groups

needs("onnxscript", reason="needs onnxscript; install optvet[onnxscript]")


SCRIPT = Onnxscript()


def apply(*passes: str) -> Artifact:
    return SCRIPT.apply(as_artifact(NET), passes, SCRIPT.options)


def test_rules_are_named_as_the_library_names_them() -> None:
    from onnxscript.rewriter import _DEFAULT_REWRITE_RULES
    from onnxscript.rewriter.rules import common

    rules = {p.name for p in SCRIPT.passes() if p.kind == "rule" and p.default}
    assert rules <= {n for n in vars(common) if n.endswith("_rule")}
    # Multiplication and addition are each matched from both sides.
    assert len(rules) == len(_DEFAULT_REWRITE_RULES) - 2
    assert {"fuse_batchnorm_into_conv_rule", "mul_by_1_rule"} <= rules


def test_passes_are_those_of_the_installed_library() -> None:
    import onnx_ir.passes.common as library

    passes = {p.name: p for p in SCRIPT.passes() if p.kind == "pass"}
    offered = {n.removesuffix("Pass") for n in library.__all__}
    assert set(passes) == offered - {"Checker"} | {"FoldConstants"}
    assert passes["CommonSubexpressionElimination"].default
    assert not passes["IdentityElimination"].default


def test_the_default_pipeline_has_two_rounds() -> None:
    default = SCRIPT.pipelines()["default"]
    assert default[0] == "Inline"
    assert default.count("FoldConstants") == default.count("transpose_transpose_rule") == 2
    assert default.count("RemoveUnusedNodes") == 3


@pytest.mark.parametrize("relu", ["Relu", "Identity", "Neg"])
def test_the_default_pipeline_is_what_the_library_does(relu: str) -> None:
    from onnxscript import optimizer

    model = onnx.parser.parse_model(NET.replace("Relu", relu))
    expected = optimizer.optimize(model).SerializeToString(deterministic=True)
    passes = SCRIPT.pipelines()["default"]
    source = Artifact("onnx", model.SerializeToString())
    assert SCRIPT.apply(source, passes, SCRIPT.options).data == expected


def test_no_passes_leave_every_node() -> None:
    assert operators(apply()) == BEFORE
    assert apply().changing_passes == ()


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("fuse_batchnorm_into_conv_rule", {"BatchNormalization": 1}),
        ("transpose_transpose_rule", {"Transpose": 1}),
        ("IdentityElimination", {"Identity": 1}),
        ("matmul_add_to_gemm_rule", {}),
    ],
)
def test_a_single_pass_does_only_its_own_work(name: str, gone: Mapping[str, int]) -> None:
    artifact = apply(name)
    assert BEFORE - operators(artifact) == Counter(gone)
    assert artifact.changing_passes == ((name,) if gone else ())


def test_what_a_pass_says_of_itself_is_kept() -> None:
    changing_passes = apply(*SCRIPT.pipelines()["default"]).changing_passes
    assert changing_passes is not None
    assert {"fuse_batchnorm_into_conv_rule", "transpose_transpose_rule"} <= set(changing_passes)
    assert "fuse_pad_into_conv_rule" not in changing_passes


def test_a_rule_that_comes_again_begins_a_new_group() -> None:
    steps = {"a": [], "b": [], "p": len}
    groups = _groups(["a", "b", "a", "p", "p", "b"], steps)
    assert groups == [["a", "b"], ["a"], ["p"], ["p"], ["b"]]


def test_both_sides_of_a_commutative_rule_have_one_name() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 13]>
    g (float[2] x) => (float[2] y)
    <float one = {1}> { a = Mul(x, one)  b = Mul(one, a)  y = Neg(b) }
    """
    artifact = SCRIPT.apply(as_artifact(text), ["mul_by_1_rule"], SCRIPT.options)
    assert operators(artifact) == {"Identity": 2, "Neg": 1}


def test_a_name_that_it_does_not_know_is_refused() -> None:
    with pytest.raises(UnknownName, match="did you mean 'FoldConstants'"):
        apply("FoldConstant")


# Vetting


def test_a_small_network_is_optimized_soundly(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(NET), path)
    result = optvet.vet(path, optimizer="onnxscript", jobs=1, limit=2, cache_dir=tmp_path)
    assert result.verdict in ("clean", "drift")
    assert result.findings == []


class PlantedOnnxscript(Onnxscript):
    """One more rule: x + y → x - y."""

    name = "planted-onnxscript"

    def extra_rules(self) -> Mapping[str, Any]:
        from onnxscript.rewriter import RewriteRule

        def add(op: Any, x: Any, y: Any) -> Any:
            return op.Add(x, y)

        def subtract(op: Any, x: Any, y: Any) -> Any:
            return op.Sub(x, y)

        return {"planted_rule": RewriteRule(add, subtract)}


def test_weights_beside_the_model_are_optimized_alike_by_plugin_and_snippet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from onnxscript import ir

    outside: list[bool] = []
    load = ir.load

    def noting(path: str) -> object:
        graph = onnx.load(path, load_external_data=False).graph
        outside.extend(t.data_location == t.EXTERNAL for t in graph.initializer)
        return load(path)

    monkeypatch.setattr(ir, "load", noting)
    model = onnx.parser.parse_model(NET)
    for tensor in model.graph.initializer:
        value = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    options = OnnxscriptOptions(weights="beside")
    passes = SCRIPT.pipelines()["default"]
    source = Artifact("onnx", model.SerializeToString())
    made = SCRIPT.apply(source, passes, options)
    assert outside == [True] * len(model.graph.initializer)
    inside = SCRIPT.apply(source, passes, SCRIPT.options)
    assert (operators(made), made.changing_passes) == (operators(inside), inside.changing_passes)
    scope: dict[str, Any] = {}
    body = textwrap.indent(SCRIPT.snippet(passes, options), "    ")
    exec(f"def optimize(model):\n{body}", scope)
    assert scope["optimize"](model) == onnx.load_from_string(made.data)


def test_a_planted_rule_is_named(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(pytestconfig.rootpath)
    text = NET.replace("y = Identity(u)", "y = Add(u, u)")
    result = vet(tmp_path, text, PlantedOnnxscript())
    assert result.verdict == "faulty"
    assert [f.culprit for f in result.findings] == [["planted_rule"]]
    assert result.findings[0].confirmed
    assert result.safe_pipeline == list(SCRIPT.pipelines()["default"])


ZIPMAP = """
<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
classes (float[1,2] x) => (float[1,2] z) {
    z = Identity(x)
    y = ai.onnx.ml.ZipMap <classlabels_int64s = [0, 1]> (z)
}
"""


def test_what_the_library_says_it_cannot_represent_is_no_fault(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(ZIPMAP)
    scores = onnx.helper.make_map_type_proto(
        onnx.TensorProto.INT64, onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    )
    kind = onnx.helper.make_sequence_type_proto(scores)
    model.graph.output.append(onnx.helper.make_value_info("y", kind))
    with pytest.raises(optvet.NothingTested, match="Map types are not supported"):
        optvet.vet(model, optimizer="onnxscript", limit=1, jobs=1, cache_dir=tmp_path)
