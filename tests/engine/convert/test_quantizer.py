"""ONNX Runtime's quantizer: a stage that loses precision is held to what it declares."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from rich.console import Console

from optvet.cli.convert import screen
from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.engine.reduce.converted_source import reduced_or_why_not
from optvet.engine.repair.run import repair_model
from optvet.engine.work.sandbox import keep_servers
from optvet.spec.convert import ConvertRequest
from optvet.spec.records.convert import ConversionResult
from optvet.spec.repair import RepairRequest
from optvet.testing import check_converter

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 8] x) => (float[n, 5] y) { h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    keep_servers()
    proto = onnx.parser.parse_model(MODEL)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (8, 16)), ("v", (16, 5))):
        value = rng.normal(size=shape).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(value, name))
    onnx.save(proto, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def convert(model: Path, via: str, **options: object) -> ConversionResult:
    given = {"model": str(model), "via": via, "converter_options": options}
    return convert_model(ConvertRequest.model_validate(given), Plugins())


@pytest.mark.parametrize("via", ["quantize_dynamic", "quantize_static"])
def test_a_quantized_model_is_right_within_what_is_declared(via: str, model: Path) -> None:
    result = convert(model, via)
    assert result.verdict == "right", result.findings
    prepare, quantize = result.stages
    assert prepare.state in ("same", "drift")
    assert quantize.kind == "lossy"
    assert quantize.error is not None
    assert quantize.error > 1e-4
    assert all(f.severity == "note" for f in result.findings)
    assert (prepare.quantized, quantize.quantized) == (None, 2)
    assert result.notes == []


@pytest.mark.parametrize("via", ["quantize_dynamic", "quantize_static"])
def test_a_quantizer_that_quantizes_nothing_is_told(via: str, model: Path) -> None:
    result = convert(model, via, operators=("Conv",))
    assert result.verdict == "right", result.findings
    assert result.stages[-1].quantized == 0
    assert result.notes == [f"{via}/quantize quantized no operator"]


def test_errors_of_usual_inputs_stand_apart_from_those_of_edge_values(model: Path) -> None:
    """Edge values reach the largest floats, where an 8-bit range that fits usual inputs is off.

    Both are shares of what is declared, not of the largest value of one small output.
    """
    result = convert(model, "quantize_static")
    quantize = result.stages[-1]
    assert quantize.error is not None
    assert quantize.edge_error is not None
    assert quantize.error < 0.1
    assert quantize.error < quantize.edge_error
    assert quantize.noise == pytest.approx(0.5)
    shown = io.StringIO()
    Console(file=shown, width=80).print(*screen(result))
    rows = shown.getvalue().splitlines()
    (at,) = (n for n, row in enumerate(rows) if row.startswith("stage "))
    assert rows[at - 1].split() == ["edge", "edge"]
    # In 80 columns each stage is one line, with no word cut.
    assert [row.split()[:3] for row in rows[at + 1 : at + 3]] == [
        ["prepare", "onnx", "onnxruntime"],
        ["quantize", "onnx", "onnxruntime"],
    ]
    assert rows[at + 2].rstrip().endswith("2 nodes")


@pytest.mark.parametrize("via", ["quantize_dynamic", "quantize_static"])
def test_beyond_what_is_declared_the_stage_is_to_blame(via: str, model: Path) -> None:
    result = convert(model, via, tolerance=1e-6)
    (finding,) = (f for f in result.findings if f.severity == "fault")
    assert (finding.symptom, finding.kind) == ("wrong-output", "lossy")
    assert finding.culprit == f"{via}/quantize"
    assert "is declared" in finding.message
    assert finding.place is not None
    assert finding.place.nodes == []


def test_a_loss_of_precision_is_not_repaired_by_undoing_it(model: Path, tmp_path: Path) -> None:
    given = {
        "model": str(model),
        "via": "quantize_dynamic",
        "converter_options": {"tolerance": 1e-6},
        "out": tmp_path / "repaired",
    }
    result = repair_model(RepairRequest.model_validate(given), Plugins())
    assert (result.verdict, result.tried) == ("not-repaired", 0)
    assert "loses precision" in result.reason
    assert not (tmp_path / "repaired").exists()


def test_ranges_come_from_the_inputs_of_the_source(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "small.npz", x=np.full((4, 8), 1e-3, np.float32))
    given = {
        "model": str(model),
        "via": "quantize_static",
        "dataset": (f"files:{tmp_path / 'small.npz'}",),
        "out": tmp_path / "out",
        "edges": False,
    }
    assert convert_model(ConvertRequest.model_validate(given), Plugins()).verdict == "right"
    proto = onnx.load(tmp_path / "out" / "2-quantize_static-quantize.onnx")
    scales = {t.name: float(numpy_helper.to_array(t).max()) for t in proto.graph.initializer}
    assert 0 < scales["x_scale"] < 1e-4


def test_the_converter_conforms(model: Path) -> None:
    check_converter(Plugins().converter("quantize_dynamic"), model)


@pytest.mark.long
@pytest.mark.parametrize("via", ["quantize_dynamic", "quantize_static"])
def test_the_script_of_a_reduced_model_holds_it_to_what_is_declared(
    via: str, model: Path, tmp_path: Path
) -> None:
    request = ConvertRequest(
        model=str(model),
        via=(via,),
        converter_options={"tolerance": 1e-4},
        edges=False,
        sizes=False,
        random=0,
    )
    result = convert_model(request, Plugins())
    about = (request, result, Plugins(), tmp_path / "part")
    found = reduced_or_why_not(*about, progress=lambda *about: None)
    assert (found.part, found.size, found.reproduces) == ("MatMul", 1, True), found


JOINED = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1, 3, 32] x) => (float[1, 5, 32] y) <float size = {600}>
{ b = Conv(x, v) p = Sigmoid(b) q = Mul(p, size) s = Conv(x, w) t = Sigmoid(s)
  y = Concat<axis = 1>(q, t) }"""


def test_a_part_of_an_output_is_held_to_what_is_declared_by_its_own_range(tmp_path: Path) -> None:
    keep_servers()
    proto, rng = onnx.parser.parse_model(JOINED), np.random.default_rng(0)
    for name, shape in (("v", (2, 3, 1)), ("w", (3, 3, 1))):
        value = rng.normal(size=shape).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(value, name))
    onnx.save(proto, tmp_path / "joined.onnx")
    result = convert(tmp_path / "joined.onnx", "quantize_static")
    assert result.verdict == "faulty"
    (finding,) = (f for f in result.findings if f.severity == "fault")
    assert finding.stages == ["quantize_static/quantize"]
    assert "'y' differs in [:, 2:5] by " in finding.message
    assert "of the range of that part; 0.5 is declared; it became constant" in finding.message
    # Weights alone in int8 leave the scores what they are.
    assert convert(tmp_path / "joined.onnx", "quantize_dynamic").verdict == "right"
