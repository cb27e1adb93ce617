from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Path, Path]:
    """A right decoder, and one that concatenates its cache in the wrong order."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from decoder_models import FAULTS, write_model

    fault = next(f for f in FAULTS[False] if f.name == "cache in the wrong order")
    right = write_model(tmp_path / "a", 0, crosses=False)
    return right, write_model(tmp_path / "b", 0, crosses=False, fault=fault)


def test_the_screen_names_the_file_and_the_token(
    run: Run, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    a, b = folders
    ran = run("compare", a, b, "--tokens", "2", "--json", tmp_path / "out.json")
    assert ran.code == 1
    assert "first difference in model.onnx, at token 2\n" in ran.out
    assert "cache: present.1.key, present.1.value\n" in ran.out
    ran = run("compare", a, a, "--tokens", "2", "--json", "-")
    assert ran.code == 0
    assert json.loads(ran.out)["verdict"] == "agrees"


def test_an_option_without_a_use_is_refused(run: Run, folders: tuple[Path, Path]) -> None:
    a, b = folders
    ran = run("compare", a, b, "--layers")
    assert ran.code == 2
    assert "--layers" in ran.err
    ran = run("compare", a / "model.onnx", b / "model.onnx", "--tokens", "2")
    assert ran.code == 2
    assert "--tokens" in ran.err
    ran = run("compare", a, b / "model.onnx")
    assert ran.code == 2
    assert "is no folder" in ran.err
    ran = run("compare", a, a / "nothing")
    assert ran.code == 2
    assert "is no folder" in ran.err
