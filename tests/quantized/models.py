"""Small quantized models made from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = NDArray[Any]
_CHANNELS, _SIZE = 8, 12


def quantized_model(
    seed: int,
    *,
    signed: bool = False,
    per_channel: bool = False,
    residual: bool = True,
    softmax: bool = False,
) -> ModelProto:
    """A network of convolutions, pools and a classifier on images of four channels, all in 8 bits.

    Every scale is one that the model's own values need, so that hardly any is saturated.

    Args:
        seed: Of weights and of the values by which scales are chosen.
        signed: Activations are int8, not uint8.
        per_channel: Weights have a scale for each channel.
        residual: Two branches are added.
        softmax: The last layer is a Softmax, quantized with a step of 1/256.
    """
    net = _Net(seed, signed=signed, per_channel=per_channel)
    x = net.quantize("x")
    x = net.conv(x, 4, _CHANNELS)
    first = net.quantize(net.node("Relu", x))
    x = net.quantize(net.conv(first, _CHANNELS, _CHANNELS), low=0.0)
    if residual:
        x = net.quantize(net.node("Add", first, x))
    # A pool keeps the scale, so that many of its means lie halfway between two integers.
    x = net.quantize_like(net.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2]), x)
    x = net.quantize(net.node("Relu", net.conv(x, _CHANNELS, _CHANNELS)))
    x = net.quantize(net.node("GlobalAveragePool", x))
    x = net.quantize(net.dense(net.node("Flatten", x), _CHANNELS, 10))
    if softmax:
        x = net.quantize(net.node("Softmax", x, axis=-1), scale=1 / 256)
    net.nodes[-1].output[0] = "y"
    return net.model(["y"])


class _Net:
    """A quantized graph that grows node by node; ``quantize`` measures what it has so far."""

    def __init__(self, seed: int, *, signed: bool, per_channel: bool) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: dict[str, Array] = {}
        self._rng = np.random.default_rng(seed)
        self._signed, self._per_channel = signed, per_channel
        shape = (2, 4, _SIZE, _SIZE)
        self._feeds = {"x": self._rng.standard_normal(shape).astype(np.float32)}

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def quantize(self, value: str, *, low: float | None = None, scale: float | None = None) -> str:
        """``value`` behind a quantizer and a dequantizer, from ``low`` on if that is given."""
        seen = self._seen(value) if scale is None else np.array([0.0, 1.0])
        least = min(0.0, float(seen.min())) if low is None else low
        most = max(float(seen.max()), least + 1e-3)
        bottom = -128 if self._signed else 0
        step = np.float32((most - least) / 255 if scale is None else scale)
        zero = round(bottom - least / float(step))
        names = self._scale(value, step, zero, np.int8 if self._signed else np.uint8)
        quantizer = self.node("QuantizeLinear", value, *names)
        return self.node("DequantizeLinear", quantizer, *names)

    def quantize_like(self, value: str, like: str) -> str:
        """``value`` behind a quantizer and a dequantizer with the scale of another value."""
        names = next(n.input[1:] for n in self.nodes if like in n.output)
        return self.node("DequantizeLinear", self.node("QuantizeLinear", value, *names), *names)

    def _seen(self, value: str) -> Array:
        from onnx.reference import ReferenceEvaluator

        if value == "x":
            return self._feeds["x"]
        (seen,) = ReferenceEvaluator(self.model([value])).run(None, self._feeds)
        return np.asarray(seen)

    def _scale(self, name: str, step: Any, zero: Any, kind: Any) -> list[str]:
        self.weights[f"{name}.scale"] = np.asarray(step, np.float32)
        self.weights[f"{name}.zero"] = np.broadcast_to(zero, np.shape(step)).astype(kind)
        return [f"{name}.scale", f"{name}.zero"]

    def _weight(self, name: str, value: Array, axis: int) -> str:
        others = tuple(i for i in range(value.ndim) if i != axis)
        top = np.abs(value).max(axis=others if self._per_channel else None)
        # Beside unsigned activations 7 bits, as ONNX Runtime's quantizer advises: its kernels for
        # processors without VNNI add two products in 16 bits, and saturate.
        most = 127 if self._signed else 63
        names = self._scale(name, top / most, 0, np.int8)
        shape = [-1 if i == axis else 1 for i in range(value.ndim)] if self._per_channel else ()
        scale = self.weights[f"{name}.scale"].reshape(shape)
        self.weights[name] = np.clip(np.rint(value / scale), -most, most).astype(np.int8)
        return self.node("DequantizeLinear", name, *names, axis=axis)

    def _bias(self, name: str, x: str, count: int) -> str:
        """A bias in the product of the scales, as integer kernels take it."""
        source = next(n.input[1] for n in self.nodes if x in n.output)
        step = self.weights[source] * self.weights[f"{name}.weight.scale"]
        values = self._rng.normal(0, 0.3, count)
        self.weights[f"{name}.bias"] = np.rint(values / step).astype(np.int32)
        names = self._scale(f"{name}.bias", step, 0, np.int32)
        return self.node("DequantizeLinear", f"{name}.bias", *names, axis=0)

    def conv(self, x: str, inputs: int, outputs: int) -> str:
        name = f"conv{len(self.nodes)}"
        value = self._rng.normal(0, (inputs * 9) ** -0.5, (outputs, inputs, 3, 3))
        weight = self._weight(f"{name}.weight", value, 0)
        return self.node("Conv", x, weight, self._bias(name, x, outputs), pads=[1] * 4)

    def dense(self, x: str, inputs: int, outputs: int) -> str:
        name = f"dense{len(self.nodes)}"
        value = self._rng.normal(0, 1, (inputs, outputs))
        return self.node("MatMul", x, self._weight(f"{name}.weight", value, 1))

    def model(self, outputs: Sequence[str]) -> ModelProto:
        """What there is so far, with some of its values as outputs."""
        shape: list[str | int | None] = ["N", 4, _SIZE, _SIZE]
        result: list[str | int | None] | None = ["N", 10] if outputs == ["y"] else None
        graph = helper.make_graph(
            self.nodes,
            "quantized",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, result) for n in outputs],
            [numpy_helper.from_array(v, n) for n, v in self.weights.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
