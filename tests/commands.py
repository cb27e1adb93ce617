"""Commands as tests run them, in this process or in one of their own, and two models for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest

import optvet.cli
from optvet.cli import doctor
from optvet.engine import bench
from optvet.engine.environment.doctor import diagnose
from optvet.engine.plugin_entries import Loaded
from optvet.engine.precision import gains
from optvet.engine.vet.speed import verdict
from optvet.engine.work.timing import stopwatch
from optvet.spec.bench import LEAST_REPEATS
from optvet.spec.records import Diagnosis

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
CLEAN = HEAD + "clean (float[2,3] x) => (float[2,3] y) { z = Relu(x)  y = Identity(z) }"
FAULTY = (
    HEAD
    + """
faulty (float[3,2] a, float[3,4] b) => (float[2,4] y) { t = Transpose(a)  y = Gemm(t, b) }
"""
)
"""ONNX Optimizer raises on it, and keeps ``CLEAN`` intact."""
WRITER = (
    HEAD
    + """
g (int64[1,n] ids) => (float[1,n,3] logits)
<float[3,2] e = {1, 0, 0, 1, 1, 1}, float[2,3] w = {0, 1, 2, 2, 0, 1}>
{ x = Gather(e, ids)  logits = MatMul(x, w) }
"""
)
"""Scores of the token that follows each token."""


class Ran(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Ran]
Spawn = Callable[..., "subprocess.Popen[str]"]


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

    def spawn(
        *arguments: object, environment: Mapping[str, str] | None = None, **settings: Any
    ) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | settings
        process = subprocess.Popen(
            [sys.executable, "-m", "optvet_start", *map(str, arguments)],
            text=True,
            env={**os.environ, **(environment or {})},
            # Whoever runs the tests in the background of a shell has it ignored.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
            **pipes,
        )
        started.append(process)
        return process

    yield spawn
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def quick_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time as briefly as an answer allows: how wide its interval is does not matter to the test."""
    monkeypatch.setattr(stopwatch, "_REPEAT_S", 0.0)
    monkeypatch.setattr(bench, "_EXTRA_S", 0.0)
    for module in (verdict, gains):
        monkeypatch.setattr(module, "REPEATS", LEAST_REPEATS)


@pytest.fixture
def few_diagnosed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``doctor`` look at two plugins: importing the libraries of all takes minutes."""

    def diagnose_few(plugins: Sequence[Loaded], *given: Any, **options: Any) -> Diagnosis:
        few = [p for p in plugins if p.name in ("onnxoptimizer", "onnxruntime")]
        return diagnose(few, *given, installed=[], **options)

    monkeypatch.setattr(doctor, "diagnose", diagnose_few)
