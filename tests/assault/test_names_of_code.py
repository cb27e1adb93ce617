"""No name in a document runs code: every field of each document is set to names of code."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from pydantic import BaseModel, ValidationError
from tests.commands import CLEAN, Run, run

from optvet.cli.request import _from_file as options_in
from optvet.engine import discovery
from optvet.engine.campaign import open_store
from optvet.engine.discovery import Plugins
from optvet.engine.known.documents import read_faults, shipped, to_toml
from optvet.engine.models.opening import open_model
from optvet.engine.models.sidecar import Preprocessing, _Declared
from optvet.engine.vet.impact.comparator_options import options_for
from optvet.engine.work.trials.inputs import Inputs, Slice
from optvet.spec.campaign import CampaignFile, JobSet
from optvet.spec.contract import Family
from optvet.spec.convert import ConvertRequest
from optvet.spec.errors import OptvetError
from optvet.spec.precision import PrecisionRequest
from optvet.spec.records.known import KnownFault
from optvet.spec.request import VetRequest

__all__ = ["run"]
CODE = ("torch:ev:U", "ev.py:U", "blocks:torch:ev:U", "ev")
"""Names of code in the current folder, as some option or plugin takes them."""
KINDS: dict[str, tuple[str, type[VetRequest] | type[ConvertRequest] | type[PrecisionRequest]]] = {
    "vet": ("", VetRequest),
    "convert": ("via = ['torch_dynamo']\n", ConvertRequest),
    "precision": ("precisions = ['fp16']\n", PrecisionRequest),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, in which ``ev.py`` leaves a mark when it is imported."""
    monkeypatch.chdir(tmp_path)
    lines = "open({!r}, 'w')\nclass U: name = 'u'\ndef fine(): ...\n"
    (tmp_path / "ev.py").write_text(lines.format(str(tmp_path / "ran")))
    onnx.save(onnx.parser.parse_model(CLEAN), tmp_path / "clean.onnx")
    return tmp_path


def as_toml(value: Any) -> Iterator[str]:
    """``value`` as a text and in a list."""
    text = json.dumps(value)
    yield text
    yield f"[{text}]"


def campaigns() -> Iterator[str]:
    """Campaign files, each with a name of code as the value of one key."""
    for value in CODE[:2]:
        for written in as_toml(value):
            for key in sorted(CampaignFile.model_fields.keys() | JobSet.model_fields.keys()):
                models = "" if key == "models" else "models = ['clean.onnx']\n"
                for head, _ in KINDS.values() if key == "models" else [("", VetRequest)]:
                    yield f"{head}{models}{key} = {written}\n"
            for table, (head, request) in KINDS.items():
                for key in sorted(request.model_fields):
                    yield f"{head}models = ['clean.onnx']\n[{table}]\n{key} = {written}\n"


@pytest.fixture
def found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all commands of a test share the plugins: to find them takes longer than a dry run."""
    plugins = Plugins()
    monkeypatch.setattr(discovery, "Plugins", lambda: plugins)


@pytest.mark.long
@pytest.mark.usefixtures("found_once")
def test_no_key_of_a_campaign_runs_code(run: Run, place: Path) -> None:
    refused = 0
    for text in dict.fromkeys(campaigns()):
        try:
            tomllib.loads(text)
        except tomllib.TOMLDecodeError:  # the key is set twice
            continue
        (place / "c.toml").write_text(text)
        done = run("campaign", "run", "c.toml", "--dry-run")
        assert done.code in (0, 2), (text, done.err)
        assert not (place / "ran").exists(), text
        refused += done.code == 2
    assert refused > 200


@pytest.mark.usefixtures("found_once")
@pytest.mark.parametrize("kind", [VetRequest, ConvertRequest, PrecisionRequest])
def test_no_key_of_a_file_of_options_runs_code(place: Path, kind: type[BaseModel]) -> None:
    refused, file = [], place / "options.toml"
    for value in CODE[:2]:
        for written in as_toml(value):
            for key in sorted(kind.model_fields):
                file.write_text(f"{key} = {written}\n")
                try:
                    options_in(kind, file, False)
                except OptvetError as error:
                    refused.append(str(error))
    assert not (place / "ran").exists()
    assert any("runs the code of that module" in words for words in refused)


def records() -> Iterator[str]:
    """Records beside a model, each with a name of code as one value, also of a plugin's options."""
    tables: dict[str, Family] = {"comparator_options": "comparator", "dataset_options": "dataset"}
    plugins = Plugins()
    for value in CODE[:2]:
        for written in as_toml(value):
            for key in sorted(_Declared.model_fields.keys()):
                yield f"{key} = {written}\n"
            for key in sorted(Preprocessing.model_fields):
                yield f"[preprocessing]\n{key} = {written}\n"
            yield f"[inputs.x]\nkind = 'const'\nvalue = {written}\n"
            for table, family in tables.items():
                for name in plugins.names(family):
                    for key in sorted(type(getattr(plugins, family)(name).options).model_fields):
                        yield f"{family} = {name!r}\n[{table}]\n{key} = {written}\n"
        for name in plugins.names("dataset"):
            yield f"dataset = {f'{name}:{value}'!r}\n"


def test_no_value_of_a_record_beside_a_model_runs_code(place: Path) -> None:
    plugins, refused, read = Plugins(), list[str](), 0
    request = VetRequest(model="clean.onnx")
    for text in dict.fromkeys(records()):
        (place / "clean.toml").write_text(text)
        try:
            model = open_model(place / "clean.onnx", "clean.onnx", place / "blobs")
            inputs = Inputs(
                model,
                plugins,
                (),
                {},
                cut=Slice(limit=1),
                seed=0,
                probe=lambda f: [None for _ in f],
            )
            if model.config.comparator is not None:
                options_for(plugins.comparator(model.config.comparator), model, request)
            next(iter(inputs))
            read += 1
        except OptvetError as error:
            refused.append(str(error))
        assert not (place / "ran").exists(), text
    assert read > 20
    assert any("say --trust" in words for words in refused)


def test_no_value_of_a_known_fault_runs_code(place: Path) -> None:
    whole = tomllib.loads(to_toml(shipped()[0]))
    read = 0
    for key in whole:
        for value in CODE[:2]:
            values = whole | {key: [value] if isinstance(whole[key], list) else value}
            try:
                fault = KnownFault.model_validate(values)
                (place / "fault.toml").write_text(to_toml(fault))
                read_faults([place / "fault.toml"])
                read += 1
            except (ValidationError, OptvetError):
                continue
    assert not (place / "ran").exists()
    assert read > 4


@pytest.mark.parametrize("model", ["torch:ev:U", "torch:ev:U@1x3", "blocks:torch:ev:U"])
def test_a_model_that_is_code_is_named_with_its_key(run: Run, place: Path, model: str) -> None:
    (place / "c.toml").write_text(f"models = [{model!r}]\n")
    done = run("campaign", "run", "c.toml", "--store", "s")
    assert done.code == 2
    assert "c.toml:1: key 'models': " in done.err
    assert "runs the code of that module" in done.err
    assert "say --trust" in done.err
    assert not (place / "ran").exists()


@pytest.mark.parametrize("model", CODE)
def test_no_request_of_a_store_runs_code(run: Run, place: Path, model: str) -> None:
    (place / "c.toml").write_text("models = ['clean.onnx']\n[vet]\nlimit = 1\n")
    assert run("campaign", "run", "c.toml", "--store", "s", "--jobs", "1").code == 0
    with open_store(place / "s") as store, store.transaction() as database:
        change = "UPDATE jobs SET state = 'queued', document = NULL, verdict = NULL, "
        change += "request = json_set(request, '$.model', ?)"
        database.execute(change, (model,))
    done = run("campaign", "resume", "s", "--jobs", "1")
    assert done.code in (2, 3, 5), done.err
    assert not (place / "ran").exists()


@pytest.mark.long
def test_a_trusted_campaign_may_name_code(run: Run, place: Path) -> None:
    (place / "c.toml").write_text("models = ['torch:ev:U']\n")
    run("campaign", "run", "c.toml", "--store", "s", "--trust", "--jobs", "1")
    assert (place / "ran").exists()
