"""A recurrent layer is many operators in PyTorch and one node in ONNX."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from tests.needs import needs

from optvet.engine.discovery import Plugins
from optvet.engine.repair.run import repair_model
from optvet.spec.repair import RepairRequest

needs("torch", reason="needs torch")

SOURCE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.last = nn.GRU(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.layer(x)[0].mean(0))


def net():
    return Net()


net.example_inputs = (torch.randn(9, 2, 3, generator=torch.Generator().manual_seed(1)),)
"""


@pytest.mark.release
@pytest.mark.filterwarnings("ignore")
def test_an_attribute_of_a_recurrent_layer_is_repaired(tmp_path: Path) -> None:
    import torch

    (tmp_path / "net.py").write_text(SOURCE)
    scope: dict[str, object] = {}
    exec(SOURCE, scope)
    file = str(tmp_path / "exported.onnx")
    net = scope["Net"]().eval()  # type: ignore[operator]  # the class in the text above
    torch.onnx.export(net, scope["net"].example_inputs, file, dynamo=False)  # type: ignore[attr-defined]
    model = onnx.load(file)
    layer = next(n for n in model.graph.node if n.op_type == "GRU")
    attribute = next(a for a in layer.attribute if a.name == "linear_before_reset")
    assert attribute.i == 1
    attribute.i = 0
    onnx.save(model, tmp_path / "converted.onnx")
    given = {"model": f"{tmp_path / 'net.py'}:net", "converted": tmp_path / "converted.onnx"}
    request = RepairRequest.model_validate({**given, "out": tmp_path / "repaired"})
    result = repair_model(request, Plugins())
    assert result.verdict == "repaired"
    assert [e.about.partition(" at ")[0] for e in result.edits] == ["GRU.linear_before_reset = 1"]
