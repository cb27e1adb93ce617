from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import onnx.parser
import pytest

import optvet.cli
from optvet.engine.campaign import Store, open_store

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
CLEAN = HEAD + "clean (float[2,3] x) => (float[2,3] y) { z = Relu(x)  y = Identity(z) }"
FAULTY = (
    HEAD
    + """
faulty (float[3,2] a, float[3,4] b) => (float[2,4] y) { t = Transpose(a)  y = Gemm(t, b) }
"""
)


class Ran(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Ran]
Spawn = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of the test's own, where it is, with a cache of its own."""
    monkeypatch.setenv("OPTVET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with a model that survives ONNX Optimizer, and one that does not."""
    folder = tmp_path / "models"
    folder.mkdir()
    for name, text in (("clean", CLEAN), ("faulty", FAULTY)):
        onnx.save(onnx.parser.parse_model(text), folder / f"{name}.onnx")
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process."""

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        code = optvet.cli.main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Start a command as a process of its own; it is killed with the test."""
    started: list[subprocess.Popen[str]] = []

    def spawn(*arguments: object, **environment: str) -> subprocess.Popen[str]:
        code = "import sys, optvet.cli; sys.exit(optvet.cli.main())"
        settings: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            text=True,
            env={**os.environ, **environment},
            # Whoever runs the tests in the background of a shell has it ignored.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
            **settings,
        )
        started.append(process)
        return process

    yield spawn
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store", create=True) as opened:
        yield opened
