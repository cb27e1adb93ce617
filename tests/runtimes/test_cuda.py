"""What only a GPU shows; ``pytest -m gpu`` runs it where there is one."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from optvet import bench, vet
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.plugin import Artifact
from optvet_onnxruntime.providers import with_settings
from optvet_onnxruntime.runtime import OrtOptions, OrtRuntime

ort = pytest.importorskip("onnxruntime")

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
SHAPE = (1, 64, 16, 16)


def convolution() -> onnx.ModelProto:
    """A convolution of 576 products per sum, then Relu: enough for TF32 to be seen."""
    weight = np.random.default_rng(0).normal(size=(64, 64, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, SHAPE) for n in "xy")
    weights = [numpy_helper.from_array(weight, "w")]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


def on_a_gpu(options: OrtOptions) -> np.ndarray:
    """The output for one input. Called in workers, too."""
    feeds = {"x": np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)}
    artifact = Artifact("onnx", convolution().SerializeToString())
    return OrtRuntime().load(artifact, options).run(feeds)["y"]


class OnCpu(ort.InferenceSession):  # type: ignore[name-defined,misc]  # it has no types
    """A session that falls back to the CPU, whatever is asked for."""

    def __init__(self, model: bytes, options: object = None, providers: object = ()) -> None:
        super().__init__(model, options, providers=[CPU])


def gpu() -> None:
    """Skip the test where no GPU can be used."""
    if CUDA not in ort.get_available_providers():
        pytest.skip("needs onnxruntime-gpu; this ONNX Runtime has no provider for CUDA")
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("there is no NVIDIA device")


def test_kernels_of_cuda_are_exact_where_models_are_judged() -> None:
    judged = with_settings([CUDA, CPU], device_id=1, tf32=False, deterministic=True)
    assert judged == [
        (CUDA, {"device_id": "1", "use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}),
        CPU,
    ]
    deployed = with_settings(["ROCMExecutionProvider"], device_id=0, tf32=True, deterministic=False)
    assert deployed == [("ROCMExecutionProvider", {"device_id": "0"})]


def snippet_of(options: OrtOptions) -> Callable[[object], dict[str, np.ndarray]]:
    """The function ``run`` of a bundle's script, on the input of ``on_a_gpu``."""
    code = textwrap.indent(OrtRuntime().snippet(options), "    ")
    space: dict[str, Any] = {}
    exec(f"def run(model, feeds):\n{code}", space)
    feeds = {"x": np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)}
    return lambda model: space["run"](model, feeds)


def test_a_script_that_silently_ran_on_the_cpu_cannot_judge_what_a_gpu_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[bool] = []
    monkeypatch.setattr(ort, "preload_dlls", lambda: loaded.append(True), raising=False)
    monkeypatch.setattr(ort, "InferenceSession", OnCpu)
    run = snippet_of(OrtOptions(providers=(CUDA, CPU)))
    with pytest.raises(ImportError, match=r"the session runs without \{'CUDAExecution"):
        run(convolution())
    assert loaded
    given = OnCpu(convolution().SerializeToString())
    assert run(given)["y"].shape == SHAPE
    assert snippet_of(OrtOptions())(convolution())["y"].shape == SHAPE


@pytest.mark.gpu
def test_a_script_runs_on_a_gpu_as_the_clean_room_does() -> None:
    gpu()
    options = OrtOptions(providers=(CUDA,))
    assert np.array_equal(snippet_of(options)(convolution())["y"], on_a_gpu(options))


@pytest.mark.gpu
def test_the_clean_room_computes_as_a_cpu_does() -> None:
    gpu()
    expected = on_a_gpu(OrtOptions())
    largest = np.abs(expected).max()

    def error(options: OrtOptions) -> float:
        return float(np.abs(on_a_gpu(options) - expected).max() / largest)

    assert error(OrtOptions(providers=(CUDA,))) < 5e-6


@pytest.mark.gpu
def test_a_gpu_is_used_within_the_memory_of_a_task() -> None:
    gpu()
    with Sandbox(jobs=1, limits=Limits(120, 8 << 30), preload=["onnxruntime"]) as sandbox:
        for _ in range(2):
            outcome = sandbox.call(on_a_gpu, OrtOptions(providers=(CUDA,)))
            assert outcome.failure is None
            assert outcome.value is not None
            assert outcome.value.shape == SHAPE


@pytest.mark.gpu
def test_a_model_is_vetted_on_a_gpu(tmp_path: Path) -> None:
    gpu()
    onnx.save(convolution(), tmp_path / "model.onnx")
    result = vet(
        tmp_path / "model.onnx",
        optimizer="onnxruntime",
        runtime_options={"providers": [CUDA]},
        limit=2,
        cache_dir=tmp_path,
    )
    assert result.verdict in ("clean", "drift")


@pytest.mark.gpu
def test_bench_reads_a_gpu_and_profiles_its_kernels(tmp_path: Path) -> None:
    gpu()
    onnx.save(convolution(), tmp_path / "model.onnx")
    result = bench(
        tmp_path / "model.onnx",
        optimizer=["onnxruntime"],
        pipeline=["all"],
        provider=[CUDA],
        repeats=3,
        extra_repeats=False,
        ncu=shutil.which("ncu") is not None,
        cache_dir=tmp_path,
    )
    (variant,) = result.variants
    assert variant.device is not None, variant.unknown
    assert variant.device.memory_bytes is not None
    assert variant.device.readings > 10
    if shutil.which("ncu") is None:
        pytest.skip("the rest needs Nsight Compute")
    assert variant.kernels is not None, variant.unknown
    assert variant.kernels.launches >= 1
    assert all(k.utilisation is not None for k in variant.kernels.kernels)
