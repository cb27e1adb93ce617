"""What a converted model lacks is named: an output, an input."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.engine.work.sandbox import keep_servers
from optvet.spec.convert import ConvertRequest

HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'
TWO = "g (float[2, 3] x) => (float[2, 3] y%s) { y = Relu(x) z = Softmax(x) k = Sigmoid(z) }"
SCALED = "g (float[2, 3] x%s) => (float[2, 3] y) %s { p = %s y = Relu(p) }"
CONSTANT = "<float[3] scale = {1, 2, 3}>"
CASES = {
    "an output": (TWO % ", float[2, 3] k", TWO % "", "Sigmoid: output k is gone"),
    "an input that became a constant": (
        SCALED % (", float[3] scale", "", "Mul(x, scale)"),
        SCALED % ("", CONSTANT, "Mul(x, scale)"),
        "Mul: input B became a constant",
    ),
    "an input": (
        SCALED % (", float[3] scale", "", "Mul(x, scale)"),
        SCALED % ("", "", "Abs(x)"),
        "Mul: input scale is gone",
    ),
}


@pytest.mark.parametrize(("good", "faulty", "words"), CASES.values(), ids=CASES.keys())
def test_what_is_gone_is_the_place(tmp_path: Path, good: str, faulty: str, words: str) -> None:
    keep_servers()
    for name, text in (("good", good), ("faulty", faulty)):
        onnx.save(onnx.parser.parse_model(HEAD + text), tmp_path / f"{name}.onnx")
    given = {
        "model": str(tmp_path / "good.onnx"),
        "converted": tmp_path / "faulty.onnx",
        "edges": False,
        "cross_check": ("onnx_reference",),
    }
    finding = convert_model(ConvertRequest.model_validate(given), Plugins()).findings[0]
    assert finding.symptom == "interface-change"
    assert finding.place is not None
    assert finding.place.words() == words
