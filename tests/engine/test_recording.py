"""Kits that run a model where optvet does not, and what is judged of their recordings."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from tests.commands import Run, run

from optvet.engine.recording.reading import read_recording
from optvet.spec.errors import InputError

__all__ = ["run"]

LAYERS = 40


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A chain of MatMul, Add and Tanh."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for i in range(LAYERS):
        weights.append(numpy_helper.from_array(rng.normal(size=(6, 6)).astype("f4"), f"w{i}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("Add", [f"m{i}", "x"], [f"a{i}"]))
        nodes.append(helper.make_node("Tanh", [f"a{i}"], [last := f"t{i}"]))
    nodes[-1].output[0] = "y"
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 6]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def record(kit: Path) -> Path:
    """The recording that the kit's client for Python writes."""
    command = [sys.executable, "record.py"]
    subprocess.run(command, cwd=kit, check=True, capture_output=True)
    return kit / "recording.npz"


def damage(kit: Path, node: int) -> None:
    """Let the "device" get a MatMul wrong."""
    made = onnx.load(kit / "model.onnx")
    (weight,) = (t for t in made.graph.initializer if t.name == f"w{node}")
    array = numpy_helper.to_array(weight) * np.float32(1.02)
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    onnx.save(made, kit / "model.onnx")


@pytest.mark.parametrize("node", [0, 17, LAYERS - 1])
def test_the_wrong_node_of_a_device_is_named_in_two_round_trips(
    model: Path, tmp_path: Path, run: Run, node: int
) -> None:
    assert run("record", model, "--out", tmp_path / "kit", "--limit", 2).code == 0
    damage(tmp_path / "kit", node)
    first = record(tmp_path / "kit")
    ran = run("compare", model, first)
    assert ran.code == 1
    assert "--after" in ran.out, "16 values of 120 nodes leave several"
    again = run("record", model, "--after", first, "--out", tmp_path / "further")
    assert again.code == 0, again.err
    damage(tmp_path / "further", node)
    told = tmp_path / "told.json"
    ran = run("compare", model, record(tmp_path / "further"), "--layers", "--json", told)
    assert ran.code == 1
    found = json.loads(told.read_text())
    assert found["diverges_at"] == f"m{node}"
    assert len(found["before"]) == 1
    assert found["recording"]["providers"] == ["CPUExecutionProvider"]
    assert "wrong is the node" in ran.out


def test_a_right_device_agrees(model: Path, tmp_path: Path, run: Run) -> None:
    assert run("record", model, "--out", tmp_path / "kit", "--values", "all").code == 0
    recording = record(tmp_path / "kit")
    ran = run("compare", model, recording)
    assert (ran.code, "no value differs" in ran.out) == (0, True)
    more = run("record", model, "--after", recording, "--out", tmp_path / "further")
    assert more.code == 2
    assert "no recorded value differs" in more.err


def test_what_the_devices_arithmetic_explains_is_no_difference(
    model: Path, tmp_path: Path, run: Run
) -> None:
    assert run("record", model, "--out", tmp_path / "kit").code == 0
    damage(tmp_path / "kit", LAYERS - 1)
    recording = record(tmp_path / "kit")
    assert run("compare", model, recording).code == 1
    assert run("compare", model, recording, "--tolerance", 0.05).code == 0


def test_a_device_that_fails_is_told(model: Path, tmp_path: Path, run: Run) -> None:
    assert run("record", model, "--out", tmp_path / "kit").code == 0
    made = onnx.load(tmp_path / "kit/model.onnx")
    made.graph.node[3].op_type = "NoSuchOperator"
    onnx.save(made, tmp_path / "kit/model.onnx")
    ran = run("compare", model, record(tmp_path / "kit"))
    assert ran.code == 1
    assert "the device failed" in ran.out
    assert "NoSuchOperator" in ran.out


def test_a_client_in_javascript_writes_the_same(model: Path, tmp_path: Path, run: Run) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    kit = tmp_path / "kit"
    assert run("record", model, "--out", kit, "--values", 0).code == 0
    (kit / "fake.mjs").write_text(FAKE)
    subprocess.run([node, "fake.mjs"], cwd=kit, check=True, capture_output=True, timeout=60)
    found = read_recording(kit / "fake.npz")
    ours = read_recording(record(kit))
    assert found.about.model == ours.about.model
    assert np.array_equal(found.inputs[0]["x"], ours.inputs[0]["x"])
    assert np.array_equal(found.values[0]["half"], np.array([[1.5, -2]], np.float16))
    assert np.array_equal(found.values[0]["long"], np.array(2**60))
    assert np.array_equal(found.values[0]["yes"], np.array([True, False]))


FAKE = """
import { readFile, writeFile } from "node:fs/promises";
import { record } from "./recorder.mjs";

class Tensor {
  constructor(type, data, dims) { Object.assign(this, { type, data, dims }); }
  async getData() { return this.data; }
}
const session = {
  outputNames: ["half", "long", "yes"],
  async run(feeds) {
    return {
      half: new Tensor("float16", Uint16Array.from([0x3e00, 0xc000]), [1, 2]),
      long: new Tensor("int64", BigInt64Array.from([2n ** 60n]), []),
      yes: new Tensor("bool", Uint8Array.from([1, 0]), [2]),
    };
  },
};
const ort = { Tensor, InferenceSession: { create: async () => session } };
const read = async (name) => new Uint8Array(await readFile(name));
const { archive } = await record(ort, read, { executionProviders: ["x"] }, "c", "r", "s");
await writeFile("fake.npz", new Uint8Array(await archive.arrayBuffer()));
"""


def _about(**changes: Any) -> np.ndarray:
    about: dict[str, Any] = {"schema": "optvet.recording/1", "model": "x"}
    about |= {"inputs": [[0, "x"]], "values": [[0, "y"]]}
    return np.frombuffer(json.dumps(about | changes).encode(), np.uint8)


HOSTILE: dict[str, Callable[[], dict[str, np.ndarray]]] = {
    "no about": lambda: {"x": np.zeros(1)},
    "no JSON": lambda: {"about": np.frombuffer(b"{", np.uint8)},
    "nested": lambda: {"about": np.frombuffer(b"[" * 200_000, np.uint8)},
    "another schema": lambda: {"about": _about(schema="optvet.recording/9")},
    "unknown field": lambda: {"about": _about(more=1)},
    "negative sample": lambda: {"about": _about(inputs=[[-1, "x"]])},
    "a sample without inputs": lambda: {"about": _about(values=[[7, "y"]])},
    "far sample": lambda: {"about": _about(inputs=[[10**12, "x"]])},
    "missing array": lambda: {"about": _about(), "i0": np.zeros(1)},
    "pickled": lambda: {"about": _about(), "i0": np.array([object()]), "v0": np.zeros(1)},
    "about of floats": lambda: {"about": np.full(9, np.nan)},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_recording_is_bad_input(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "recording.npz"
    np.savez(file, allow_pickle=True, **HOSTILE[kind]())
    with pytest.raises(InputError, match=r"recording\.npz"):
        read_recording(file)


def test_a_recording_of_another_model_is_refused(model: Path, tmp_path: Path, run: Run) -> None:
    file = tmp_path / "recording.npz"
    zeros = np.zeros((2, 6), np.float32)
    np.savez(file, about=_about(), i0=zeros, v0=zeros)
    ran = run("compare", model, file)
    assert ran.code == 2
    assert "of another model" in ran.err
    empty = ModelProto().SerializeToString()
    (tmp_path / "recording.npz").write_bytes(empty + b"no zip")
    assert run("compare", model, file).code == 2


def test_what_follows_from_sizes_alone_is_not_recorded(tmp_path: Path, run: Run) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2, 3] x) => (float[3, 2] y) {
        s = Shape(x)  n = Neg(s)  p = Abs(n)  r = Relu(x)  f = Reshape(r, p)  y = Transpose(f)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    kit = tmp_path / "kit"
    assert run("record", tmp_path / "model.onnx", "--out", kit, "--values", "all").code == 0
    asked = [o.name for o in onnx.load(kit / "model.onnx").graph.output]
    assert asked == ["y", "r", "f"]
