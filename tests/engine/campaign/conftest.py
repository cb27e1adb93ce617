from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import onnx.parser
import pytest
from tests.commands import CLEAN, FAULTY, run, spawn

import optvet.cli
from optvet.engine import processes
from optvet.engine.campaign import CampaignStore, open_store

__all__ = ["run", "spawn"]

Finished = Callable[[str], Path]


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of the test's own, where it is, with a cache of its own."""
    monkeypatch.setenv("OPTVET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start one worker where no number is asked for: each takes 2 s to start, and a job less."""
    monkeypatch.setattr(processes, "fitting_jobs", lambda: 1)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with a model that survives ONNX Optimizer, and one that does not."""
    return write_models(tmp_path / "models")


def write_models(folder: Path) -> Path:
    folder.mkdir()
    for name, text in (("clean", CLEAN), ("faulty", FAULTY)):
        onnx.save(onnx.parser.parse_model(text), folder / f"{name}.onnx")
    return folder


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A folder where a campaign on these models was run, of the file ``c.toml`` with some text.

    To be read: it is run once for all tests. What writes asks for a copy.
    """

    @cache
    def finished(text: str) -> Path:
        folder = tmp_path_factory.mktemp("finished")
        write_models(folder / "models")
        (folder / "c.toml").write_text(text)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.setenv("OPTVET_CACHE", str(folder / "cache"))
            assert optvet.cli.main(["campaign", "run", "c.toml", "--quiet", "--jobs", "1"]) == 1
        return folder

    return finished


@pytest.fixture
def finished_here(finished: Finished, place: Path) -> Finished:
    """The same in the folder of the test, with everything that lies there."""

    def copy(text: str) -> Path:
        return Path(shutil.copytree(finished(text), place, dirs_exist_ok=True))

    return copy


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CampaignStore]:
    with open_store(tmp_path / "store", create=True) as opened:
        yield opened
