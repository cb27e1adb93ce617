import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from tests.needs import needs
from tests.optimizers.small_network import BEFORE, NET, as_artifact, operators, vet

import optvet
from optvet.spec.errors import UnknownName
from optvet.spec.types import Artifact, Pass
from optvet_onnxslim import Onnxslim, OnnxslimOptions

needs("onnxslim", reason="needs onnxslim; install optvet[onnxslim]")


SLIM = Onnxslim()


def apply(*passes: str) -> Artifact:
    return SLIM.apply(as_artifact(NET), passes, SLIM.options)


def test_passes_are_those_of_the_installed_library() -> None:
    from onnxslim.core import OptimizationSettings
    from onnxslim.core.pattern.registry import DEFAULT_FUSION_PATTERNS

    names = [p.name for p in SLIM.passes()]
    assert names == [*DEFAULT_FUSION_PATTERNS, *OptimizationSettings.keys(), "shape_inference"]
    assert {"FusionConvBN", "EliminationTranspose", "weight_tying"} <= set(names)
    assert {p.kind for p in SLIM.passes()} == {"fuse", "eliminate", "stage"}


def test_the_default_pipeline_is_what_the_library_does() -> None:
    import onnxslim

    slimmed = onnxslim.slim(onnx.parser.parse_model(NET))
    artifact = apply(*SLIM.pipelines()["default"])
    assert artifact.data == slimmed.SerializeToString(deterministic=True)
    assert operators(artifact)["BatchNormalization"] == 0


def test_no_passes_leave_every_node() -> None:
    assert operators(apply()) == BEFORE


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("FusionConvBN", {"BatchNormalization": 1}),
        ("EliminationTranspose", {"Transpose": 1}),
        ("dead_node_elimination", {"Identity": 1}),
        ("FusionPadConv", {}),
        ("graph_fusion", {}),
        ("constant_folding", {}),
        ("shape_inference", {}),
    ],
)
def test_a_single_pass_does_only_its_own_work(name: str, gone: Mapping[str, int]) -> None:
    after = operators(apply(name))
    assert BEFORE - after == Counter(gone)


def test_one_application_leaves_nothing_behind_for_the_next() -> None:
    other = as_artifact(NET.replace("x, w", "x, w, b"))
    everything = SLIM.pipelines()["default"]
    first = apply(*everything), apply("FusionConvBN"), apply()
    SLIM.apply(other, ["EliminationTranspose"], SLIM.options)
    SLIM.apply(other, [], SLIM.options)
    with pytest.raises(UnknownName):
        SLIM.apply(other, ["FusionConvBN", "no_such_pass"], SLIM.options)
    again = apply(*everything), apply("FusionConvBN"), apply()
    assert [a.data for a in again] == [a.data for a in first]


def test_patterns_that_match_nothing_are_no_suspects() -> None:
    passes, source = SLIM.pipelines()["default"], as_artifact(NET)
    changing_passes = SLIM.changing_passes(source, passes, SLIM.options)
    stages = [p.name for p in SLIM.passes() if p.kind == "stage"]
    assert {"FusionConvBN", "EliminationTranspose", *stages} <= set(changing_passes)
    assert "FusionPadConv" in passes
    assert "FusionPadConv" not in changing_passes
    assert len(changing_passes) < len(passes) / 2
    assert apply(*passes).data == SLIM.apply(source, passes, SLIM.options).data


def test_the_number_of_rounds_is_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXSLIM_MAX_ITER", "0")
    options = OnnxslimOptions(max_iterations=1)
    assert operators(SLIM.apply(as_artifact(NET), ["FusionConvBN"], options)) != BEFORE
    assert os.environ["ONNXSLIM_MAX_ITER"] == "0"


def test_weights_among_the_inputs_are_taken_out_of_a_copy() -> None:
    model = onnx.parser.parse_model(NET)
    tensor = model.graph.initializer[0]
    weight = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
    model.graph.input.append(weight)
    data = Artifact("onnx", model.SerializeToString())
    results = [SLIM.apply(data, [], SLIM.options).data for _ in range(2)]
    assert results[0] == results[1]
    assert [i.name for i in onnx.load_from_string(results[0]).graph.input] == ["x"]


def test_a_name_that_it_does_not_know_is_refused() -> None:
    with pytest.raises(UnknownName, match="did you mean 'FusionConvBN'"):
        apply("FusionConvBNs")


# Vetting


def test_a_small_network_is_slimmed_soundly(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(NET), path)
    result = optvet.vet(path, optimizer="onnxslim", jobs=1, limit=2, cache_dir=tmp_path)
    assert result.verdict in ("clean", "drift")
    assert result.findings == []


class PlantedOnnxslim(Onnxslim):
    """One more pattern in the library's own registry: Relu(x) → Identity(x)."""

    name = "planted-onnxslim"

    def passes(self) -> Sequence[Pass]:
        with planted_pattern():
            return super().passes()

    def apply(self, source: Artifact, passes: Sequence[str], options: OnnxslimOptions) -> Artifact:
        with planted_pattern():
            return super().apply(source, passes, options)


@contextmanager
def planted_pattern() -> Iterator[None]:
    from onnxslim.core.pattern import Pattern, PatternMatcher, registry

    class Planted(PatternMatcher):  # type: ignore[misc]  # the library has no types
        name = "FusionPlanted"

        def __init__(self) -> None:
            nodes = """
            input  input  0 1 relu_0
            Relu   relu_0 1 1 input output
            output output 1 0 relu_0
            """
            super().__init__(Pattern(nodes), 1)

        def rewrite(self, opset: int = 11) -> dict[str, Any]:
            self.relu_0.op = "Identity"
            return {}

    outermost = "FusionPlanted" not in registry.DEFAULT_FUSION_PATTERNS
    if outermost:  # ``apply`` asks for ``passes``
        registry.register_fusion_pattern(Planted())
    try:
        yield
    finally:
        if outermost:
            registry.DEFAULT_FUSION_PATTERNS.pop("FusionPlanted")


def test_a_planted_pattern_is_named(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(pytestconfig.rootpath)
    result = vet(tmp_path, NET, PlantedOnnxslim())
    assert result.verdict == "faulty"
    assert [f.culprit for f in result.findings] == [["FusionPlanted"]]
    assert result.findings[0].confirmed
    assert set(result.safe_pipeline) == set(SLIM.pipelines()["default"])
