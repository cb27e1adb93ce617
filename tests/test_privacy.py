"""Nothing leaves the machine unasked, and nothing is written but where it was asked for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.commands import CLEAN, FAULTY, HEAD

from optvet.engine.discovery import Plugins
from optvet.engine.work.sandbox import Outcome, Sandbox
from optvet.testing import Planted

OPTVET = (sys.executable, "-m", "optvet_start")
WITNESS = Path(__file__).with_name("witness.py")
PICTURE = (
    HEAD
    + "picture (float[1,3,32,32] x) => (float[1,3] y) { y = ReduceMean<axes=[2,3], keepdims=0>(x) }"
)
OURS = ("ORT_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY", "HF_UPDATE_DOWNLOAD_COUNTS")
"""Switches that must come from optvet, and not from whoever runs the tests."""
# Whatever else turns telemetry off, or redirects where files go.
ELSEWHERE = ("CI", "TF_BUILD", "JENKINS_URL", "DISABLE_TELEMETRY", "DO_NOT_TRACK", "HF_HUB_OFFLINE")


@cache
def _unavailable() -> str:
    """Why there is no network namespace to be had; empty if there is."""
    for tool in ("unshare", "ip", "mount"):
        if shutil.which(tool) is None:
            return f"there is no {tool}; install util-linux and iproute2"
    tried = subprocess.run([*_unshare(), "true"], capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"no network namespace: {tried.stderr.strip()}"


def _unshare() -> list[str]:
    return ["unshare", "--net", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]


class Seen(NamedTuple):
    code: int
    output: str
    traces: dict[str, list[str]]


Watched = Callable[..., Seen]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    """Run a command where every look-up, packet and file is seen."""
    if reason := _unavailable():
        pytest.skip(reason)
    for folder in ("home", "temporary", "work", "cache"):
        (tmp_path / folder).mkdir()
    environment = {k: v for k, v in os.environ.items() if k not in (*OURS, *ELSEWHERE)}
    environment = {k: v for k, v in environment.items() if not k.startswith(("XDG_", "HF_"))}
    environment |= {
        "HOME": str(tmp_path / "home"),
        "TMPDIR": str(tmp_path / "temporary"),
        "OPTVET_CACHE": str(tmp_path / "cache"),
    }

    def run(*command: object, **variables: str) -> Seen:
        report = tmp_path / "report.json"
        watch = [*_unshare(), sys.executable, str(WITNESS), str(report), *map(str, command)]
        done = subprocess.run(
            watch,
            env=environment | variables,
            cwd=tmp_path / "work",
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(report.read_text())
        left = {name: _files(tmp_path / name) for name in ("home", "temporary", "work")}
        traces = {name: found[name] for name in ("lookups", "packets", "files")} | left
        return Seen(found["code"], found["output"], {k: v for k, v in traces.items() if v})

    return run


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def model(tmp_path: Path, text: str = CLEAN) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def require(family: Any, name: str) -> None:
    if name not in Plugins().names(family):
        pytest.skip(f"{family} {name} is not installed")


NOISY = """
import os, socket
from pathlib import Path
for name in ("HOME", "TMPDIR"):
    Path(os.environ[name], "trace").touch()
Path("/var/tmp/trace").touch()
Path("trace").touch()
for call in (
    lambda: socket.getaddrinfo("telemetry.example", 443),
    lambda: socket.create_connection(("192.0.2.1", 443), timeout=1),
):
    try:
        call()
    except OSError:
        pass
"""


def test_the_witness_sees_what_a_talkative_program_does(watched: Watched) -> None:
    assert watched(sys.executable, "-c", NOISY).traces == {
        "lookups": ["telemetry.example"],
        "packets": ["192.0.2.1"],
        "files": ["/var/tmp/trace"],
        "home": ["trace"],
        "temporary": ["trace"],
        "work": ["trace"],
    }


def test_onnx_runtime_leaves_files_where_nothing_silences_it(watched: Watched) -> None:
    ran = watched(sys.executable, "-c", "import onnxruntime; print(onnxruntime.__version__)")
    if not ran.traces:
        pytest.skip(f"onnxruntime {ran.output.strip()} has no telemetry on this system")
    assert set(ran.traces) <= {"home", "temporary", "lookups", "packets"}


@pytest.mark.parametrize(
    "optimizer",
    [
        "onnxoptimizer",
        "onnxruntime",
        "openvino",
        "onnxsim",
        "onnxslim",
        "onnxscript",
        "ort_transformers",
        "tvm",
    ],
)
def test_a_vet_asks_nobody_and_leaves_nothing(
    optimizer: str, watched: Watched, tmp_path: Path
) -> None:
    require("optimizer", optimizer)
    ran = watched(*OPTVET, "vet", model(tmp_path), "--optimizer", optimizer)
    assert (ran.code, ran.traces) == (0, {}), ran.output


@pytest.mark.parametrize("runtime", ["openvino", "tvm", "torch", "onnx_reference"])
def test_no_runtime_asks_anybody(runtime: str, watched: Watched, tmp_path: Path) -> None:
    require("runtime", runtime)
    ran = watched(*OPTVET, "vet", model(tmp_path), "--runtime", runtime)
    assert (ran.code, ran.traces) == (0, {}), ran.output


@pytest.mark.long
def test_a_bundle_is_made_replayed_and_run_without_a_trace(
    watched: Watched, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    ran = watched(*OPTVET, "vet", model(tmp_path, FAULTY), "--reduce", "--out", out)
    assert (ran.code, ran.traces) == (1, {}), ran.output
    (bundle,) = out.iterdir()
    ran = watched(*OPTVET, "replay", bundle)
    assert (ran.code, ran.traces) == (1, {}), ran.output
    # Where optvet is not installed.
    ran = watched(sys.executable, bundle / "repro.py", PYTHONPATH="")
    assert (ran.code, ran.traces) == (1, {}), ran.output


# How fast anything is does not matter here.
BENCH = (*OPTVET, "bench", "--repeats", 3, "--no-extra-repeats")


@pytest.mark.long
def test_a_bench_asks_nobody_and_leaves_nothing(watched: Watched, tmp_path: Path) -> None:
    require("optimizer", "onnxruntime")
    ran = watched(*BENCH, model(tmp_path), "--optimizer", "onnxruntime")
    assert ran.code in (0, 1, 4), ran.output
    assert ran.traces == {}, ran.output


@pytest.mark.long
def test_a_bench_that_is_drawn_leaves_the_picture_alone(watched: Watched, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "plot.svg"
    ran = watched(*BENCH, model(tmp_path), "--plot", plot)
    assert ran.code in (0, 1, 4), ran.output
    assert (ran.traces, plot.is_file()) == ({}, True), ran.output


@pytest.mark.long
def test_a_campaign_is_run_and_reported_without_a_trace(watched: Watched, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "campaign.toml").write_text(
        f'models = ["{model(tmp_path, FAULTY)}"]\noptimizers = ["onnxoptimizer"]\n'
    )
    store = ("--store", out / "store")
    ran = watched(*OPTVET, "campaign", "run", out / "campaign.toml", *store)
    assert (ran.code, ran.traces) == (1, {}), ran.output
    page = ("--format", "html", "--out", out / "page.html")
    ran = watched(*OPTVET, "report", out / "store", *page)
    assert (ran.code, ran.traces) == (0, {}), ran.output


@pytest.mark.long
def test_local_rows_are_read_without_a_trace(watched: Watched, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"x": np.ones((2, 3)).tolist()}) + "\n")
    ran = watched(*OPTVET, "vet", model(tmp_path), "--dataset", f"huggingface:{rows}")
    assert (ran.code, ran.traces) == (0, {}), ran.output


@pytest.mark.long
def test_images_are_read_without_a_trace(watched: Watched, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", exc_type=ImportError)
    (tmp_path / "images").mkdir()
    image.new("RGB", (32, 32)).save(tmp_path / "images" / "a.png")
    ran = watched(
        *OPTVET, "vet", model(tmp_path, PICTURE), "--dataset", f"images:{tmp_path / 'images'}"
    )
    assert (ran.code, ran.traces) == (0, {}), ran.output


@pytest.mark.long
@pytest.mark.parametrize("command", ["doctor", "plugins", "models", "--version"])
def test_what_only_tells_asks_nobody(command: str, watched: Watched) -> None:
    ran = watched(*OPTVET, command)
    assert (ran.code, ran.traces) == (0, {}), ran.output


class Loud(Planted):
    """An optimizer whose library talks unless two variables say otherwise."""

    environment: Mapping[str, str] = {"LOUD_TELEMETRY": "0", "LOUD_LEVEL": "0"}


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """What a test sets among the process's variables is forgotten after it."""
    for name in Loud.environment:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def test_variables_of_a_plugin_reach_workers_and_spare_what_the_user_set(
    variables: pytest.MonkeyPatch,
) -> None:
    variables.setenv("LOUD_LEVEL", "7")
    Plugins([]).register("optimizer", Loud())
    with Sandbox(jobs=1) as sandbox:
        got = [sandbox.call(os.getenv, name) for name in Loud.environment]
    assert got == [Outcome("0", None), Outcome("7", None)]


def test_variables_are_set_before_a_version_is_asked(variables: pytest.MonkeyPatch) -> None:
    class Asking(Loud):
        def version(self) -> str:
            return f"telemetry {os.environ['LOUD_TELEMETRY']}"

    (entry,) = Plugins([]).register("optimizer", Asking()).all()
    assert (entry.version, entry.problem) == ("telemetry 0", None)


def test_built_in_plugins_silence_a_library_that_another_imports_at_its_top(
    tmp_path: Path, variables: pytest.MonkeyPatch
) -> None:
    variables.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    variables.syspath_prepend(tmp_path)
    source = "import os\nat_import = os.environ.get('ORT_DISABLE_TELEMETRY')\n"
    (tmp_path / "optvet_imports_at_its_top.py").write_text(source)
    first = EntryPoint("aaa", "optvet_imports_at_its_top", "optvet")
    # Of a family that the plugin with this variable is not of.
    Plugins([first, *entry_points(group="optvet")]).names("study")
    assert sys.modules["optvet_imports_at_its_top"].at_import == "1"
