"""ONNX models as sources, and onnx2torch."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import onnx
import onnx.parser
import pytest

from optvet import UsageError
from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.spec.convert import ConvertRequest
from optvet.spec.records.convert import ConversionResult
from optvet.testing import check_converter

# Not imported: it fails with a torchvision that does not fit, which workers do without.
pytestmark = pytest.mark.skipif(find_spec("onnx2torch") is None, reason="needs optvet[torch]")
HEAD = '<ir_version: 8, opset_import: ["" : 13]>\n'
RIGHT = "g (float[n,3] x) => (float[n,3] y) { z = Relu(x)  y = Add(z, x) }"
TURNED = "g (float[3,5] x) => (int64[2,k] y) { y = NonZero(x) }"
REFUSED = "g (float[2,3] x) => (float[2,3] y) { y = Hardmax(x) }"


def convert(tmp_path: Path, text: str) -> ConversionResult:
    file = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + text), file)
    return convert_model(ConvertRequest(model=str(file), via=("onnx2torch",)), Plugins())


@pytest.mark.parametrize(
    ("text", "verdict", "symptoms"),
    [
        (RIGHT, "right", set()),
        (TURNED, "faulty", {"interface-change"}),
        (REFUSED, "refused", {"refused"}),
    ],
)
def test_an_onnx_model_is_a_source(
    tmp_path: Path, text: str, verdict: str, symptoms: set[str]
) -> None:
    result = convert(tmp_path, text)
    assert result.verdict == verdict
    assert {f.symptom for f in result.findings if f.severity != "note"} == symptoms


def test_an_operator_that_lacks_a_library_here_is_no_fault_of_the_converter(
    tmp_path: Path,
) -> None:
    aligned = "g (float[1,2,6,6] x) => (float[1,2,2,2] y) <float[1,4] r = {0, 0, 4, 4}, "
    aligned += "int64[1] i = {0}> { y = RoiAlign<output_height=2, output_width=2>(x, r, i) }"
    result = convert(tmp_path, aligned)
    if result.verdict != "refused":
        pytest.skip("this torchvision fits this torch")
    assert "torchvision" in result.findings[0].message
    assert result.findings[0].severity == "refusal"


def test_a_file_that_is_no_model_is_told(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_text("no model")
    with pytest.raises(UsageError, match=r"model\.onnx"):
        convert_model(ConvertRequest(model=str(file), via=("onnx2torch",)), Plugins())


def test_an_older_model_is_brought_to_a_version_that_the_next_converter_knows(
    tmp_path: Path,
) -> None:
    old = "g (float[2,3,4] x) => (float[2,12] y) { z = Relu(x)  y = Flatten<axis = 1>(z) }"
    file = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(HEAD.replace("13", "8") + old), file)

    def verdict(*via: str) -> str:
        return convert_model(ConvertRequest(model=str(file), via=via), Plugins()).verdict

    assert verdict("onnx2torch") == "refused"
    assert verdict("onnx_version", "onnx2torch") == "right"


def test_the_version_converter_conforms(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(HEAD + RIGHT), tmp_path / "model.onnx")
    check_converter(Plugins().converter("onnx_version"), tmp_path / "model.onnx")
