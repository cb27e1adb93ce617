"""Hunts in converters that have environments of their own, with what these make."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from optvet.engine.discovery import Plugins
from optvet.engine.environment.environments import Pythons, environments_root
from optvet.engine.hunt.run import hunt
from optvet.engine.scripts.parts import PART_SCRIPT
from optvet.spec.hunt import HuntRequest

CONVERTERS = {
    "litert_torch": "litert",
    "jax2onnx": "jax",
    "tf2onnx": "tf",
    "tflite": "tf",
}
"""Converters with the environments that they need."""


@pytest.mark.parametrize("converter", CONVERTERS)
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
