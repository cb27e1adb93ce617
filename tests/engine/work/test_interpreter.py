"""Tasks that run under the Python of another environment."""

from __future__ import annotations

import importlib
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

import optvet
from optvet.engine.work.sandbox import Interpreter, Limits, Sandbox

TASKS = """
import os
import sys
import time


def where():
    return sys.executable, sys.path


def abort():
    os.abort()


def hang():
    time.sleep(600)


def hoard():
    kept = []
    while True:
        kept.append(bytearray(64 << 20))


def refuse():
    raise LookupError("nothing is there")
"""


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Interpreter:
    """A Python of its own, which sees the libraries of this one, but neither optvet nor tasks."""
    folder = tmp_path_factory.mktemp("abroad")
    venv.create(folder / "env", with_pip=False, symlinks=True)
    (found,) = (folder / "env").glob("lib/python*/site-packages")
    libraries = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    # A path file that is found in another folder than a site's is not executed there.
    (found / "libraries.pth").write_text("\n".join(sorted(libraries)) + "\n")
    tasks = folder / "tasks_abroad.py"
    tasks.write_text(TASKS)
    lent = (("optvet", str(optvet.__file__)), ("tasks_abroad", str(tasks)))
    return Interpreter(str(folder / "env" / "bin" / "python"), lent)


@pytest.fixture(scope="module")
def tasks(interpreter: Interpreter) -> Iterator[object]:
    """The module of tasks, here only so that its functions can be named."""
    folder = str(Path(dict(interpreter.lent)["tasks_abroad"]).parent)
    sys.path.append(folder)
    yield importlib.import_module("tasks_abroad")
    sys.path.remove(folder)
    del sys.modules["tasks_abroad"]


@pytest.fixture
def sandbox(interpreter: Interpreter) -> Iterator[Sandbox]:
    limits = Limits(timeout_s=60, memory_bytes=1 << 30)
    with Sandbox(jobs=1, limits=limits, interpreter=interpreter) as sandbox:
        yield sandbox


def test_a_task_runs_under_the_other_python(
    sandbox: Sandbox, interpreter: Interpreter, tasks: object
) -> None:
    outcome = sandbox.call(tasks.where)  # type: ignore[attr-defined]
    assert outcome.value is not None, outcome.failure
    executable, path = outcome.value
    assert executable == interpreter.executable
    assert str(Path(str(optvet.__file__)).parents[1]) not in path


@pytest.mark.parametrize(
    ("task", "kind", "words"),
    [
        ("abort", "abort", "SIGABRT"),
        ("hoard", "out-of-memory", "MemoryError"),
        ("refuse", "error", "nothing is there"),
    ],
)
def test_how_a_task_ends_there_is_its_outcome(
    sandbox: Sandbox, tasks: object, task: str, kind: str, words: str
) -> None:
    failure = sandbox.call(getattr(tasks, task)).failure
    assert failure is not None
    assert failure.kind == kind
    assert words in f"{failure.message} {failure.error_type}"
    assert sandbox.call(tasks.where).ok  # type: ignore[attr-defined]


def test_a_task_that_hangs_there_ends_at_its_limit(sandbox: Sandbox, tasks: object) -> None:
    failure = sandbox.call(tasks.hang, timeout_s=0.5).failure  # type: ignore[attr-defined]
    assert failure is not None
    assert failure.kind == "timeout"
    assert sandbox.call(tasks.where).ok  # type: ignore[attr-defined]
