"""litert_torch, in the environment that ``optvet env make litert`` makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.engine.environment.environments import Pythons, environments_root
from optvet.engine.reduce.converted_source import reduced_or_why_not
from optvet.engine.work.sandbox import keep_servers
from optvet.spec.convert import ConvertRequest
from optvet.spec.records.convert import ConversionResult

pytest.importorskip("torch", reason="needs torch")

SOURCE = """
import numpy as np
import torch
from torch import nn

example_inputs = (torch.randn(2, 3, 8, 8),)


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)
    )


class Named(nn.Module):
    def forward(self, x, shift):
        return {"total": (x + shift).sum(-1), "less": x - shift}


def named():
    return Named()


class Sort(nn.Module):
    def forward(self, x):
        # litert_torch 0.10.0 keeps an operator that LiteRT 2.3.0 does not have.
        return torch.sort(x, 0)[0]


def sorts():
    return nn.Sequential(nn.Linear(8, 4), Sort(), nn.ReLU())


sorts.example_inputs = (torch.randn(3, 8),)


named.example_inputs = {"x": torch.randn(2, 5), "shift": torch.arange(5, dtype=torch.int32)}
"""


@pytest.fixture(autouse=True)
def _made() -> None:
    if Pythons({}, environments_root()).python_of("litert") is None:
        pytest.skip("needs: optvet env make litert")
    keep_servers()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "litert_sources.py"
    file.write_text(SOURCE)
    return file


def asked(source: Path, function: str) -> ConvertRequest:
    model = f"{source}:{function}"
    return ConvertRequest(model=model, via=("litert_torch",), random=0, sizes=False, timeout=600)


def converted(source: Path, function: str) -> ConversionResult:
    return convert_model(asked(source, function), Plugins())


@pytest.mark.long
@pytest.mark.parametrize("function", ["cnn", "named"])
def test_what_is_converted_right_has_no_fault(source: Path, function: str) -> None:
    result = converted(source, function)
    faults = [f for f in result.findings if f.severity != "note"]
    assert (result.verdict, faults) == ("right", []), result.reason
    assert [s.name for s in result.stages] == ["load", "decompose", "convert"]
    assert result.stages[-1].runtime == "tflite"


@pytest.mark.long
def test_a_fault_is_reduced_with_a_script_that_runs_beside_litert_torch(
    source: Path, tmp_path: Path
) -> None:
    result = converted(source, "sorts")
    (finding,) = (f for f in result.findings if f.severity != "note")
    assert (finding.symptom, finding.culprit) == ("load-failure", "litert_torch/convert")
    folder = tmp_path / "part"
    quiet = {"progress": lambda *about: None}
    found = reduced_or_why_not(asked(source, "sorts"), result, Plugins(), folder, **quiet)
    assert (found.part, found.reproduces) == ("1", True), found
    assert "litert_torch.convert(module, example_inputs)" in (folder / "reproduce.py").read_text()
