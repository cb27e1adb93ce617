"""onnx2tf, in the environment that ``optvet env make onnx2tf`` makes."""

from __future__ import annotations

from pathlib import Path

import onnx.parser
import pytest

from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.engine.environment.environments import Pythons, environments_root
from optvet.engine.work.sandbox import keep_servers
from optvet.spec.convert import ConvertRequest
from optvet.spec.errors import UsageError
from optvet.spec.records.convert import ConversionResult

# Inputs and outputs are not in the order of their names, and no axis holds channels.
MODEL = """
    <ir_version: 8, opset_import: ["": 17]>
    g (float[2,5,7] zed, float[2,5,7] bias) => (float[2,5,7] sum, float[2,7] largest) {
        positive = Relu (zed)
        sum = Sub (positive, bias)
        largest = ReduceMax <axes = [1], keepdims = 0> (bias)
    }
"""


@pytest.fixture(autouse=True)
def _made() -> None:
    if Pythons({}, environments_root()).python_of("onnx2tf") is None:
        pytest.skip("needs: optvet env make onnx2tf")
    keep_servers()


def converted(folder: Path, **arguments: object) -> ConversionResult:
    file = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), file)
    options = {"arguments": arguments}
    request = ConvertRequest(
        model=str(file), via=("onnx2tf",), random=2, timeout=600, converter_options=options
    )
    return convert_model(request, Plugins())


def test_inputs_and_outputs_are_those_of_the_source(tmp_path: Path) -> None:
    result = converted(tmp_path)
    faults = [f for f in result.findings if f.severity != "note"]
    assert (result.verdict, faults) == ("right", []), result.reason
    assert [(s.name, s.format, s.runtime) for s in result.stages] == [
        ("convert", "tflite", "tflite")
    ]


def test_an_argument_reaches_onnx2tf(tmp_path: Path) -> None:
    # It writes no model then.
    result = converted(tmp_path, disable_model_save=True)
    (finding,) = (f for f in result.findings if f.severity != "note")
    assert finding.culprit == "onnx2tf/convert"


def test_an_unknown_argument_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no 'nonsense'"):
        converted(tmp_path, nonsense=True)
