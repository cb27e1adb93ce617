import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx.parser
import pytest
from pydantic import BaseModel, ConfigDict

from optvet import InputError, Sample
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.plugin import Comparison, Model, Run, Summary
from optvet.spec.records import Impact, VetResult
from optvet.spec.request import VetRequest
from optvet.testing import Planted


class OrbitOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = 3
    harm: Literal["", "raise", "abort", "hang", "misuse"] = ""
    where: Literal["everywhere", "negative"] = "everywhere"


class Orbit:
    """Feeds a model with its own output, again and again."""

    name = "orbit"
    options: BaseModel = OrbitOptions()

    def __init__(self, release: str = "1") -> None:
        self.release = release

    def matches(self, model: Model, outputs: Mapping[str, np.ndarray]) -> float:
        return 0.0

    def decoder(self, model: Model, options: BaseModel) -> str:
        return self.release

    def decode(
        self, model: Model, sample: Sample, run: Run, options: BaseModel
    ) -> Mapping[str, np.ndarray]:
        assert sample.label is None
        chosen = OrbitOptions.model_validate(options.model_dump())
        x = sample.feeds["x"]
        for _ in range(chosen.steps):
            x = run({"x": x})["y"]
        if chosen.where == "everywhere" or bool((x < 0).any()):
            harm(chosen.harm)
        # Another shape than any output has, so that compare cannot mistake one for the other.
        return {"orbit": x.ravel()}

    def compare(
        self,
        model: Model,
        sample: Sample,
        reference: Mapping[str, np.ndarray],
        candidate: Mapping[str, np.ndarray],
        options: BaseModel,
        *,
        noise: Mapping[str, float],
    ) -> Comparison:
        assert set(noise) == {"y"}
        distance = float(np.abs(reference["orbit"] - candidate["orbit"]).max())
        return Comparison(sample.id, {"distance": distance}, distance > 0)

    def summarise(self, comparisons: Sequence[Comparison], options: BaseModel) -> Summary:
        far = max(c.metrics["distance"] for c in comparisons)
        return Summary({"distance": far}, f"orbits {far:g} apart")


def harm(kind: str) -> None:
    if kind == "raise":
        raise ValueError("no orbit")
    if kind == "misuse":
        raise InputError("comparator 'orbit': no model of mine")
    if kind == "abort":
        os.abort()
    if kind == "hang":
        time.sleep(3600)


NET = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[2,2] x) => (float[2,2] y)
<float[2,2] w = {0.5, -1, 1, 0.25}>
{
    h = MatMul(x, w)
    y = Relu(h)
}
"""

Vet = Callable[..., VetResult]
PRELOAD = ("numpy", "onnx", "onnxruntime", "optvet.engine.work.trials.preload", __name__)


@pytest.fixture
def vet(tmp_path: Path) -> Vet:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(NET), path)

    def run(*passes: str, release: str = "1", timeout_s: float = 60, **options: Any) -> VetResult:
        plugins = Plugins()
        plugins.register("optimizer", Planted(default=passes))
        plugins.register("comparator", Orbit(release))
        settings = VetRequest(
            model="model",
            optimizer="planted",
            comparator="orbit",
            comparator_options=options,
            limit=3,
            cache_dir=tmp_path / "cache",
        )
        limits = Limits(timeout_s, 1 << 30)
        model = open_model(path, str(path), tmp_path / "cache")
        with Sandbox(jobs=2, limits=limits, preload=PRELOAD) as sandbox:
            return vet_model(model, settings, plugins, sandbox=sandbox)

    return run


def impact(result: VetResult) -> Impact:
    assert result.impact is not None
    return result.impact


def decoding(result: VetResult) -> int:
    """Inferences that decoding took; 0 where all was remembered."""
    return result.cost.by_purpose["decode"].inferences if "decode" in result.cost.by_purpose else 0


def test_what_is_decoded_takes_the_place_of_the_outputs(vet: Vet) -> None:
    same = vet("keep_00")
    assert impact(same).headline == "orbits 0 apart"
    assert (impact(same).samples, impact(same).changed) == (3, 0)
    wrong = vet("drop_relu")
    assert wrong.verdict == "faulty"
    assert impact(wrong).changed == 3


@pytest.mark.long
def test_answers_are_kept_by_what_was_computed_and_by_what_decodes(vet: Vet) -> None:
    first = vet("drop_relu")
    assert decoding(first) == 2 * 3 * 3  # two models, three samples, three steps
    again = vet("drop_relu")
    assert (decoding(again), again.impact) == (0, first.impact)
    # A pass that does nothing leaves the original's artifact, whose answers are known.
    assert decoding(vet("keep_00")) == 0
    assert decoding(vet("drop_relu", steps=1)) == 2 * 3
    assert decoding(vet("drop_relu", release="2")) == 2 * 3 * 3


@pytest.mark.parametrize("kind", ["raise", "abort"])
def test_what_the_original_alone_decodes_has_changed(vet: Vet, kind: str) -> None:
    told = impact(vet("drop_relu", harm=kind, where="negative"))
    assert told.changed == told.samples == 3
    why = {"raise": "ValueError: no orbit", "abort": "SIGABRT"}[kind]
    assert told.headline.startswith(f"3 decoded by the original alone: {why}")
    assert str(told.details[0].detail["failure"]).startswith(why)


@pytest.mark.parametrize("kind", ["raise", "abort", "misuse"])
def test_a_model_that_cannot_be_decoded_is_no_error_of_the_model(vet: Vet, kind: str) -> None:
    why = {"raise": "3 not decoded: ValueError: no orbit", "abort": "3 not decoded: SIGABRT"}
    with pytest.raises(InputError, match=why.get(kind, "no model of mine")):
        vet("keep_00", harm=kind)


@pytest.mark.long
def test_a_candidate_that_is_too_slow_is_left_out(vet: Vet) -> None:
    vet("drop_relu")  # so that but decoding is left to do under the short limit
    told = impact(vet("drop_relu", timeout_s=5, harm="hang", where="negative"))
    assert (told.changed, told.samples) == (0, 0)
    assert told.headline.startswith("3 not decoded: ")
