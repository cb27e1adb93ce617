"""What is known of the original is computed once, whatever optimizer is vetted on it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.preload import TRIALS

from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.spec.records import VetResult
from optvet.spec.request import VetRequest
from optvet.testing import Planted


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(jobs=2, limits=Limits(60, 1 << 30), preload=TRIALS) as shared:
        yield shared


def weights() -> str:
    values = np.random.default_rng(0).normal(size=256)
    return "{" + ", ".join(f"{v:.6f}" for v in values) + "}"


# Small roundings of the product become large ones of the output.
MAGNIFIED = f"""<ir_version: 8, opset_import: ["" : 13]>
g (float[8,16] x) => (float[8,16] y)
<float[16,16] w = {weights()}, float less = {{0.25}}>
{{ m = MatMul(x, w)  h = Mul(m, less)  s = Mul(h, h)  t = Exp(s)  y = Sin(t) }}"""


def scaled(folder: Path, sandbox: Sandbox, factor: float) -> VetResult:
    """Vets ``MAGNIFIED`` with an optimizer that multiplies its weights by ``factor``."""
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(MAGNIFIED), path)
    plugins = Plugins()
    planted = Planted(default=("scale_weight",))
    plugins.register("optimizer", planted)
    request = VetRequest(
        model=str(path),
        optimizer=planted.name,
        optimizer_options={"factor": factor},
        limit=2,
        cache_dir=folder / "cache",
    )
    model = open_model(path, str(path), folder / "cache")
    return vet_model(model, request, plugins, sandbox=sandbox)


def inferences(result: VetResult, purpose: str) -> int:
    parts = result.cost.by_purpose
    return parts[purpose].inferences if purpose in parts else 0


def test_noise_of_one_model_is_measured_once_for_all_optimizers(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    first = scaled(tmp_path, sandbox, 1 + 1.2e-7)
    second = scaled(tmp_path, sandbox, 1 - 1.2e-7)
    assert [r.verdict for r in (first, second)] == ["drift", "drift"]
    assert all(inferences(first, purpose) for purpose in ("reference", "noise"))
    assert not any(inferences(second, purpose) for purpose in ("reference", "noise"))


def test_the_original_is_compared_with_itself_once_for_all_optimizers(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    first = scaled(tmp_path, sandbox, 1.5)
    second = scaled(tmp_path, sandbox, 1.25)
    for result in (first, second):
        assert [f.culprit for f in result.findings] == [["scale_weight"]]
        control = {c.name: c.state for c in result.controls}
        assert control["reference against itself"] == "passed"
    assert inferences(second, "control") == inferences(first, "control") - 1
