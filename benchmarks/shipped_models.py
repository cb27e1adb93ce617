"""Healthy models whose sessions round differently, and an optimizer that joins what fuses wrongly.

A module of its own because workers import it; ``shipped.py`` uses it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import ModelProto, TensorProto, helper, numpy_helper
from pydantic import BaseModel

from optvet.plugin import Artifact
from optvet.testing import Planted

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.quantized.models import quantized_model

_MAX_TYPES = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT32}
_MAX_TYPES |= {TensorProto.INT64}
_APART = "_apart"


def apart(model: ModelProto) -> ModelProto:
    """The model with a Max of one operand, which changes nothing, between every two nodes.

    No fusion sees through it. Values of types that Max does not take stay as they are.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    types = {
        v.name: v.type.tensor_type.elem_type
        for v in onnx.shape_inference.infer_shapes(copy).graph.value_info
    }
    ends = {o.name for o in copy.graph.output}
    nodes = []
    for node in copy.graph.node:
        nodes.append(node)
        for place, name in enumerate(node.output):
            if name in ends or types.get(name) not in _MAX_TYPES:
                continue
            node.output[place] = name + _APART
            nodes.append(helper.make_node("Max", [name + _APART], [name]))
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    return copy


@dataclass
class Joining(Planted):
    """Removes what ``apart`` puts in, which is right: the pass ``heal``."""

    name: str = "joining"
    preload: Sequence[str] = ("onnx", __name__)
    default: tuple[str, ...] = ("identity", "heal")
    offered: tuple[str, ...] | None = ("identity", "heal")

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        """The model as it was."""
        model = onnx.load_from_string(source.data)
        if "heal" in passes:
            kept = [n for n in model.graph.node if not n.input or not n.input[0].endswith(_APART)]
            for node in kept:
                node.output[:] = [o.removesuffix(_APART) for o in node.output]
            nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in kept]
            del model.graph.node[:]
            model.graph.node.extend(nodes)
        return Artifact("onnx", model.SerializeToString())


def declared(wrong: bool = False) -> tuple[ModelProto, dict[str, np.ndarray[Any, Any]]]:
    """A model that divides a reshaped value by its size, and inputs.

    Args:
        wrong: Declare a shape that the reshaped value does not have for these inputs.
    """
    model = onnx.parser.parse_model(
        _HEAD + "g (float[N,4] x, int64[2] s) => (float[M,K] y) { a = Relu(x)  r = Reshape(a, s)"
        " h = Shape(r)  f = Cast<to = 1>(h)  p = ReduceProd<keepdims = 0>(f)  y = Div(r, p) }"
    )
    if wrong:
        model.graph.value_info.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, [2, 3]))
    rng = np.random.default_rng(0)
    return model, {"x": rng.random((6, 4), np.float32), "s": np.array([3, 8])}


@dataclass
class Declaring(Planted):
    """Its pass ``misdeclare`` declares a wrong shape of ``r``, and changes no node."""

    name: str = "declaring"
    preload: Sequence[str] = ("onnx", __name__)
    default: tuple[str, ...] = ("identity", "misdeclare")
    offered: tuple[str, ...] | None = ("identity", "misdeclare")

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        """The same nodes, with the wrong declaration if asked for."""
        model = onnx.load_from_string(source.data)
        if "misdeclare" in passes:
            value = helper.make_tensor_value_info("r", TensorProto.FLOAT, [2, 3])
            model.graph.value_info.append(value)
        return Artifact("onnx", model.SerializeToString())


# --- healthy models -------------------------------------------------------------------------------

_HEALTHY: Mapping[str, tuple[str, str]] = {
    # name: (inputs and outputs, nodes); weights are written NAME[SHAPE].
    "conv-blocked": (
        "float[1,16,12,12] x => float[1,32,12,12] y",
        "c = Conv<pads = [1,1,1,1]>(x, w[32,16,3,3], b[32])  y = Relu(c)",
    ),
    "conv-twice": (
        "float[1,16,12,12] x => float[1,16,6,6] y",
        "c = Conv<pads = [1,1,1,1]>(x, w[32,16,3,3], b[32])  r = Relu(c)"
        "  y = Conv<pads = [1,1,1,1], strides = [2,2]>(r, v[16,32,3,3], d[16])",
    ),
    "residual": (
        "float[1,16,8,8] x => float[1,16,8,8] y",
        "c = Conv<pads = [1,1,1,1]>(x, w[16,16,3,3], b[16])  a = Add(c, x)  y = Relu(a)",
    ),
    "depthwise": (
        "float[1,16,9,9] x => float[1,8,9,9] y",
        "c = Conv<pads = [1,1,1,1], group = 16>(x, w[16,1,3,3], b[16])  r = Sigmoid(c)"
        "  y = Conv(r, v[8,16,1,1], d[8])",
    ),
    "conv-pool": (
        "float[2,16,8,8] x => float[2,16,1,1] y",
        "c = Conv(x, w[16,16,3,3], b[16])  r = Relu(c)"
        "  p = MaxPool<kernel_shape = [2,2], strides = [2,2]>(r)  y = GlobalAveragePool(p)",
    ),
    "conv-batchnorm": (
        "float[1,8,8,8] x => float[1,16,6,6] y",
        "c = Conv(x, w[16,8,3,3])  y = BatchNormalization(c, s[16], b[16], m[16], p+[16])",
    ),
    "matmul-add": (
        "float[4,64] x => float[4,48] y",
        "h = MatMul(x, w[64,48])  a = Add(h, b[48])  y = Tanh(a)",
    ),
    "matmul-long": ("float[3,1500] x => float[3,7] y", "y = MatMul(x, w[1500,7])"),
    "gelu": (
        "float[4,32] x => float[4,16] y",
        "h = MatMul(x, w[32,64])  g = Add(h, b[64])  d = Div(g, =1.4142135)  e = Erf(d)"
        "  o = Add(e, =1.0)  m = Mul(g, o)  k = Mul(m, =0.5)  y = MatMul(k, v[64,16])",
    ),
    "fast-gelu": (
        "float[4,32] x => float[4,32] y",
        "t = Mul(x, x)  c = Mul(t, x)  s = Mul(c, =0.044715)  a = Add(x, s)"
        "  m = Mul(a, =0.7978846)  h = Tanh(m)  o = Add(h, =1.0)  p = Mul(x, =0.5)  y = Mul(p, o)",
    ),
    "silu": ("float[4,64] x => float[4,64] y", "s = Sigmoid(x)  y = Mul(x, s)"),
    "layer-norm": (
        "float[2,5,32] x => float[2,5,32] y",
        "m = ReduceMean<axes = [-1]>(x)  d = Sub(x, m)  p = Pow(d, =2.0)"
        "  v = ReduceMean<axes = [-1]>(p)  e = Add(v, =0.00001)  s = Sqrt(e)  q = Div(d, s)"
        "  k = Mul(q, g[32])  y = Add(k, b[32])",
    ),
    "rms-norm": (
        "float[2,5,32] x => float[2,5,32] y",
        "p = Pow(x, =2.0)  v = ReduceMean<axes = [-1]>(p)  e = Add(v, =0.00001)  s = Sqrt(e)"
        "  q = Div(x, s)  y = Mul(q, g[32])",
    ),
    "skip-layer-norm": (
        "float[2,5,32] x, float[2,5,32] u => float[2,5,32] y",
        "a = Add(x, u)  y = LayerNormalization(a, g[32], b[32])",
    ),
    "attention": (
        "float[1,2,6,16] q, float[1,2,6,16] k, float[1,2,6,16] v => float[1,2,6,16] y",
        "t = Transpose<perm = [0,1,3,2]>(k)  m = MatMul(q, t)  s = Mul(m, =0.25)"
        "  p = Softmax<axis = -1>(s)  y = MatMul(p, v)",
    ),
    "biased-softmax": (
        "float[1,2,6,6] x, float[1,1,1,6] u => float[1,2,6,6] y",
        "a = Add(x, u)  y = Softmax<axis = -1>(a)",
    ),
    "transposed-matmul": (
        "float[4,12,8] x, float[4,12,10] u => float[4,8,10] y",
        "t = Transpose<perm = [0,2,1]>(x)  m = MatMul(t, u)  y = Mul(m, =0.3)",
    ),
    "lstm": (
        "float[7,2,6] x => float[7,1,2,5] y",
        "y = LSTM<hidden_size = 5>(x, w[1,20,6], r[1,20,5], b[1,40])",
    ),
    "transposed-conv": (
        "float[1,8,6,6] x => float[1,8,12,12] y",
        "c = ConvTranspose<strides = [2,2], kernel_shape = [2,2]>(x, w[8,8,2,2], b[8])"
        "  y = LeakyRelu(c)",
    ),
    "conv-1d": (
        "float[2,8,40] x => float[2,16,38] y",
        "c = Conv(x, w[16,8,3], b[16])  y = Relu(c)",
    ),
    "gemm": (
        "float[5,1100] x => float[5,30] y",
        "g = Gemm<transB = 1, alpha = 0.5>(x, w[30,1100], b[30])  y = Relu(g)",
    ),
    "conv-scaled": (
        "float[1,8,8,8] x => float[1,16,6,6] y",
        "c = Conv(x, w[16,8,3,3], b[16])  y = Mul(c, s[16,1,1])",
    ),
    "conv-shifted": (
        "float[1,8,8,8] x => float[1,16,6,6] y",
        "c = Conv(x, w[16,8,3,3], b[16])  y = Add(c, s[16,1,1])",
    ),
    "conv-dilated": (
        "float[1,16,12,12] x => float[1,16,8,8] y",
        "c = Conv<dilations = [2,2]>(x, w[16,16,3,3], b[16])  y = Sigmoid(c)",
    ),
    "conv-grouped": (
        "float[1,32,8,8] x => float[1,32,6,6] y",
        "c = Conv<group = 2>(x, w[32,16,3,3], b[32])  y = Relu(c)",
    ),
    "conv-of-image": (
        "float[1,3,20,20] x => float[1,16,9,9] y",
        "c = Conv<strides = [2,2]>(x, w[16,3,3,3], b[16])  y = Clip(c, =0.0, =6.0)",
    ),
    "conv-padded": (
        "float[1,16,8,8] x => float[1,16,8,8] y",
        "q = Pad(x, pads)  c = Conv(q, w[16,16,3,3], b[16])  y = Relu(c)",
    ),
    "dense-block": (
        "float[1,16,8,8] x => float[1,32,8,8] y",
        "c = Conv<pads = [1,1,1,1]>(x, w[16,16,3,3], b[16])  r = Relu(c)"
        "  y = Concat<axis = 1>(x, r)",
    ),
    "matmul-batchnorm": (
        "float[6,40] x => float[6,24] y",
        "h = MatMul(x, w[40,24])  y = BatchNormalization(h, s[24], b[24], m[24], p+[24])",
    ),
    "scaled-matmul": (
        "float[4,12,64] x, float[4,64,10] u => float[4,12,10] y",
        "s = Mul(x, =0.3)  t = Mul(u, =0.7)  y = MatMul(s, t)",
    ),
    "attention-long": (
        "float[1,2,6,64] q, float[1,2,900,64] k, float[1,2,900,64] v => float[1,2,6,64] y",
        "t = Transpose<perm = [0,1,3,2]>(k)  m = MatMul(q, t)  s = Mul(m, =0.125)"
        "  p = Softmax<axis = -1>(s)  y = MatMul(p, v)",
    ),
}
_HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'


def healthy() -> Iterator[tuple[str, ModelProto]]:
    """Models that are right in every session."""
    for number, (name, (interface, nodes)) in enumerate(_HEALTHY.items()):
        yield name, _written(interface, nodes, np.random.default_rng(number))
    yield "int8", quantized_model(1)
    yield "int8-signed", quantized_model(2, signed=True, per_channel=True)
    yield "int8-softmax", quantized_model(3, softmax=True)
    yield "half", _in_half(_written(*_HEALTHY["matmul-add"], np.random.default_rng(50)))
    yield "dynamic-int8", _dynamic(np.random.default_rng(51))


_CANCELLING = {
    # 40 in each weight moves all logits alike, which Softmax takes back.
    "bf16-logits": "y = Softmax(l)",
    # The mean of all logits is a hundred times as large as what they differ by.
    "bf16-centred": "m = ReduceMean<axes = [1]>(l)  y = Sub(l, m)",
    "bf16-difference": "k = MatMul(x, v)  y = Sub(l, k)",
}
"""Models whose results are small differences of large values, which bfloat16 does not hold."""


def cancelling() -> Iterator[tuple[str, ModelProto]]:
    """Models that are right in float32, and off by more than 5 % in bfloat16."""
    rng = np.random.default_rng(0)
    for name, nodes in _CANCELLING.items():
        text = f"{_HEAD}g (float[4,32] x) => (float[4,8] y) {{ l = MatMul(x, w)  {nodes} }}"
        model = onnx.parser.parse_model(text)
        large = np.full((32, 8), 40, np.float32)
        weights = {"w": large + rng.normal(size=(32, 8)).astype(np.float32), "v": large}
        read = {n for node in model.graph.node for n in node.input}
        named = [(n, v) for n, v in weights.items() if n in read]
        model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in named)
        yield name, model


def _written(interface: str, nodes: str, rng: np.random.Generator) -> ModelProto:
    """A model of text; ``w[4,3]`` is a weight, ``p+[3]`` a positive one, ``=2.0`` a number."""
    weights: dict[str, np.ndarray[Any, Any]] = {}
    words = []
    for word in nodes.replace("(", "( ").replace(")", " )").replace(", ", " , ").split():
        name, _, shape = word.partition("[")
        if word.startswith("=") and len(word) > 1:
            name = f"c{len(weights)}"
            weights[name] = np.array(float(word[1:]), np.float32)
            word = name
        elif shape and name and "=" not in name and name.rstrip("+").isalpha():
            size = [int(d) for d in shape.rstrip("]").split(",")]
            value = np.asarray(rng.normal(size=size)) / max(math.prod(size[1:]), 1) ** 0.5
            word = name.rstrip("+")
            weights[word] = (np.abs(value) + 0.5 if "+" in name else value).astype(np.float32)
        words.append(word)
    made, results = interface.split("=>")
    text = f"{_HEAD}g ({made}) => ({results}) {{ {' '.join(words)} }}"
    model = onnx.parser.parse_model(text)
    if "pads" in words:
        weights["pads"] = np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in weights.items())
    return model


def _in_half(model: ModelProto) -> ModelProto:
    """The model in float16, weights, input and output."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    weights = [(t.name, numpy_helper.to_array(t)) for t in model.graph.initializer]
    del model.graph.initializer[:]
    halves = (numpy_helper.from_array(v.astype(np.float16), n) for n, v in weights)
    model.graph.initializer.extend(halves)
    return model


def _dynamic(rng: np.random.Generator) -> ModelProto:
    """An 8-bit MatMul that is scaled by the scale of its quantized input."""
    model = onnx.parser.parse_model(
        _HEAD + "g (float[4,32] x) => (float[4,16] y) <float s = {0.01}, int8 z = {0}> {"
        " q, t, p = DynamicQuantizeLinear(x)  i = MatMulInteger(q, w, p, z)"
        " f = Cast<to = 1>(i)  k = Mul(t, s)  y = Mul(f, k) }"
    )
    # 7 bits, since pairs of products saturate on some processors.
    weight = rng.integers(-63, 64, (32, 16)).astype(np.int8)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return model
