"""Short scripts of issues: which of them show a finding."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import onnx
import onnx.parser
import pytest

from optvet.engine.scripts.context import ReproContext
from optvet.engine.scripts.inline import _code_of, _try_script
from optvet.engine.scripts.rendering import render
from optvet.spec.symptoms import ScriptCheck, Symptom

TRY = """import sys
try:
    {call}
except Exception as error:
    print(f"actual: {{type(error).__name__}}: {{error}}")
    sys.exit(1)
"""


@pytest.mark.parametrize(
    ("call", "shows"),
    [
        ("raise RuntimeError('no kernel')", True),
        ("raise ImportError('the session runs without a GPU')", False),
        ("import a_library_that_is_missing", False),
        ("sys.exit(1)", False),
        ("pass", False),
    ],
)
def test_a_script_whose_library_is_missing_shows_nothing(call: str, shows: bool) -> None:
    context = cast(ReproContext, SimpleNamespace(symptom=Symptom.LOAD_FAILURE, timeout_s=1.0))
    assert (_try_script(TRY.format(call=call), context) is not None) is shows


def test_a_model_becomes_text_in_a_worker_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.parser.parse_model(OWN)

    def crash(*given: object) -> None:
        raise AssertionError("read in this process")

    monkeypatch.setattr("onnx.printer.to_text", crash)
    code = _code_of(model)
    assert code.startswith("model = onnx.parser.parse_model(")
    assert "own.F" in code


OWN = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
g (float[2] x) => (float[2] y) { a = own.F(x)  y = own.F(a) }"""


@pytest.mark.parametrize(
    ("after", "status"),
    [
        (OWN.replace("own.F", "Exp"), 0),
        (OWN.replace('"own" : 1', '"own" : 1, "new" : 1').replace("own.F(a)", "new.F(a)"), 0),
        (OWN.replace('"own" : 1', '"own" : 2'), 1),
        (OWN.replace("own.F", "Exp").replace("17", "18"), 1),
    ],
)
def test_a_script_compares_operator_sets_that_both_models_use(after: str, status: int) -> None:
    about = cast(ReproContext, SimpleNamespace(about=("opset_import",)))
    metadata = ReproContext.metadata.__get__(about)
    context = SimpleNamespace(check=ScriptCheck.METADATA, metadata=metadata)
    names = {
        "model": onnx.parser.parse_model(OWN),
        "optimize": lambda model: onnx.parser.parse_model(after),
    }
    with pytest.raises(SystemExit) as end:
        exec("import onnx, sys\n" + render("inline.py", context=context), names)
    assert end.value.code == status
