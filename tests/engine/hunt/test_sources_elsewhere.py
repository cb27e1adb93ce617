"""Hunts in converters that have environments of their own, with what these make."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from optvet.engine.discovery import Plugins
from optvet.engine.environment.environments import Pythons, environments_root
from optvet.engine.hunt.run import hunt
from optvet.engine.hunt.sources.look import open_looker
from optvet.engine.hunt.sources.plan import SourceRecipe
from optvet.engine.hunt.sources.target import resolve_converter
from optvet.engine.scripts.parts import PART_SCRIPT
from optvet.plugin import SourceStep
from optvet.spec.hunt import HuntRequest

CONVERTERS = {
    "litert_torch": "litert",
    "jax2onnx": "jax",
    "tf2onnx": "tf",
    "tflite": "tf",
}
"""Converters with the environments that they need."""


@pytest.mark.parametrize(
    "converter",
    [pytest.param(n, marks=[pytest.mark.release] * (n == "jax2onnx")) for n in CONVERTERS],
)
def test_sources_are_made_converted_and_judged_where_their_libraries_are(
    converter: str, tmp_path: Path
) -> None:
    home = CONVERTERS[converter]
    python = Pythons({}, environments_root()).python_of(home)
    if python is None:
        pytest.skip(f"needs: optvet env make {home}")
    request = HuntRequest(optimizer=f"converter:{converter}", out=tmp_path, budget="3", jobs=1)
    summary = hunt(request, Plugins())
    assert summary.candidates == 3
    assert summary.valid > 0
    assert not summary.complaints
    assert summary.fired
    for finding in summary.findings:
        script = tmp_path / finding.bundle / PART_SCRIPT
        assert subprocess.run([python, script], capture_output=True, check=False).returncode == 1


@pytest.mark.long
def test_what_a_converter_leaves_and_a_number_of_rows_that_is_fixed_are_no_suspicions(
    tmp_path: Path,
) -> None:
    if Pythons({}, environments_root()).python_of("tf") is None:
        pytest.skip("needs: optvet env make tf")
    request = HuntRequest(optimizer="converter:tf2onnx", out=tmp_path, budget="1", jobs=1)
    # Of the crops, the first one has images with a batch, and the other one image without.
    steps = [SourceStep("Hashing", "int32", 0)]
    steps += [SourceStep("CenterCrop", "float32", sample) for sample in (0, 7)]
    plugins = Plugins()
    with open_looker(resolve_converter(request, plugins), plugins, 1) as looker:
        seen = looker.look([SourceRecipe((step,)) for step in steps], 0, tmp_path / "looked")
    assert seen[0].state == "refused"
    assert {each.state for each in seen[1:]} == {"right"}
