"""OpenVINO as a runtime: in float32, whatever it does to names."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.answers import elsewhere

import optvet
from optvet_onnxruntime.runtime import OrtRuntime
from optvet_openvino.runtime import OpenVinoOptions, OpenVinoRuntime

if importlib.util.find_spec("openvino") is None:
    pytest.skip("needs openvino; install optvet[openvino]", allow_module_level=True)

Run = Callable[..., Any]
# Not softmax_11, which its importer reads as if it were of opset 13: tests/optimizers.
NAMES = "conv_bn_9 conv_bn_15 gemm half if_else if_then loop names qdq softmax_9 softmax_13".split()


@pytest.mark.parametrize("name", NAMES)
def test_it_agrees_with_onnxruntime(name: str, agrees: Run) -> None:
    agrees(OpenVinoRuntime(), name)


def test_quantized_models_may_run_on_integers(agrees: Run) -> None:
    agrees(OpenVinoRuntime(), "qdq", OpenVinoOptions(low_precision=True, snippets=True))


def test_the_clean_room_computes_in_float32_where_the_default_may_not(run: Run) -> None:
    expected = run(OrtRuntime(), "conv_bn_15").outputs["s"]["r"]

    def error(options: OpenVinoOptions) -> float:
        seen = run(OpenVinoRuntime(), "conv_bn_15", options=options).outputs["s"]["r"]
        return float(np.max(np.abs(seen - expected)) / np.max(np.abs(expected)))

    assert error(OpenVinoOptions()) < 1e-6
    # Where the processor has bfloat16, the runtime's own choice is that.
    assert error(OpenVinoOptions(precision="device")) < 5e-2


def test_an_output_may_be_listed_twice(run: Run) -> None:
    text = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x) => (float[2] y, float[1] z, float[2] y) { y = Relu(x)  z = ReduceSum(x) }
"""
    value = np.array([-1, 2], np.float32)
    ran = run(OpenVinoRuntime(), text, feeds={"x": value})
    assert ran.failure is None, ran.failure
    assert {n: v.tolist() for n, v in ran.outputs["s"].items()} == {"y": [0, 2], "z": [1]}


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("double", np.zeros(3), r"'x' is a double tensor.*computed in float32"),
        ("string", np.array(["a", "b", "c"], object), "'x' is a string tensor"),
    ],
)
def test_types_that_it_does_not_compute_in_are_refused(
    kind: str, value: np.ndarray, message: str, run: Run
) -> None:
    text = f"""
<ir_version: 8, opset_import: ["" : 13]>
g ({kind}[3] x) => ({kind}[3] y) {{ y = Identity(x) }}
"""
    failure = run(OpenVinoRuntime(), text, {"x": value}).failure
    assert failure is not None
    assert failure.stage == "load"
    assert failure.error_type == "optvet.spec.errors.Unsupported"
    assert re.search(message, failure.message)


def test_random_operators_are_refused(run: Run) -> None:
    text = """
<ir_version: 8, opset_import: ["" : 13]>
g (float[3] x) => (float[3] y) { y = RandomUniformLike(x) }
"""
    failure = run(OpenVinoRuntime(), text, {"x": np.zeros(3, np.float32)}).failure
    assert failure is not None
    assert (failure.stage, failure.error_type) == ("load", "optvet.spec.errors.Unsupported")
    assert "RandomUniformLike" in failure.message


def test_integers_beyond_32_bits_are_refused_not_wrapped(run: Run) -> None:
    text = """
<ir_version: 8, opset_import: ["" : 13]>
g (int64[2] x) => (int64[2] y) { y = Add(x, x) }
"""
    report = run(OpenVinoRuntime(), text, {"x": np.array([1, 2**31])})
    assert report.failure is not None
    assert "input 'x' does not fit int32" in report.failure.message
    small = run(OpenVinoRuntime(), text, {"x": np.array([1, 2**30 - 1])})
    assert small.outputs["s"]["y"].tolist() == [2, 2**31 - 2]


def test_bfloat16_passes_through(run: Run) -> None:
    text = """
<ir_version: 10, opset_import: ["" : 21]>
g (bfloat16[3] x) => (bfloat16[3] y) { y = Neg(x) }
"""
    kind = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16)
    report = run(OpenVinoRuntime(), text, {"x": np.array([1, -2, 0.5], kind)})
    assert report.failure is None
    assert report.outputs["s"]["y"].dtype == kind
    assert report.outputs["s"]["y"].astype(float).tolist() == [-1, 2, -0.5]


PAD = """
<ir_version: 8, opset_import: ["" : 18]>
g (float[1,1,6,6] x) => (float[1,1,5,5] y)
<int64[8] pads = {0, 0, 1, 0, 0, 0, 0, 1}, int64[4] axes = {0, 1, 3, 2},
 float[1,1,3,3] w = {1, -2, 3, 4, 5, -6, 7, 8, 9}>
{
    p = Pad(x, pads, "", axes)
    y = Conv<kernel_shape = [3, 3]>(p, w)
}
"""


@pytest.fixture
def pad(tmp_path: Path) -> Path:
    """fuse_pad_into_conv ignores the order of axes: height and width are swapped."""
    onnx.save(onnx.parser.parse_model(PAD), tmp_path / "pad.onnx")
    return tmp_path / "pad.onnx"


def test_it_shows_what_a_pass_got_wrong(pad: Path, tmp_path: Path) -> None:
    result = optvet.vet(
        pad, runtime="openvino", limit=4, jobs=1, cache_dir=tmp_path / "c", cache=False
    )
    (finding,) = result.findings
    assert (finding.symptom, finding.culprit) == ("wrong-output", ["fuse_pad_into_conv"])
    assert finding.confirmed
    assert result.runtime.options["precision"] == "f32"


def test_a_fault_that_all_runtimes_show_is_in_the_model(pad: Path, tmp_path: Path) -> None:
    result = optvet.vet(
        pad,
        cross_check=("onnx_reference", "openvino"),
        limit=4,
        jobs=1,
        cache_dir=tmp_path / "c",
        cache=False,
    )
    (finding,) = result.findings
    assert elsewhere(finding) == {"onnx_reference": "wrong-output", "openvino": "wrong-output"}
    assert finding.location == "in the model: onnx_reference, openvino agree"


def test_a_runtime_that_misreads_the_original_stands_alone(tmp_path: Path) -> None:
    """The pass is right; OpenVINO takes Softmax-11 for Softmax-13."""
    text = """
<ir_version: 7, opset_import: ["" : 11]>
g (float[2,3,4] x) => (float[2,3,4] y)
{
    s = Softmax<axis = 1>(x)
    y = Log(s)
}
"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    finding = cross_checked(tmp_path, "openvino", ("onnx_reference", "onnxruntime"))
    assert finding.culprit == ["fuse_consecutive_log_softmax"]
    words = "only in openvino's reading, unless onnx_reference, onnxruntime misread the original"
    assert words in finding.location
    assert elsewhere(finding) == {"onnx_reference": "no-fault", "onnxruntime": "no-fault"}
    assert [c.same_original for c in finding.cross_check] == [False, False]


def test_a_runtime_that_misreads_the_original_is_no_witness(tmp_path: Path) -> None:
    """A 0 in a shape copies a dimension of its own input; the pass takes another input's."""
    text = """
<ir_version: 7, opset_import: ["" : 11]>
g (float[2,6,4] x) => (float[a,b] y)
<int64[3] first = {6, 2, 4}, int64[2] second = {0, -1}>
{
    s = Softmax<axis = 1>(x)
    r = Reshape(s, first)
    y = Reshape(r, second)
}
"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    finding = cross_checked(tmp_path, "onnxruntime", ("onnx_reference", "openvino"))
    assert finding.culprit == ["eliminate_consecutive_idempotent_ops"]
    assert finding.location == "in the model: onnx_reference agrees"
    assert [c.same_original for c in finding.cross_check] == [True, False]


def cross_checked(folder: Path, runtime: str, others: tuple[str, ...]) -> optvet.Finding:
    result = optvet.vet(
        folder / "model.onnx",
        runtime=runtime,
        cross_check=others,
        jobs=1,
        cache_dir=folder / "c",
        cache=False,
    )
    (finding,) = result.findings
    return finding


_LARGE = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[n,1000000] x) => (float[m,1000000] y) { y = Concat<axis = 0>(x, x, x, x, x, x, x, x) }
"""
_UNDER_LIMIT = """
import resource, sys
import numpy as np
from optvet import Artifact
from optvet_openvino.runtime import OpenVinoOptions, OpenVinoRuntime
runtime, options = OpenVinoRuntime(), OpenVinoOptions()
artifact = Artifact("onnx", open("model.onnx", "rb").read())
session, feeds = runtime.load(artifact, options), {"x": np.ones((8, 1000000), np.float32)}
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (100 << 20)
resource.setrlimit(resource.RLIMIT_AS, (size, size))
try:
    print(session.run(feeds)["y"].shape)
except MemoryError as error:
    print(error)
"""


def test_a_result_without_memory_is_no_empty_result(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(_LARGE), tmp_path / "model.onnx")
    ran = subprocess.run(
        [sys.executable, "-c", _UNDER_LIMIT], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.stdout == "OpenVINO had no memory for a result of shape [64,1000000]\n", ran.stderr


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("float[n,4] x) => (int64[2,m] y) { y = NonZero(x) }", (2, 0)),
        ("float[n,4] x) => (float[m,4] y) { y = Compress<axis = 0>(x, none) }", (0, 4)),
    ],
)
def test_an_empty_result_is_one(text: str, shape: tuple[int, ...], run: Run) -> None:
    head, _, body = text.partition("{")
    weights = "<bool[2] none = {0, 0}>" if "none" in body else ""
    model = f'<ir_version: 8, opset_import: ["" : 17]>\ng ({head}{weights} {{{body}'
    ran = run(OpenVinoRuntime(), model, feeds={"x": np.zeros((2, 4), np.float32)})
    assert ran.failure is None, ran.failure
    assert ran.outputs["s"]["y"].shape == shape
