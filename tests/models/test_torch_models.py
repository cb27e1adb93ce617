"""Modules of PyTorch, exported in a process of their own."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import pytest

import optvet_torch
import optvet_torch.models
from optvet import InputError, PluginError, UsageError
from optvet.engine.discovery import Plugins
from optvet.engine.models.sources import resolve_model
from optvet.plugin import ModelSource
from optvet_torch.models import TorchSource

NETS = """
import os
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = torch.nn.Linear(3, 2)

    def forward(self, x):
        return torch.relu(self.dense(x))

class Named(torch.nn.Module):
    example_inputs = {"b": torch.ones(2), "a": torch.ones(2)}

    def forward(self, a, b):
        return a - b

def net():
    print("what a user prints")
    return Net()

def broken():
    raise RuntimeError("no weights here")

def number():
    return 3

def crash():
    os.abort()

class Impossible(torch.nn.Module):
    def forward(self, x):
        raise ValueError("not today")

number_itself = 3

def example_inputs():
    return torch.ones(1, 3)
"""
BARE = "import torch\n\ndef net():\n    return torch.nn.Linear(3, 2)\n"

OTHER_BUILD = 'raise RuntimeError("operator torchvision::nms does not exist")'


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs the extra torch")
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "my_nets.py").write_text(NETS)
    (folder / "my_bare_nets.py").write_text(BARE)
    (folder / "my_vision.py").write_text(OTHER_BUILD)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def fetch(cache: Path, reference: str) -> Path:
    (path,) = TorchSource().fetch(reference, cache)
    return path


def test_the_source_keeps_the_protocol() -> None:
    (source,) = optvet_torch.optvet_model_sources()
    assert isinstance(source, ModelSource)
    assert (source.name, list(source.models())) == ("torch", [])
    assert pickle.loads(pickle.dumps(source)).name == "torch"


NO_MODULES = {
    "my_nots:net": r": cannot import my_nots \(ModuleNotFoundError.*run in the folder",
    "my_nets:zzz": r": my_nets has no zzz; it has Impossible, Named, Net, broken",
    "my_nets:Nmed": r": my_nets has no Nmed; did you mean Named\?",
    "my_vision:net": r".*; torchvision does not fit torch .*: pip uninstall -y torchvision; pip",
    "my_nets:broken": r": broken\(\) fails: RuntimeError: no weights here; it must take no",
    "my_nets:number": r": number\(\) returns a int, expected a torch.nn.Module",
    "my_nets:number_itself": r": number_itself is a int, expected a function",
    "my_bare_nets:net": r" gives no example inputs: define example_inputs",
}
ALL_AT_ONCE = """
import sys
from pathlib import Path
from optvet_torch.models import work

for number, reference in enumerate(sys.argv[1:]):
    Path(str(number)).mkdir()
    work(reference, str(number))
"""


def work_on(nets: Path, *references: str) -> list[tuple[dict[str, str], Path]]:
    """The answer to each reference, and the file of the model.

    In one process: each of its own would import PyTorch anew.
    """
    paths = os.pathsep.join(filter(None, sys.path))
    subprocess.run(
        [sys.executable, "-P", "-c", ALL_AT_ONCE, *references],
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    folders = [nets / str(number) for number in range(len(references))]
    return [(json.loads((f / "answer.json").read_text()), f / "model.onnx") for f in folders]


def test_what_leads_to_no_module_is_told(nets: Path) -> None:
    answers = work_on(nets, *NO_MODULES)
    for (reference, message), (reply, model) in zip(NO_MODULES.items(), answers, strict=True):
        assert reply["kind"] == "usage", reference
        assert re.match(message, reply["words"]), (reference, reply["words"])
        assert not model.exists()


@pytest.mark.release
def test_a_module_is_exported_the_same_each_time(nets: Path, cache: Path) -> None:
    plugins = Plugins([]).register("model source", TorchSource())
    (model,) = resolve_model("torch:my_nets:net", plugins, cache)
    assert model.source == "torch:my_nets:net"
    path = model.path
    assert path.name == "net.onnx"
    assert path.parent.name.startswith("my_nets.net-")
    assert [f.name for f in cache.rglob("*") if f.is_file()] == ["net.onnx"]
    weights = [onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer]
    assert sum(np.size(w) for w in weights) >= 8
    assert "my_nets" not in sys.modules
    # In another process.
    references = ("my_nets:net", "my_nets:net@4x3", "my_nets:Named", "my_nets:Impossible")
    again, shaped, named, impossible = work_on(nets, *references)
    assert again[1].read_bytes() == path.read_bytes()
    (output,) = onnx.load(shaped[1]).graph.output
    assert [d.dim_value for d in output.type.tensor_type.shape.dim] == [4, 2]
    assert {value.name for value in onnx.load(named[1]).graph.input} == {"a", "b"}
    assert impossible[0]["kind"] == "input"
    fails = r": torch\.onnx\.export fails: .*export it yourself"
    assert re.match(fails, impossible[0]["words"]), impossible[0]
    assert not impossible[1].exists()


def test_a_change_of_the_source_is_seen_and_equal_exports_share_a_file(
    nets: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export(reference: str, scratch: Path) -> None:
        (scratch / "model.onnx").write_bytes((nets / "my_nets.py").read_bytes())

    monkeypatch.setattr(optvet_torch.models, "_export_elsewhere", export)
    path = fetch(cache, "my_nets:net")
    written = path.stat().st_mtime_ns
    assert fetch(cache, "my_nets:net") == path
    assert path.stat().st_mtime_ns == written
    assert [f for f in cache.rglob("*") if f.is_file()] == [path]
    (nets / "my_nets.py").write_text(BARE)
    changed = fetch(cache, "my_nets:net")
    assert changed != path
    assert {f.read_text() for f in (path, changed)} == {NETS, BARE}


def test_what_the_export_says_of_a_module_is_told(
    nets: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(command: list[str], **settings: object) -> subprocess.CompletedProcess[bytes]:
        Path(command[-1], "answer.json").write_text('{"kind": "input", "words": ": not today"}')
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", ends)
    with pytest.raises(InputError, match="torch model 'my_nets:Impossible': not today"):
        fetch(cache, "my_nets:Impossible")


def test_a_reference_that_leads_to_no_module_is_refused(nets: Path, cache: Path) -> None:
    message = "torch model 'my_nets:Nmed': my_nets has no Nmed"
    with pytest.raises(UsageError, match=message):
        fetch(cache, "my_nets:Nmed")
    assert not [f for f in cache.rglob("*") if f.is_file()]


def test_a_crash_of_the_users_code_is_told(nets: Path, cache: Path) -> None:
    with pytest.raises(InputError, match=r"its process died while exporting \(SIGABRT\)"):
        fetch(cache, "my_nets:crash")


def test_an_export_that_does_not_end_is_told(
    nets: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optvet_torch.models, "TIMEOUT_S", 0.01)
    with pytest.raises(InputError, match=r"did not end within 0\.01 s"):
        fetch(cache, "my_nets:net")
    assert not list((cache / "torch").iterdir())


@pytest.mark.parametrize(
    "reference", ["", "net", "a:b:c", "a:net@", "a:net@x", "a:net@1x", "a b:c", "../a:b"]
)
def test_a_malformed_reference_is_refused(cache: Path, reference: str) -> None:
    with pytest.raises(UsageError, match=r"is not understood; write it as PACKAGE\.MODULE:FACTORY"):
        fetch(cache, reference)


def test_a_missing_library_is_named_with_its_extra(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PluginError, match=r"needs torch; install optvet\[torch,onnxscript\]"):
        fetch(cache, "a:b")
