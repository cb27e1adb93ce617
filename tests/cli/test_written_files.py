"""What a command writes replaces no model, no input and nothing that optvet would not have written.

Refused before the work, with exit code 2.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.commands import FAULTY, Run, run

from optvet.engine.scripts.confined_run import try_script

__all__ = ["run"]


@pytest.fixture
def place(clean: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: two models, and files of the user."""
    folder = clean.parent
    monkeypatch.chdir(folder)
    Path("m.onnx").write_bytes(clean.read_bytes())
    clean.rename("other.onnx")
    np.savez("inputs.npz", x=np.zeros((2, 3), np.float32))
    Path("c.toml").write_text("models = ['m.onnx']\noptimizers = ['onnxoptimizer']\n")
    Path("package.json").write_text('{"name": "mine"}\n')
    Path("patch.json").write_text('{\n  "schema": "optvet.patch/1",\n  "edits": []\n}\n')
    Path("new.onnx.data").write_bytes(b"weights of mine")
    Path("precision.toml").write_text("to = 'fp16'\n")
    for name in ("r", "q"):
        Path(name).mkdir()
    Path("r/repaired.onnx").write_bytes(Path("other.onnx").read_bytes())
    Path("q/patch.json").write_text('{"name": "mine"}')
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*[a-z]") if p.is_file()}


VET = ("vet", ".", "--optimizer", "onnxoptimizer")
PRECISION = ("precision", "m.onnx")
REDUCE = ("reduce", "m.onnx", "--check", "test -f {model}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*VET, "--json", "m.onnx"), "would overwrite an ONNX model"),
        ((*VET, "--json", "./other.onnx"), "would overwrite an ONNX model"),
        ((*VET, "--json", "inputs.npz"), "what is no answer of optvet"),
        ((*VET, "--json", "package.json"), "what is no answer of optvet"),
        ((*VET, "--json", "patch.json"), "what is no answer of optvet"),
        ((*VET, "--save", "c.toml"), "what is no ONNX model"),
        ((*VET, "--save", "inputs.npz"), "what is no ONNX model"),
        (("vet", "m.onnx", "--save", "m.onnx"), "would overwrite the command's model"),
        (("vet", "other.onnx", "--optimizer", "m.onnx", "--save", "m.onnx"), "over --optimizer"),
        (("vet", "other.onnx", "--dataset", "files:m.onnx", "--save", "m.onnx"), "over --dataset"),
        (("vet", "?.onnx", "--save", "m.onnx"), "would overwrite the command's model"),
        ((*VET[:1], "m.onnx", "--save", "other.onnx"), "a model that optvet did not write there"),
        ((*VET[:1], "m.onnx", "--save", "new.onnx"), "--save new.onnx.data would overwrite"),
        ((*PRECISION, "--out", "other.onnx"), "a model that optvet did not write there"),
        ((*PRECISION, "--out", "f.onnx"), "precision.toml, which optvet did not write"),
        ((*REDUCE, "--out", "other.onnx"), "a model that optvet did not write there"),
        (("repair", "patch.json", "--apply", "c.toml", "--out", "r"), "optvet did not write there"),
        (("repair", "m.onnx", "--apply", "c.toml", "--out", "q"), "what is no document of optvet"),
        ((*PRECISION, "--out", "./m.onnx"), "would overwrite the command's model"),
        (("reduce", "m.onnx", "--check", "test {model}", "--out", "c.toml"), "no ONNX model"),
        (("known", "page", "--out", "m.onnx"), "would overwrite an ONNX model"),
        (("known", "page", "--out", "c.toml"), "what is no report"),
        (("known", "page", "--out", "inputs.npz"), "what is no report"),
        (("report", "s", "--out", "m.onnx"), "would overwrite an ONNX model"),
        (("hunt", "report", "h", "--out", "m.onnx"), "would overwrite an ONNX model"),
        (("campaign", "run", "c.toml", "--json", "c.toml"), "what is no answer of optvet"),
        (("campaign", "export", "s", "--out", "m.onnx"), "would overwrite an ONNX model"),
        (("--version", "--json", "m.onnx"), "would overwrite an ONNX model"),
        (
            ("repair", "patch.json", "--converted", "m.onnx", "--out", "."),
            "--out . would overwrite",
        ),
        (("convert", "m.onnx", "--via", "x", "--reduce", "."), "--reduce . would overwrite m.onnx"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_nothing_of_the_user_is_overwritten(
    run: Run, place: Path, words: tuple[str, ...], message: str
) -> None:
    before = contents(place)
    ran = run(*words)
    assert ran.code == 2, (ran.out, ran.err)
    assert message.replace("over ", "would overwrite ") in " ".join(ran.err.split())
    assert "give another " in ran.err
    assert contents(place) == before


def test_a_picture_replaces_a_picture_of_its_format_alone(run: Run, place: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs optvet[plots]")
    Path("a.svg").write_text("mine")
    ran = run(*PRECISION, "--plot", "a.svg")
    assert ran.code == 2
    assert "--plot a.svg would overwrite what is no picture of that format" in ran.err
    Path("a.svg").write_text("<svg/>")
    assert "overwrite" not in run("precision", "absent.onnx", "--plot", "a.svg").err


@pytest.mark.parametrize(
    ("words", "option"),
    [(("vet", "m.onnx", "--limit", 1), "--save"), (REDUCE, "--out")],
    ids=["vet", "reduce"],
)
def test_a_model_that_optvet_wrote_is_replaced_until_it_is_another(
    run: Run, place: Path, words: tuple[object, ...], option: str
) -> None:
    for _ in range(2):
        assert run(*words, option, "mine.onnx").code == 0
    Path("mine.onnx").write_bytes(Path("other.onnx").read_bytes() + b"\x0a\x00")
    before = contents(place)
    ran = run(*words, option, "mine.onnx")
    assert ran.code == 2
    assert "would overwrite a model that optvet did not write there" in " ".join(ran.err.split())
    after = {name: data for name, data in contents(place).items() if name in before}
    assert {n: d for n, d in after.items() if "cache" not in n} == {
        n: d for n, d in before.items() if "cache" not in n
    }


@pytest.mark.parametrize("there", ["", "\n", "an answer"])
def test_what_optvet_wrote_is_replaced(run: Run, place: Path, there: str) -> None:
    target = Path("answer.json")
    target.write_text(there.replace("an answer", run(*VET, "--json", "-").out))
    assert run(*VET, "--json", target).code == 0
    assert json.loads(target.read_text())["schema"] == "optvet.vets/1"
    for _ in range(2):
        assert run("known", "page", "--out", "page.md").code == 0


@pytest.mark.parametrize("other", ["a bundle", "something else"])
def test_a_bundle_replaces_nothing_that_came_meanwhile(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    onnx.save(onnx.parser.parse_model(FAULTY), "faulty.onnx")

    def came(script: Path, *given: Any) -> Any:
        ended = try_script(script, *given)
        record = json.loads((script.parent / "finding.json").read_text())
        name = "onnxoptimizer-fuse_transpose_into_gemm-optimizer-error-"
        name += record["fingerprint"][:8]
        shutil.copytree(script.parent, script.parent.parent / name)
        if other != "a bundle":
            (script.parent.parent / name / "finding.json").unlink()
        return ended

    monkeypatch.setattr("optvet.engine.bundle.folder.try_script", came)
    ran = run("vet", "faulty.onnx", "--limit", 1, "--reduce", "--out", "b")
    folders = [path for path in Path("b").iterdir() if not path.name.startswith(".")]
    assert len(folders) == len(list(Path("b").iterdir())) == 1
    if other == "a bundle":
        assert ran.code == 1, ran.err
    else:
        assert ran.code == 3
        assert "something that is no bundle is there; remove it" in " ".join(ran.err.split())
