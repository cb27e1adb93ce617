"""``optvet models``: nothing here reaches the network."""

from __future__ import annotations

import hashlib
import json
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx
import onnx.parser
import pytest

import optvet.cli.models
from optvet import UsageError
from optvet.engine.discovery import Plugins
from optvet.plugin import ModelCard

Run = Callable[..., Any]
Write = Callable[[str, str], Path]

CLEAN = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x) => (float[2,3] y) { z = Relu(x)  y = Identity(z) }"""
OLD = '<ir_version: 3, opset_import: ["" : 6]> g (float[2] x) => (float[2] y) { y = Relu(x) }'


class Away:
    """A source that needs a network, and tells so when it is asked."""

    name = "away"
    needs_network = True

    def models(self) -> Iterable[ModelCard]:
        raise UsageError("there is no network here")

    def fetch(self, reference: str, cache: Path) -> Sequence[Path]:
        return [Path(reference)]

    def pinned(self, reference: str, cache: Path) -> str:
        return f"away:{reference}@1234"


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("something wants to reach the network")

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", refuse)


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        optvet.cli.models, "Plugins", lambda: Plugins().register("model source", Away())
    )


# list


def test_models_are_listed_without_a_network(run: Run, away: None) -> None:
    ran = run("models")
    assert ran.code == 0
    assert "zoo:resnet50" in ran.out
    assert "away:" not in ran.out
    assert "more, from the network, with: optvet models list --source away" in ran.out
    assert run("models", "list").out == ran.out


def test_a_source_that_needs_a_network_is_asked_if_it_is_named(run: Run, away: None) -> None:
    ran = run("models", "list", "--source", "away")
    assert (ran.code, ran.out) == (2, "")
    assert "there is no network here" in ran.err


def test_json_is_complete(run: Run) -> None:
    cards = json.loads(run("models", "list", "--json", "-", "--source", "zoo").out)["models"]
    assert {card["model"].partition(":")[0] for card in cards} == {"zoo"}
    (card,) = (c for c in cards if c["name"] == "digits-cnn")
    assert card["task"] == "image-classification"
    assert "trained" in card["tags"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--tag", "lrn", "--tag", "large"], {"zfnet512", "zfnet512-ir3"}),
        (["--tag", "TABULAR-regression"], {"diabetes-mlp"}),
        (["--name", "digits"], {"digits-cnn", "digits-mlp"}),
        (["--name", "ZF*"], {"zfnet512", "zfnet512-ir3"}),
        (["--name", "resnet5?"], {"resnet50"}),
        (["--opset", "15"], {"diabetes-mlp"}),
        (["--opset", "17", "--tag", "trained"], {"digits-mlp"}),
        (["--min-opset", "17", "--tag", "trained"], {"digits-mlp"}),
        (["--min-opset", "16", "--opset", "15"], set()),
        (["--name", "no-such"], set()),
    ],
)
def test_filters_narrow_the_list(run: Run, options: list[str], names: set[str]) -> None:
    ran = run("models", "list", "--json", "-", "--source", "zoo", *options)
    assert {card["name"] for card in json.loads(ran.out)["models"]} == names


def test_an_empty_list_says_so(run: Run) -> None:
    ran = run("models", "list", "--source", "zoo", "--name", "no-such")
    assert (ran.code, ran.out) == (0, "no model is like that\n")


def test_an_unknown_source_is_refused(run: Run) -> None:
    ran = run("models", "list", "--source", "zooo")
    assert ran.code == 2
    assert "unknown model source 'zooo'; did you mean 'zoo'?" in ran.err


# show


def test_show_tells_what_a_model_is(run: Run, write: Write) -> None:
    path = write("net.onnx", CLEAN)
    path.with_suffix(".toml").write_text(
        'task = "image-classification"\ncomparator = "classification"\n'
        "[preprocessing]\nsize = [224, 224]\nscale = 0.00392156862745098\n"
    )
    ran = run("models", "show", path)
    assert ran.code == 0
    for words in (
        "2 nodes",
        "IR 8",
        "ai.onnx 17",
        "x: float [2, 3]",
        "image-classification",
        "size (224, 224), scale 0.003922",
        hashlib.sha256(path.read_bytes()).hexdigest(),
    ):
        assert words in ran.out
    assert "note" not in ran.out


def test_show_tells_the_card_of_a_named_model(run: Run) -> None:
    ran = run("models", "show", "zoo:digits-mlp")
    assert "MatMul, Add, Relu" in ran.out
    assert "trained, dynamic-batch" in ran.out
    (told,) = json.loads(run("models", "show", "zoo:digits-mlp", "--json", "-").out)["models"]
    assert told["card"]["name"] == "digits-mlp"
    assert told["opsets"]["ai.onnx"] == 17


def test_show_warns_of_an_old_opset_and_ir(run: Run, write: Write) -> None:
    path = write("old.onnx", OLD)
    notes = json.loads(run("models", "show", path, "--json", "-").out)["models"][0]["notes"]
    assert [note.partition(":")[0] for note in notes] == ["opset 6", "IR 3"]
    assert "opset 7 and later only" in " ".join(run("models", "show", path).out.split())


def test_show_names_the_revision(run: Run, write: Write, away: None) -> None:
    path = write("net.onnx", CLEAN)
    assert f"away:{path}@1234" in run("models", "show", f"away:{path}").out.replace("\n", "")


def test_show_of_a_folder_tells_of_each_model(run: Run, write: Write) -> None:
    folder = write("all/a.onnx", CLEAN).parent
    write("all/b.onnx", OLD)
    told = json.loads(run("models", "show", folder, "--json", "-").out)["models"]
    assert [Path(t["file"]).name for t in told] == ["a.onnx", "b.onnx"]


def test_show_of_nothing_is_refused(run: Run, tmp_path: Path) -> None:
    ran = run("models", "show", tmp_path / "none.onnx")
    assert ran.code == 2
    assert "no such file" in ran.err


# pull


def test_pull_says_where_the_model_lies(run: Run, clean: Path) -> None:
    assert run("models", "pull", clean).out == f"{clean}\n"


def test_pull_copies_model_and_declaration(run: Run, clean: Path, tmp_path: Path) -> None:
    clean.with_suffix(".toml").write_text('task = "numeric"\n')
    target = tmp_path / "deep" / "folder"
    (told,) = json.loads(run("models", "pull", clean, "--to", target, "--json", "-").out)["models"]
    assert told["file"] == str(target / "clean.onnx")
    assert told["sha256"] == hashlib.sha256((target / "clean.onnx").read_bytes()).hexdigest()
    assert (target / "clean.toml").read_text() == 'task = "numeric"\n'
    assert run("models", "pull", clean, "--to", target).code == 0
    assert sorted(p.name for p in target.iterdir()) == ["clean.onnx", "clean.toml"]


def test_pull_puts_external_data_into_the_copy(run: Run, tmp_path: Path) -> None:
    text = CLEAN.replace("(float[2,3] y)", "(float[2,3] y) <float[3] w = {1, 2, 3}>")
    model = onnx.parser.parse_model(text.replace("Relu(x)", "Add(x, w)"))
    values = np.arange(3, dtype=np.float32)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(values, "w"))
    path = tmp_path / "net.onnx"
    onnx.save(model, path, save_as_external_data=True, location="net.data", size_threshold=0)
    assert run("models", "pull", path, "--to", tmp_path / "to").code == 0
    assert [p.name for p in (tmp_path / "to").iterdir()] == ["net.onnx"]
    copy = onnx.load(tmp_path / "to" / "net.onnx")
    assert onnx.numpy_helper.to_array(copy.graph.initializer[0]).tolist() == [0, 1, 2]


def test_pull_overwrites_no_other_file(run: Run, clean: Path, tmp_path: Path) -> None:
    target = tmp_path / "to" / "clean.onnx"
    target.parent.mkdir()
    target.write_bytes(b"mine")
    ran = run("models", "pull", clean, "--to", target.parent)
    assert ran.code == 2
    assert "exists and is another file" in ran.err
    assert target.read_bytes() == b"mine"


def test_pull_to_a_place_that_cannot_be_written_is_told(
    run: Run, clean: Path, tmp_path: Path
) -> None:
    (tmp_path / "to").write_text("a file")
    ran = run("models", "pull", clean, "--to", tmp_path / "to")
    assert ran.code == 3
    assert "cannot copy" in ran.err
