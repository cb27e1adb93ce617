"""A verdict never improves by adding samples: none excuses what another one shows."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.preload import TRIALS

from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.engine.vetting import GivenInputs
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.spec.records import VetResult
from optvet.spec.request import VetRequest
from optvet.testing import Planted, PlantedOptions

RATIO = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,8] x) => (float[1,4] y) <float[8,4] w = {%s}>
{ a = MatMul(x, w)  s = ReduceSum<keepdims: int = 1>(x)  y = Div(a, s) }
"""
Feeds = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(jobs=2, limits=Limits(60, 1 << 30), preload=TRIALS) as shared:
        yield shared


def steady(seed: int) -> Feeds:
    """An input on which the model is off by a few roundoffs."""
    x = np.random.default_rng(seed).uniform(0.5, 1.5, (1, 8))
    return {"x": x.astype(np.float32)}


def noisy(seed: int, rest: float = 1e-5) -> Feeds:
    """An input whose sum nearly cancels, so that rounding moves the output by about a percent."""
    x = np.random.default_rng(seed).uniform(0.5, 1.5, (1, 8)).astype(np.float32)
    x[0, 7] = np.float32(rest) - x[0, :7].sum(dtype=np.float64)
    return {"x": x}


def vet(
    folder: Path, sandbox: Sandbox, factor: float, feeds: Sequence[Feeds], **more: Any
) -> VetResult:
    path = folder / "model.onnx"
    values = np.random.default_rng(0).normal(size=32)
    text = RATIO % ", ".join(f"{v:.6f}" for v in values)
    onnx.save(onnx.parser.parse_model(text), path)
    plugins = Plugins()
    plugins.register("optimizer", Planted(default=("scale_weight",), offered=("scale_weight",)))
    plugins.register("dataset", inputs := GivenInputs(tuple(feeds)))
    request = VetRequest(
        model="model",
        optimizer="planted",
        optimizer_options=PlantedOptions(factor=factor).model_dump(),
        dataset=(inputs.name,),
        cache_dir=folder / "cache",
        **more,
    )
    return vet_model(open_model(path, "model", folder / "cache"), request, plugins, sandbox=sandbox)


MIXES: dict[str, Sequence[Feeds]] = {
    "alone": (steady(1),),
    "behind a noisy one": (noisy(2), steady(1)),
    "before noisy ones": (steady(1), noisy(2), noisy(3), noisy(4, 1e-6)),
    "among noisy ones": (noisy(2), noisy(3), steady(1), noisy(4, -1e-5), steady(5), noisy(6)),
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("factor", [1.003, 1.00002])
def test_a_fault_on_one_sample_is_a_fault_among_any_others(
    mix: str, factor: float, tmp_path: Path, sandbox: Sandbox
) -> None:
    cold = vet(tmp_path, sandbox, factor, MIXES[mix])
    warm = vet(tmp_path, sandbox, factor, MIXES[mix])
    assert (cold.verdict, warm.verdict) == ("faulty", "faulty")
    assert cold.findings[0].culprit == ["scale_weight"]


@pytest.mark.long
@pytest.mark.parametrize("limit", [1, 2, 3, 6])
def test_more_samples_of_one_dataset_never_make_a_verdict_better(
    limit: int, tmp_path: Path, sandbox: Sandbox
) -> None:
    feeds = MIXES["among noisy ones"]
    verdicts = [
        vet(tmp_path, sandbox, 1.003, feeds, limit=n).verdict for n in range(limit, len(feeds) + 1)
    ]
    first = verdicts.index("faulty")
    assert set(verdicts[first:]) == {"faulty"}
    assert set(verdicts[:first]) <= {"drift"}


def test_neither_order_nor_what_the_cache_knows_excuses_a_fault(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    bad, others = steady(1), [noisy(2), noisy(3), noisy(4, -1e-5)]
    draw = np.random.default_rng(0)
    for count in (0, 3, 1, 2):
        # In one cache: what was measured of a sample is known when it comes among others.
        chosen = [bad, *(others[i] for i in draw.permutation(3)[:count])]
        mixed = [chosen[i] for i in draw.permutation(len(chosen))]
        assert vet(tmp_path, sandbox, 1.003, mixed).verdict == "faulty"


def test_a_sample_on_which_rounding_explains_a_difference_is_no_fault(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    result = vet(tmp_path, sandbox, 1.003, [noisy(2), noisy(3)])
    assert (result.verdict, result.findings) == ("drift", [])
    (output,) = result.outputs
    assert output.error is not None
    assert output.noise_floor is not None
    # What is shown is what decided: no error stands beside a floor that could not excuse it.
    assert output.error < 10 * output.noise_floor
