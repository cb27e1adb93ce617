"""Wheels of a toy optimizer, release after release, and the plugin that knows it."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

FAULTY_IN = ("3.0", "4.0")
ALL = ("1.0", "2.0", *FAULTY_IN)
LIBRARY = """
__version__ = "{version}"

def tidy(model):
    for node in model.graph.node:
        if {faulty} and node.op_type == "Relu":
            node.op_type = "Neg"
    if {slow}:
        _put_negations_before(model.graph.node)
    return model

def _put_negations_before(nodes):
    first, name = nodes[0], nodes[0].input[0]
    for number in range(200):
        node = type(first)(op_type="Neg", input=[name], output=["slow%d" % number])
        nodes.insert(number, node)
        name = "slow%d" % number
    first = next(n for n in nodes if n.op_type == "Relu")
    first.input[0] = name

def sweep(model):
    return model
"""
PLUGIN = """
from collections.abc import Sequence
from pydantic import BaseModel
from optvet.plugin import Artifact, Pass, ReleasedPackage, Traits, hookimpl

class Options(BaseModel):
    pass

class Acme:
    name = "acme"
    released = ReleasedPackage("acme-opt", "acme_opt", "acme_opt.tidy")
    preload = ("acme_opt",)
    options = Options()
    traits = Traits(repeatable=True)

    def version(self):
        import acme_opt
        return acme_opt.__version__

    def passes(self):
        return [Pass("sweep", "rewrite"), Pass("tidy", "rewrite")]

    def pipelines(self):
        return {"default": ("sweep", "tidy"), "all": ("sweep", "tidy")}

    def apply(self, source, passes, options):
        import acme_opt
        import onnx
        model = onnx.load_from_string(source.data)
        for name in passes:
            model = getattr(acme_opt, name)(model)
        return Artifact("onnx", model.SerializeToString(deterministic=True))

@hookimpl
def optvet_optimizers():
    return [Acme()]
"""


def write_wheel(
    folder: Path, version: str, code: str, *, name: str = "acme_opt", tag: str = "py3-none-any"
) -> Path:
    """A wheel with one module, as small as pip takes it."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
    wheel = f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n"
    files = {f"{name}.py": code, f"{info}/METADATA": metadata, f"{info}/WHEEL": wheel}
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, text in (files | {f"{info}/RECORD": record}).items():
            archive.writestr(inner, text)
    return path


def write_plugin(folder: Path) -> None:
    """An installed plugin: its module, and the metadata that registers it."""
    folder.mkdir(exist_ok=True)
    (folder / "optvet_acme.py").write_text(PLUGIN)
    info = folder / "optvet_acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: optvet-acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[optvet]\nacme = optvet_acme\n")


def library(version: str, *, faulty: bool, slow: bool = False) -> str:
    """The code of a release: a faulty one makes a Neg of each Relu, a slow one adds 200."""
    return LIBRARY.format(version=version, faulty=faulty, slow=slow)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four releases, the last two with a fault; the plugin is installed here and in children."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for version in ALL:
        write_wheel(folder, version, library(version, faulty=version in FAULTY_IN))
    write_plugin(tmp_path / "plugin")
    monkeypatch.syspath_prepend(str(tmp_path / "plugin"))
    paths = [str(tmp_path / "plugin"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in paths if p))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return folder
