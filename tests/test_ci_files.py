"""The GitHub Action, the hook for pre-commit and the image do what they say."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from tests.commands import CLEAN, FAULTY
from tests.wheels import wheels

import optvet.cli

yaml = pytest.importorskip("yaml", reason="needs PyYAML, of the extra dev")

__all__ = ["wheels"]

ROOT = Path(__file__).parent.parent
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())


# The action


@dataclass
class Job:
    """What a run of the action left."""

    code: int
    summary: str
    log: str
    used: list[str] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)


def act(place: Path, **given: str) -> Job:
    """Run the steps of the action as GitHub does: ``run`` by bash, ``uses`` noted down."""
    inputs = {name: about["default"] for name, about in ACTION["inputs"].items()} | given
    values = {f"inputs.{name}": value for name, value in inputs.items()}
    values |= {"runner.temp": str(place / "temp"), "runner.os": "Linux"}
    values |= {"github.run_id": "1", "github.run_attempt": "1"}
    (place / "temp").mkdir(exist_ok=True)
    job = Job(0, "", "")
    summary = place / "summary.md"
    for number, step in enumerate(ACTION["runs"]["steps"]):
        if not holds(step.get("if", "true"), values):
            continue
        if "uses" in step:
            job.used.append(step["uses"].partition("@")[0])
            continue
        output = place / f"output-{number}"
        output.touch()
        files = {"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary)}
        mine = {key: filled(text, values) for key, text in step.get("env", {}).items()}
        # Inputs reach a script as variables alone: a name of a model would be run otherwise.
        assert "${{" not in step["run"], step["name"]
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=place,
            env=os.environ | {"PATH": path(), "GITHUB_ACTION_PATH": str(ROOT)} | files | mine,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        job.log += done.stdout
        for line in output.read_text().splitlines():
            key, _, value = line.partition("=")
            values[f"steps.{step['id']}.outputs.{key}"] = value
        if done.returncode:
            job.code = done.returncode
            break
    job.outputs = {k: filled(v["value"], values) for k, v in ACTION["outputs"].items()}
    job.summary = summary.read_text() if summary.exists() else ""
    return job


def path() -> str:
    """Where the command is that is tested."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def filled(text: str, values: dict[str, str]) -> str:
    return re.sub(r"\$\{\{ (\S+) \}\}", lambda m: values.get(m[1], ""), str(text))


def holds(condition: str, values: dict[str, str]) -> bool:
    """Conditions of this form alone are used: ``name == 'text'``, ``!=``, joined by ``&&``."""
    if condition == "true":
        return True
    for part in condition.split(" && "):
        match = re.fullmatch(r"(\S+) (==|!=) '([^']*)'", part)
        assert match is not None, condition
        if (values[match[1]] == match[3]) != (match[2] == "=="):
            return False
    return True


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A checkout with a good and a bad model, and a campaign file."""
    for name, text in (("clean", CLEAN), ("faulty", FAULTY)):
        (tmp_path / "models").mkdir(exist_ok=True)
        onnx.save(onnx.parser.parse_model(text), tmp_path / "models" / f"{name}.onnx")
    (tmp_path / "optvet.toml").write_text('models = ["models/"]\n')
    return tmp_path


@pytest.mark.long
def test_the_action_vets_models_and_fails_with_a_finding(place: Path) -> None:
    models = "models/clean.onnx\n  models/faulty.onnx  \n\n"
    job = act(place, install="", models=models, arguments="--limit 1 --seed '3'")
    assert job.code == 1, job.log
    assert job.outputs["exit-code"] == "1"
    answer = json.loads(Path(job.outputs["answer"]).read_text())
    verdicts = [r["verdict"] for r in answer["results"]]
    assert sorted(verdicts) == ["clean", "faulty"]
    assert "| faulty |" in job.summary
    assert "Verified, to use instead" in job.summary
    assert "::error file=models/faulty.onnx," in job.log
    assert json.loads(Path(job.outputs["sarif"]).read_text())["runs"][0]["results"]
    assert job.used == ["actions/cache/restore", "actions/cache/save"]
    clean = act(place, install="", models="models/clean.onnx", cache="false")
    assert (clean.code, clean.used) == (0, []), clean.log


@pytest.mark.release
def test_the_action_runs_a_campaign_and_uploads_what_it_found(place: Path) -> None:
    job = act(place, install="", mode="campaign", sarif="true", arguments="--jobs 1")
    assert job.code == 1, job.log
    assert job.used[-1] == "github/codeql-action/upload-sarif"
    sarif = json.loads(Path(job.outputs["sarif"]).read_text())
    assert sarif["runs"][0]["results"]
    assert "faulty" in job.summary
    assert "::" in job.log  # annotations
    # What is known fails nothing; the answers are those of the first run.
    export = [str(Path(sys.executable).parent / "optvet"), "campaign", "export"]
    given = [
        str(place / "temp" / "optvet" / "store"),
        "--format",
        "baseline",
        "--out",
        "known.json",
    ]
    subprocess.run([*export, *given], cwd=place, check=True, capture_output=True, timeout=120)
    known = act(place, install="", mode="campaign", baseline="known.json", arguments="--jobs 1")
    assert known.code == 0, known.log


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"models": " \n"}, 'the input "models" is empty'),
        ({"models": "a.onnx", "baseline": "b.json"}, "goes with mode: campaign"),
        ({"mode": "vets"}, "write vet or campaign"),
        ({"models": "$(touch evil); nosuch.onnx"}, "nosuch.onnx"),
        ({"models": "models/clean.onnx", "arguments": "--strategy `touch>evil`"}, "`touch>evil`"),
        ({"models": "models/clean.onnx", "arguments": "--limit 1 'one"}, "a quote has no end"),
        ({"models": "models/clean.onnx", "arguments": "--nosuch"}, "--nosuch"),
        ({"models": "--user-model=evil.py\n-h"}, "no such file: --user-model=evil.py"),
        ({"models": "-h", "mode": "campaign", "arguments": "--dry-run"}, "-h: no such file"),
        ({"mode": "campaign", "campaign": "--help"}, "--help"),
        ({"models": "a.onnx", "install": "own", "extras": "x] evil"}, 'the input "extras"'),
        ({"models": "a.onnx", "install": "optvet", "extras": "ray"}, "goes with install: own"),
    ],
)
def test_the_action_refuses_wrong_inputs_and_runs_none_of_them(
    place: Path, given: dict[str, str], words: str
) -> None:
    (place / "shlex.py").write_text("open('evil', 'w')")
    job = act(place, **{"install": "", **given})
    assert job.code == 2, job.log
    assert words in job.log.replace("\n", " ")
    assert not (place / "evil").exists()


def test_the_action_installs_what_its_own_tag_holds(place: Path, tmp_path: Path) -> None:
    (place / "pip.py").write_text("open('evil', 'w')")
    fake = tmp_path / "fake"
    fake.mkdir()
    (fake / "python").write_text(f'#!/bin/sh\necho "$@" >>{fake}/log\nexit 7\n')
    (fake / "python").chmod(0o755)
    (step,) = (s for s in ACTION["runs"]["steps"] if s["name"] == "Install")
    for extras, what in (("", ROOT), ("onnxslim,ray", f"{ROOT}[onnxslim,ray]")):
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=place,
            env={"PATH": f"{fake}:{path()}", "GITHUB_ACTION_PATH": str(ROOT)}
            | {"INSTALL": ACTION["inputs"]["install"]["default"], "EXTRAS": extras},
            check=False,
        )
        assert done.returncode == 7
        said = (fake / "log").read_text().splitlines()[-1].split()
        assert said[:3] == ["-I", "-m", "pip"]
        assert said[-2:] == ["--", str(what)]


def test_actions_are_pinned_by_commit() -> None:
    files = [ROOT / ".github/workflows/release.yml", NIGHTLY / "nightly.yml"]
    jobs = [job for f in files for job in yaml.safe_load(f.read_text())["jobs"].values()]
    steps = [*ACTION["runs"]["steps"], *(s for job in jobs for s in job["steps"])]
    used = [s["uses"] for s in steps if "uses" in s]
    assert len(used) > 10
    for each in used:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", each), each


# The hook


def test_the_hook_vets_the_files_that_it_is_given(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert {"id", "name", "entry", "language", "files"} <= hook.keys()
    changed = ["models/clean.onnx", "models/faulty.onnx", "optvet.toml"]
    files = [f for f in changed if re.search(hook["files"], f)]
    assert files == changed[:2]
    program, *words = shlex.split(hook["entry"])
    assert program in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    monkeypatch.chdir(place)
    monkeypatch.setenv("OPTVET_CACHE", str(place / "cache"))
    assert optvet.cli.main([*words, files[0]]) == 0
    assert optvet.cli.main([*words, *files]) == 1
    assert "faulty" in capsys.readouterr().out


# The image


def instructions() -> list[tuple[str, str]]:
    text = (ROOT / "Dockerfile").read_text()
    lines = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    return [(name, rest) for line in lines if line for name, _, rest in [line.partition(" ")]]


def test_the_image_runs_optvet_for_a_user_without_rights() -> None:
    found = instructions()
    last = max(i for i, (name, _) in enumerate(found) if name == "FROM")
    final = dict(found[last:])  # the last of each kind
    assert final["USER"].isdigit()
    assert final["USER"] != "0"
    assert json.loads(final["ENTRYPOINT"]) == ["optvet"]
    assert "useradd" in final["RUN"]
    assert f"--uid {final['USER']} " in final["RUN"]


def test_the_image_is_built_from_files_that_are_there_and_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    kept = {line[1:] for line in ignored if line.startswith("!")}
    copied = {
        name
        for instruction, rest in instructions()
        if instruction == "COPY" and not rest.startswith("--from")
        for name in rest.split()[:-1]
    }
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)
    # What the wheel is made of is among them.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    paths = [*wheel["include"], *wheel["shared-scripts"], *wheel["force-include"]]
    needed = {path.strip("/").partition("/")[0] for path in paths}
    assert needed | {project["project"]["readme"]} <= copied


# The nightly workflow of an optimizer's repository

NIGHTLY = ROOT / "examples" / "optimizer_nightly"
GH = """#!/bin/sh
echo "gh $*" >>"$GH_LOG"
case "$2" in
  list) echo 0 ;;
  create) { echo "# body"; cat; } >>"$(dirname "$GH_LOG")/issues.log" ;;
esac
"""
"""In place of GitHub's command: it notes down what it is called with."""


@pytest.mark.release
def test_the_nightly_workflow_opens_an_issue_for_what_only_the_wheel_does_wrong(
    place: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "dist").mkdir()
    for release in ("3.0", "4.0"):
        wheel = wheels / f"acme_opt-{release}-py3-none-any.whl"
        wheel.rename(place / ("dist" if release == "4.0" else ".") / wheel.name)
    (place / "relu").mkdir()
    onnx.save(onnx.parser.parse_model(CLEAN), place / "relu" / "relu.onnx")
    text = (NIGHTLY / "fleet.toml").read_text()
    text = text.replace("zoo:all", "relu/").replace("onnxoptimizer", "acme", 1)
    (place / "fleet.toml").write_text(text.replace("onnxoptimizer", "acme-opt"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    (place / "bin").mkdir()
    (place / "bin" / "gh").write_text(GH)
    (place / "bin" / "gh").chmod(0o755)
    first = nightly(place)
    assert first.code == 1, first.log
    assert "1 new" in first.summary
    called = (place / "gh.log").read_text()
    created = "gh issue create --title acme: tidy: the optimized model computes something else ("
    assert called.count(created) == 1
    (body,) = (place / "issues.log").read_text().split("# body\n")[1:]
    assert body.startswith("\nPasses: `tidy`.")
    assert re.search(
        r"## Since when\n\nacme 2\.0 does not show it; acme 4\.0 wheel \w{8} does", body
    )
    # A known one fails no night.
    (place / "optvet" / "known.json").rename(place / "known.json")
    assert nightly(place).code == 0
    assert (place / "gh.log").read_text() == called


def nightly(place: Path) -> Job:
    """Run the steps of the nightly workflow but for building the wheel and installing optvet."""
    workflow = yaml.safe_load((NIGHTLY / "nightly.yml").read_text())
    (job,) = workflow["jobs"].values()
    values = {"github.workspace": str(place), "github.run_id": "1", "github.token": ""}
    ran, summary = Job(0, "", ""), place / "night.md"
    for number, step in enumerate(job["steps"]):
        if "uses" in step:
            ran.used.append(step["uses"])
            continue
        built = step["name"] in ("Build the wheel", "Install optvet")
        if built or not holds(step.get("if", "true"), values):
            continue
        output = place / f"output-{number}"
        output.write_text("")
        mine = {k: filled(v, values) for k, v in {**job["env"], **step.get("env", {})}.items()}
        files = {"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary)}
        tools = {"PATH": f"{place / 'bin'}{os.pathsep}{path()}", "GH_LOG": str(place / "gh.log")}
        assert "${{" not in step["run"], step["name"]
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=place,
            env=os.environ | files | mine | tools,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        ran.log += done.stdout
        for line in output.read_text().splitlines():
            key, _, value = line.partition("=")
            values[f"steps.{step['id']}.outputs.{key}"] = value
        if done.returncode:
            ran.code = done.returncode
            break
    ran.summary = summary.read_text() if summary.exists() else ""
    return ran
