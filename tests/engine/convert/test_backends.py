"""OpenVINO and TVM as converters, from ONNX and from PyTorch."""

from __future__ import annotations

import runpy
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.engine.convert.part_scripts import last_lines

from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.engine.reduce.converted_source import EXPECTED, INPUTS, PART
from optvet.engine.scripts import comparing
from optvet.engine.scripts.parts import onnx_part
from optvet.engine.work.sandbox import keep_servers
from optvet.spec.convert import ConvertRequest
from optvet.spec.converters import ConverterExtras
from optvet.spec.extras import extras
from optvet.spec.records.convert import ConversionResult
from optvet.spec.runtime_protocols import RuntimeExtras
from optvet.testing import check_converter

LIBRARIES = {"openvino": "openvino", "tvm": "tvm"}
MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 3] a, float[3, 4] b) => (float[2, 4] y, float[2, 3] z) {
    z = Sigmoid(a)
    m = MatMul(z, b)
    y = Softmax<axis = -1>(m)
}"""
SOURCE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.last = nn.Linear(4, 5)

    def forward(self, x):
        y = torch.relu(self.norm(self.conv(x)))
        return torch.softmax(self.last(y.mean((2, 3))), 1)


example_inputs = (torch.randn(2, 3, 6, 5, generator=torch.Generator().manual_seed(0)),)


def net():
    torch.manual_seed(1)
    return Net()
"""


@pytest.fixture(params=LIBRARIES)
def via(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if find_spec(LIBRARIES[name]) is None:
        pytest.skip(f"needs optvet[{name}]")
    keep_servers()
    return name


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network as a program that torch.export wrote."""
    torch = pytest.importorskip("torch", reason="needs optvet[torch]")
    folder = tmp_path_factory.mktemp("program")
    (folder / "source.py").write_text(SOURCE)
    made = runpy.run_path(str(folder / "source.py"))
    exported = torch.export.export(made["net"]().eval(), made["example_inputs"])
    torch.export.save(exported, str(folder / "net.pt2"))
    return folder / "net.pt2"


def convert(model: str, via: str, **options: object) -> ConversionResult:
    given = {"model": model, "via": via, "edges": False, **options}
    return convert_model(ConvertRequest.model_validate(given), Plugins())


def test_a_model_in_onnx_stays_what_it_is(via: str, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    result = convert(str(tmp_path / "model.onnx"), via)
    assert result.verdict == "right", result.findings
    assert {s.state for s in result.stages} <= {"same", "drift"}


def test_an_input_without_axes_is_given_as_such(via: str, tmp_path: Path) -> None:
    text = MODEL.replace("[3, 4] b)", "[3, 4] b, float c)")
    text = text.replace("y = Softmax<axis = -1>(m)", "n = Mul(m, c) y = Softmax<axis = -1>(n)")
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    result = convert(str(tmp_path / "model.onnx"), via, edges=True)
    assert result.source.inputs["c"] == "float32[]"
    assert result.verdict == "right", result.findings


def test_the_converter_conforms(via: str, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    check_converter(Plugins().converter(via), tmp_path / "model.onnx", format="onnx")


@pytest.mark.parametrize(
    ("via", "library"),
    [
        ("openvino", "openvino"),
        ("tvm", "tvm"),
        ("onnx2torch", "onnx2torch"),
        ("quantize_dynamic", "onnxruntime"),
        ("quantize_static", "onnxruntime"),
    ],
)
def test_the_script_of_a_part_in_onnx_runs_the_converted_model(
    via: str, library: str, tmp_path: Path
) -> None:
    if find_spec(library) is None:
        pytest.skip(f"needs {library}")
    onnxruntime = Plugins().runtime("onnxruntime")
    converter = Plugins().converter(via)
    snippet = extras(onnxruntime, RuntimeExtras).snippet(onnxruntime.options)
    part_script = extras(converter, ConverterExtras).part_script
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / PART)
    rng = np.random.default_rng(0)
    feeds = {n: rng.normal(size=s).astype(np.float32) for n, s in (("b", (3, 4)), ("a", (2, 3)))}
    np.savez(tmp_path / INPUTS, **feeds)  # type: ignore[arg-type]  # numpy types a keyword of it
    (tmp_path / "part.py").write_text(onnx_part(snippet))
    script = replace(part_script(converter.options), source=EXPECTED)
    snippets = [snippet]
    # No error is as small as the second: the script has to show one.
    said = last_lines(tmp_path, script, snippets, (0.1, -1.0))
    assert said == [("the fault is not there", "0"), (comparing.SAID, "1")]


@pytest.mark.long
def test_a_network_of_pytorch_stays_what_it_is(via: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs optvet[torch]")
    (tmp_path / "source.py").write_text(SOURCE)
    result = convert(f"{tmp_path / 'source.py'}:net", via)
    assert result.verdict == "right", (result.findings, result.reason)


@pytest.mark.release
def test_an_exported_program_stays_what_it_is(via: str, program: Path) -> None:
    result = convert(str(program), via, trust=True)
    assert result.verdict == "right", (result.findings, result.reason)
    assert result.source.format == "torch-program"


def test_what_an_importer_does_not_know_is_refused(via: str, tmp_path: Path) -> None:
    text = MODEL.replace("Sigmoid(a)", "Frobnicate(a)")
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    with pytest.raises(Exception, match="Frobnicate"):
        convert(str(tmp_path / "model.onnx"), via)


def test_a_chain_goes_on_from_onnx(via: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs optvet[torch]")
    (tmp_path / "source.py").write_text(SOURCE)
    result = convert(f"{tmp_path / 'source.py'}:net", f"torch_script,{via}")
    assert result.verdict == "right", (result.findings, result.reason)
    assert len({s.converter for s in result.stages}) == 2
