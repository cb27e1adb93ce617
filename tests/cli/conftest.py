from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx.parser
import pytest
from tests.commands import CLEAN, FAULTY, run, spawn

__all__ = ["run", "spawn"]

Write = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPTVET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write ONNX text as a model file."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(onnx.parser.parse_model(text), path)
        return path

    return write


@pytest.fixture
def clean(write: Write) -> Path:
    return write("clean.onnx", CLEAN)


@pytest.fixture
def faulty(write: Write) -> Path:
    return write("faulty.onnx", FAULTY)
