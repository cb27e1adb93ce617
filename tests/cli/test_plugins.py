from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import onnx
import pytest
from pydantic import BaseModel

from optvet import __version__
from optvet.engine import discovery, plugin_entries
from optvet.engine.discovery import Plugins
from optvet.spec.described import descriptions
from optvet.spec.records import DOCUMENTS

Run = Callable[..., Any]

onnxoptimizer = pytest.importorskip("onnxoptimizer")


def test_plugins_are_listed_by_family(run: Run) -> None:
    ran = run("plugins")
    assert ran.code == 0
    row = " ".join(next(r for r in ran.out.splitlines() if " onnxoptimizer " in r).split())
    assert f"onnxoptimizer {onnxoptimizer.__version__} the default" in row
    # Of 80 columns, plugins without a library of their own need one line.
    assert "random – the default" in {" ".join(line.split()) for line in ran.out.splitlines()}
    entries = json.loads(run("plugins", "--json", "-").out)["plugins"]
    assert ran.out.splitlines()[1].startswith("optimizer ")
    names = {(e["family"], e["name"]) for e in entries}
    assert {("runtime", "onnxruntime"), ("dataset", "files"), ("model source", "zoo")} <= names
    assert all("optvet" in e["origin"] for e in entries)
    # What cannot be used is but absent, and its extra, or its environment, is known.
    unknown = [e for e in entries if e["problem"] and not e["extra"]]
    assert [e["name"] for e in unknown if "optvet env make" not in e["problem"]] == []


def test_absent_library_is_told_with_its_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = metadata.distribution

    def distribution(name: str) -> metadata.Distribution:
        if name == "onnxslim":
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(metadata, "distribution", distribution)
    (entry,) = json.loads(run("plugins", "show", "onnxslim", "--json", "-").out)["plugins"]
    assert entry["extra"] == "optvet[onnxslim]"
    listed = " ".join(run("plugins").out.split())
    assert "not installed; install optvet[onnxslim]" in listed
    model = "zoo:digits-cnn"
    assert "install optvet[onnxslim]" in run("vet", model, "--optimizer", "onnxslim").err


def test_what_a_bare_install_lacks_is_told_with_its_extra(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_entries, "find_spec", lambda name: None)
    entries = json.loads(run("plugins", "--json", "-").out)["plugins"]
    assert {e["name"]: e["more_with"] for e in entries if e["more_with"]} == {
        "detection": "optvet[detection]",
        "huggingface": "optvet[huggingface]",
        "speech": "optvet[speech]",
        "text": "optvet[text]",
        "torch": "optvet[onnxscript,torch]",
    }
    assert "can do more; install optvet[speech]" in " ".join(run("plugins").out.split())


def test_options_are_described() -> None:
    found = [
        p for p in Plugins().all() if isinstance(getattr(p.plugin, "options", None), BaseModel)
    ]
    assert len(found) > 20
    for plugin in found:
        texts = descriptions(type(plugin.plugin.options))
        assert [name for name, text in texts.items() if not text] == [], plugin.name


def test_plugin_that_cannot_load_is_listed_with_its_reason(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = EntryPoint("broken", "optvet_no_such_module", "optvet")
    monkeypatch.setattr(discovery, "entry_points", lambda **_: [broken])
    ran = run("plugins")
    assert ran.code == 0
    assert "not loaded" in ran.out
    assert "No module named 'optvet_no_such_module'" in " ".join(ran.out.split())
    shown = run("plugins", "show", "broken")
    assert "cannot be used: its import raised ModuleNotFoundError" in shown.out


def test_optimizer_is_shown_with_options_passes_and_limits(run: Run) -> None:
    ran = run("plugins", "show", "onnxoptimizer")
    assert ran.code == 0
    assert "fixed_point" in ran.out
    for name in onnxoptimizer.get_available_passes():
        assert name in ran.out
    assert "changes the interface" in ran.out
    assert "pipeline default: " in ran.out
    (shown,) = json.loads(run("plugins", "show", "onnxoptimizer", "--json", "-").out)["plugins"]
    passes = {p["name"]: p for p in shown["passes"]}
    assert passes["fuse_bn_into_conv"]["kind"] == "fuse"
    assert passes["fuse_bn_into_conv"]["default"] is True
    assert passes["split_init"]["known_limits"][0]["reason"].startswith("keeps only")
    assert shown["options"][0] == {
        "name": "fixed_point",
        "type": "boolean",
        "default": False,
        "description": shown["options"][0]["description"],
    }


def test_runtime_is_shown_with_clean_room_and_deployed_options(run: Run) -> None:
    shown = json.loads(run("plugins", "show", "onnxruntime", "--json", "-").out)["plugins"]
    runtime = next(s for s in shown if s["family"] == "runtime")
    options = {o["name"]: o for o in runtime["options"]}
    assert options["optimization"]["type"] == "disable_all|basic|extended|layout|all"
    assert options["optimization"]["default"] == "disable_all"
    assert runtime["deployed"]["optimization"] == "all"


@pytest.mark.parametrize("name", ["files", "random", "local", "zoo"])
def test_every_plugin_can_be_shown(run: Run, name: str) -> None:
    assert run("plugins", "show", name).code == 0


def test_unknown_plugin_exits_2_and_suggests(run: Run) -> None:
    ran = run("plugins", "show", "onnxoptimizr")
    assert ran.code == 2
    assert "did you mean 'onnxoptimizer'" in ran.err


def test_models_are_listed(run: Run) -> None:
    ran = run("models")
    assert ran.code == 0
    assert "zoo:squeezenet-ir3" in ran.out
    assert run("models", "list").out == ran.out
    cards = json.loads(run("models", "--json", "-").out)["models"]
    assert "zoo:digits-cnn" in {c["model"] for c in cards}
    assert json.loads(run("models", "list", "--json", "-").out)["models"] == cards


def test_every_document_has_a_schema(run: Run) -> None:
    listed = run("schema").out
    for name, kind in DOCUMENTS.items():
        assert re.search(rf"^{name} +optvet\.{name}/\d+ ", listed, re.MULTILINE), listed
        schema = json.loads(run("schema", name).out)
        assert schema == kind.model_json_schema(by_alias=True)
        assert "schema" in schema["properties"]


def test_a_document_that_does_not_exist_is_refused(run: Run) -> None:
    ran = run("schema", "vetz")
    assert ran.code == 2
    assert "did you mean 'vet'" in ran.err


def test_version_is_printed(run: Run) -> None:
    ran = run("--version")
    assert (ran.code, ran.out) == (0, f"optvet {__version__}\n")


def test_a_bug_report_gets_versions_machine_and_plugins_of_others(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = EntryPoint("broken", "optvet_no_such_module", "optvet")
    installed = [*metadata.entry_points(group="optvet"), broken]
    monkeypatch.setattr(discovery, "entry_points", lambda **_: installed)
    ran = run("--version", "--json")
    told = json.loads(ran.out)
    assert (ran.code, told["optvet"], told["onnx"]) == (0, __version__, onnx.__version__)
    assert told["optimizers"]["onnxoptimizer"] == onnxoptimizer.__version__
    assert told["python"].endswith(platform.python_version())
    assert [(p["name"], p["family"]) for p in told["plugins"]] == [("broken", None)]
    assert "No module named" in told["plugins"][0]["problem"]
    file = tmp_path / "version.json"
    assert run("--version", "--json", file).out == ""
    assert json.loads(file.read_text()) == told
    wrong = run("--json", "-", "doctor")
    assert (wrong.code, wrong.out) == (2, "")
    assert "--json stands after the command" in wrong.err


def test_unknown_command_exits_2_and_suggests(run: Run) -> None:
    ran = run("plugin")
    assert ran.code == 2
    assert "plugins" in ran.err


@pytest.mark.parametrize(
    "command",
    [
        "",
        "vet",
        "doctor",
        "plugins",
        "plugins show",
        "plugins new",
        "models",
        "cache",
        "cache info",
        "schema",
    ],
)
def test_every_command_has_help(run: Run, command: str) -> None:
    ran = run(*command.split(), "--help")
    assert ran.code == 0
    assert "Usage: optvet" in ran.out
