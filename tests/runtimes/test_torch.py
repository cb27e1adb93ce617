"""PyTorch as a runtime, through onnx2torch."""

import importlib.util
import os
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
from optvet_torch.onnx2torch import TorchRuntime

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("onnx2torch") is None:
    pytest.skip("needs torch and onnx2torch; install optvet[torch]", allow_module_level=True)

Run = Callable[..., Any]


@pytest.mark.parametrize(
    "name", ["conv_bn_9", "conv_bn_15", "gemm", "softmax_9", "softmax_11", "softmax_13"]
)
def test_it_agrees_with_onnxruntime(name: str, agrees: Run) -> None:
    agrees(TorchRuntime(), name)


def test_outputs_of_one_node_keep_their_names(run: Run) -> None:
    text = """
<ir_version: 8, opset_import: ["" : 13]>
g (float[4] x) => (float[2] second, float[4] negative, float[2] first)
<int64[2] parts = {2, 2}>
{
    first, second = Split(x, parts)
    negative = Neg(x)
}
"""
    outputs = run(TorchRuntime(), text, {"x": np.arange(4, dtype=np.float32)}).outputs["s"]
    assert {n: v.tolist() for n, v in outputs.items()} == {
        "second": [2, 3],
        "negative": [0, -1, -2, -3],
        "first": [0, 1],
    }


@pytest.mark.parametrize(
    ("node", "output", "message"),
    [
        ("Det(x)", "float[1,1] y", "Det"),
        ("RoiAlign(x, rois, batch)", "float[1,1,1,1] y", "torchvision"),
    ],
)
def test_what_it_cannot_run_is_said(node: str, output: str, message: str, run: Run) -> None:
    text = f"""
<ir_version: 8, opset_import: ["" : 13]>
g (float[1,1,4,4] x) => ({output})
<float[1,4] rois = {{0, 0, 2, 2}}, int64[1] batch = {{0}}>
{{ y = {node} }}
"""
    report = run(TorchRuntime(), text, {"x": np.ones((1, 1, 4, 4), np.float32)})
    if report.failure is None:
        pytest.skip("this torchvision fits this torch")
    assert report.failure.error_type == "NotImplementedError"
    assert message in report.failure.message


NEEDS_TORCHVISION = (
    """
import sys
from pathlib import Path
import onnx.parser
from optvet.plugin import Artifact
from optvet_torch.onnx2torch import Onnx2Torch

text = """
    + repr(
        """
<ir_version: 8, opset_import: ["" : 13]>
g (float[1,4,4] boxes, float[1,1,4] scores) => (int64[n,3] y) {
    y = NonMaxSuppression(boxes, scores)
}
"""
    )
    + """
artifact = Artifact("onnx", data=onnx.parser.parse_model(text).SerializeToString())
try:
    list(Onnx2Torch().convert(artifact, Onnx2Torch.options, Path(sys.argv[1])))
except NotImplementedError as error:
    print(error)
"""
)


def test_a_torchvision_of_another_build_is_told_with_the_command_that_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    command = [sys.executable, "-c", NEEDS_TORCHVISION, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    mend = f"pip uninstall -y torchvision; pip install torch=={torch.__version__} torchvision"
    assert f"needs a torchvision that fits the installed torch: {mend}" in done.stdout


def test_no_program_sees_the_stub_of_torchvision() -> None:
    code = "import sys, optvet_torch.onnx2torch; print('torchvision' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout.strip() == "False"


def test_weights_may_be_computed_from_weights(run: Run) -> None:
    """As ONNX Optimizer leaves them when it fuses; the converter alone raises KeyError."""
    text = """
<ir_version: 8, opset_import: ["" : 13]>
g (float[1,1,2,2] x) => (float[1,1,2,2] y)
<float[1,1,1,1] w = {2}, float[1] s = {9}, float[4] shape = {1, 1, 1, 1}>
{
    root = Sqrt(s)
    v = Mul(w, root)
    y = Conv(x, v)
}
"""
    report = run(TorchRuntime(), text, {"x": np.ones((1, 1, 2, 2), np.float32)})
    assert report.failure is None
    assert report.outputs["s"]["y"].ravel().tolist() == [6, 6, 6, 6]


def test_a_weight_that_depends_on_an_input_is_named(run: Run) -> None:
    text = """
<ir_version: 8, opset_import: ["" : 13]>
g (float[1,1,2,2] x, float[1,1,1,1] w) => (float[1,1,2,2] y)
{
    v = Neg(w)
    y = Conv(x, v)
}
"""
    feeds = {"x": np.ones((1, 1, 2, 2), np.float32), "w": np.ones((1, 1, 1, 1), np.float32)}
    failure = run(TorchRuntime(), text, feeds).failure
    assert failure is not None
    assert failure.stage == "load"
    assert "onnx2torch needs 'v' to be a weight" in failure.message


def test_it_judges_an_optimizer(tmp_path: Path) -> None:
    """A 0 copies a dimension of its own input: [6, 2, 4] → [6, 8], but [2, 6, 4] → [2, 24]."""
    text = """
<ir_version: 8, opset_import: ["" : 13]>
g (float[2,6,4] x) => (float[a] y)
<int64[3] first = {6, 2, 4}, int64[2] second = {0, -1}, int64[1] one = {1}>
{
    r = Reshape(x, first)
    s = Reshape(r, second)
    y = ReduceSum<keepdims = 0>(s, one)
}
"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    result = optvet.vet(
        tmp_path / "model.onnx",
        runtime="torch",
        limit=4,
        jobs=1,
        cache_dir=tmp_path,
        cache=False,
    )
    (finding,) = result.findings
    assert finding.symptom == "wrong-output"
    assert finding.culprit == ["eliminate_consecutive_idempotent_ops"]


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
"""fuse_pad_into_conv gets it wrong; onnx2torch has no converter for Pad-18, only for its result."""


def test_a_model_that_it_cannot_read_is_no_fault(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(PAD), tmp_path / "model.onnx")
    with pytest.raises(
        optvet.InputError, match=r"torch cannot load the original model: .*Pad.*another runtime"
    ):
        optvet.vet(tmp_path / "model.onnx", runtime="torch", cache_dir=tmp_path, cache=False)


def test_inputs_are_not_blamed_for_a_model_that_it_cannot_read(tmp_path: Path) -> None:
    text = PAD.replace("float[1,1,6,6] x", "float[n,1,6,6] x").replace("[1,1,5,5]", "[n,1,5,5]")
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    with pytest.raises(optvet.InputError, match="torch cannot load the original model: "):
        optvet.vet(tmp_path / "model.onnx", runtime="torch", cache_dir=tmp_path, cache=False)


@pytest.mark.release
def test_it_says_nothing_of_a_fault_in_a_model_that_it_cannot_read(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(PAD), tmp_path / "model.onnx")
    result = optvet.vet(
        tmp_path / "model.onnx",
        cross_check=("torch", "onnx_reference"),
        limit=2,
        jobs=1,
        cache_dir=tmp_path,
        cache=False,
    )
    (finding,) = result.findings
    assert elsewhere(finding)["torch"].startswith("not-judged cannot run the original: ")
    assert finding.location == "in the model: onnx_reference agrees"
