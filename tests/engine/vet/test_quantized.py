"""Vets of quantized models: what real optimizers and planted ones make, judged layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto
from pydantic import BaseModel
from tests.quantized.models import quantized_model
from tests.quantized.rewrites import QUANTIZED_BENIGN, QUANTIZED_FAULTS

from optvet.cli.layers import layers_text
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.spec.records import Finding, Quantized, VetResult
from optvet.spec.request import VetRequest
from optvet.spec.types import Artifact, Pass, Traits
from optvet.testing import PlantedOptions


class Rewriter:
    """An optimizer whose passes are the planted rewrites of quantized models."""

    name = "rewriter"
    preload: Sequence[str] = ("onnx",)
    options: BaseModel = PlantedOptions()
    traits = Traits()

    def version(self) -> str:
        return "1"

    def passes(self) -> Sequence[Pass]:
        return [Pass(n, "rewrite") for n in (*QUANTIZED_BENIGN, *QUANTIZED_FAULTS)]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        return {"default": tuple(QUANTIZED_BENIGN)}

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        model = onnx.load_from_string(source.data)
        for name in passes:
            (dict(QUANTIZED_BENIGN) | dict(QUANTIZED_FAULTS))[name](model, 0.5)
        return Artifact("onnx", model.SerializeToString())


class Hiding(Rewriter):
    """The same, with an artifact that hides its graph, and which more outputs change."""

    name = "hiding"
    traits = Traits(produces="onnx-session", optimizes_on_load=True)

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        probed = len(onnx.load_from_string(source.data).graph.output) > 1
        made = super().apply(source, () if probed else passes, options)
        settings = {"level": 0, "disabled": [], "config": {}}
        return Artifact("onnx-session", made.data, settings, fingerprint=",".join(passes))


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(
        jobs=1,
        limits=Limits(120, 2 << 30),
        preload=("onnx", "onnxruntime", "optvet.engine.work.trials.preload", __name__),
    ) as shared:
        yield shared


Vet = Callable[..., VetResult]


@pytest.fixture
def vet(tmp_path: Path, sandbox: Sandbox) -> Vet:
    """Vets a model in real worker processes."""

    def run(model: ModelProto, optimizer: Any, pipeline: str, **more: Any) -> VetResult:
        path = tmp_path / "model.onnx"
        onnx.save(model, path)
        plugins, name = Plugins(), optimizer
        if not isinstance(optimizer, str):
            plugins.register("optimizer", optimizer)
            name = optimizer.name
        chosen = {"limit": 4, "optimizer": name, "cache_dir": tmp_path / "cache"} | more
        request = VetRequest(model="model", pipeline=pipeline, **chosen)
        return vet_model(
            open_model(path, str(path), tmp_path / "cache"), request, plugins, sandbox=sandbox
        )

    return run


def fault_of(result: VetResult) -> Finding:
    (finding,) = [f for f in result.findings if f.severity == "fault"]
    return finding


def layers_of(result: VetResult) -> Quantized:
    assert result.quantized is not None
    return result.quantized


def test_ties_that_round_otherwise_are_drift_and_the_layers_say_why(vet: Vet) -> None:
    result = vet(quantized_model(1), Rewriter(), "ties_up", limit=6)
    assert result.verdict == "drift"
    layers = layers_of(result)
    assert (layers.method, layers.quantizers, layers.compared) == ("layers", 8, 8)
    assert layers.largest is not None
    assert layers.largest < 0.501
    words = layers_text(layers)
    assert "8 quantized layers compared on" in words
    assert "within 0.50 step" in words
    assert "y differs by up to 1 step" in words


def test_a_wrong_scale_is_a_fault_of_the_layer_that_has_it(vet: Vet) -> None:
    pipeline = "rounding_skipped,scale_of_dequantizer"
    finding = fault_of(vet(quantized_model(1), Rewriter(), pipeline))
    assert finding.culprit == ["scale_of_dequantizer"]
    assert finding.confirmed
    assert "steps from the exact result of its own inputs (0.5 allowed)" in finding.message
    assert finding.layer is not None
    assert finding.layer.outcome == "fault"
    assert finding.divergence is not None
    assert finding.divergence.value == finding.layer.name
    assert any("Conv" in line for line in finding.divergence.before)


def test_a_dropped_quantizer_that_stands_for_relu_is_told_as_such(vet: Vet) -> None:
    finding = fault_of(vet(quantized_model(1), Rewriter(), "saturation_dropped"))
    assert finding.layer is not None
    assert finding.layer.outcome == "saturation"
    assert "that also clips values" in finding.message


@pytest.mark.long
def test_the_verdict_does_not_depend_on_the_number_of_samples(vet: Vet) -> None:
    model = quantized_model(4, signed=True)
    for pipeline, verdict in (("ties_up", "drift"), ("zero_point", "faulty")):
        for limit, seed in ((3, 0), (12, 0), (5, 1)):
            result = vet(model, Rewriter(), pipeline, limit=limit, seed=seed)
            assert result.verdict in (verdict, "clean" if verdict == "drift" else verdict)


def test_the_runtimes_own_softmax_with_a_step_of_1_255_is_found(vet: Vet) -> None:
    model = quantized_model(3, softmax=True)
    scale = next(t for t in model.graph.initializer if t.name.startswith("Softmax"))
    scale.CopyFrom(onnx.numpy_helper.from_array(np.array(1 / 255, np.float32), scale.name))
    finding = fault_of(vet(model, "onnxruntime", "extended"))
    assert finding.culprit == ["QDQSelectorActionTransformer"]
    assert finding.layer is not None
    assert finding.layer.operators == ["Softmax"]


def test_what_cannot_be_looked_into_is_judged_by_the_whole_run_and_that_is_said(vet: Vet) -> None:
    result = vet(quantized_model(1), Hiding(), "ties_up", limit=6)
    assert result.verdict == "drift"
    layers = layers_of(result)
    assert layers.method == "whole run"
    assert layers.reason == "its outputs change once inner values are outputs too"
    assert "a small error in one layer could hide" in layers_text(layers)


def test_a_large_fault_is_found_without_a_look_inside_too(vet: Vet) -> None:
    result = vet(quantized_model(1), Hiding(), "saturation_dropped")
    assert result.verdict == "faulty"


def test_what_is_not_quantized_has_no_layers(vet: Vet) -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[2,3] y) {y = Relu(x)}'
    )
    assert vet(onnx.parser.parse_model(text), "onnxoptimizer", "default").quantized is None


def test_all_wrong_samples_are_counted_as_wrong_and_none_as_moved_within_the_noise(
    vet: Vet,
) -> None:
    result = vet(quantized_model(1), Rewriter(), "scale_of_weight", limit=10, comparator="tensor")
    assert result.verdict == "faulty"
    assert result.impact is not None
    assert (result.impact.changed, result.impact.sensitive) == (10, 0)
