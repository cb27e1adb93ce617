"""Templates compute their operators to the last places, where the usual ways cancel or overflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator
from scipy import special

from optvet.engine.discovery import Plugins
from optvet.engine.repair.propose.templates import _TEMPLATES, _model
from optvet.engine.repair.run import repair_model
from optvet.engine.work.sandbox import keep_servers
from optvet.spec.repair import RepairRequest

LIKE = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 18]> g (float[n] x) => (float[n] y) { y = Neg(x) }'
)
FLOATS = np.array([0, 1e-30, 1e-8, -1e-7, 1e-4, 0.3, -0.5, -0.99, 1, 9, -9, 50, 3000], np.float32)
A, B = np.array([-7, 7, -8, 8, 5, -5]), np.array([2, 2, 3, -3, -2, -2])


def computed(name: str, *given: np.ndarray) -> np.ndarray:
    model = _model(LIKE, *_TEMPLATES[name])
    evaluator = ReferenceEvaluator(model)
    (y,) = evaluator.run(None, dict(zip(evaluator.input_names, given, strict=True)))
    found = np.asarray(y)
    assert found.dtype == given[0].dtype
    return found


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("log1p", np.log1p),
        ("expm1", np.expm1),
        ("log_sigmoid", special.log_expit),
        ("erfc", special.erfc),
    ],
)
@pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")
def test_a_template_of_floats_is_right_to_the_last_places(
    name: str, function: Callable[[np.ndarray], np.ndarray]
) -> None:
    known, near = function(FLOATS.astype(np.float64)).astype(np.float32), 2e-7 * (name == "erfc")
    assert computed(name, FLOATS) == pytest.approx(known, rel=1e-6, abs=near, nan_ok=True)


def test_integers_are_divided_towards_minus_infinity() -> None:
    assert computed("floor_divide", A, B).tolist() == (A // B).tolist()
    assert computed("floor_mod", A, B).tolist() == (A % B).tolist()


def test_integers_are_multiplied_and_added() -> None:
    a, b, c = A.reshape(2, 3), B.reshape(3, 2), np.array([[1, 2], [3, 4]])
    assert computed("addmm", c, a, b).tolist() == (c + a @ b).tolist()


SOURCE = """
import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        return torch.log1p(x) * 3.0


def net():
    return Net()


net.example_inputs = (torch.linspace(1e-7, 1e-5, 9),)


class Copied(nn.Module):
    def forward(self, x):
        return torch.log1p(x).clone()


def copied():
    return Copied()


copied.example_inputs = net.example_inputs
"""


@pytest.mark.long
@pytest.mark.parametrize(("function", "via"), [("net", "torch_script"), ("copied", "torch_dynamo")])
def test_an_operator_that_every_exporter_writes_wrongly_is_written_rightly(
    tmp_path: Path, function: str, via: str
) -> None:
    pytest.importorskip("torch", reason="needs torch")
    if via == "torch_dynamo":
        pytest.importorskip("onnxscript", reason="needs onnxscript")
    keep_servers()
    (tmp_path / "net.py").write_text(SOURCE)
    out = tmp_path / "repaired"
    given = {"model": f"{tmp_path / 'net.py'}:{function}", "via": (via,), "out": out}
    result = repair_model(RepairRequest.model_validate(given), Plugins())
    assert (result.verdict, [e.kind for e in result.edits]) == ("repaired", ["template"])
