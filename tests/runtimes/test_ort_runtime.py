from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from optvet import Artifact
from optvet_ort_runtime import OrtOptions, OrtRuntime, _placed, check_placement

ort = pytest.importorskip("onnxruntime")

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x) => (float[2] y) { y = Relu(x) }"""


def artifact() -> Artifact:
    return Artifact("onnx", onnx.parser.parse_model(MODEL).SerializeToString())


def test_a_provider_that_the_build_lacks_is_refused_not_replaced() -> None:
    if CUDA in ort.get_available_providers():
        pytest.skip("this ONNX Runtime has a provider for CUDA")
    with pytest.raises(RuntimeError, match=r"has no CUDA.*install optvet\[gpu\]"):
        OrtRuntime().load(artifact(), OrtOptions(providers=(CUDA, CPU)))


def test_a_provider_that_was_left_out_of_the_session_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"CUDA.* could not be loaded, so .* run on CPU"):
        check_placement([CUDA], [CPU], [CPU])


def test_a_session_without_any_node_on_the_accelerator_is_refused() -> None:
    with pytest.raises(RuntimeError, match="no node of this model runs on CUDA"):
        check_placement([CUDA], [CUDA, CPU], [CPU, CPU])


@pytest.mark.parametrize("placed", [[CPU, CUDA], [], None])
def test_a_session_with_nodes_on_the_accelerator_is_accepted(placed: list[str] | None) -> None:
    check_placement([CUDA], [CUDA, CPU], placed)


def test_the_placement_of_nodes_is_read_from_the_session() -> None:
    settings = ort.SessionOptions()
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    data = artifact().data
    session = ort.InferenceSession(data, settings, providers=[CPU])
    if not hasattr(session, "get_provider_graph_assignment_info"):
        pytest.skip("ONNX Runtime before 1.24 does not tell")
    assert _placed(session) == [CPU]


def test_a_model_runs_on_the_gpu() -> None:
    if CUDA not in ort.get_available_providers():
        pytest.skip("needs onnxruntime-gpu; this ONNX Runtime has no provider for CUDA")
    try:
        session = OrtRuntime().load(artifact(), OrtOptions(providers=(CUDA, CPU)))
    except RuntimeError as error:
        pytest.skip(f"no GPU can be used: {error}")
    assert session.run({"x": np.array([-1, 2], np.float32)})["y"].tolist() == [0, 2]
