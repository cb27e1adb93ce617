from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import onnx.parser
import pytest

import optvet.cli

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
Write = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPTVET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


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
def spawn() -> Callable[..., subprocess.Popen[str]]:
    """Start a command as a process of its own."""

    def spawn(*arguments: object, **settings: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", "import sys, optvet.cli; sys.exit(optvet.cli.main())"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | settings
        # Whoever runs the tests in the background of a shell has it ignored, and so would this.
        heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        words = [*command, *map(str, arguments)]
        return subprocess.Popen(words, text=True, preexec_fn=heed, **pipes)

    return spawn


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write ONNX text as a model file."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(onnx.parser.parse_model(text), path)
        return path

    return write


@pytest.fixture
def clean(write: Write) -> Path:
    return write("clean.onnx", CLEAN)


@pytest.fixture
def faulty(write: Write) -> Path:
    return write("faulty.onnx", FAULTY)
