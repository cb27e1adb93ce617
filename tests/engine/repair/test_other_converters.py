"""A model that no edit mends, and another exporter whose model is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.needs import needs

from optvet.engine.discovery import Plugins
from optvet.engine.repair.run import repair_model
from optvet.spec.repair import RepairRequest

needs("torch", reason="needs torch")

SOURCE = """
import torch


class Net(torch.nn.Module):
    def forward(self, radius):
        out = torch.zeros((radius.shape[0], 2), dtype=radius.dtype)
        keep = radius > 0
        out[keep, 0] = radius[keep]
        return out


def model():
    return Net().eval()


example_inputs = (torch.tensor([1.0, 2.0, 0.5, 3.0]),)
more_inputs = [(torch.tensor([1.0, -2.0, 0.0, 3.0]),)]
"""


def test_another_exporter_that_is_right_is_offered(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SOURCE)
    given = {
        "model": f"{tmp_path / 'net.py'}:model",
        "via": ("torch_script",),
        "out": tmp_path / "out",
        "cross_check": ("onnx_reference",),
    }
    result = repair_model(RepairRequest.model_validate(given), Plugins())
    assert result.verdict == "not-repaired"
    assert "templates" not in result.reason
    assert (result.right_via, result.files) == (["torch_dynamo"], ["torch_dynamo.onnx"])
    import onnxruntime

    session = onnxruntime.InferenceSession(tmp_path / "out" / "torch_dynamo.onnx")
    radius = np.array([-1, 2, 3, 0], np.float32)
    (out,) = session.run(None, {session.get_inputs()[0].name: radius})
    np.testing.assert_array_equal(out, [[0, 0], [2, 0], [3, 0], [0, 0]])
