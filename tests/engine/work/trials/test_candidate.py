"""How artifacts come from the process that made them to the one that judges them."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from optvet.engine.options import NoOptions
from optvet.engine.work.sandbox import Limits, Sandbox, handed_file
from optvet.engine.work.sandbox.answers import read_answer
from optvet.engine.work.trials.building import BuildSpec
from optvet.engine.work.trials.candidate import submit
from optvet.spec.files import file_sha256
from optvet.spec.types import Artifact, Traits

MIB = 1 << 20


class Same:
    """Gives back what it gets."""

    name = "same"
    options = NoOptions()
    traits = Traits()

    def apply(self, source: Artifact, passes: Any, options: Any) -> Artifact:
        """The same bytes."""
        return Artifact("onnx", source.data)


class Spoils(Same):
    """Changes the last byte."""

    name = "spoils"

    def apply(self, source: Artifact, passes: Any, options: Any) -> Artifact:
        """Other bytes, as many."""
        return Artifact("onnx", source.data[:-1] + b"!")


class Keeps(Same):
    """Holds the memory of its artifact mapped, and changes its size or a byte later."""

    name = "keeps"

    def __init__(self, truncates: bool) -> None:
        self.truncates = truncates

    def apply(self, source: Artifact, passes: Any, options: Any) -> Artifact:
        """The same bytes, once."""
        fd = os.dup(handed_file() or 0)
        os.ftruncate(fd, len(source.data))
        mapped = mmap.mmap(fd, len(source.data))  # forbids the seal against writing
        threading.Thread(target=self._spoil, args=(fd, mapped), daemon=True).start()
        return super().apply(source, passes, options)

    def _spoil(self, fd: int, mapped: mmap.mmap) -> None:
        while os.fstat(fd).st_size == 0 or mapped[:4] == bytes(4):
            time.sleep(0.001)
        if self.truncates:
            os.ftruncate(fd, 5)
        time.sleep(60)


def seen(artifact: Artifact) -> tuple[int, int]:
    """Size and process of the judge."""
    return len(artifact.data), os.getpid()


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> BuildSpec:
    """A model of 4 MiB, which no packet holds."""
    weights = np.zeros(MIB, np.float32)
    node = helper.make_node("Add", ["x", "w"], ["y"])
    values = [helper.make_tensor_value_info(n, 1, [MIB]) for n in ("x", "y")]
    graph = helper.make_graph(
        [node], "g", values[:1], values[1:], [numpy_helper.from_array(weights, "w")]
    )
    path = tmp_path_factory.mktemp("candidate") / "model.onnx"
    onnx.save(helper.make_model(graph), path)
    return BuildSpec(Path(path), file_sha256(path), Same(), NoOptions())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def confined() -> Iterator[Sandbox]:
    with Sandbox(jobs=1, limits=Limits(30.0, writable=())) as sandbox:
        yield sandbox


def test_an_artifact_does_not_pass_through_the_caller(
    spec: BuildSpec, confined: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[int] = []
    own = read_answer

    def load(data: bytes) -> Any:
        answers.append(len(data))
        return own(data)

    # Confined workers cannot open a file of the caller by its name in /proc.
    monkeypatch.setattr("optvet.engine.work.sandbox.remote.read_answer", load)
    size, judge = submit(confined, spec, seen).result().value or (0, 0)
    assert size == spec.blob.stat().st_size
    assert judge != os.getpid()
    assert len(answers) == 2
    assert max(answers) < 10_000


def inode(artifact: Artifact) -> int:
    """Which file the judge gets."""
    return os.fstat(handed_file() or 0).st_ino


def test_what_a_worker_makes_again_is_written_once(spec: BuildSpec) -> None:
    other = replace(spec, optimizer=Spoils())  # type: ignore[arg-type]
    with Sandbox(jobs=1, limits=Limits(30.0)) as sandbox:
        first, again = (submit(sandbox, spec, inode).result().value for _ in range(2))
        changed = submit(sandbox, other, inode).result().value
        # The worker that made it is gone, and another one writes it anew.
        anew = submit(sandbox, spec, inode, fresh=True).result().value
        sizes = [submit(sandbox, s, seen).result().value for s in (spec, other, spec)]
    assert first == again
    assert len({first, changed, anew}) == 3
    assert [size and size[0] for size in sizes] == [spec.blob.stat().st_size] * 3


def test_what_is_forgotten_is_written_again(
    spec: BuildSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optvet.engine.work.trials.candidate._KEPT", 0)
    with Sandbox(jobs=1, limits=Limits(30.0)) as sandbox:
        first, again = (submit(sandbox, spec, seen).result().value for _ in range(2))
    assert first == again


@pytest.mark.parametrize("truncates", [False, True])
def test_what_is_changed_after_it_was_handed_over_ends_no_vet(
    spec: BuildSpec, truncates: bool
) -> None:
    with Sandbox(jobs=1, limits=Limits(30.0)) as sandbox:
        about = replace(spec, optimizer=Keeps(truncates))  # type: ignore[arg-type]
        outcome = submit(sandbox, about, seen).result()
    if truncates and outcome.failure is not None:  # it was in time
        assert outcome.failure.kind == "abort"
        assert "after it had handed it over" in outcome.failure.message
    else:
        assert outcome.value is not None
        assert outcome.value[0] == spec.blob.stat().st_size
