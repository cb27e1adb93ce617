from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., Any]


def test_looking_makes_no_folder(run: Run, tmp_path: Path) -> None:
    ran = run("cache", "info")
    assert ran.code == 0
    assert str(tmp_path / "cache") in ran.out.replace("\n", "")
    assert not (tmp_path / "cache").exists()
    assert run("cache", "clear").code == 0
    assert not (tmp_path / "cache").exists()


def test_what_was_computed_is_counted_and_cleared(run: Run, clean: Path) -> None:
    run("vet", clean)
    before = json.loads(run("cache", "info", "--json", "-").out)
    assert before["entries"] == sum(k["entries"] for k in before["kinds"].values()) > 0
    cleared = json.loads(run("cache", "clear", "--json", "-").out)
    assert cleared["entries"] == before["entries"]
    assert cleared["removed_bytes"] == before["size_bytes"]
    assert json.loads(run("cache", "info", "--json", "-").out)["entries"] == 0


def test_models_are_removed_only_when_asked_for(run: Run, tmp_path: Path) -> None:
    model = tmp_path / "cache" / "models" / "zoo" / "x.onnx"
    model.parent.mkdir(parents=True)
    model.write_bytes(b"12345")
    assert json.loads(run("cache", "info", "--json", "-").out)["models_size_bytes"] == 5
    run("cache", "clear")
    assert model.exists()
    assert "(5 B)" in run("cache", "clear", "--models").out
    assert not model.exists()


def test_option_beats_the_environment(run: Run, clean: Path, tmp_path: Path) -> None:
    run("vet", clean, "--cache-dir", tmp_path / "other")
    assert (tmp_path / "other").is_dir()
    assert not (tmp_path / "cache").exists()
