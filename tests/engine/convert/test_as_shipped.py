"""Converted models in the default session of their runtime."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.data import DATA

from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.spec.convert import ConvertRequest

CASE = DATA / "bugs" / "field" / "rms0"


@pytest.mark.skipif(not CASE.is_dir(), reason=f"needs {CASE}")
def test_a_model_that_only_a_default_session_computes_wrong_is_faulty(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    if onnxruntime.__version__ != "1.32.0":
        pytest.skip("the fault is one of ONNX Runtime 1.32.0")
    shutil.copy(CASE / "model.onnx", tmp_path / "converted.onnx")
    given = {
        "model": str(CASE / "model.onnx"),
        "converted": tmp_path / "converted.onnx",
        "cross_check": ("onnx_reference",),
    }
    result = convert_model(ConvertRequest.model_validate(given), Plugins())
    assert result.verdict == "faulty"
    (finding,) = result.findings
    assert (finding.symptom, finding.kind) == ("wrong-output", "target-runtime")
    assert finding.message.startswith("in a default session alone: ")
