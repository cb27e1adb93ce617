"""Nodes that a runtime has no kernel of are written in a form that it has."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

from optvet.engine.discovery import Plugins
from optvet.engine.repair.run import repair_model
from optvet.engine.work.sandbox import keep_servers
from optvet.spec.records.repair import RepairResult
from optvet.spec.repair import RepairRequest

HEAD = '<ir_version: 8, opset_import: ["" : 18, "ai.onnx.ml" : 3]>\n'
WEIGHTS = """
<float[1,8,3] w = {1, 0, -1, 0, 1, 1, -1, 0, 1, 1, 1, 0, 0, -1, 1, 1, 0, 0, 1, 1, -1, 0, 1, 0},
 float[1,8,2] r = {1, 0, 0, 1, -1, 1, 1, 1, 0, -1, 1, 0, 0, 1, 1, -1}>
"""


def mended(tmp_path: Path, source: str, converted: str) -> RepairResult:
    pytest.importorskip("onnxruntime", reason="needs ONNX Runtime")
    keep_servers()
    for name, text in (("source", source), ("converted", converted)):
        onnx.save(onnx.parser.parse_model(HEAD + text), tmp_path / f"{name}.onnx")
    given = {
        "model": str(tmp_path / "source.onnx"),
        "converted": tmp_path / "converted.onnx",
        "out": tmp_path / "repaired",
        "random": 1,
        "edges": False,
    }
    return repair_model(RepairRequest.model_validate(given), Plugins())


def test_a_recurrent_node_of_layout_1_is_computed_in_layout_0(tmp_path: Path) -> None:
    interface = "g (float[4,5,3] x) => (float[a,b,c,d] y, float[e,f,g] h)"
    source = f"""{interface} {WEIGHTS} {{
        t = Transpose <perm = [1, 0, 2]> (x)
        a, b, c = LSTM <hidden_size = 2> (t, w, r)
        y = Transpose <perm = [2, 0, 1, 3]> (a)
        h = Transpose <perm = [1, 0, 2]> (b)
    }}"""
    layout_1 = f"""{interface} {WEIGHTS} {{
        y, h = LSTM <hidden_size = 2, layout = 1> (x, w, r)
    }}"""
    result = mended(tmp_path, source, layout_1)
    assert result.verdict == "repaired", result.reason
    assert [e.about for e in result.edits] == ["LSTM y computed in layout 0, between Transposes"]


@pytest.mark.parametrize(("table", "axis"), [("float[3,4] t", 1), ("float[4] t", 0)])
def test_columns_are_counted_from_the_end_by_gather(tmp_path: Path, table: str, axis: int) -> None:
    def model(first: str, picked: str, last: str) -> str:
        return f"""g ({table}) => (float[b,c] y)
        <int64[3] i = {{-1, 0, -4}}, int64[2] k = {{-1, 3}}, float s = {{-0.0625}}> {{
            {first}
            picked = {picked}
            flat = Reshape (picked, k)
            y = {last}
        }}"""

    # Nodes that have no counterpart in the source stand before the one that cannot run.
    more = "a = Add (t, t) b = Add (a, a) c = Add (b, b) d = Add (c, c)"
    source = model("", f"Gather <axis = {axis}> (t, i)", "Neg (flat)")
    converted = model(more, "ai.onnx.ml.ArrayFeatureExtractor (d, i)", "Mul (flat, s)")
    result = mended(tmp_path, source, converted)
    assert result.verdict == "repaired", result.reason
    assert [e.about for e in result.edits] == ["ArrayFeatureExtractor picked computed by Gather"]


BFLOAT16 = """
import torch


class Net(torch.nn.Module):
    def forward(self, x):
        return (x.bfloat16() + 1.0).float()


def net():
    return Net()


net.example_inputs = (torch.linspace(-3, 3, 12).reshape(3, 4),)
"""


@pytest.mark.release
def test_values_that_a_runtime_does_not_give_are_computed_in_a_wider_type(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("onnxscript", reason="needs onnxscript")
    pytest.importorskip("onnxruntime", reason="needs ONNX Runtime")
    keep_servers()
    (tmp_path / "net.py").write_text(BFLOAT16)
    given = {"model": f"{tmp_path / 'net.py'}:net", "via": ("torch_dynamo",)}
    result = repair_model(
        RepairRequest.model_validate({**given, "out": tmp_path / "repaired"}), Plugins()
    )
    assert result.verdict == "repaired", result.reason
    assert "computed in a wider type" in result.edits[0].about
