from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import onnx.parser
import pytest
from tests.needs import needs
from tests.optimizers.small_network import BEFORE, NET, as_artifact, operators, vet

import optvet
from optvet.spec.errors import UnknownName
from optvet.spec.types import Artifact, Pass
from optvet_onnxsim import Onnxsim, OnnxsimOptions

needs("onnxsim", reason="needs onnxsim; install optvet[onnxsim]")


SIMPLE = Onnxsim()


def apply(*passes: str) -> Artifact:
    return SIMPLE.apply(as_artifact(NET), passes, SIMPLE.options)


def test_passes_are_those_of_the_installed_library() -> None:
    from onnxsim import onnxsim_cpp2py_export as native

    other = native._list_other_optimizers()
    expected = {*native._list_optimizers(), "constant_folding", "shape_inference"}
    passes = {p.name: p for p in SIMPLE.passes()}
    assert set(passes) == expected | set(other)
    assert {n for n, p in passes.items() if p.default} == expected
    # These are listed only after the library has registered its own.
    assert {"fuse_gelu", "fuse_layer_norm", "fuse_bn_into_conv"} <= expected


def test_what_approximates_is_not_in_the_pipeline_of_everything() -> None:
    everything = SIMPLE.pipelines()["all"]
    assert {"pow2_to_mul", "rewrite_implicit_broadcast"} <= set(everything)
    assert not [n for n in everything if "quant" in n or "prun" in n or n.startswith("split_init")]


def test_the_default_pipeline_is_what_the_library_does() -> None:
    import onnxsim

    simplified, _ = onnxsim.simplify(onnx.parser.parse_model(NET))
    artifact = apply(*SIMPLE.pipelines()["default"])
    assert artifact.data == simplified.SerializeToString(deterministic=True)
    assert operators(artifact) == {"Conv": 1, "Relu": 1, "Transpose": 2}


def test_no_passes_leave_every_node() -> None:
    assert operators(apply()) == BEFORE


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("fuse_bn_into_conv", {"BatchNormalization": 1}),
        ("fuse_consecutive_transposes", {"Transpose": 1}),
        ("eliminate_identity", {"Identity": 1}),
        ("fuse_gelu", {}),
        ("shape_inference", {}),
    ],
)
def test_a_single_pass_does_only_its_own_work(name: str, gone: Mapping[str, int]) -> None:
    after = operators(apply(name))
    assert BEFORE - after == Counter(gone)


def test_an_opt_in_pass_runs_when_it_is_asked_for() -> None:
    text = NET.replace("y = Identity(u)", "y = Neg(u)")
    passes = ["neg_to_mul", "shape_inference"]
    artifact = SIMPLE.apply(as_artifact(text), passes, SIMPLE.options)
    assert (operators(artifact)["Neg"], operators(artifact)["Mul"]) == (0, 1)


def test_a_name_that_it_does_not_know_is_refused() -> None:
    with pytest.raises(UnknownName, match="did you mean 'fuse_bn_into_conv'"):
        apply("fuse_bn_into_convs")


# Vetting


def test_a_small_network_is_simplified_soundly(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(NET), path)
    result = optvet.vet(path, optimizer="onnxsim", jobs=1, limit=2, cache_dir=tmp_path)
    assert result.verdict in ("clean", "drift")
    assert result.findings == []


class PlantedOnnxsim(Onnxsim):
    """One more pass, after the library's: Relu(x) → Identity(x)."""

    name = "planted-onnxsim"

    def passes(self) -> Sequence[Pass]:
        return [*super().passes(), Pass("planted")]

    def apply(self, source: Artifact, passes: Sequence[str], options: OnnxsimOptions) -> Artifact:
        artifact = super().apply(source, [n for n in passes if n != "planted"], options)
        if "planted" not in passes:
            return artifact
        proto = onnx.load_from_string(artifact.data)
        for node in proto.graph.node:
            if node.op_type == "Relu":
                node.op_type = "Identity"
        return Artifact("onnx", proto.SerializeToString(deterministic=True))


def test_a_planted_pass_is_named(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(pytestconfig.rootpath)
    result = vet(tmp_path, NET, PlantedOnnxsim())
    assert result.verdict == "faulty"
    assert [f.culprit for f in result.findings] == [["planted"]]
    assert result.findings[0].confirmed
    assert set(result.safe_pipeline) == set(SIMPLE.pipelines()["default"])
