"""Workers write among their own files alone, connect to nothing, and leave nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from pydantic import BaseModel
from tests.assault.harness import Place
from tests.assault.test_left_behind import until

from optvet.engine.convert.parts import script_shows
from optvet.engine.discovery import Plugins
from optvet.engine.environment.security import examine
from optvet.engine.models.opening import open_model
from optvet.engine.scripts.comparing import SAID
from optvet.engine.scripts.confined_run import try_script
from optvet.engine.vet.run import vet_model
from optvet.engine.work.sandbox import Limits, Sandbox, kept, landlock
from optvet.spec.records import VetResult
from optvet.spec.request import Strategy, VetRequest
from optvet.spec.types import Artifact, Pass, Traits

pytestmark = pytest.mark.long


needs_landlock = pytest.mark.skipif(
    landlock.version() < landlock.OLDEST, reason="needs Landlock of version 2"
)
needs_network_rules = pytest.mark.skipif(
    landlock.version() < landlock.NETWORK, reason="needs Landlock of version 4"
)


@pytest.fixture(autouse=True)
def no_folders_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(landlock.VARIABLE, raising=False)


# --- what tasks do -------------------------------------------------------------------------------


def write(path: str) -> str:
    Path(path).write_text("mine")
    return Path(path).read_text()


def write_by_a_child(path: str) -> int:
    return subprocess.run([sys.executable, "-c", f"open({path!r}, 'w')"], stderr=-3).returncode


def remove(path: str) -> None:
    os.unlink(path)


def use_temporary_files() -> str:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        (Path(one) / "file").write_text("moved")
        os.rename(Path(one) / "file", Path(other) / "file")
        with tempfile.TemporaryFile() as unnamed:
            unnamed.write(b"x")
        return (Path(other) / "file").read_text()


def leave_files(how: str) -> str:
    kept = tempfile.mkdtemp()
    (Path(kept) / "cache").write_text("of a compiler")
    (Path(os.environ["TMPDIR"]) / "other").write_text("x")
    if how == "die":
        os.kill(os.getpid(), signal.SIGABRT)
    return os.environ["TMPDIR"]


def connect(port: int) -> None:
    socket.create_connection(("127.0.0.1", port), timeout=5).close()


def listen() -> None:
    socket.create_server(("127.0.0.1", 0)).close()


# --- where they may ------------------------------------------------------------------------------


@needs_landlock
def test_a_worker_writes_among_temporary_files_alone(tmp_path: Path) -> None:
    (mine := tmp_path / "mine").write_text("precious")
    with Sandbox(jobs=1) as sandbox:
        for task in (write, remove):
            outcome = sandbox.call(task, str(mine))
            assert outcome.failure is not None
            assert outcome.failure.error_type.endswith("PermissionError")
            assert "OPTVET_CONFINE=off" in outcome.failure.message
        assert sandbox.call(write_by_a_child, str(tmp_path / "new")).value == 1
        assert sandbox.call(use_temporary_files).value == "moved"
        assert sandbox.call(write, "/dev/null").value == ""
        assert sandbox.call(Path.read_text, mine).value == "precious"
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


@needs_network_rules
def test_a_worker_opens_no_tcp_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with Sandbox(jobs=1) as sandbox:
            assert not sandbox.call(connect, port).ok
            assert not sandbox.call(listen).ok
        monkeypatch.setenv(landlock.VARIABLE, "off")
        with Sandbox(jobs=1) as sandbox:
            assert sandbox.call(connect, port).ok
            assert sandbox.call(listen).ok


@pytest.mark.parametrize("how", ["off", "a folder", "a limit"])
def test_more_may_be_allowed(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"off": "off", "a folder": str(tmp_path), "a limit": ""}[how]
    monkeypatch.setenv(landlock.VARIABLE, said)
    limits = Limits(writable=(str(tmp_path),) if how == "a limit" else ())
    with Sandbox(jobs=1, limits=limits) as sandbox:
        assert sandbox.call(write, str(tmp_path / "new")).value == "mine"


# --- what they leave -----------------------------------------------------------------------------


def test_the_folder_of_a_worker_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_kept", None)  # the server ends with the sandbox
    with Sandbox(jobs=1) as sandbox:
        first = Path(str(sandbox.call(leave_files, "return").value))
        assert list(first.iterdir())
        other = Path(str(sandbox.call(leave_files, "return", fresh=True).value))
        assert other != first
        assert until(lambda: not other.exists())
        outcome = sandbox.call(leave_files, "die")
        assert outcome.failure is not None
        assert outcome.failure.signal == "SIGABRT"
        assert until(lambda: not first.exists())
        last = Path(str(sandbox.call(leave_files, "return").value))
        assert last.exists()
    assert not last.exists()


CALLS = """
import os, signal, sys
from optvet.engine.work.sandbox import Sandbox
from optvet.spec.scratch import temporary_folder
from tests.assault.test_confinement import leave_files
before = os.environ["TMPDIR"]
with Sandbox(jobs=1) as sandbox, temporary_folder("optvet-ours-"):
    print(sandbox.call(leave_files, "return").value, flush=True)
    assert os.environ["TMPDIR"] == before
    sys.argv[1] == "die" and os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_program_that_calls_optvet_clears_what_one_left(tmp_path: Path) -> None:
    (temporary := tmp_path / "temporary").mkdir()
    (theirs := temporary / "theirs").write_text("of the program")
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    variables = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": path}

    def call(how: str) -> Path:
        command = [sys.executable, "-c", CALLS, how]
        done = subprocess.run(command, env=variables, capture_output=True, text=True)
        assert done.stdout, done.stderr
        return Path(done.stdout.strip())

    left = call("die").parent
    assert list(left.glob("optvet-ours-*"))
    assert temporary in left.parents
    call("end")
    assert list(temporary.iterdir()) == [theirs]


# --- who is blamed -------------------------------------------------------------------------------


class NoOptions(BaseModel):
    """There are none."""


class Writer:
    """An optimizer with passes that write where its package lies, break, and harm the model."""

    name = "writer"
    preload = ("onnx", "tests.assault.test_confinement")
    options = NoOptions()
    traits = Traits(repeatable=True)

    def __init__(self, place: Path) -> None:
        self.place = place

    def version(self) -> str:
        return "1"

    def passes(self) -> Sequence[Pass]:
        names = ("break", "delete", "overwrite", "cut", "hide")
        harmful = [Pass(name, "rewrite") for name in names]
        return [Pass("note", "rewrite", default=True), *harmful]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        return {"default": ("note",)}

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        if "note" in passes:
            (self.place / "log").write_text("x")
        if "break" in passes:
            raise ValueError("it is broken")
        if "delete" in passes:
            (self.place / "model.onnx").unlink()
        if "overwrite" in passes:
            (self.place / "model.onnx").write_bytes(b"")
        if "hide" in passes:
            (self.place / "model.onnx").chmod(0o400)
        if "cut" in passes:
            (self.place / "model.data").write_bytes(b"")
        return Artifact("onnx", source.data)


MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Relu(x) y = Add(a, w) }"""


def vet(
    folder: Path, pipeline: str = "note", strategy: Strategy = "auto", cache: Path | None = None
) -> VetResult:
    path = folder / "model.onnx"
    model = onnx.parser.parse_model(MODEL)
    weight = numpy_helper.to_array(model.graph.initializer[0])
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    onnx.save(model, path, save_as_external_data=True, location="model.data", size_threshold=0)
    plugins = Plugins()
    plugins.register("optimizer", Writer(folder))
    asked = {"limit": 1, "jobs": 1, "optimizer": "writer", "pipeline": pipeline}
    place = cache or folder / "c"
    asked |= {"model": str(path), "cache_dir": place, "cache": cache is not None}
    request = VetRequest.model_validate(asked | {"strategy": strategy})
    return vet_model(open_model(path, str(path), place), request, plugins)


@needs_landlock
def test_what_confinement_alone_ends_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(landlock.VARIABLE, str(tmp_path / "elsewhere"))
    result = vet(tmp_path)
    assert result.verdict == "undecided"
    assert "OPTVET_CONFINE=off" in result.reason
    assert [(f.symptom, f.severity) for f in result.findings] == [("optimizer-error", "note")]
    assert vet(tmp_path, "break").verdict == "faulty"
    monkeypatch.setenv(landlock.VARIABLE, str(tmp_path))
    assert vet(tmp_path).verdict == "clean"


@needs_landlock
@pytest.mark.parametrize(
    ("strategy", "harm"),
    [("auto", "delete"), ("auto", "overwrite"), ("auto", "cut"), ("each", "delete")],
)
def test_a_pass_that_would_harm_the_model_is_at_fault_and_kept_from_it(
    harm: str, strategy: Strategy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(landlock.VARIABLE, str(tmp_path / "elsewhere"))
    result = vet(tmp_path, harm, strategy)
    assert result.verdict == "faulty"
    # With "each", the other passes are tried too.
    (found,) = (f for f in result.findings if f.culprit == [harm])
    assert (found.symptom, found.severity) == ("optimizer-error", "fault")
    assert str(tmp_path / ("model.data" if harm == "cut" else "model.onnx")) in found.message
    kept = onnx.load(tmp_path / "model.onnx")
    assert numpy_helper.to_array(kept.graph.initializer[0]).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("harm", "file", "words"),
    [
        ("delete", "model.onnx", "deleted"),
        ("overwrite", "model.onnx", "changed"),
        ("cut", "model.data", "changed"),
        ("hide", "model.onnx", "given the mode 400"),
    ],
)
def test_harm_to_the_model_is_told_where_nothing_prevents_it(
    harm: str, file: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(landlock.VARIABLE, "off")
    result = vet(tmp_path, harm)
    assert result.verdict == "undecided"
    assert f"{tmp_path / file} was {words}" in result.reason


@pytest.mark.parametrize("strategy", ["auto", "each"])
def test_nobody_is_blamed_for_what_fails_without_the_model(
    strategy: Strategy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A fresh process finds no file, whatever pass it is to try.
    monkeypatch.setenv(landlock.VARIABLE, "off")
    result = vet(tmp_path, "delete,break", strategy)
    assert result.verdict == "undecided"
    assert f"{tmp_path / 'model.onnx'} was deleted" in result.reason
    assert not any(f.confirmed for f in result.findings if f.severity == "fault")


@needs_landlock
def test_a_copy_of_the_model_elsewhere_is_judged_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(landlock.VARIABLE, str(tmp_path / "elsewhere"))
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        assert vet(tmp_path / name, "delete", cache=tmp_path / "cache").verdict == "faulty"


@needs_landlock
def test_a_script_of_a_bundle_is_confined_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(landlock.VARIABLE, str(tmp_path / "elsewhere"))
    (kept := tmp_path / "model.onnx").write_text("it")
    script = tmp_path / "repro.py"
    script.write_text(
        "import os, tempfile\n"
        "tempfile.NamedTemporaryFile().close()\n"
        "print('began')\n"
        f"os.unlink({str(kept)!r})\n"
    )
    assert try_script(script, 60)[:2] == (1, "began\n")
    assert kept.read_text() == "it"
    monkeypatch.setenv(landlock.VARIABLE, "off")
    assert try_script(script, 60)[:2] == (0, "began\n")


@needs_landlock
def test_a_script_of_a_conversion_writes_in_its_own_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kept := tmp_path / "model.pt").write_text("it")
    (folder := tmp_path / "part").mkdir()
    (folder / "reproduce.py").write_text(
        "import os, sys, tempfile\n"
        "tempfile.NamedTemporaryFile().close()\n"
        "open('converted.onnx', 'w').close()\n"
        f"os.unlink({str(kept)!r})\n"
        f"print({SAID!r})\n"
        "sys.exit(1)\n"
    )
    assert not script_shows(folder, 60)
    assert kept.read_text() == "it"
    assert (folder / "converted.onnx").exists()
    monkeypatch.setenv(landlock.VARIABLE, "off")
    assert script_shows(folder, 60)


FAULTY = """<ir_version: 8, opset_import: ["" : 17]>
g (float[3,2] a, float[3,4] b) => (float[2,4] y) { t = Transpose(a)  y = Gemm(t, b) }"""
USES = (
    ("vet model.onnx --reduce --out bundles --limit 1", 1),
    ("convert model.onnx --via onnx_version --random 1", 0),
    ("hunt --optimizer onnxoptimizer --pool fusions --budget 30 --out hunted -q", 1),
    ("models generate --count 1 --out generated --pool fusions --nodes 2-3", 0),
)


@needs_landlock
@pytest.mark.parametrize(
    ("words", "code"),
    [USES[0], *(pytest.param(*use, marks=pytest.mark.long) for use in USES[1:])],
    ids=lambda use: str(use).partition(" ")[0],
)
def test_commands_work_confined_and_with_an_empty_cache(
    words: str, code: int, tmp_path: Path
) -> None:
    """Other tests let workers write below the folder for tests, where their caches are too."""
    onnx.save(onnx.parser.parse_model(FAULTY), tmp_path / "model.onnx")
    environment = {n: v for n, v in os.environ.items() if n != landlock.VARIABLE}
    ran = subprocess.run(
        [sys.executable, "-m", "optvet_start", *words.split()],
        cwd=tmp_path,
        env={**environment, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    assert landlock.VARIABLE not in ran.stdout + ran.stderr


# --- what is said --------------------------------------------------------------------------------


@needs_network_rules
def test_the_page_tells_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = examine().checks
    tried = {c.message: c.status for c in checks if c.name == "tried here"}
    landlocked = [s for m, s in tried.items() if m.startswith("Landlock") and "refused" in m]
    assert landlocked == ["ok", "ok"]
    for means in ("PR_SET_PDEATHSIG", "no_new_privs", "RLIMIT_AS", "RLIMIT_FSIZE"):
        assert [s for m, s in tried.items() if m.startswith(means)] == ["ok"]
    assert any("UDP" in c.message for c in checks if c.name == "not protected")
    monkeypatch.setenv(landlock.VARIABLE, "off")
    assert [c.status for c in examine().checks if "turned off" in c.message] == ["warning"]


def test_a_kernel_without_it_is_told_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(landlock, "version", lambda: 0)
    assert not landlock.is_active()
    assert not landlock.confine([str(tmp_path)])
    (warned,) = (c for c in examine().checks if c.status == "warning")
    assert "not in this kernel" in warned.message


def test_the_page_is_a_command(tmp_path: Path) -> None:
    ran = Place(tmp_path).run("doctor", "--security", timeout_s=120)
    assert ran.code == 0, ran.said
    for words in ("main process", "tested workers", "limits of workers", "not protected"):
        assert words in ran.out
