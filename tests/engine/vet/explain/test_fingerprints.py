from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser

import optvet
from optvet.spec.records import Finding

HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'
# The axes of Pad are not in order, which fuse_pad_into_conv takes them to be.
PAD = """int64[8] pads = {0, 0, 0, 2, 0, 0, 2, 0}, float zero = {0},
    int64[4] axes = {0, 1, 3, 2}> {"""
SMALL = f"""g (float[1,1,4,4] x) => (float[1,1,6,6] z) <float[1,1,1,1] w = {{1.5}}, {PAD}
    r = Relu(x)  q = Pad <mode = "constant"> (r, pads, zero, axes)
    y = Conv(q, w)  z = Sigmoid(y) }}"""
LARGER = f"""g (float[1,1,5,5] a) => (float[1,1,7,7] o) <float[1,1,1,1] k = {{0.5}}, {PAD}
    b = Tanh(a)  c = Neg(b)  first = Pad <mode = "constant"> (c, pads, zero, axes)
    second = Conv(first, k)  s = Abs(second)  t = Add(s, k)  o = Tanh(t) }}"""
CRASH = """g (float[3,2] a, float[3,4] b) => (float[2,4] y) {
    r = Relu(a)  t = Transpose(r)  z = Gemm(t, b)  y = Sigmoid(z) }"""
CRASHES_TOO = """g (float[5,2] p, float[5,4] q) => (float[2,4] y) {
    t = Transpose(p)  y = Gemm(t, q) }"""


RECIPROCAL = """g (%s[n] x, %s[n] b) => (%s[%s] y) <%s[%s] one = {1}> {
    d = Div(one, x)  y = Mul(d, b) }"""


def finding_of(text: str, folder: Path, pipeline: str, optimizer: str = "onnxoptimizer") -> Finding:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + text), path)
    result = optvet.vet(
        str(path), optimizer=optimizer, pipeline=pipeline, limit=4, cache=False, jobs=1
    )
    (finding,) = (f for f in result.findings if f.severity == "fault")
    assert finding.bundle is None
    return finding


def test_one_fault_in_two_models_has_one_fingerprint_without_reduction(tmp_path: Path) -> None:
    one = finding_of(SMALL, tmp_path, "fuse_pad_into_conv")
    other = finding_of(LARGER, tmp_path, "fuse_pad_into_conv")
    assert one.fingerprint is not None
    assert len(one.fingerprint) == 16
    assert one.fingerprint == other.fingerprint


def test_the_fingerprint_of_a_crash_is_its_words_and_another_fault_has_another(
    tmp_path: Path,
) -> None:
    one = finding_of(CRASH, tmp_path, "fuse_transpose_into_gemm")
    other = finding_of(CRASHES_TOO, tmp_path, "fuse_transpose_into_gemm")
    assert one.fingerprint is not None
    assert one.fingerprint == other.fingerprint
    assert one.fingerprint != finding_of(SMALL, tmp_path, "fuse_pad_into_conv").fingerprint


def test_a_wrong_shape_and_wrong_values_after_one_rewrite_are_two_faults(tmp_path: Path) -> None:
    def reciprocal(kind: str, shape: str, result: str) -> Finding:
        text = RECIPROCAL % (kind, kind, kind, result, kind, shape)
        return finding_of(text, tmp_path, "DivMulFusion", "onnxruntime")

    integers, rank = reciprocal("int64", "1", "n"), reciprocal("float", "1,1,1", "1,1,n")
    assert not integers.wrong_form
    assert rank.wrong_form
    assert integers.fingerprint != rank.fingerprint
