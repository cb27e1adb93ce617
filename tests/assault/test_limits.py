"""Under ulimit, optvet names the limit that was hit and blames no pass."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.assault.harness import Place, Ran

VET = ("vet", "large.onnx", "--optimizer", "onnxoptimizer", "--limit", "1")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A place with a small model, and one of 360 KB."""
    place = Place(tmp_path / "place")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    sides = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 300]) for n in "xy"]
    weights = numpy_helper.from_array(np.eye(300, dtype=np.float32), "w")
    graph = helper.make_graph(nodes, "large", sides[:1], sides[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, place.work / "large.onnx")
    return place


def run(place: Place, limit: str, *words: str) -> Ran:
    """A command under ``limit``, an option of ulimit."""
    shell = f'ulimit {limit}; exec "$@"'
    # What Python compiles would be cut off at the limit, and be broken for others.
    environment = place.environment | {"PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        ["bash", "-c", shell, "bash", sys.executable, "-m", "optvet_start", *words],
        cwd=place.work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return Ran(done.returncode, " ".join(done.stdout.split()), " ".join(done.stderr.split()), 0)


FILES = "at most 12 files may be open at a time (ulimit -n); raise that limit"


def test_too_many_open_files_are_told_with_the_limit(place: Place) -> None:
    hunt = ("hunt", "--optimizer", "onnxoptimizer", "--budget", "1", "--out", "hunted")
    for words in (VET, hunt):
        ran = run(place, "-n 12", *words)
        assert ran.code == 3, ran.said
        assert FILES in ran.err
        assert "Traceback" not in ran.err


def test_a_pass_is_not_blamed_for_a_limit_on_files(place: Place) -> None:
    ran = run(place, "-f 100", *VET, "--json", "answer.json")
    assert ran.code == 4, ran.said
    answer = json.loads((place.work / "answer.json").read_text())
    assert answer["verdict"] == "undecided"
    words = "a file may have at most 102,400 bytes here (ulimit -f); raise that limit"
    assert {f["severity"] for f in answer["findings"]} == {"note"}
    assert words in ran.out
    # Nothing of it is kept: without the limit the same command says that all is well.
    assert run(place, "-f unlimited", *VET).code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("models", "list", "--json", "models.json"),
        ("hunt", "--optimizer", "onnxoptimizer", "--budget", "1", "--out", "hunted"),
        ("models", "pull", "large.onnx", "--to", "copies"),
    ],
    ids=" ".join,
)
def test_a_file_that_may_not_grow_is_told_with_the_limit(
    place: Place, words: tuple[str, ...]
) -> None:
    ran = run(place, "-f 4", *words)
    assert ran.code == 3, ran.said
    assert "at most 4,096 bytes here (ulimit -f); raise that limit" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.long
def test_a_pass_is_not_blamed_for_a_limit_on_processor_time(place: Place) -> None:
    words = ("vet", str(place.model), "--optimizer", "evil", "--pipeline", "keep_a,spin")
    ran = run(place, "-t 6", *words, "--limit", "1", "--json", "answer.json")
    assert ran.code == 4, ran.said
    assert "a process may compute for 6 s here (ulimit -t); raise that limit" in ran.out
