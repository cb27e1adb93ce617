"""No module of the current folder, or of one that is written to, is run in place of another."""

from __future__ import annotations

import os
import re
import sys
import venv
from pathlib import Path

import onnx
import onnx.parser
import pytest
from tests.assault.harness import NET, ROOT
from tests.commands import Run, run

from optvet.engine.environment import environments
from optvet.engine.hunt.versions import environment_of
from optvet.spec.errors import InfrastructureError

__all__ = ["run"]
MODULES = ("ensurepip", "importlib", "json", "numpy", "onnx", "pip", "runpy", "subprocess")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, in which modules called as those of others leave a mark."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    for name in MODULES:
        mark = f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\nraise SystemExit(77)\n"
        (folder / f"{name}.py").write_text(mark)
    monkeypatch.chdir(folder)
    return folder


def test_an_environment_is_made_with_its_own_installer(place: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    venv.create(made, with_pip=False, symlinks=True)
    environments._bootstrap(made)
    with pytest.raises(InfrastructureError, match="optvet-absent"):
        environments._install(made / "bin" / "python", ["--no-index", "optvet-absent"])
    assert not (tmp_path / "ran").exists()


def test_another_interpreter_is_asked_with_its_own_modules(place: Path) -> None:
    assert environment_of(Path(sys.executable), ["onnx"]).versions == {"onnx": onnx.__version__}


def test_a_folder_with_modules_gets_no_script_that_is_tried(run: Run, place: Path) -> None:
    onnx.save(onnx.parser.parse_model(NET), "../net.onnx")
    ran = run("convert", "../net.onnx", "--via", "onnx_version", "--reduce", ".")
    assert ran.code == 2
    assert "which the script there could import; give another folder" in " ".join(ran.err.split())
    os.mkdir("part")
    for name in ("comparing", "part", "reproduce", "running"):
        Path("part", f"{name}.py").touch()
    done = run("convert", "../net.onnx", "--via", "onnx_version", "--limit", 1, "--reduce", "part")
    assert done.code == 0, done.err
    Path("part/onnx").mkdir()
    Path("part/onnx/__init__.py").touch()
    assert run("convert", "../net.onnx", "--via", "onnx_version", "--reduce", "part").code == 2


_STARTS = re.compile(r'\[[^\[\]]*(?:executable|python"?\)), "-[mc]"')
"""An interpreter that looks for modules in the current folder first."""
_SET_THEIR_PATH = {"processes.py", "interpreter.py", "versions.py"}
"""What such a process does first is to set its path."""


def test_no_process_imports_from_the_current_folder() -> None:
    assert _STARTS.search('run([*before, sys.executable, "-m", "x"])')
    assert _STARTS.search('[str(python), "-c", code]')
    found = {
        file.name
        for folder in ("core", "plugins")
        for file in (ROOT / folder).rglob("*.py")
        if _STARTS.search(file.read_text())
    }
    assert found == _SET_THEIR_PATH
