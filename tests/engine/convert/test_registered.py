"""Converters that a user registers with skl2onnx."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.commands import Run, run
from tests.needs import needs

from optvet import UsageError
from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.engine.work.sandbox import keep_servers
from optvet.spec.convert import ConvertRequest
from optvet.spec.records.convert import ConversionResult

__all__ = ["run"]

needs("skl2onnx", reason="needs optvet[estimators]")

SOURCE = """
import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
example_inputs = (X,)


class Scaled(BaseEstimator, TransformerMixin):
    def fit(self, X, y=None):
        self.factor_ = np.float32(3)
        return self

    def transform(self, X):
        return X * self.factor_


def model():
    return Scaled().fit(X)


def _register(factor):
    from skl2onnx import update_registered_converter
    from skl2onnx.algebra.onnx_ops import OnnxMul

    def shapes(operator):
        operator.outputs[0].type = type(operator.inputs[0].type)([None, 3])

    def convert(scope, operator, container):
        constant = np.array([factor], np.float32)
        node = OnnxMul(
            operator.inputs[0],
            constant,
            op_version=container.target_opset,
            output_names=operator.outputs[:1],
        )
        node.add_to(scope, container)

    update_registered_converter(Scaled, "UserScaled", shapes, convert)


def right():
    _register(3)


def wrong():
    _register(2)


def fails():
    raise KeyError("nothing here")
"""


@pytest.fixture(scope="module", autouse=True)
def _servers() -> None:
    keep_servers()


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    # The estimator's class is that of a module, which both files import.
    (tmp_path / "scaled_here.py").write_text(SOURCE)
    (tmp_path / "net.py").write_text("from scaled_here import *\nfrom scaled_here import model\n")
    return "net.py:model"


def convert(source: str, **options: Any) -> ConversionResult:
    given = {"model": source, "via": ("skl2onnx",), "edges": False, **options}
    return convert_model(ConvertRequest.model_validate(given), Plugins())


def test_a_refusal_says_how_to_register_a_converter(source: str) -> None:
    result = convert(source)
    assert result.verdict == "refused"
    assert "--register FILE.py:FUNCTION --trust" in result.reason
    assert "skl2onnx.update_registered_converter" in result.reason


@pytest.mark.parametrize("place", ["scaled_here", "scaled_here.py"])
@pytest.mark.parametrize(("function", "verdict"), [("right", "right"), ("wrong", "faulty")])
def test_a_registered_converter_is_used_and_judged(
    source: str, place: str, function: str, verdict: str
) -> None:
    result = convert(source, registered=(f"{place}:{function}",), trust=True)
    assert result.verdict == verdict
    # It lasts for this conversion alone.
    assert convert(source).verdict == "refused"


@pytest.mark.parametrize(
    ("registered", "options", "words"),
    [
        ("scaled_here:right", {}, "add --trust"),
        ("scaled_here:fails", {"trust": True}, "fails.. fails: KeyError"),
        ("scaled_here:none", {"trust": True}, "MODULE:FUNCTION or FILE.py:FUNCTION"),
        ("there_is_no_such:one", {"trust": True}, "ModuleNotFoundError"),
        ("net.py", {"trust": True}, "MODULE:FUNCTION or FILE.py:FUNCTION"),
    ],
)
def test_what_cannot_be_registered_is_refused(
    source: str, registered: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        convert(source, registered=(registered,), **options)


def test_the_command_line_takes_it(source: str, run: Run) -> None:
    convert = ("convert", source, "--via", "skl2onnx", "--no-edges")
    assert run(*convert, "--register", "scaled_here:wrong").code == 2
    done = run(*convert, "--register", "scaled_here.py:wrong", "--trust")
    assert done.code == 1
    assert "next      optvet repair net.py:model --via skl2onnx" in done.out
