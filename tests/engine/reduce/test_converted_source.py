"""Sources in ONNX are reduced as graphs, to what the converter still breaks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from tests.engine.reduce import sigmoids

from optvet.engine.convert.run import convert_model
from optvet.engine.reduce.converted_source import INPUTS, PART, reduced_or_why_not
from optvet.engine.scripts.parts import PART_SCRIPT
from optvet.spec.convert import ConvertRequest
from optvet.spec.records.convert import ReducedSource

SOURCE = """
<ir_version: 8, opset_import: ["" : 18]>
g (float[n,4] x, float[n,4] z) => (float[n,3] y)
<float[4,4] w = {1, 2, 0, 1, 0, 1, 1, 2, 1, 0, 2, 1, 1, 1, 0, 1},
 float[4,3] v = {1, 0, 1, 2, 1, 0, 0, 1, 1, 1, 2, 0}>
{
  a = MatMul(x, w)
  b = Relu(a)
  c = Mul(b, z)
  d = Tanh(c)
  e = Add(d, x)
  f = Exp(e)
  y = MatMul(f, v)
}
"""


def reduced(tmp_path: Path, **options: object) -> ReducedSource:
    model = onnx.parser.parse_model(SOURCE)
    onnx.save(model, tmp_path / "source.onnx")
    given = {"model": str(tmp_path / "source.onnx"), "edges": False, **options}
    request = ConvertRequest.model_validate(given)
    plugins = sigmoids.plugins()
    result = convert_model(request, plugins)
    assert result.verdict == "faulty"
    folder = tmp_path / "part"
    return reduced_or_why_not(request, result, plugins, folder, progress=lambda *about: None)


def test_a_graph_is_reduced_to_what_the_converter_breaks(tmp_path: Path) -> None:
    found = reduced(tmp_path, via=("sigmoids",))
    assert (found.part, found.size, found.size_before, found.note) == ("Tanh", 1, 7, "")
    assert {INPUTS, PART, PART_SCRIPT} <= set(found.files)
    assert found.reproduces is True
    part = onnx.load(tmp_path / "part" / PART)
    assert [node.op_type for node in part.graph.node] == ["Tanh"]
    with np.load(tmp_path / "part" / INPUTS) as stored:
        assert list(stored) == [part.graph.input[0].name]
    again = ConvertRequest(
        model=str(tmp_path / "part" / PART),
        via=("sigmoids",),
        dataset=(f"files:{tmp_path / 'part' / INPUTS}",),
    )
    assert convert_model(again, sigmoids.plugins()).verdict == "faulty"


def test_a_model_converted_elsewhere_has_no_converter_to_reduce_by(tmp_path: Path) -> None:
    other = onnx.parser.parse_model(SOURCE.replace("Tanh", "Sigmoid"))
    onnx.save(other, tmp_path / "other.onnx")
    found = reduced(tmp_path, converted=tmp_path / "other.onnx")
    assert "converted elsewhere" in found.note
    assert not (tmp_path / "part").exists()
