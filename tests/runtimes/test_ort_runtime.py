from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from optvet import Unsupported, UsageError, vet
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.plugin import Artifact, Session
from optvet.spec.request import VetRequest
from optvet_onnxruntime.providers import check_placement, placed_providers
from optvet_onnxruntime.runtime import OrtOptions, OrtRuntime
from optvet_onnxruntime.session_profile import node_times

ort = pytest.importorskip("onnxruntime")

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
ANY_LENGTH = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n] x) => (float[n] y) { y = Relu(x) }"""
"""Inputs are guessed, and tried on the original."""
MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x) => (float[2] y) { y = Relu(x) }"""


def artifact() -> Artifact:
    return Artifact("onnx", onnx.parser.parse_model(MODEL).SerializeToString())


def test_a_provider_that_the_build_lacks_is_refused_not_replaced() -> None:
    if CUDA in ort.get_available_providers():
        pytest.skip("this ONNX Runtime has a provider for CUDA")
    with pytest.raises(UsageError, match=r"has no CUDA.*install optvet\[gpu\]"):
        OrtRuntime().load(artifact(), OrtOptions(providers=(CUDA, CPU)))


def test_a_provider_that_does_not_exist_is_told_from_one_that_is_missing() -> None:
    with pytest.raises(UsageError, match=r"no execution provider 'cuda'; .* has .*CPUExecution"):
        OrtRuntime().load(artifact(), OrtOptions(providers=("cuda",)))


@dataclass
class OnDevice(OrtRuntime):
    """Refuses to load while there is no device."""

    device: Path = Path()
    name: str = "on-device"

    def load(self, artifact: Artifact, options: OrtOptions) -> Session:
        if not self.device.exists():
            raise UsageError("no such device")
        return super().load(artifact, options)


@pytest.mark.parametrize("text", [MODEL, ANY_LENGTH], ids=["fixed", "any-length"])
def test_a_device_that_is_missing_is_no_fault_and_is_not_remembered(
    text: str, tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(pytestconfig.rootpath)  # workers import this file by name
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    model = open_model(tmp_path / "model.onnx", "model.onnx", tmp_path)
    plugins = Plugins()
    plugins.register("runtime", OnDevice(tmp_path / "device"))
    settings = VetRequest(model="model", runtime="on-device", limit=1, cache_dir=tmp_path)
    with pytest.raises(UsageError, match=r"^no such device$"):
        vet_model(model, settings, plugins)
    (tmp_path / "device").touch()
    assert vet_model(model, settings, plugins).verdict == "clean"


def test_inputs_that_were_tried_under_one_option_are_tried_again_under_another(
    tmp_path: Path,
) -> None:
    onnx.save(onnx.parser.parse_model(ANY_LENGTH), tmp_path / "model.onnx")
    path = tmp_path / "model.onnx"
    with pytest.raises(UsageError, match="no execution provider 'cuda'"):
        vet(path, runtime_options={"providers": ["cuda"]}, cache_dir=tmp_path)
    assert vet(path, cache_dir=tmp_path).verdict == "clean"


def test_a_provider_that_was_left_out_of_the_session_is_refused() -> None:
    with pytest.raises(UsageError, match=r"CUDA.* could not be loaded, so .* run on CPU"):
        check_placement([CUDA], [CPU], [CPU])


def test_a_session_without_any_node_on_the_accelerator_is_refused() -> None:
    with pytest.raises(UsageError, match="no node of this model runs on CUDA"):
        check_placement([CUDA], [CUDA, CPU], [CPU, CPU])


@pytest.mark.parametrize("placed", [[CPU, CUDA], [], None])
def test_a_session_with_nodes_on_the_accelerator_is_accepted(placed: list[str] | None) -> None:
    check_placement([CUDA], [CUDA, CPU], placed)


@pytest.mark.parametrize("places", [[1, 5], [[0, 1], [1, 2]]])
def test_a_sparse_constant_is_given_as_the_array_that_it_stands_for(places: list[Any]) -> None:
    values = numpy_helper.from_array(np.array([2, 3], np.float32), "values")
    where = numpy_helper.from_array(np.array(places, np.int64), "places")
    sparse = helper.make_sparse_tensor(values, where, [2, 3])
    node = helper.make_node("Constant", [], ["y"], sparse_value=sparse)
    output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 3])
    model = helper.make_model(
        helper.make_graph([node], "g", [], [output]),
        opset_imports=[helper.make_opsetid("", 13)],
        ir_version=8,
    )
    session = OrtRuntime().load(Artifact("onnx", model.SerializeToString()), OrtOptions())
    assert session.run({})["y"].tolist() == [[0, 2, 0], [0, 0, 3]]


def test_the_placement_of_nodes_is_read_from_the_session() -> None:
    settings = ort.SessionOptions()
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    data = artifact().data
    session = ort.InferenceSession(data, settings, providers=[CPU])
    if not hasattr(session, "get_provider_graph_assignment_info"):
        pytest.skip("ONNX Runtime before 1.24 does not tell")
    assert placed_providers(session) == [CPU]


@pytest.mark.gpu
def test_a_model_runs_on_the_gpu() -> None:
    if CUDA not in ort.get_available_providers():
        pytest.skip("needs onnxruntime-gpu; this ONNX Runtime has no provider for CUDA")
    try:
        session = OrtRuntime().load(artifact(), OrtOptions(providers=(CUDA, CPU)))
    except UsageError as error:
        pytest.skip(f"no GPU can be used: {error}")
    assert session.run({"x": np.array([-1, 2], np.float32)})["y"].tolist() == [0, 2]


LOOP = """<ir_version: 8, opset_import: ["" : 17]>
g (float[64,64] x) => (float[64,64] y) <int64 trips = {9}, bool go = {1}> {
    y = Loop (trips, go, x) <
        body = b (int64 i, bool c, float[64,64] a) => (bool d, float[64,64] e)
            { d = Identity(c)  m = MatMul(a, a)  e = Tanh(m) }
    >
}"""


def test_the_profile_tells_each_node_and_counts_the_nodes_of_a_loop_apart(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(LOOP)
    model.graph.node[0].name = 'a "name"\\ of\nparts'
    feeds = {"x": np.full((64, 64), 0.01, np.float32)}
    runtime = OrtRuntime()
    source = Artifact("onnx", model.SerializeToString())
    found = runtime.profile(source, [feeds] * 3, runtime.options, tmp_path)
    assert (found.wanted, found.runs) == (CPU, 3)
    calls = {node.operator: node.calls for node in found.nodes}
    assert calls == {"Loop": 1, "MatMul": 9, "Tanh": 9, "Identity": 9}
    assert found.nodes[0].name == 'a "name"\\ of\nparts'


def event(name: str, ts: int, dur: int, tid: int = 1) -> dict[str, Any]:
    about = {"op_name": name, "provider": CPU, "node_index": "0"}
    kind = "Session" if name == "model_run" else "Node"
    shown = name if kind == "Session" else f"{name}_kernel_time"
    return {"cat": kind, "name": shown, "ts": ts, "dur": dur, "tid": tid, "args": about}


def test_times_of_a_profile_are_without_the_first_run_and_without_inner_nodes() -> None:
    events = [
        event("model_run", 0, 99),
        event("Loop", 1, 90),
        event("model_run", 100, 99),
        event("Loop", 101, 90),
        event("Exp", 101, 30),  # begins in the same microsecond
        event("Log", 131, 20),
        event("Neg", 131, 20, tid=2),  # another thread
        event("Relu", 191, 5),
    ]
    times = {n.operator: round(n.seconds * 1e6) for n in node_times(events, skip=1)}
    assert times == {"Loop": 40, "Exp": 30, "Log": 20, "Neg": 20, "Relu": 5}


def test_a_pause_of_the_machine_in_one_run_is_not_the_time_of_a_node() -> None:
    runs = ((0, 9), (100, 10), (200, 90), (300, 12))
    events = [e for ts, dur in runs for e in (event("model_run", ts, 99), event("Exp", ts, dur))]
    (node,) = node_times(events, skip=1)
    assert (node.calls, round(node.seconds * 1e6)) == (1, 12)


@pytest.mark.parametrize("events", [[], {}, [{"name": "model_run"}], [1], None])
def test_a_profile_of_another_form_is_refused_in_words(events: Any) -> None:
    with pytest.raises(Unsupported, match="profile cannot be read"):
        node_times(events, skip=1)


@pytest.mark.gpu
def test_the_profile_tells_that_nodes_ran_on_the_gpu(tmp_path: Path) -> None:
    if CUDA not in ort.get_available_providers():
        pytest.skip("needs onnxruntime-gpu; this ONNX Runtime has no provider for CUDA")
    asked = OrtOptions(providers=(CUDA, CPU))
    feeds = {"x": np.array([-1, 2], np.float32)}
    try:
        found = OrtRuntime().profile(artifact(), [feeds], asked, tmp_path)
    except UsageError as error:
        pytest.skip(f"no GPU can be used: {error}")
    assert found.wanted == CUDA
    assert {node.provider for node in found.nodes if node.operator == "Relu"} == {CUDA}
