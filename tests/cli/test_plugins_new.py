from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

from optvet.engine.environment import scaffold

Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize("family", list(scaffold.Family))
def test_a_package_has_one_module_its_entry_point_and_tests(
    family: str, run: Run, tmp_path: Path
) -> None:
    ran = run("plugins", "new", family, "eye-gaze")
    assert ran.code == 0, ran.err
    module = f"eye_gaze_{family}".replace("-", "_")
    made = ["README.md", f"{module}.py", "pyproject.toml", f"tests/test_{module}.py"]
    assert files(tmp_path / "eye-gaze") == sorted(made)
    lines = ran.out.splitlines()
    assert lines[:-1] == [f"eye-gaze/{m}" for m in sorted(made)]
    assert lines[-1] == "next: pip install -e eye-gaze && pytest eye-gaze"
    project = tomllib.loads((tmp_path / "eye-gaze" / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["optvet"] == {module: module}
    assert project["name"] == f"eye-gaze-{family}"


def test_the_folder_can_be_chosen_and_may_be_empty(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    ran = run("plugins", "new", "comparator", "gaze", "--out", "a b")
    assert ran.code == 0
    assert "pip install -e 'a b' && pytest 'a b'" in ran.out
    assert run("plugins", "new", "comparator", "gaze", "--out", "deep/er").code == 0
    assert (tmp_path / "deep" / "er" / "gaze_comparator.py").exists()


@pytest.mark.parametrize("occupied", ["file", "folder", "link"])
def test_what_is_there_is_left_alone(occupied: str, run: Run, tmp_path: Path) -> None:
    target = tmp_path / "gaze"
    if occupied == "file":
        target.write_text("mine")
    elif occupied == "folder":
        target.mkdir()
        (target / "mine").write_text("mine")
    else:
        (tmp_path / "elsewhere").mkdir()
        target.symlink_to("elsewhere")
    before = files(tmp_path)
    ran = run("plugins", "new", "comparator", "gaze")
    assert ran.code == 2
    assert "gaze" in ran.err
    assert "choose another with --out" in ran.err
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    "name", ["Gaze", "2d", "a_b", "a--b", "-a", "a-", "../a", "a/b", "a b", "ä", "a" * 31]
)
def test_an_unfit_name_is_refused_with_what_is_fit(name: str, run: Run, tmp_path: Path) -> None:
    ran = run("plugins", "new", "comparator", "--", name)
    assert ran.code == 2
    assert "lower-case letters and digits, parted by single hyphens" in " ".join(ran.err.split())
    assert files(tmp_path) == []


def test_a_name_that_is_taken_is_refused(run: Run, tmp_path: Path) -> None:
    ran = run("plugins", "new", "comparator", "tensor")
    assert ran.code == 2
    assert "there is a comparator 'tensor': optvet_tensor (optvet " in " ".join(ran.err.split())
    assert run("plugins", "new", "dataset", "tensor").code == 0


def test_a_module_that_is_installed_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "gaze_comparator.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    ran = run("plugins", "new", "comparator", "gaze")
    assert ran.code == 2
    assert "module 'gaze_comparator' is installed" in " ".join(ran.err.split())


def test_an_unknown_family_is_refused_with_those_there_are(run: Run) -> None:
    ran = run("plugins", "new", "compiler", "gaze")
    assert ran.code == 2
    assert all(family in ran.err for family in scaffold.Family)


def test_all_is_written_or_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    ran = run("plugins", "new", "comparator", "gaze")
    assert ran.code == 3
    assert "No space left on device; make room" in " ".join(ran.err.split())
    assert list(tmp_path.iterdir()) == []


MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[4] x) => (float[4] y) {
    z = Relu(x)
    y = Neg(z)
}
"""


@pytest.fixture
def installed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new optimizer, one of whose passes makes Relu an Identity, and a new runtime."""
    for family in ("optimizer", "runtime"):
        assert run("plugins", "new", family, "gaze", "--out", family).code == 0
        info = tmp_path / family / f"gaze_{family}-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: gaze-{family}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[optvet]\ngaze = gaze_{family}\n")
        monkeypatch.syspath_prepend(tmp_path / family)
        monkeypatch.delitem(sys.modules, f"gaze_{family}", raising=False)
    module = tmp_path / "optimizer" / "gaze_optimizer.py"
    forgets = '        node.doc_string = ""\n'
    wrong = '        node.op_type = node.op_type.replace("Relu", "Identity")\n'
    assert forgets in module.read_text()
    module.write_text(module.read_text().replace(forgets, forgets + wrong))


@pytest.mark.usefixtures("installed")
def test_a_bundle_of_new_plugins_needs_no_optvet(run: Run, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    words = ("--optimizer", "gaze", "--runtime", "gaze", "--reduce", "--out", "found", "--jobs", 1)
    done = run("vet", "model.onnx", *words, "--no-cache")
    assert done.code == 1, done.err
    (bundle,) = (p.parent for p in (tmp_path / "found").rglob("repro.py"))
    issue, script = (bundle / "ISSUE.md").read_text(), (bundle / "repro.py").read_text()
    assert "def forget_texts" in issue
    for text in (issue, script):
        assert not re.search(r"^\s*(from|import) (optvet|gaze)", text, re.MULTILINE)
    (code,) = re.findall(r"```python\n(.*?)```", issue, re.DOTALL)
    (tmp_path / "pasted.py").write_text(code)
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "optvet.py").write_text("raise ImportError('optvet is not there')\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "first")}
    for path in (tmp_path / "pasted.py", bundle / "repro.py"):
        command = [sys.executable, str(path)]
        ran = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert ran.returncode == 1, ran.stdout + ran.stderr
