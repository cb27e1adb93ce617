"""A third party's packages, installed beside optvet in an environment of their own."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

from optvet.engine.environment.scaffold import MAX_NAME, Family, write_plugin

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "third_party_plugin"
LONGEST = "w" * MAX_NAME
DEPTH = """
<ir_version: 8, opset_import: ["" : 17]>
depth (float[1,4,5] image) => (float[1,4,5] depth) {
    scaled = Tanh(image)
    far = Exp(scaled)
    depth = Identity(far)
}
"""
HALVING = '''
import onnx

from optvet.plugin import Artifact, Pass, hookimpl
from optvet.testing import Planted


class Halving(Planted):
    """Its only pass makes Exp a Sigmoid."""

    def passes(self):
        return [Pass("halve")]

    def pipelines(self):
        return {"default": ("halve",)}

    def apply(self, source, passes, options):
        proto = onnx.load_from_string(source.data)
        for node in proto.graph.node:
            if passes and node.op_type == "Exp":
                node.op_type = "Sigmoid"
        return Artifact("onnx", proto.SerializeToString())


@hookimpl
def optvet_optimizers():
    return [Halving(name="halving")]
'''
"""A module that a plain entry point, without any package, registers."""

Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an environment, the example's sources and a new package of every family."""
    folder = tmp_path_factory.mktemp("third")
    shutil.copytree(EXAMPLE, folder / "example", ignore=shutil.ignore_patterns(".*", "__pycache__"))
    for family in Family:
        write_plugin(family, LONGEST, folder / family, version="0.1")
    return folder


@pytest.fixture(scope="module")
def python(place: Path) -> Path:
    """The interpreter of a new environment with the packages of ``place``, made without network."""
    for module in ("pip", "hatchling", "editables"):
        if find_spec(module) is None:
            pytest.skip(f"needs {module} (optvet[dev])")
    home = place / "environment"
    venv.create(home, symlinks=True)
    (packages,) = home.glob("lib/python*/site-packages")
    # What this environment has is there too: all that the new packages require.
    seen = [p for p in sys.path if Path(p).is_dir() and Path(p).resolve() != ROOT]
    library = Path(os.__file__).parent
    rooms = [p for p in seen if "site-packages" in p or not Path(p).is_relative_to(library)]
    (packages / "beside.pth").write_text("\n".join(rooms))
    interpreter = home / "bin" / "python"
    folders = [place / "example", *(place / family for family in Family)]
    command = [sys.executable, "-m", "pip", "--python", interpreter, "install", "-q"]
    command += ["--no-build-isolation", "--no-deps", "--no-index", *folders]
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    assert done.returncode == 0, done.stderr
    (packages / "halving_optimizer.py").write_text(HALVING)
    info = packages / "halving-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: halving\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[optvet]\nhalving = halving_optimizer\n")
    return interpreter


@pytest.fixture
def call(python: Path, place: Path) -> Call:
    """Run ``python -c`` or ``python -m`` in the new environment."""

    def call(*words: object, **settings: Any) -> subprocess.CompletedProcess[str]:
        variables = os.environ | {"OPTVET_CACHE": str(place / "cache"), "COLUMNS": "100"}
        variables.pop("PYTEST_ADDOPTS", None)
        command = [str(python), *map(str, words)]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=place, env=variables, **settings
        )

    return call


OPTVET = ("-m", "optvet_start")


def test_the_installed_plugins_are_listed(call: Call, place: Path) -> None:
    listed = call(*OPTVET, "plugins", "--json", "-")
    plugins = json.loads(listed.stdout)["plugins"]
    entries = {(e["family"], e["name"]): e for e in plugins}
    depth = entries["comparator", "depth"]
    assert depth["origin"] == "depth_comparator (depth-comparator 1.0.0)"
    assert depth["problem"] is None
    for family in Family:
        assert entries[family.words, LONGEST]["problem"] is None
    # As installed, not as a folder that happens to be here.
    found = call("-c", "import depth_comparator as d; print(d.__file__)", check=True).stdout
    assert Path(found).is_relative_to(place / "environment")


@pytest.mark.long
def test_the_comparator_is_chosen_for_its_task_and_its_metrics_are_told(
    call: Call, place: Path
) -> None:
    model = place / "net.onnx"
    onnx.save(onnx.parser.parse_model(DEPTH), model)
    model.with_suffix(".toml").write_text('task = "depth-estimation"\n')
    vet = (*OPTVET, "vet", model, "--optimizer", "halving")
    written = call(*vet, "--json", "-")
    assert written.returncode == 1, written.stderr + written.stdout
    impact = json.loads(written.stdout)["impact"]
    assert (impact["comparator"], impact["chosen_by"]) == ("depth", "task 'depth-estimation'")
    assert impact["changed"] == impact["samples"] > 0
    assert {"abs_rel", "delta_1", "rmse_log"} <= impact["metrics"].keys()
    # Sigmoid / Exp is 1 / (1 + exp(t)), and t, a Tanh, lies between -1 and 1.
    assert 1 - 1 / (1 + math.exp(-1)) < impact["metrics"]["abs_rel"] < 1 - 1 / (1 + math.e)
    assert impact["details"][0]["metrics"]["pixels"] == 20
    shown = call(*vet)
    assert shown.returncode == 1
    words = " ".join(shown.stdout.split())
    assert impact["headline"] in words
    assert "depth maps changed; relative error" in words
    assert "abs_rel" in words


QUICK = {Family.OPTIMIZER, Family.COMPARATOR}
"""Packages whose tests run each time; those of all families run with the long tests."""


@pytest.mark.parametrize(
    "package",
    [
        pytest.param(package, marks=[] if package in QUICK else [pytest.mark.long])
        for package in ("example", *Family)
    ],
)
def test_a_package_passes_its_own_tests(package: str, call: Call, place: Path) -> None:
    done = call("-m", "pytest", "-q", "-p", "no:cacheprovider", package)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.parametrize("tool", [("check",), ("format", "--check")], ids=" ".join)
def test_the_packages_are_clean(tool: tuple[str, ...], place: Path) -> None:
    if find_spec("ruff") is None:
        pytest.skip("needs ruff (optvet[dev])")
    folders = [place / "example", *(place / family for family in Family)]
    command = [sys.executable, "-m", "ruff", *tool, "--no-cache", *folders]
    done = subprocess.run([str(w) for w in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.long
def test_the_packages_are_typed(call: Call, place: Path) -> None:
    if find_spec("mypy") is None:
        pytest.skip("needs mypy (optvet[dev])")
    folders = [place / "example", *(place / family for family in Family)]
    files = [f for folder in folders for f in (*folder.glob("*.py"), *folder.glob("tests/*.py"))]
    done = call("-m", "mypy", "--strict", "--cache-dir", ROOT / ".mypy_cache" / "third", *files)
    assert done.returncode == 0, done.stdout + done.stderr
