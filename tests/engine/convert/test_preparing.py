"""Operators before the first weights are told to prepare the input."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest
from tests.engine.convert.plain import HEAD

from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.spec.convert import ConvertRequest

RIGHT = """g (float[2,3] x) => (float[2,4] y)
<float[1,3] mean = {0.1, 0.2, 0.3}, float[3,4] w = {1, 2, 3, 4, -5, 6, -7, 8, 9, -8, 7, -6}>
{ a = Sub(x, mean) b = Abs(a) c = MatMul(b, w) y = LeakyRelu<alpha = 0.25>(c) }"""


@pytest.mark.parametrize(
    ("right", "wrong", "prepares"),
    [
        ("mean = {0.1, 0.2, 0.3}", "mean = {0.3, 0.2, 0.1}", True),
        ("b = Abs(a)", "b = Neg(a)", True),
        ("w = {1, 2, 3,", "w = {1, 2, 2,", False),
        ("alpha = 0.25", "alpha = 0.5", False),
    ],
)
def test_what_comes_before_the_first_weights_is_preprocessing(
    right: str, wrong: str, prepares: bool, tmp_path: Path
) -> None:
    source, converted = tmp_path / "source.onnx", tmp_path / "converted.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + RIGHT), source)
    onnx.save(onnx.parser.parse_model(HEAD + RIGHT.replace(right, wrong)), converted)
    result = convert_model(ConvertRequest(model=str(source), converted=converted), Plugins())
    place = result.findings[0].place
    assert place is not None
    assert place.preprocessing is prepares


def test_a_single_operator_is_no_preprocessing(tmp_path: Path) -> None:
    text = "g (float[2,3] x) => (float[2,3] y) { y = LeakyRelu<alpha = 0.25>(x) }"
    source, converted = tmp_path / "source.onnx", tmp_path / "converted.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + text), source)
    onnx.save(onnx.parser.parse_model(HEAD + text.replace("0.25", "0.5")), converted)
    result = convert_model(ConvertRequest(model=str(source), converted=converted), Plugins())
    assert result.findings[0].place is not None
    assert not result.findings[0].place.preprocessing
