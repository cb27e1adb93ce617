"""A source beside the ONNX model that was made of it, value by value."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx.parser
import pytest
from tests.commands import Run, run

__all__ = ["run"]

SOURCE = """
import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.mix, self.last = nn.Conv2d(3, 4, 1), nn.Linear(16, 3)
        self.last.weight.data = torch.eye(3, 1).expand(3, 16).clone()
        self.last.bias.data = torch.tensor([0.0, 20.0, 0.0])

    def forward(self, x):
        y = torch.relu(self.mix(x))
        y = torch.clamp(y, max=1.0)
        return torch.softmax(self.last(y.flatten(1)), 1)


def net():
    return Net()


x = np.random.default_rng(0).normal(size=(12, 1, 3, 2, 2)).astype("float32")
x[6:] *= 60
net.example_inputs = (torch.from_numpy(x[0]),)
net.more_inputs = [(torch.from_numpy(each),) for each in x[1:]]
"""
MODEL = """<ir_version: 8, opset_import: ["" : 18]>
g (float[1, 3, 2, 2] x) => (float[1, 3] y) <float[4, 3, 1, 1] w = {W}, float[4] v = {V},
    float[3, 16] m = {M}, float[3] n = {N}, float low = {0}, float top = {1}> {
    c = Conv(x, w, v)
    r = Relu(c)
    k = Clip(r, low, top)
    f = Flatten(k)
    g = Gemm<transB = 1>(f, m, n)
    y = Softmax<axis = 1>(g)
}"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The source, and right.onnx and wrong.onnx; the latter clips nothing."""
    torch = pytest.importorskip("torch", reason="needs torch")
    torch.manual_seed(0)
    mix = torch.nn.Conv2d(3, 4, 1)
    weights = (mix.weight, mix.bias, torch.eye(3, 1).expand(3, 16), torch.tensor([0.0, 20.0, 0.0]))
    text = MODEL
    for name, values in zip("WVMN", weights, strict=True):
        numbers = ", ".join(f"{v:.9g}" for v in values.detach().flatten().tolist())
        text = text.replace(f"{{{name}}}", f"{{{numbers}}}")
    (tmp_path / "net.py").write_text(SOURCE)
    onnx.save(onnx.parser.parse_model(text), tmp_path / "right.onnx")
    onnx.save(
        onnx.parser.parse_model(text.replace("top = {1}", "top = {900}")), tmp_path / "wrong.onnx"
    )
    return tmp_path


@pytest.mark.release
def test_layers_of_a_conversion_are_ranked_by_where_its_answers_differ(
    folder: Path, run: Run
) -> None:
    about = ("--comparator", "classification", "--layers", "--json", folder / "found.json")
    source = f"{folder / 'net.py'}:net"
    ran = run("compare", source, folder / "wrong.onnx", "--limit", 12, *about)
    assert ran.code == 0, "nothing is clipped on the example"
    found = json.loads((folder / "found.json").read_text())
    pairs = {la["name_in_b"]: la["name"].partition("#")[0] for la in found["layers"]}
    assert pairs["c"] == "mix/aten.convolution"
    assert pairs["k"] == "aten.clamp"
    contrast = found["contrast"]
    assert (len(contrast["similar"]), len(contrast["dissimilar"])) == (6, 6)
    means = {la["name"].partition("#")[0]: la for la in contrast["layers"]}
    assert means["aten.clamp"]["dissimilar"] > means["aten.clamp"]["similar"]
    assert means["aten.clamp"]["p"] < 0.05
    assert means["aten.relu"]["dissimilar"] < 1e-6
    assert "with the same answer" in ran.out


def test_values_behind_a_fault_are_paired_by_likeness(folder: Path, run: Run) -> None:
    text = (folder / "net.py").read_text().replace("x[6:]", "x")
    (folder / "net.py").write_text(text)
    about = ("--json", folder / "found.json")
    assert run("compare", f"{folder / 'net.py'}:net", folder / "right.onnx").code == 0
    ran = run("compare", f"{folder / 'net.py'}:net", folder / "wrong.onnx", *about)
    assert ran.code == 1
    found = json.loads((folder / "found.json").read_text())
    assert found["diverges_at"].startswith("aten.clamp#")
    by = {la["name_in_b"]: (la["found_by"], la["call"]) for la in found["layers"]}
    assert by["r"] == ("value", "drift") or by["r"] == ("value", "same")
    assert by["k"] == ("likeness", "fault")
    assert by["y"][0] == "position"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dataset": "random"}, "leave out --dataset"),
        ({"b": "no.onnx"}, "there is no such file"),
        ({"a": "none"}, "none"),
    ],
)
def test_what_cannot_be_compared_with_a_source_is_refused(
    folder: Path, run: Run, change: dict[str, str], words: str
) -> None:
    about = ("--dataset", change["dataset"]) if "dataset" in change else ()
    source = f"{folder / 'net.py'}:{change.get('a', 'net')}"
    ran = run("compare", source, folder / change.get("b", "right.onnx"), *about)
    assert ran.code == 2
    assert words in ran.err


def test_a_model_that_is_wrong_in_a_default_session_alone_is_told(tmp_path: Path, run: Run) -> None:
    pytest.importorskip("torch", reason="needs torch")
    (tmp_path / "net.py").write_text(DIVISION)
    # ONNX Runtime makes one division of both by default, which is another number.
    text = '<ir_version: 8, opset_import: ["" : 17]> g (int32[4] a, int32[4] b) => (int32[4] y)'
    text += " <int32 one = {1}> { d = Div(one, a)  y = Mul(d, b) }"
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    ran = run("compare", f"{tmp_path / 'net.py'}:net", tmp_path / "model.onnx")
    assert ran.code == 1
    assert "DivMulFusion" in ran.out
    ran = run("compare", f"{tmp_path / 'net.py'}:net", tmp_path / "model.onnx", "--clean")
    assert ran.code == 0


DIVISION = """
import torch


class Net(torch.nn.Module):
    def forward(self, a, b):
        return torch.div(1, a, rounding_mode="trunc") * b


def net():
    return Net()


a, b = ([3, 2, 5, 1], [7, 9, 4, 6])
net.example_inputs = tuple(torch.tensor(each, dtype=torch.int32) for each in (a, b))
"""
