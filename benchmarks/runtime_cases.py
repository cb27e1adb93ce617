"""The models of ``runtime_faults.py``, each the smallest that shows a line of ``docs/finds.md``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np


class Case(NamedTuple):
    """A model, its inputs, and who says what is right.

    Attributes:
        text: A graph in ONNX's text; a whole model if it has functions.
        inputs: In the order of the graph's inputs.
        opset: The standard's operator set.
        passes: What the program applies after the import, by names.
        judges: Programs of ``runtime_faults.py``.
        sparse: The values of Constants become sparse ones.
    """

    text: str
    inputs: Sequence[np.ndarray]
    opset: int = 13
    passes: str = ""
    judges: str = "onnxruntime evaluator"
    sparse: bool = False


def floats(*values: float) -> np.ndarray:
    """One row of them."""
    return np.array([values], np.float32)


def ones(*shape: int) -> np.ndarray:
    """As many as the shape says."""
    return np.ones(shape, np.float32)


X = np.array([[1, -2, 3], [-4, 5, 0.5]], np.float32)
INTEGERS = np.array([[1, 2, 3], [4, 5, 7]], np.int32)
IMAGE = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4) ** 2
INFINITE = np.array([np.inf, -np.inf], np.float32)
BOXES = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11]]], np.float32)
SCORES = np.array([[[0.9, 0.75, 0.6]]], np.float32)
YES = np.array(True)
SCALAR = np.array(5, np.float32)
LOW = np.full((1, 1, 2, 2), -np.inf, np.float32)
SAME_POOL = Case(
    "(float[1,1,2,2] x) => (float[1,1,1,1] y) { y = GlobalMaxPool(x) }",
    [LOW],
    judges="evaluator iree",
)
SAME_SHIFT = Case(
    '(uint8[2] x, uint8[2] s) => (uint8[2] y) { y = BitShift<direction="LEFT">(x, s) }',
    [np.array([8, 8], np.uint8), np.array([8, 33], np.uint8)],
    opset=28,
)
SAME_PADDING = Case(
    "(float[1,1,2] x) => (float[1,1,5] y) <float[1,1,2] w = {1, 2}>"
    " { y = ConvTranspose<dilations=[2], output_padding=[1]>(x, w) }",
    [ones(1, 1, 2)],
    judges="iree openvino",
)
SAME_NONZERO = Case("(float x) => (int64[0,N] y) { y = NonZero(x) }", [SCALAR], judges="evaluator")

TVM: Mapping[str, Case] = {
    "shared-result-in-place": Case(
        "(float[2,3] x, float[2,3] u) => (float[2,3] y, float[2,3] z) {"
        " e = Exp(x) y = Div(e, x) f = Exp(x) a = Add(f, u) z = Log(a) }",
        [X, X + 9],
        passes="EliminateCommonSubexpr DataflowUseInplaceCalls TopologicalSort",
    ),
    "expand-by-input": Case(
        "(float[2,1] x, int64[2] s) => (float[A,B] y) { y = Expand(x, s) }",
        [X[:, :1], np.array([1, 4])],
    ),
    "limit-of-boxes": Case(
        "(float[1,3,4] b, float[1,1,3] s, int64[1] m) => (int64[N,3] y)"
        " <float[1] i = {0.5}> { y = NonMaxSuppression(b, s, m, i) }",
        [BOXES, SCORES, np.array([3])],
    ),
    "output-shape": Case(
        "(float[1,1,4,4] x) => (float[1,1,9,9] y) <float[1,1,2,2] w = {1, 2, 3, 4}>"
        " { y = ConvTranspose<strides=[2,2], output_shape=[9,9]>(x, w) }",
        [IMAGE],
    ),
    "mean-of-normalization": Case(
        "(float[2,3] x) => (float[2,3] y, float[2,1] m) <float[3] s = {1, 2, 3}>"
        " { y, m = LayerNormalization(x, s) }",
        [X],
        opset=17,
    ),
    "scale-of-resize": Case(
        "(float[1,1,4,4] x) => (float[1,1,5,5] y) <float[4] s = {1, 1, 1.3, 1.3}>"
        ' { y = Resize<mode="linear">(x, , s) }',
        [IMAGE],
    ),
    "negative-place-of-insert": Case(
        "(float[1] x, float[1] u) => (float[1] y) <int64 p = {-1}, int64 i = {1}>"
        " { s = SequenceConstruct(x, u) t = SequenceInsert(s, x, p) y = SequenceAt(t, i) }",
        [SCALAR[None], SCALAR[None] + 1],
    ),
    "antialias": Case(
        "(float[1,1,4,4] x) => (float[1,1,2,2] y) <float[4] s = {1, 1, 0.5, 0.5}>"
        ' { y = Resize<mode="linear", antialias=1>(x, , s) }',
        [IMAGE],
        opset=18,
    ),
    "isinf": Case("(float[2] x) => (bool[2] y) { y = IsInf<detect_negative=0>(x) }", [INFINITE]),
    "mask": Case("(float[2,3] x) => (float[2,3] y, bool[2,3] m) { y, m = Dropout(x) }", [X]),
    "mean-of-integers": Case(
        "(int32[2,3] x) => (int32[1,1] y) { y = ReduceMean<axes=[0,1]>(x) }", [INTEGERS]
    ),
    "one-hot": Case(
        "(int64[2] x) => (float[2,4] y) <int64 d = {4}, float[2] v = {2, 5}>"
        " { y = OneHot(x, d, v) }",
        [np.array([0, 2])],
    ),
    "relu-of-clip-in-place": Case(
        "(float[2,3] x) => (float[2,3] y) { c = Clip<min=0.0>(x) y = Relu(c) }",
        [X],
        opset=6,
        passes="DataflowUseInplaceCalls",
    ),
    "mask-in-a-branch": Case(
        "(float[2,3] x, bool c) => (float[2,3] y) { y = If(c)"
        " <then_branch = t () => (float[2,3] d) { d = Dropout(x) },"
        " else_branch = e () => (float[2,3] n) { n = Neg(x) }> }",
        [X, YES],
    ),
    "elu-in-place": Case(
        "(float[2,3] x) => (float[2,3] y) { y = Elu(x) }", [X], passes="DataflowUseInplaceCalls"
    ),
    "folded-slice": Case(
        "(float[3] x, int64[1] s) => (float[N] y) { y = Slice(x, s, s) }",
        [X[0], np.array([1])],
        passes="FoldConstant",
    ),
    "constant-in-parallel-matmul": Case(
        "(float[3,2] v) => (float[2,2] y) <float[2,3] u = {1, 2, 3, 4, 5, 6}> { y = MatMul(u, v) }",
        [X.reshape(3, 2)],
        passes="CombineParallelMatmul",
    ),
    "layout-of-min": Case(
        "(uint32[2,3] x) => (uint32[2,3] y) { y = Min(x) }",
        [INTEGERS.astype(np.uint32)],
        passes="ConvertLayout",
    ),
    "layout-of-compress": Case(
        "(bool[3] x) => (bool[N] y) { y = Compress(x, x) }",
        [np.array([True, False, True])],
        passes="ConvertLayout",
    ),
    "layout-of-dropout": Case(
        "(float[2,3] x) => (float[2,3] y) { y = Dropout(x) }", [X], passes="ConvertLayout"
    ),
    "slice-without-axes": Case(
        "(float[2,3] x) => (float[1,3] y) { y = Slice<starts=[0], ends=[1]>(x) }", [X], opset=9
    ),
    "length-of-split": Case(
        "(float[2,3] x) => (int64 n) { s = SplitToSequence(x) n = SequenceLength(s) }", [X]
    ),
    "padding-below-dilation": SAME_PADDING,
    "value-float": Case("() => (float y) { y = Constant<value_float=0.0>() }", []),
    "power-by-floats": Case(
        "(int64[2] x) => (int64[2] y) <float[2] w = {2, 3}> { y = Pow(x, w) }",
        [np.array([2, 3])],
    ),
    "shape-minus-weight": Case(
        "(float[2,3] x) => (int64[2] y) <int64[2] w = {1, 1}> { s = Shape(x) y = Sub(s, w) }", [X]
    ),
    "scales-of-normalization": Case(
        "(float[2,3] x, float[A,B] s, float[C,D] b) => (float[2,3] y)"
        " { y = LayerNormalization(x, s, b) }",
        [X, X[:1], X[:1]],
        opset=17,
    ),
    "attention-of-rank-4": Case(
        "(float[1,1,2,3] x) => (float[1,1,2,3] y) { y = Attention(x, x, x) }",
        [X.reshape(1, 1, 2, 3)],
        opset=23,
    ),
    "power-of-integers": Case("(int32[2,3] x) => (int32[2,3] y) { y = Pow(x, x) }", [INTEGERS]),
    "rms-normalization": Case(
        "(float[2,3] x, float[2,3] s) => (float[2,3] y) { y = RMSNormalization<axis=0>(x, s) }",
        [X, X],
        opset=23,
    ),
    "eye-of-another-type": Case(
        "(int32[2,3] x) => (float[2,3] y) { y = EyeLike<dtype=1>(x) }", [INTEGERS]
    ),
    "indices-of-pool": Case(
        "(float[1,1,4,4] x) => (float[1,1,2,2] y, int64[1,1,2,2] i)"
        " { y, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) }",
        [IMAGE],
    ),
    "sequence-identity": Case(
        "(float[2,3] x) => (float[1,3] y) <int64 i = {1}>"
        " { s = SplitToSequence(x) t = Identity(s) y = SequenceAt(t, i) }",
        [X],
        opset=14,
    ),
    "max-of-compress": Case(
        "(float[1,3] x, float[2] u) => (float[2] y) <bool[3] c = {0, 1, 1}>"
        " { t = Compress(x, c) y = Max(t, u) }",
        [X[:1], X[1, :2]],
    ),
    "function-named-identity": Case(
        '<ir_version: 8, opset_import: ["" : 13, "hunted" : 1]>'
        " g (float[1,1,4,4] x) => (float[1,1,2,2] y) { y = hunted.Identity(x) }"
        ' <domain: "hunted", opset_import: ["" : 13]>'
        " Identity (x) => (y) { y = AveragePool<kernel_shape=[2,2], strides=[2,2]>(x) }",
        [IMAGE],
    ),
    "sparse-constant": Case(
        "(float[1,1,4,4] x, float[1,1,2,2] w) => (float[1,1,3,3] y)"
        " { t = Constant<value = float[1] {2}>() y = Conv(x, w, t) }",
        [IMAGE, IMAGE[:, :, :2, :2]],
        judges="onnxruntime openvino",
        sparse=True,
    ),
    "pool-of-infinite": SAME_POOL,
    "shift-by-all-bits": SAME_SHIFT,
    "nonzero-of-a-scalar": SAME_NONZERO,
}

ONNX2TORCH: Mapping[str, Case] = {
    "nonzero": Case("(float[2,3] x) => (int64[2,N] y) { y = NonZero(x) }", [X]),
    "sum-of-int32": Case("(int32[2,3] x) => (int32[1,1] y) { y = ReduceSum(x) }", [INTEGERS]),
    "cumsum": Case("(float[2,3] x) => (float[2,3] y) <int64 a = {1}> { y = CumSum(x, a) }", [X]),
    "isinf": Case("(float[2] x) => (bool[2] y) { y = IsInf<detect_negative=0>(x) }", [INFINITE]),
    "clip-of-integers": Case(
        "(int32[2,3] x) => (int32[2,3] y) <int32 l = {2}, int32 h = {5}> { y = Clip(x, l, h) }",
        [INTEGERS],
    ),
    "top-of-equals": Case(
        "(int64[1,8] x) => (int64[1,3] t, int64[1,3] i) <int64[1] k = {3}> { t, i = TopK(x, k) }",
        [np.ones((1, 8), np.int64)],
    ),
    "power-by-floats": Case(
        "(int32[2,3] x, float[2,3] u) => (int32[2,3] y) { y = Pow(x, u) }",
        [INTEGERS, np.full((2, 3), 2, np.float32)],
    ),
    "second-output": Case(
        "(float[2,3] x) => (float[2,3] y, bool[2,3] m) { y, m = Dropout(x) }", [X]
    ),
    "order-of-outputs": Case(
        "(float[2,3] x) => (int64[2,1] i, float[2,1] y) <int64[1] k = {1}>"
        " { y, i = TopK<axis=1>(x, k) }",
        [X],
    ),
    "weight-is-output": Case(
        "(float[2,3] x) => (float[2,3] y, float[2] w) <float[2] w = {1, 2}> { y = Abs(x) }", [X]
    ),
    "negative-indices": Case(
        "(float[2,3] x) => (float[1,3] y) <int64[1,3] i = {-1, 0, -2}>"
        " { y = GatherElements(x, i) }",
        [X],
    ),
    "split-in-one": Case("(float[2,3] x) => (float[2,3] y) { t = Split(x) y = Relu(t) }", [X]),
    "mean-of-integers": Case("(int32[2,3] x) => (int32[1,1] y) { y = ReduceMean(x) }", [INTEGERS]),
    "flatten": Case("(float[2,3] x) => (float[1,6] y) { y = Flatten<axis=0>(x) }", [X]),
    "wide-padding": Case(
        "(float[1,1,4,4] x) => (float[1,1,6,6] y)"
        " { y = AveragePool<kernel_shape=[3,3], pads=[2,2,2,2]>(x) }",
        [IMAGE],
    ),
    "clip-without-minimum": Case(
        "(float[2,3] x) => (float[2,3] y) <float h = {1}> { y = Clip(x, , h) }", [X]
    ),
    "pad-of-rank-2": Case(
        "(float[2,3] x) => (float[2,4] y) <int64[4] p = {0, 1, 0, 0}>"
        ' { y = Pad<mode="edge">(x, p) }',
        [X],
    ),
    "bias-of-one-element": Case(
        "(float[3,2] x, float[2] s) => (float[3,2] y) <float[1] b = {1}>"
        " { y = LayerNormalization(x, s, b) }",
        [X.reshape(3, 2), X[0, :2]],
        opset=17,
    ),
    "pad-with-2": Case(
        "(float[1,1,4,4] x) => (float[1,1,6,6] y)"
        " { y = Pad<pads=[0,0,1,1,0,0,1,1], value=2.0>(x) }",
        [IMAGE],
        opset=6,
        judges="onnxruntime iree",
    ),
}

OPENVINO: Mapping[str, Case] = {
    "bytes-shifted-left": Case(
        '(uint8[2] x, uint8[2] s) => (uint8[2] y) { y = BitShift<direction="LEFT">(x, s) }',
        [np.array([200, 8], np.uint8), np.array([1, 1], np.uint8)],
    ),
    "aspect-ratio": Case(
        "(float[1,1,4,4] x) => (float[1,1,A,B] y) <int64[2] s = {6, 8}>"
        ' { y = Resize<axes=[2,3], keep_aspect_ratio_policy="not_smaller">(x, , , s) }',
        [IMAGE],
        opset=19,
    ),
    "pool-of-infinite": SAME_POOL,
    "axes-of-slice": Case(
        "(float[4,1] x, int64[1] a) => (float[A,B] y) <int64[1] b = {1}, int64[1] e = {5}>"
        " { y = Slice(x, b, e, a) }",
        [ones(4, 1), np.array([0])],
    ),
    "value-ints": Case("() => (int64[2] y) { y = Constant<value_ints=[1, 2]>() }", [], opset=12),
    "flattened-of-any-rank": Case(
        "(float[2,3] x, int64[K] s) => (float[N] y) <int64[1] w = {-1}>"
        " { a = Reshape(x, s) b = Abs(a) c = Reshape(b, w) y = Neg(c) }",
        [X, np.array([3, 2])],
    ),
    "shift-of-negative": Case(
        '(int32[2] x, int32[2] s) => (int32[2] y) { y = BitShift<direction="RIGHT">(x, s) }',
        [np.array([-1, 8], np.int32), np.array([1, 1], np.int32)],
        opset=28,
        judges="evaluator",
    ),
    "window-beyond-input": Case(
        "(float[1,1,1,2] x) => (float[A,B,C,D] y)"
        " { y = MaxPool<ceil_mode=1, kernel_shape=[1,1], strides=[2,2]>(x) }",
        [floats(1, 2).reshape(1, 1, 1, 2)],
    ),
    "causal-with-past": Case(
        "(float[1,1,2,1] q, float[1,1,1,1] k, float[1,1,1,1] v, float[1,1,1,1] a,"
        " float[1,1,1,1] b) => (float[1,1,2,1] y)"
        " { y = Attention<is_causal=1>(q, k, v, , a, b) }",
        [ones(1, 1, 2, 1), *np.array([1, 1, 1, 0], np.float32).reshape(4, 1, 1, 1, 1)],
        opset=25,
    ),
    "inverse-one-sided-dft": Case(
        "(float[1,2,1,2] x) => (float[1,2,1,1] y) { y = DFT<inverse=1, onesided=1>(x) }",
        [ones(1, 2, 1, 2)],
        opset=19,
    ),
    "scale-of-batch": Case(
        "(float[1,1,4,4] x) => (float[2,1,8,8] y) <float[4] s = {2, 1, 2, 2}>"
        " { y = Resize(x, , s) }",
        [IMAGE],
    ),
    "axes-as-input": Case(
        "(float[2,3] x, int64[1] a) => (float[A,B,C] y) { y = Unsqueeze(x, a) }",
        [X, np.array([0])],
    ),
    "blocks-of-int8": Case(
        "(float[1,4] x) => (float[1,4] y) <float[4,2] s = {1, 1, 1, 1, 1, 1, 1, 1},"
        " int8[4,4] w = {1, -2, 3, -4, 5, 6, 7, 8, 1, -2, 3, -4, 5, 6, 7, 8}>"
        " { t = DequantizeLinear<block_size=2>(w, s) y = MatMul(x, t) }",
        [floats(1, 2, 3, 4)],
        opset=21,
    ),
    "range-away-from-limit": Case(
        "(float a, float b, float c) => (float[N] y) { y = Range(a, b, c) }",
        [np.array(0, np.float32), np.array(1, np.float32), np.array(-0.1, np.float32)],
    ),
    "empty-weight-of-int16": Case(
        "() => (int16[3,0,5] y) <int16[3,0,5] w = {}> { y = Abs(w) }", []
    ),
    "largest-of-infinite": Case(
        "(float[1,1,2,2] x) => (float[1,1,1,1] y) { y = ReduceMax(x) }", [LOW]
    ),
    "window-of-attention": Case(
        "(float[1,1,4,1] q, float[1,1,4,1] k) => (float[1,1,4,1] y)"
        " { y = Attention<left_window_size=1>(q, k, k) }",
        [ones(1, 1, 4, 1), floats(1, 2, 3, 4).reshape(1, 1, 4, 1)],
        opset=25,
    ),
    "top-of-equals": Case(
        "(int64[7] x) => (int64[7] i) <int64[1] k = {7}> { t, i = TopK(x, k) }",
        [np.array([2, 2, 0, 2, 0, 0, 2])],
    ),
    "nonzero-of-a-scalar": SAME_NONZERO,
    "modulo-of-floats": Case(
        "(float[2,3] x, float[2,3] u) => (float[2,3] y) { y = Mod(x, u) }",
        [abs(X), abs(X[::-1])],
        opset=28,
        judges="evaluator iree",
    ),
    "celu-of-opset-28": Case(
        "(double[2,3] x) => (double[2,3] y) { y = Celu(x) }", [X.astype(np.float64)], opset=28
    ),
}

TWICE = np.array([1, 2], np.float32)
ONNXRUNTIME: Mapping[str, Case] = {
    "value-twice": Case(
        "(bool c, float[2] x) => (float[2] a, float[2] b) { a, b = If(c)"
        " <then_branch = t () => (float[2] n, float[2] n) { n = Neg(x) },"
        " else_branch = e () => (float[2] m, float[2] m) { m = Abs(x) }> }",
        [YES, TWICE],
        judges="evaluator openvino",
    ),
    "log-sum-of-infinite": Case(
        "(float[2,1] x) => (float[1,1] y) { y = ReduceLogSumExp<axes=[0]>(x) }",
        [floats(-np.inf, -240).T],
        judges="evaluator openvino",
    ),
    "nonzero-of-a-scalar": SAME_NONZERO,
    "pool-of-infinite": SAME_POOL,
    "certain-draw": Case(
        "(float[1,3] x) => (float[1,3] y) { y = Bernoulli(x) }",
        [ones(1, 3)],
        opset=15,
        judges="evaluator",
    ),
    "slice-backward": Case(
        "(float[2,3] x) => (float[k,3] y) <int64[1] s = {0}, int64[1] a = {0}, int64[1] t = {-1},"
        " int64[1] e = {9223372036854775807}> { y = Slice(x, s, e, a, t) }",
        [X],
        judges="evaluator openvino",
    ),
    "tanh-above-1": Case(
        "(float[1,3] x) => (float[1,3] y) { t = Tanh(x)  y = Acos(t) }",
        [floats(8.164745, 8.191037, 8.193316)],
        judges="evaluator openvino",
    ),
    "gru-without-size": Case(
        "(float[1,1,2] x, float[1,9,2] w, float[1,9,3] r) => (float[1,1,1,3] y)"
        " { y = GRU(x, w, r) }",
        [
            ones(1, 1, 2),
            ones(1, 9, 2),
            ones(1, 9, 3),
        ],
        opset=14,
        judges="evaluator",
    ),
    "crop-by-int32": Case(
        "(float[2,3] x) => (float[1,4] y) <int32[2] s = {1, 4}>"
        " { y = CenterCropPad<axes=[0,1]>(x, s) }",
        [X],
        opset=18,
        judges="evaluator openvino",
    ),
    "cast-to-double": Case(
        "(float[2,3] x) => (double[2,3] y) { y = Cast<saturate=0, to=11>(x) }",
        [X],
        opset=19,
        judges="evaluator openvino",
    ),
    "short-mask": Case(
        "(float[1,1,1,1] q, float[1,1,2,1] k, float[1,1] m) => (float[1,1,1,1] y)"
        " { y = Attention(q, k, k, m) }",
        [
            ones(1, 1, 1, 1),
            floats(1, 2).reshape(1, 1, 2, 1),
            ones(1, 1),
        ],
        opset=24,
        judges="evaluator openvino",
    ),
    "padding-below-dilation": SAME_PADDING,
    "lrn-of-rank-3": Case(
        "(float[1,2,3] x) => (float[1,2,3] y) { y = LRN<size=1>(x) }",
        [X[None]],
        judges="iree openvino",
    ),
    "optional-of-clip": Case(
        "(float[2,3] x) => (float[2,3] y) <float l = {-1}, float h = {1}>"
        " { c = Clip(x, l, h) o = Optional(c) y = OptionalGetElement(o) }",
        [X],
        opset=15,
        passes="CUDAExecutionProvider",
        judges="onnxruntime tvm",
    ),
    "einsum-of-none": Case(
        '() => (float[4,4] y) <float[4,0] w = {}> { y = Einsum<equation="ij,kj->ik">(w, w) }',
        [],
        judges="evaluator onnx2torch",
    ),
    "unnamed-parts": Case(
        '(float[6] x) => (float[2] y) { y, "", "" = Split(x) }',
        [np.arange(6, dtype=np.float32)],
        judges="evaluator openvino",
    ),
    "convolution-of-none": Case(
        "(float[1,1,0] x, float[1,1,1] w) => (float[1,1,0] y) { y = Conv(x, w) }",
        [ones(1, 1, 0), ones(1, 1, 1)],
        judges="evaluator tvm",
    ),
    "pool-of-none": Case(
        "(float[1,1,2,0] x) => (float[1,1,2,0] y) { y = AveragePool<kernel_shape=[1,1]>(x) }",
        [ones(1, 1, 2, 0)],
        judges="evaluator tvm",
    ),
    "pool-without-channels": Case(
        "(uint8[1,0,5,5] x) => (uint8[1,0,4,4] y) { y = MaxPool<kernel_shape=[2,2]>(x) }",
        [np.zeros((1, 0, 5, 5), np.uint8)],
        judges="evaluator tvm",
    ),
    "largest-of-no-truths": Case(
        "(bool[2,0] x) => (bool[1,1] y) { y = ReduceMax(x) }",
        [np.zeros((2, 0), bool)],
        opset=20,
        judges="evaluator openvino",
    ),
    "normalization-of-none": Case(
        "(float[2,0] x, float[0] s) => (float[2,0] y) { y = LayerNormalization(x, s) }",
        [np.zeros((2, 0), np.float32), np.zeros(0, np.float32)],
        opset=17,
        judges="evaluator openvino",
    ),
}

IREE: Mapping[str, Case] = {
    "demoted-conv": Case(
        "(float[N,1,4,4] x) => (float[N,1,4,4] y) <float[1,1,3,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9},"
        " int64[8] p = {0, 0, 1, 1, 0, 0, 1, 1}>"
        " { a = Conv<pads=[1,1,1,1]>(x, w) b = Pad(a, p) y = Conv(b, w) }",
        [IMAGE],
        opset=17,
        passes="iree-global-opt-demote-contraction-inputs"
        " iree-preprocessing-convert-conv-to-channels-last",
    ),
    "generalized-conv": Case(
        "(float[1,2,1] x, float[2,2,3] w) => (float[1,2,1] y) <float[2] b = {0, 1}>"
        " { y = Conv<pads=[1,1]>(x, w, b) }",
        [ones(1, 2, 1), ones(2, 2, 3)],
        passes="linalg-generalize-named-ops",
    ),
    "cast-to-uint8": Case(
        "(float[2] x) => (uint8[2] y) { y = Cast<to=2>(x) }", [np.array([128, 200], np.float32)]
    ),
    "weights-of-loss": Case(
        "(float[2,2] x, int64[2] i, float[2] w) => (float y)"
        " { y = SoftmaxCrossEntropyLoss(x, i, w) }",
        [X[:, :2], np.array([0, 1]), np.array([0.2, 0.1], np.float32)],
    ),
    "nonzero-of-a-scalar": SAME_NONZERO,
    "shift-by-all-bits": SAME_SHIFT,
    "row-of-zeros": Case(
        "(float[1,2] x) => (float[1,2] y) { y = LpNormalization(x) }", [0 * ones(1, 2)], opset=22
    ),
    "reflected": Case(
        "(float[1,1,8,2] x) => (float[1,1,13,4] y) <int64[8] p = {0, 0, 1, 1, 0, 0, 4, 1}>"
        ' { y = Pad<mode="reflect">(x, p) }',
        [IMAGE.reshape(1, 1, 8, 2)],
    ),
    "eye-of-another-type": Case(
        "(int32[2,3] x) => (double[2,3] y) { y = EyeLike<dtype=11>(x) }", [INTEGERS]
    ),
    "where-of-rank-2": Case(
        "(bool[1,1] c, float[1] w) => (float[1,1] y) { y = Where(c, w, w) }",
        [np.array([[True]]), SCALAR[None]],
    ),
}

ROW = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 2, 4)
QUERIES = np.array([[2, -1], [0, 3], [-2, 1], [1, 1]], np.float32).reshape(1, 1, 4, 2)
_RESIZED = " { y = Resize<%s>(x, , , s) }"
_DOUBLED = "(float[1,1,4,4] x) => (float[1,1,8,8] y) <int64[4] s = {1, 1, 8, 8}>" + _RESIZED
QNN: Mapping[str, Case] = {
    "resize-down-nearest": Case(
        "(float[1,1,2,4] x) => (float[1,1,1,2] y) <float[4] s = {1, 1, 0.6, 0.6}>"
        ' { y = Resize<mode="nearest">(x, , s) }',
        [ROW],
    ),
    "resize-down-linear": Case(
        "(float[1,1,2,4] x) => (float[1,1,1,2] y) <float[4] s = {1, 1, 0.6, 0.6}>"
        ' { y = Resize<mode="linear">(x, , s) }',
        [ROW],
    ),
    "resize-pytorch-half-pixel": Case(
        "(float[1,1,4,4] x) => (float[1,1,3,1] y) <int64[4] s = {1, 1, 3, 1}>"
        + _RESIZED % 'mode="linear", coordinate_transformation_mode="pytorch_half_pixel"',
        [IMAGE],
    ),
    "resize-ceil": Case(_DOUBLED % 'mode="nearest", nearest_mode="ceil"', [IMAGE]),
    "resize-align-corners": Case(
        _DOUBLED % 'mode="nearest", nearest_mode="floor",'
        ' coordinate_transformation_mode="align_corners"',
        [IMAGE],
    ),
    "average-ceil": Case(
        "(float[1,1,4,4] x) => (float[1,1,2,2] y)"
        " { y = AveragePool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(x) }",
        [IMAGE],
    ),
    "average-wide-padding": Case(
        "(float[1,1,4,4] x) => (float[1,1,6,6] y)"
        " { y = AveragePool<kernel_shape=[3,3], pads=[2,2,2,2]>(x) }",
        [IMAGE],
    ),
    "average-counting-padding": Case(
        "(float[1,1,4,4] x) => (float[1,1,4,4] y)"
        " { y = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>(x) }",
        [IMAGE + 1],
    ),
    "average-same-upper": Case(
        "(float[1,1,4,4] x) => (float[1,1,4,4] y)"
        ' { y = AveragePool<kernel_shape=[2,2], auto_pad="SAME_UPPER">(x) }',
        [IMAGE],
    ),
    "lp-pool-same-upper": Case(
        "(float[1,3,8,8] x) => (float[1,3,8,8] y)"
        ' { y = LpPool<kernel_shape=[2,2], auto_pad="SAME_UPPER">(x) }',
        [np.arange(192, dtype=np.float32).reshape(1, 3, 8, 8) % 17],
        opset=18,
    ),
    "negative-elements": Case(
        "(float[2,3] x, int64[1,3] i) => (float[1,3] y) { y = GatherElements(x, i) }",
        [X, np.array([[-1, -2, 0]])],
    ),
    "scatter-to-negative-elements": Case(
        "(float[1,5] x, int64[1,2] i, float[1,2] u) => (float[1,5] y)"
        " { y = ScatterElements<axis=1>(x, i, u) }",
        [floats(1, 2, 3, 4, 5), np.array([[1, -3]]), floats(10, 20)],
    ),
    "grid-of-a-volume": Case(
        "(float[1,1,2,2,2] x, float[1,1,1,2,3] g) => (float[1,1,1,1,2] y)"
        ' { y = GridSample<mode="linear">(x, g) }',
        [ROW.reshape(1, 1, 2, 2, 2), floats(-0.5, 0.5, 0, 0.2, 0.1, -0.3).reshape(1, 1, 1, 2, 3)],
        opset=20,
    ),
    "is-nan": Case("(float[1,3] x) => (bool[1,3] y) { y = IsNaN(x) }", [floats(np.nan, 1, np.inf)]),
    "modulo-of-bytes": Case(
        "(uint8[1,3] x, uint8[1,3] u) => (uint8[1,3] y) { y = Mod(x, u) }",
        [np.array([[200, 100, 7]], np.uint8), np.array([[7, 30, 5]], np.uint8)],
    ),
    "modulo-of-uint64": Case(
        "(uint64[1,3] x, uint64[1,3] u) => (uint64[1,3] y) { y = Mod(x, u) }",
        [np.array([[200, 100, 7]], np.uint64), np.array([[7, 30, 5]], np.uint64)],
    ),
    "space-to-depth": Case(
        '(float[1,2,2,2] x) => (float[1,8,1,1] y) { y = SpaceToDepth<blocksize=2, mode="CRD">(x) }',
        [ROW.reshape(1, 2, 2, 2)],
        opset=28,
    ),
    "modulo-by-infinity": Case(
        "(float[1,2] x, float[1,2] u) => (float[1,2] y) { y = Mod(x, u) }",
        [floats(-3, 3), floats(np.inf, np.inf)],
        opset=28,
    ),
    "nonzero": Case(
        "(bool[2,2] x) => (int64[2,3] y) { y = NonZero(x) }", [np.array([[1, 0], [1, 1]], bool)]
    ),
    "pool-of-bytes": Case(
        "(uint8[1,1,4,4] x) => (uint8[1,1,2,2] y)"
        " { y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) }",
        [np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4)],
    ),
    "window-of-attention": Case(
        "(float[1,1,4,2] q, float[1,1,4,2] k, float[1,1,4,2] v) => (float[1,1,4,2] y)"
        " { y = Attention<left_window_size=1, right_window_size=0>(q, k, v) }",
        [QUERIES, QUERIES[:, :, ::-1], QUERIES * 4],
        opset=25,
    ),
    "short-fourier-transform": Case(
        "(float[1,128,1] x, int64 a, int64 n) => (float[1,15,9,2] y) { y = STFT(x, a, , n) }",
        [np.arange(128, dtype=np.float32).reshape(1, 128, 1), np.array(8), np.array(16)],
        opset=17,
    ),
    "upsample": Case(
        "(float[1,1,2,2] x, float[4] s) => (float[1,1,4,6] y)"
        ' { y = Upsample<mode="nearest">(x, s) }',
        [ROW[:, :, :, :2], np.array([1, 1, 2, 3], np.float32)],
        opset=9,
    ),
    "broadcast-sum-normalized": Case(
        "(float[2,24,1] x, float[24,2] u) => (float[2,24,2] y) <float[2] s = {1, 1}>"
        " { a = Add(x, u) y = LayerNormalization(a, s) }",
        [np.arange(48, dtype=np.float32).reshape(2, 24, 1) / 9, ones(24, 2) * (floats(1, 2))],
        opset=18,
    ),
}

CASES: Mapping[str, Mapping[str, Case]] = {
    "iree": IREE,
    "onnxruntime": ONNXRUNTIME,
    "onnx2torch": ONNX2TORCH,
    "openvino": OPENVINO,
    "qnn": QNN,
    "tvm": TVM,
}
