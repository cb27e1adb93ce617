"""ONNX's reference evaluator as a runtime, its defects corrected."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.answers import elsewhere

import optvet
from optvet.engine.discovery import Plugins
from optvet.plugin import Artifact
from optvet_reference_runtime import ReferenceOptions, ReferenceRuntime

Run = Callable[..., Any]
DOUBLE = ReferenceOptions(precision="float64")
NAMES = (
    "conv_bn_9 conv_bn_15 gemm half if_else if_then loop names qdq softmax_9 softmax_11 softmax_13"
).split()


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_it_agrees_with_onnxruntime(name: str, precision: Any, agrees: Run) -> None:
    agrees(ReferenceRuntime(), name, ReferenceOptions(precision=precision))


def test_outputs_are_of_the_declared_type_in_double_precision_too(run: Run) -> None:
    """1 + 2⁻²⁴ rounds to 1 in float32; the difference survives only in double precision."""
    text = """
<ir_version: 8, opset_import: ["" : 13]>
g (float[1] x) => (float[1] y)
<float[1] one = {1}, float[1] large = {16777216}>
{
    s = Add(x, one)
    d = Sub(s, one)
    y = Mul(d, large)
}
"""
    feeds = {"x": np.array([2.0**-24], np.float32)}
    single = run(ReferenceRuntime(), text, feeds).outputs["s"]["y"]
    double = run(ReferenceRuntime(), text, feeds, options=DOUBLE).outputs["s"]["y"]
    assert (single.dtype, single.tolist()) == (np.float32, [0.0])
    assert (double.dtype, double.tolist()) == (np.float32, [1.0])


@pytest.mark.parametrize(
    ("kind", "nodes", "expected"),
    [
        ("optional(float[2])", "y = Optional(x)", [1.0, 2.0]),
        ("optional(float[2])", "o = Optional(x)  y = Identity(o)", [1.0, 2.0]),
        ("optional(float[2])", "y = Optional<type = float[2]>()", None),
        ("optional(seq(float[2]))", "s = SequenceConstruct(x)  y = Optional(s)", [[1.0, 2.0]]),
        ("optional(seq(float[2]))", "y = Optional<type = seq(float[2])>()", None),
        ("seq(float[2])", "y = SequenceConstruct(x)", [[1.0, 2.0]]),
    ],
)
@pytest.mark.parametrize("runtime", ["onnx_reference", "onnxruntime"])
def test_an_optional_value_is_what_it_holds(
    runtime: str, kind: str, nodes: str, expected: object
) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => ({kind} y) {{ {nodes} }}'
    plugin = Plugins().runtime(runtime)
    artifact = Artifact("onnx", onnx.parser.parse_model(text).SerializeToString())
    values: Any = plugin.load(artifact, plugin.options).run({"x": np.array([1, 2], np.float32)})
    found = values["y"]
    assert (np.asarray(found).tolist() if found is not None else None) == expected


@pytest.mark.parametrize(
    ("opset", "node", "reason"),
    [
        (13, "com.acme.Twice(x)", "Twice '.*': domain 'com.acme' has no reference implementation"),
        (6, "Add<axis = 0, broadcast = 1>(x, x)", "Add '.*': it broadcasts along an axis"),
    ],
)
def test_what_it_cannot_evaluate_is_said_at_load(
    opset: int, node: str, reason: str, run: Run
) -> None:
    text = f"""
<ir_version: 8, opset_import: ["" : {opset}, "com.acme" : 1]>
g (float[3] x) => (float[3] y) {{ y = {node} }}
"""
    failure = run(ReferenceRuntime(), text, {"x": np.zeros(3, np.float32)}).failure
    assert failure is not None
    assert failure.stage == "load"
    assert re.search(reason, failure.message)


def test_it_judges_an_optimizer(tmp_path: Path) -> None:
    text = """
<ir_version: 8, opset_import: ["" : 18]>
g (float[1,1,6,6] x) => (float[1,1,5,5] y)
<int64[8] pads = {0, 0, 1, 0, 0, 0, 0, 1}, int64[4] axes = {0, 1, 3, 2},
 float[1,1,3,3] w = {1, -2, 3, 4, 5, -6, 7, 8, 9}>
{
    p = Pad(x, pads, "", axes)
    y = Conv<kernel_shape = [3, 3]>(p, w)
}
"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "pad.onnx")
    result = optvet.vet(
        tmp_path / "pad.onnx",
        runtime="onnx_reference",
        cross_check="onnxruntime",
        limit=4,
        jobs=1,
        cache_dir=tmp_path,
        cache=False,
    )
    (finding,) = result.findings
    assert (finding.symptom, finding.culprit) == ("wrong-output", ["fuse_pad_into_conv"])
    assert elsewhere(finding) == {"onnxruntime": "wrong-output"}
