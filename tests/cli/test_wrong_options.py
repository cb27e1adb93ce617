"""What an option names and does not exist is told before any work: option, value, exit code 2."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest
from pydantic import BaseModel
from tests.commands import CLEAN, Run

from optvet import PluginError, UsageError
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.plugin import Artifact
from optvet.spec.request import VetRequest
from optvet.testing import Planted

PASSES = """
import tvm

def number():
    return 3

def raises():
    raise ValueError("not today")
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(CLEAN), path)
    (tmp_path / "own.py").write_text(PASSES)
    return path


@pytest.mark.parametrize(
    ("plugin", "option", "words"),
    [
        ("tvm", "target=llvmm", 'Target kind "llvmm" is not defined'),
        ("tvm", "target=cuda", "this TVM makes no such code that runs on the CPU"),
        ("tvm", "opt_level=-1", "expected at least 0"),
        ("tvm", "extra_passes=own.py:nosuch", "own.py has no function 'nosuch'"),
        ("tvm", "extra_passes=nosuch.py:own", "No such file or directory"),
        ("tvm", "extra_passes=no_such_module:own", "No module named 'no_such_module'"),
        ("tvm", "extra_passes=own.py:number", "number gave int, expected a pass of TVM"),
        ("tvm", "extra_passes=own.py:raises", "ValueError: not today"),
        ("tvm", "extra_passes=FuseOps=own.py:number", "there is a pass 'FuseOps' already"),
        ("ort_transformers", "model_type=berd", "there is no such model type; known: bert"),
        ("ort_transformers", "num_heads=-1", "expected at least 0"),
        ("onnxscript", "input_size_limit=-5", "expected at least 0"),
        ("onnxslim", "max_iterations=0", "expected at least 1"),
    ],
)
def test_an_optimizer_names_option_and_value(
    plugin: str,
    option: str,
    words: str,
    model: Path,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if plugin not in Plugins().names("optimizer"):
        pytest.skip(f"needs the library of optimizer {plugin}")
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "answer.json"
    done = run("vet", model, "--optimizer", plugin, "--option", option, "--jobs", 1, "--json", out)
    told = " ".join(done.err.split())
    assert done.code == 2, told
    name, value = option.split("=", 1)
    assert f"{name!r} = " in told
    assert value in told
    assert words in told
    assert "Traceback" not in told
    assert not out.exists() or "error" in out.read_text()


def test_a_runtime_names_option_and_value(model: Path, run: Run) -> None:
    done = run("vet", model, "--runtime-option", 'providers=["CudaProvider"]', "--jobs", 1)
    told = " ".join(done.err.split())
    assert done.code == 2
    assert "option 'providers': there is no execution provider 'CudaProvider'; this" in told
    done = run("vet", model, "--runtime-option", "threads=-1")
    assert done.code == 2
    assert "'threads' = " in done.err


class Picky(Planted):
    """Takes no options; leaves a mark if it is applied all the same."""

    mark = Path()
    error: type[Exception] = UsageError

    def check_options(self, options: BaseModel) -> None:
        raise self.error("option 'device' = 'moon': there is no such device")

    def apply(self, source: Artifact, passes: object, options: BaseModel) -> Artifact:
        self.mark.touch()
        return source


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [
        (UsageError, UsageError, "^option 'device' = 'moon'"),
        (KeyError, PluginError, "^picky: check_options.. failed: KeyError: .*moon"),
    ],
)
def test_nothing_is_applied_where_the_options_are_wrong(
    error: type[Exception],
    raised: type[Exception],
    words: str,
    model: Path,
    tmp_path: Path,
    pytestconfig: pytest.Config,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(pytestconfig.rootpath)
    picky = Picky(name="picky")
    picky.mark, picky.error = tmp_path / "applied", error
    plugins = Plugins().register("optimizer", picky)
    request = VetRequest(model=str(model), optimizer="picky", jobs=1, cache_dir=tmp_path)
    with pytest.raises(raised, match=words):
        vet_model(open_model(model, str(model), tmp_path), request, plugins)
    assert not picky.mark.exists()
