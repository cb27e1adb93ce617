"""Campaigns over releases of a package, and what changes between them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Write
from tests.commands import CLEAN, Run
from tests.wheels import wheels

__all__ = ["wheels"]

FILE = """
models = ["models/"]
optimizers = ["acme"]
versions = { acme-opt = ["2", "latest", "./dist"] }
bundles = true
[vet]
limit = 1
"""


@pytest.fixture
def fleet(write: Write, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A campaign file; pip's index is the folder of wheels, and dist has the faulty 4.0 alone."""
    write("models/relu.onnx", CLEAN)
    (tmp_path / "dist").mkdir()
    shutil.move(wheels / "acme_opt-4.0-py3-none-any.whl", tmp_path / "dist")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    file = tmp_path / "fleet.toml"
    file.write_text(FILE)
    return file


@pytest.mark.release
def test_each_cell_runs_with_its_release_and_releases_are_compared(
    run: Run, fleet: Path, tmp_path: Path
) -> None:
    ran = run("campaign", "run", fleet, "--trust", "--jobs", "1", "--json", tmp_path / "all.json")
    assert ran.code == 1, ran.err
    answer = json.loads((tmp_path / "all.json").read_text())
    verdicts = {trial["options"]: trial["verdict"] for trial in answer["trials"]}
    # "latest" is the newest of the index, 3.0, which has the fault too.
    assert verdicts == {
        "acme-opt==2.0": "clean",
        "acme-opt==3.0": "faulty",
        "acme-opt==4.0": "faulty",
    }
    store, issues = tmp_path / "fleet.store", tmp_path / "issues"
    new = run("campaign", "diff", f"{store}@2", f"{store}@./dist", "--issues", issues)
    assert new.code == 1, new.err
    assert "acme 2.0 → 4.0" in new.out
    (text,) = issues.iterdir()
    assert "acme" in text.read_text()
    assert run("campaign", "diff", f"{store}@3.0", f"{store}@4.0").code == 0
    known = tmp_path / "known.json"
    run("campaign", "export", store, "--format", "baseline", "--out", known)
    accepted = ("campaign", "diff", f"{store}@2", f"{store}@latest", "--baseline", known)
    assert run(*accepted).code == 0
    again = run("campaign", "run", fleet, "--trust")
    assert again.code == 1
    unknown = run("campaign", "diff", f"{store}@2", f"{store}@9")
    assert unknown.code == 2
    assert "unknown release '9'" in unknown.err


@pytest.mark.parametrize(
    ("versions", "says"),
    [
        ('{ acme-optt = ["2"] }', "unknown package 'acme-optt'; did you mean 'acme-opt'"),
        ('{ onnxslim = ["0.1"] }', "onnxslim is the package of onnxslim, none of which is vetted"),
        ('{ acme-opt = ["two"] }', "expected a version such as '1.30'"),
        ('{ acme-opt = ["7"] }', "acme-opt 7: there is no such release; the newest is 3.0"),
        ('{ acme-opt = ["./nowhere"] }', "expected a folder of wheels"),
        ("{ acme-opt = [] }", "acme-opt: no version"),
    ],
)
def test_a_release_that_cannot_be_meant_is_refused_before_anything_runs(
    run: Run, fleet: Path, tmp_path: Path, versions: str, says: str
) -> None:
    text = FILE.replace('{ acme-opt = ["2", "latest", "./dist"] }', versions)
    fleet.write_text(text)
    ran = run("campaign", "run", fleet, "--trust")
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert "fleet.toml:4" in ran.err
    assert not (tmp_path / "data").exists()


def test_a_folder_of_wheels_is_run_with_trust_alone(run: Run, fleet: Path) -> None:
    ran = run("campaign", "run", fleet)
    assert (ran.code, ran.out) == (2, "")
    assert "holds code that is executed" in ran.err
    assert "--trust" in ran.err
