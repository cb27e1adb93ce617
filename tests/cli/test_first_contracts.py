"""Plugins that were written for earlier contracts: named where they must change, else at work."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Run

from optvet.engine.discovery import Plugins
from optvet.plugin import Artifact, Traits
from optvet.testing import Planted

OLD = Path(__file__).parents[1] / "fixtures" / "first_contracts.py"
SEE = "the contract has changed, see docs/plugins.md#changes-of-the-contracts"


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old plugins as an installed distribution."""
    packages = tmp_path / "packages"
    info = packages / "old_plugins-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(OLD, packages / "old_plugins.py")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: old-plugins\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[optvet]\nold = old_plugins\n")
    monkeypatch.syspath_prepend(packages)


def test_an_old_optimizer_is_refused_with_what_changed(run: Run) -> None:
    done = run("vet", "shelf:relu", "--optimizer", "tiny")
    assert done.code == 3
    words = " ".join(done.err.split())
    assert "optimizer 'tiny' (old_plugins (old-plugins 1.0)) cannot be used: " in words
    assert "apply() takes 'model', a serialized model, expected 'source', an Artifact" in words
    assert SEE in words
    assert "Traceback" not in done.err


def test_it_is_listed_and_the_others_go_on(run: Run, tmp_path: Path) -> None:
    listed = json.loads(run("plugins", "--json", "-").out)
    entries = {e["name"]: e["problem"] for e in listed["plugins"] if "old" in e["origin"]}
    problem = entries.pop("tiny")
    assert problem.endswith(SEE)
    assert entries == dict.fromkeys(("plain", "labels", "lines", "shelf"))


def test_old_plugins_of_the_other_families_work(run: Run, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("1 -2 3 -4\n-1 2 -3 4\n")
    words = ["--runtime", "plain", "--comparator", "labels", "--dataset", f"lines:{lines}"]
    done = run("vet", "shelf:relu", *words, "--jobs", 1, "--json", "-")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result["verdict"] == "clean"
    assert result["model"]["source"] == "shelf:relu@1"
    assert result["runtime"]["name"] == "plain"
    assert result["impact"]["headline"] == "0 of 2 labels changed"


class Untyped(Planted):
    def apply(self, model, passes, options):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
        return Artifact("onnx", model)


class Saving(Planted):
    def saved(self, data: bytes, passes: Sequence[str], options: Any) -> bytes:
        return data


class Renamed(Planted):
    """Keeps the contract, but calls its argument as it likes."""

    def apply(self, model: Artifact, passes: Sequence[str], options: Any) -> Artifact:
        return model


@pytest.mark.parametrize(
    ("optimizer", "problem"),
    [
        (Untyped(), "apply() takes 'model'"),
        (Saving(), "saved() takes 'data'"),
        (Renamed(), None),
        (Planted(traits=Traits(ordered=False)), None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Planted) else None,
)
def test_an_old_method_is_known_by_its_signature(optimizer: Planted, problem: str | None) -> None:
    (entry,) = Plugins([]).register("optimizer", optimizer).all()
    assert (entry.problem is None) == (problem is None)
    assert problem is None or (entry.problem or "").startswith(problem)
