"""The pytest plugin, in pytest as a user starts it: in another folder, as a process of its own."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.parser
import pytest

import optvet.cli

ROOT = Path(__file__).parents[1]
HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
PLAIN = HEAD + "plain (float[2,3] x) => (float[2,3] y) { y = Sigmoid(x) }"
RELU = HEAD + "relu (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"
NAN = HEAD + "nan (float[4] x) => (float[4] y) { n = Sub(x, x)  y = Div(n, n) }"
OPTIMIZERS = """
import onnx
from pydantic import BaseModel, ConfigDict
from optvet import Unsupported
from optvet.plugin import Artifact, Pass, Traits, hookimpl

class NoOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

class Dropping:
    name = "dropping"
    preload = ("onnx",)
    options = NoOptions()
    traits = Traits()
    def version(self):
        return "1.0"
    def passes(self):
        return [Pass("drop_relu")]
    def pipelines(self):
        return {"default": ("drop_relu",)}
    def apply(self, source, passes, options):
        proto = onnx.load_from_string(source.data)
        for node in proto.graph.node:
            if passes and node.op_type == "Relu":
                node.op_type = "Identity"
        return Artifact("onnx", proto.SerializeToString())

class Refusing(Dropping):
    name = "refusing"
    def apply(self, source, passes, options):
        raise Unsupported("no operator for Relu")

@hookimpl
def optvet_optimizers():
    return [Dropping(), Refusing()]
"""

DROPPING = ("--optvet-optimizer", "dropping")
Pytest = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_pytest(tmp_path: Path) -> Pytest:
    """Run pytest in a project, in an environment that has optvet and two planted optimizers."""
    packages = tmp_path / "packages"
    info = packages / "planted-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    # As an installation writes it of pyproject.toml.
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    ((name, value),) = pyproject["project"]["entry-points"]["pytest11"].items()
    (info / "entry_points.txt").write_text(
        f"[optvet]\nplanted = planted_optimizers\n[pytest11]\n{name} = {value}\n"
    )
    (packages / "planted_optimizers.py").write_text(OPTIMIZERS)
    project = tmp_path / "project"
    project.mkdir()
    for file, text in (("plain", PLAIN), ("relu", RELU), ("nan", NAN)):
        onnx.save(onnx.parser.parse_model(text), project / f"{file}.onnx")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(packages), *(p for p in sys.path if p)])
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        environment |= {"PYTHONPATH": path, "OPTVET_CACHE": str(tmp_path / "cache")}
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *arguments],
            cwd=project,
            env=environment | {"COLUMNS": "100"},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


def outcomes(shown: str) -> dict[str, str]:
    """Outcome by test, of the summary."""
    found = re.findall(r"^(PASSED|FAILED|XFAIL|ERROR) ([^\s]+)", shown, re.MULTILINE)
    return {test: outcome for outcome, test in found}


def test_models_are_tests_whose_failure_is_the_finding(run_pytest: Pytest) -> None:
    names = ("--optvet-optimizer", "dropping", "--optvet-optimizer", "refusing")
    ran = run_pytest("--optvet", ".", *names)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert outcomes(ran.stdout) == {
        "plain.onnx::dropping": "PASSED",
        "relu.onnx::dropping": "FAILED",
        "nan.onnx::dropping": "XFAIL",
    }
    assert "relu.onnx under dropping: wrong-output: drop_relu" in ran.stdout
    # Symptom, culprit, error and noise; the controls; the safe pipeline.
    assert re.search(r"wrong-output +drop_relu  confirmed on \S+ +[\d.]+ +[\d.e-]+\n", ran.stdout)
    assert "confirmed on random" in ran.stdout
    assert "verified  No safe pipeline." in ran.stdout
    assert "is NaN on every sample" in ran.stdout
    assert re.search(r"SKIPPED .*relu.onnx: .*no operator for Relu; nothing was tested", ran.stdout)
    assert "Traceback" not in ran.stdout
    # Where CI is set, pytest says the whole failure in its summary again.
    (repeat,) = set(re.findall(r"^repeat +(optvet vet .*)$", ran.stdout, re.MULTILINE))
    assert shlex.split(repeat) == ["optvet", "vet", "relu.onnx", "--optimizer", "dropping"]


@pytest.mark.long
def test_the_fixture_vets_what_a_test_makes(
    run_pytest: Pytest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project" / "test_export.py").write_text(
        f"""
import onnx.parser

def test_sound(vet):
    assert vet("plain.onnx", optimizer="onnxoptimizer", limit=1).verdict == "clean"

def test_made(vet):
    text = {HEAD!r} + "g (float[3,2] a, float[3,4] b) => (float[2,4] y)" \\
        "{{ t = Transpose(a)  y = Gemm(t, b) }}"
    vet(onnx.parser.parse_model(text), optimizer="onnxoptimizer", limit=1)

def test_absent(vet):
    vet("absent.onnx")
"""
    )
    ran = run_pytest()
    assert outcomes(ran.stdout) == {
        "test_export.py::test_sound": "PASSED",
        "test_export.py::test_made": "FAILED",
        "test_export.py::test_absent": "FAILED",
    }, ran.stdout + ran.stderr
    assert "fuse_transpose_into_gemm" in ran.stdout
    assert "absent.onnx" in ran.stdout
    # The model is kept where the command finds it.
    (repeat,) = set(re.findall(r"^repeat +optvet (vet .*)$", ran.stdout, re.MULTILINE))
    monkeypatch.setenv("OPTVET_CACHE", str(tmp_path / "cache"))
    assert optvet.cli.main([*shlex.split(repeat), "--quiet"]) == 1


@pytest.mark.long
def test_no_name_of_a_file_is_a_command_or_breaks_a_report(
    run_pytest: Pytest, tmp_path: Path
) -> None:
    names = ["::error::a", "##vso[task.complete]", "\x1b]0;title\x07", "\u202egnp", "a\n::error::b"]
    folder = tmp_path / "project" / "##[warning]in"
    folder.mkdir()
    for name in (*(os.fsencode(n) for n in names), b"\xff\xfe"):
        path = os.fsdecode(os.fsencode(folder) + b"/" + name + b".onnx")
        onnx.save(onnx.parser.parse_model(RELU), path)
    ran = run_pytest("--optvet", *DROPPING, "-v", "--junit-xml", "junit.xml")
    assert ran.returncode == 1
    found = outcomes(ran.stdout)
    assert [found[n] for n in found if "in/" in n] == ["FAILED"] * (len(names) + 1), ran.stdout
    for line in ran.stdout.splitlines():
        assert line.isprintable(), line
        assert not re.match(r"\s*::|.*##\w*\[", line), line
    cases = ElementTree.parse(tmp_path / "project" / "junit.xml").getroot().iter("testcase")
    assert len([c for c in cases if "warning" in c.get("classname", "")]) == len(names) + 1


@pytest.mark.long
def test_strict_fails_what_is_undecided_or_not_taken(run_pytest: Pytest) -> None:
    names = ("--optvet-optimizer", "dropping", "--optvet-optimizer", "refusing")
    ran = run_pytest("--optvet", "nan.onnx", *names, "--optvet-strict")
    assert outcomes(ran.stdout) == {
        "nan.onnx::dropping": "FAILED",
        "nan.onnx::refusing": "FAILED",
    }


def test_nothing_is_collected_nor_imported_unless_asked(run_pytest: Pytest, tmp_path: Path) -> None:
    (tmp_path / "project" / "test_other.py").write_text(
        """
import sys

def test_other():
    loaded = {"numpy", "onnx", "optvet", "pydantic", "rich"} & set(sys.modules)
    assert "optvet_pytest" in sys.modules and not loaded
"""
    )
    ran = run_pytest("-p", "no:hypothesispytest", ".")
    assert outcomes(ran.stdout) == {"test_other.py::test_other": "PASSED"}, ran.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--optvet-optimizer", "droping"], "did you mean 'dropping'"),
        *(
            pytest.param(["--optvet-option", option], words, marks=pytest.mark.long)
            for option, words in {
                "limit": "--optvet-option 'limit': expected KEY=VALUE",
                "limitt=1": "unknown option 'limitt'; did you mean 'limit'",
                "limit=none": "--limit",
            }.items()
        ),
    ],
)
def test_what_is_wrong_with_an_option_is_told(
    run_pytest: Pytest, arguments: list[str], words: str
) -> None:
    ran = run_pytest("--optvet", "plain.onnx", *arguments)
    assert ran.returncode != 0
    assert words in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stdout + ran.stderr
