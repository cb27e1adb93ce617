"""Environments of their own: how they are declared, found, made and refused."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from optvet import InfrastructureError, UsageError
from optvet.engine.discovery import Plugins
from optvet.engine.environment import environments
from optvet.engine.environment.environments import (
    MADE,
    Pythons,
    declared_environments,
    list_environments,
    make,
    problem_of,
)
from optvet.plugin import PythonEnvironment


def wheel(folder: Path, name: str) -> Path:
    """A distribution of one module, as pip installs it."""
    file = folder / f"{name}-1.0-py3-none-any.whl"
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}.py", "ANSWER = 42\n")
        archive.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        )
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return file


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PythonEnvironment:
    """An environment that is made without the network."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(environments, "WORKER_LIBRARIES", ())
    return PythonEnvironment("small", (str(wheel(tmp_path, "tiny_library")),), ("tiny_library",))


@pytest.mark.long
def test_an_environment_is_made_and_works_and_is_replaced_only_if_that_is_asked(
    small: PythonEnvironment, tmp_path: Path
) -> None:
    said: list[str] = []
    target = tmp_path / "made" / "small"
    python = make(small, target, force=False, say=said.append)
    done = subprocess.run(
        [python, "-I", "-c", "import tiny_library; print(tiny_library.ANSWER)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "42\n"
    assert [*target.parent.iterdir()] == [target]
    assert json.loads((target / MADE).read_text())["name"] == "small"
    # In the first line, or in the second one where the path is too long for the kernel.
    assert f"{target}/bin/python" in "".join((target / "bin" / "pip").read_text().splitlines()[:2])
    assert problem_of(python, small) is None
    assert len(said) == 2
    (target / "mark").touch()
    with pytest.raises(UsageError, match="exists; replace it with: optvet env make small --force"):
        make(small, target, force=False, say=lambda words: None)
    make(small, target, force=True, say=lambda words: None)
    assert not (target / "mark").exists()


def test_a_folder_of_other_things_is_never_replaced(
    small: PythonEnvironment, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.txt").write_text("all of it")
    with pytest.raises(UsageError, match="is no environment that optvet made"):
        make(small, tmp_path / "work", force=True, say=lambda words: None)
    assert (tmp_path / "work" / "thesis.txt").read_text() == "all of it"


def lend_pip(folder: Path) -> None:
    """Let a virtual environment find the pip of this one: installing it takes seconds of CPU."""
    (packages,) = folder.glob("lib/python*/site-packages")
    spec = find_spec("pip")
    assert spec is not None
    assert spec.origin is not None
    (packages / "pip.pth").write_text(str(Path(spec.origin).parents[1]))


@pytest.mark.long
def test_where_pip_fails_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(environments, "_bootstrap", lend_pip)
    wanted = PythonEnvironment("none", ("no-such-library-anywhere==1",))
    with pytest.raises(InfrastructureError, match="pip cannot install no-such-library-anywhere==1"):
        make(wanted, tmp_path / "in" / "none", force=False, say=lambda words: None)
    assert [*(tmp_path / "in").iterdir()] == []


def test_an_interpreter_without_the_libraries_is_told_so() -> None:
    wanted = PythonEnvironment("some", (), ("no_such_module",))
    lacking, broken = (problem_of(p, wanted) for p in (Path(sys.executable), Path("/bin/true")))
    assert lacking is not None
    assert broken is not None
    assert lacking.message.endswith("lacks no_such_module")
    assert "does not work" in broken.message
    assert broken.cure == "make it anew: optvet env make some --force"


def test_a_chosen_place_is_a_folder_or_an_interpreter(tmp_path: Path) -> None:
    env = tmp_path / "env" / "bin"
    env.mkdir(parents=True)
    (env / "python").symlink_to(sys.executable)
    for place in (tmp_path / "env", env / "python"):
        assert Pythons({"tf": place}, tmp_path).python_of("tf") == env / "python"
    with pytest.raises(UsageError, match="neither an interpreter of Python nor the folder"):
        Pythons({"tf": tmp_path}, tmp_path).python_of("tf")
    assert Pythons({}, tmp_path).python_of("tf") is None


def test_plugins_of_an_environment_can_be_used_where_it_is_made(tmp_path: Path) -> None:
    known = declared_environments(Plugins().all())
    assert all("==" in line for line in known["tf"].requirements)
    absent = {e.name for e in Plugins().all() if e.elsewhere == "tf"}
    if not absent:
        pytest.skip("its libraries are in this environment")
    with pytest.raises(UsageError, match="make it: optvet env make tf"):
        Pythons({}, tmp_path).among(Plugins()).converter(sorted(absent)[0])
    (tmp_path / "tf").mkdir()
    (tmp_path / "tf" / MADE).touch()
    usable = Pythons({}, tmp_path).among(Plugins())
    assert absent <= {e.name for e in usable.all() if e.problem is None}
    every = list_environments(Plugins().all(), Pythons({}, tmp_path / "empty"))
    (entry,) = (e for e in every if e.name == "tf")
    assert (entry.problem, entry.cure) == ("it is not made", "make it: optvet env make tf")


def test_a_plugin_is_used_in_another_environment_that_has_its_library(tmp_path: Path) -> None:
    (runtime,) = (e for e in Plugins().all() if (e.family, e.name) == ("runtime", "tflite"))
    if not runtime.elsewhere:
        pytest.skip("its library is in this environment")
    chosen = {"tf": Path(sys.executable), "litert": Path(sys.executable)}
    for names, home in ((["litert"], "litert"), (["litert", "tf"], "tf")):
        usable = Pythons({name: chosen[name] for name in names}, tmp_path).among(Plugins())
        assert usable.home_of(usable.runtime("tflite")) == home
    # Of two environments, the one that a chain uses in any case.
    near = usable.nearest_to(["jax", "litert"])
    assert near.home_of(near.runtime("tflite")) == "litert"
    assert near.home_of(near.converter("tf2onnx")) == "tf"
    listed = {e.name: e.plugins for e in list_environments(Plugins().all(), Pythons({}, tmp_path))}
    assert "tflite" in listed["litert"]
    assert "tf2onnx" not in listed["litert"]


def test_an_environment_that_nobody_declares_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown environment 'tff'; did you mean 'tf'"):
        Pythons({"tff": tmp_path}, tmp_path).among(Plugins())
