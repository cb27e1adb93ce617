"""Passes are still judged when import and export already change the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from pydantic import BaseModel
from tests.answers import detail

from optvet import VetResult
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.spec.request import VetRequest
from optvet.spec.types import Artifact
from optvet.testing import Planted

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[4,8] x) => (float[4,8] y)
<float[8] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[8] b = {1, 1, 1, 1, 1, 1, 1, 1}>
{ m = Mul(x, w)  a = Add(m, b)  y = Tanh(a) }
"""


@dataclass
class Spoils(Planted):
    """Its import changes an element of ``w``; its pass "heal" moves ``b`` by ``by``."""

    name: str = "spoils"
    preload: Sequence[str] = ("onnx", __name__)
    by: float = 0.0

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        model = onnx.load_from_string(source.data)
        for tensor in model.graph.initializer:
            value = numpy_helper.to_array(tensor).copy()
            value[3] += np.float32(0.5 if tensor.name == "w" else 0)
            moved = tensor.name == "b" and "heal" in passes
            value += np.float32(self.by if moved else 0)
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
        return Artifact("onnx", model.SerializeToString())


def vet(optimizer: Planted, place: Path) -> VetResult:
    path = place / "model.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    plugins = Plugins().register("optimizer", optimizer)
    request = VetRequest(model=str(path), limit=4, optimizer=optimizer.name, cache=False)
    return vet_model(open_model(path, str(path), place / "cache"), request, plugins)


@pytest.mark.parametrize("by", [0.0, 0.01, 0.3])
def test_passes_are_compared_with_what_import_makes(tmp_path: Path, by: float) -> None:
    result = vet(Spoils(default=("identity", "heal"), by=by), tmp_path)
    first, *others = [f for f in result.findings if f.severity == "fault"]
    assert (first.culprit, first.set_aside) == ([], "passes were compared with what it makes of y")
    assert [f.culprit for f in others] == ([["heal"]] if by else [])
    assert all(f.confirmed for f in others)
    assert "all outputs are at fault without a pass" in detail(result, "as shipped")
    assert result.safe_pipeline == (["identity"] if by else ["identity", "heal"])
