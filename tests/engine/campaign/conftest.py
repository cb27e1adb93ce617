from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx.parser
import pytest
from tests.commands import CLEAN, FAULTY, run, spawn

from optvet.engine.campaign import CampaignStore, open_store

__all__ = ["run", "spawn"]


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of the test's own, where it is, with a cache of its own."""
    monkeypatch.setenv("OPTVET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with a model that survives ONNX Optimizer, and one that does not."""
    folder = tmp_path / "models"
    folder.mkdir()
    for name, text in (("clean", CLEAN), ("faulty", FAULTY)):
        onnx.save(onnx.parser.parse_model(text), folder / f"{name}.onnx")
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CampaignStore]:
    with open_store(tmp_path / "store", create=True) as opened:
        yield opened
