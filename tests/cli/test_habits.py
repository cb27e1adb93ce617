"""Defaults of a project, and names that a shell completes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optvet.cli import completion
from optvet.cli.app import COMMANDS, GROUPS, PANELS
from optvet.engine.convert.chain import functions_in

Run = Callable[..., Any]
CODE = """
import sys
import optvet.cli
code = optvet.cli.main()
heavy = {"onnxoptimizer", "onnxruntime", "torch"} & set(sys.modules)
print(*sorted(heavy), file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: Path) -> Path:
    """A project with a model, and a folder in it which is the current one."""
    (tmp_path / "deep" / "down").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep" / "down")
    return tmp_path


def asked(run: Run, model: Path, *more: str) -> dict[str, Any]:
    ran = run("vet", model, "--json", "-", *more)
    assert ran.code == 0, ran.err
    answer: dict[str, Any] = json.loads(ran.out)
    return answer


def test_the_project_sets_defaults_that_options_and_a_config_file_override(
    run: Run, project: Path, clean: Path
) -> None:
    (project / "pyproject.toml").write_text(
        '[tool.optvet]\nlimit = 3\nseed = 5\n[tool.optvet.vet]\nseed = 6\nstrategy = "none"\n'
        "[tool.optvet.hunt]\nseed = 7\n"
    )
    answer = asked(run, clean)
    assert (answer["seed"], len(answer["datasets"])) == (6, 1)
    assert answer["datasets"][0]["samples"] == 3
    assert asked(run, clean, "--seed", "9")["seed"] == 9
    (project / "more.toml").write_text("seed = 8\n")
    assert asked(run, clean, "--config", str(project / "more.toml"))["seed"] == 8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tool.optvet]\nstrategi = 'each'", "unknown option 'strategi'; did you mean 'strategy'"),
        ("[tool.optvet.vet]\nlimitt = 3", "unknown option 'limitt'; did you mean 'limit'"),
        ("[tool.optvet]\nstrategy = 'eech'", "did you mean 'each'"),
        ("[tool.optvet.vett]\nlimit = 3", "unknown option 'vett'; did you mean 'vet'"),
        ("[tool.optvet]\ntrust = true", "only the command line grants trust"),
        ("[tool.optvet]\nuser_model = 'evil.py:Model'", "evil.py:Model"),
        ("[tool.optvet\nlimit = 3", "pyproject.toml cannot be read"),
    ],
)
def test_what_is_wrong_in_the_project_s_table_is_told_with_its_file(
    run: Run, project: Path, clean: Path, text: str, words: str
) -> None:
    (project / "pyproject.toml").write_text(text)
    ran = run("vet", clean)
    told = " ".join(ran.err.split())
    assert ran.code == 2
    assert words in told
    assert "pyproject.toml" in told


def test_a_project_without_the_table_sets_nothing(run: Run, project: Path, clean: Path) -> None:
    (project / "pyproject.toml").write_text("[project]\nname = 'uses-optvet'\n")
    assert asked(run, clean)["seed"] == 0


def complete(cache: Path, *words: str) -> tuple[list[str], str]:
    """What bash is offered for the last of ``words``, and which heavy modules were imported."""
    environment = os.environ | {
        "_OPTVET_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("optvet", *words)),
        "COMP_CWORD": str(len(words)),
        "XDG_CACHE_HOME": str(cache),
    }
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr.strip()


@pytest.mark.long
def test_a_shell_is_offered_models_optimizers_and_passes(tmp_path: Path) -> None:
    offered, _ = complete(tmp_path, "vet", "zoo:dig")
    assert "zoo:digits-cnn" in offered
    assert all(o.startswith("zoo:dig") for o in offered)
    # bash parts words at colons.
    assert "digits-cnn" in complete(tmp_path, "vet", "zoo", ":", "dig")[0]
    (tmp_path / "mine[1].onnx").touch()
    assert complete(tmp_path, "vet", f"{tmp_path}/mi")[0] == [f"{tmp_path}/mine[1].onnx"]
    offered, loaded = complete(
        tmp_path, "vet", "m.onnx", "--optimizer", "onnxoptimizer", "--exclude", "fuse_bn"
    )
    assert (offered, loaded) == (["fuse_bn_into_conv"], "")  # known already: no library is loaded
    assert "onnxoptimizer" in complete(tmp_path, "vet", "m.onnx", "--optimizer", "onnxo")[0]
    offered, _ = complete(tmp_path, "vet", "m.onnx", "--pipeline", "default,-fuse_bn")
    assert offered == ["default,-fuse_bn_into_conv"]
    assert complete(tmp_path, "doc")[0] == ["doctor"]
    # A line that would be refused is completed: it is being typed.
    names = complete(tmp_path, "vet", "''", "--nope", "--optimizer", "onnxo")[0]
    assert "onnxoptimizer" in names


def test_names_are_listed_anew_after_an_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "cache_root", lambda: tmp_path)
    monkeypatch.setattr(completion, "_list_names", lambda: {"runtime": ["first"]})
    assert completion.known_names() == {"runtime": ["first"]}
    monkeypatch.setattr(completion, "_list_names", lambda: {"runtime": ["second"]})
    assert completion.known_names() == {"runtime": ["first"]}
    (tmp_path / "packages").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "packages")
    assert completion.known_names() == {"runtime": ["second"]}
    monkeypatch.setattr(completion, "_list_names", lambda: {"runtime": ["third"]})
    (tmp_path / "packages" / "results.json").touch()
    assert completion.known_names() == {"runtime": ["second"]}
    (tmp_path / "packages" / "new-1.0.dist-info").mkdir()
    assert completion.known_names() == {"runtime": ["third"]}
    monkeypatch.setattr(completion, "_list_names", lambda: {"runtime": ["second"]})
    (tmp_path / "completion.json").write_text("{")
    assert completion.known_names() == {"runtime": ["second"]}


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("vet M --optimizer ort", "'onnxruntime'"),
        ("vet M --optimizer onnxoptimiser", "did you mean 'onnxoptimizer'"),
        ("vet M --exclude fuse_bn", "did you mean 'fuse_bn_into_conv'"),
        ("vet M --pipeline extend", "(pipelines: all, default; passes: optvet plugins show onnxo"),
        ("vet M --seed abc", "error: --seed abc: expected a whole number"),
        ("compare M M --limit 0", "error: --limit 0: expected at least 1"),
        ("vet M --level extended", "no such option: --level; did you mean --pipeline?"),
        ("vet M --pass=fuse_bn", "no such option: --pass; did you mean --pipeline?"),
        ("vet M --optimiser ort", "no such option: --optimiser; did you mean --optimizer or"),
        ("bench M --foo", "no such option: --foo; optvet bench --help lists them"),
        ("hunt --optimizer onnxslim --out x.onnx", "is called like a file; it is a folder: x"),
        ("hunt --time 60", "no such option: --time; did you mean --budget?"),
        ("hunt report --tim 3", "no such option: --tim; optvet hunt report --help lists them"),
        ("vet -optimizer onnxslim", "no such option: -optimizer; did you mean --optimizer or"),
        ("plugins new optimiser mine", "unknown family 'optimiser'; did you mean 'optimizer' or"),
        ("--versoin", "no such option: --versoin; did you mean --version?"),
        ("hunt onnxslim", "did you mean optvet hunt --optimizer onnxslim?"),
        ("vet", "optvet vet needs MODEL; optvet vet --help lists what else it takes"),
        ("compare M", "optvet compare needs B; "),
        ("reduce M", "optvet reduce needs --check; "),
        ("vet M --runtime ort", "unknown runtime 'ort'; did you mean 'onnxruntime'"),
        ("vet M --dataset M", "a dataset has a name before its path; write auto:"),
        ("vet M --dataset randm", "did you mean 'random'?"),
        ("vet M --comparator classifcation", "did you mean 'classification'?"),
        ("convert M --via quantize_statik", "did you mean 'quantize_static'"),
        ("vet zoo:tinygpt", "unknown zoo model 'tinygpt'; known: alexnet, "),
        ("vet zoo:digits", "did you mean 'digits-cnn' or 'digits-mlp'?"),
        ("models zoo:digits-cnn", "did you mean optvet models show zoo:digits-cnn?"),
        ("models lst", "did you mean optvet models list?"),
        ("vett", "no such command: optvet vett; did you mean optvet vet"),
        ("zzzz", "no such command: optvet zzzz; optvet --help lists them"),
        ("vet M --json M --report html:M", "would overwrite"),
        ("cache size", "no such command: optvet cache size; there are info, clear"),
    ],
)
def test_a_wrong_name_suggests_what_was_meant(
    run: Run, clean: Path, typed: str, words: str
) -> None:
    ran = run(*(clean if word == "M" else word for word in typed.split()))
    assert (ran.code, ran.out) == (2, "")
    assert words in " ".join(ran.err.split())


def test_a_quiet_conversion_prints_the_verdict_alone(run: Run, clean: Path) -> None:
    ran = run("convert", clean, "--via", "onnx_version", "--random", "1", "--quiet")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.split() == ["RIGHT", str(clean), "→", "onnx_version"]


def test_where_several_converters_fit_each_has_a_command_on_a_line_of_its_own(run: Run) -> None:
    ran = run("convert", "zoo:digits-mlp")
    assert ran.code == 2
    first, *commands = ran.err.splitlines()
    assert first == "error: --via is missing, and several converters fit; choose one:"
    assert "  optvet convert zoo:digits-mlp --via onnx_version" in commands


def test_a_file_that_is_called_like_an_option_is_found_by_its_folder(
    run: Run, clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    clean.rename(tmp_path / "-x.onnx")
    refused = run("vet", "-x.onnx")
    assert (refused.code, refused.out) == (2, "")
    assert "if the file is meant, write ./-x.onnx" in refused.err
    assert run("vet", "./-x.onnx", "--limit", "1", "-q").code == 0


def test_functions_of_a_file_that_may_make_the_model_are_told(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "net.py"
    source.write_text(
        "raise SystemExit('not run')\ndef small(): ...\ndef wide(width=2): ...\n"
        "def layer(width): ...\ndef _own(): ...\n"
    )
    assert functions_in(source) == ["small", "wide"]
    pytest.importorskip("torch", reason="needs optvet[torch]")
    ran = run("convert", source, "--via", "torch_script")
    assert ran.code == 2
    words = " ".join(ran.err.split())
    assert words.endswith(f"there are {source}:small, {source}:wide")


def test_every_command_is_in_one_panel_of_the_help() -> None:
    listed = " ".join(PANELS.values()).split()
    assert sorted(listed) == sorted({**COMMANDS, **GROUPS})


def test_a_group_lists_what_it_lists_alone_if_it_is_asked_to(run: Run) -> None:
    assert run("plugins", "list").out == run("plugins").out != ""
    assert run("-V").out == run("--version").out
