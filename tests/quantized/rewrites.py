"""Rewrites of small quantized models: wrong ones and right ones.

::

    model = quantized_model(seed=1, per_channel=True)
    QUANTIZED_FAULTS["scale_of_quantizer"](model, 0.5)

A fault changes one place, which the second argument chooses, from 0 (the first) to 1 (the last). It
raises ``ValueError`` where the model has no such place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from tests.quantized.models import Array

Plant = Callable[[ModelProto, float], None]


def _choose(found: Sequence[NodeProto], where: float) -> NodeProto:
    if not found:
        raise ValueError("the model has no such place")
    return found[round(where * (len(found) - 1))]


def _weights(model: ModelProto) -> dict[str, TensorProto]:
    return {t.name: t for t in model.graph.initializer}


def _nodes(model: ModelProto, kind: str, *, weights: bool = False) -> list[NodeProto]:
    """Quantizers or dequantizers of activations, or of weights."""
    known = _weights(model)
    return [
        n
        for n in model.graph.node
        if n.op_type == kind and (n.input[0] in known) == weights and n.input[1] in known
    ]


def _change(
    model: ModelProto, node: NodeProto, index: int, change: Callable[[Array], Array]
) -> None:
    """Give ``node`` a changed copy of a weight, which other nodes may read unchanged."""
    was = numpy_helper.to_array(_weights(model)[node.input[index]])
    name = f"{node.input[index]}.planted"
    model.graph.initializer.append(numpy_helper.from_array(change(was).astype(was.dtype), name))
    node.input[index] = name


def _scale_of_quantizer(model: ModelProto, where: float) -> None:
    """Q(x, s) → Q(x, 1.02 s)."""
    _change(model, _choose(_nodes(model, "QuantizeLinear"), where), 1, lambda s: s * 1.02)


def _scale_of_dequantizer(model: ModelProto, where: float) -> None:
    """DQ(q, s) → DQ(q, 1.02 s)."""
    _change(model, _choose(_nodes(model, "DequantizeLinear"), where), 1, lambda s: s * 1.02)


def _scale_of_weight(model: ModelProto, where: float) -> None:
    """DQ(W, s) → DQ(W, 1.02 s)."""
    found = [n for n in _nodes(model, "DequantizeLinear", weights=True) if not _is_bias(model, n)]
    _change(model, _choose(found, where), 1, lambda s: s * 1.02)


def _scale_of_bias(model: ModelProto, where: float) -> None:
    """DQ(b, s) → DQ(b, 1.25 s)."""
    found = [n for n in _nodes(model, "DequantizeLinear", weights=True) if _is_bias(model, n)]
    _change(model, _choose(found, where), 1, lambda s: s * 1.25)


def _is_bias(model: ModelProto, node: NodeProto) -> bool:
    return _weights(model)[node.input[0]].data_type == TensorProto.INT32


def _zero_point(model: ModelProto, where: float) -> None:
    """DQ(q, s, z) → DQ(q, s, z ± 1)."""

    def off(zero: Array) -> Array:
        wide = zero.astype(np.int64)
        return np.where(wide < np.iinfo(zero.dtype).max, wide + 1, wide - 1)

    _change(model, _choose(_nodes(model, "DequantizeLinear"), where), 2, off)


def _shifted_channels(model: ModelProto, where: float) -> None:
    """DQ(W, (s1, s2, …)) → DQ(W, (s2, …, s1)): the scales of other channels."""
    known = _weights(model)
    found = [
        n
        for n in _nodes(model, "DequantizeLinear", weights=True)
        if known[n.input[1]].dims and not _is_bias(model, n)
    ]
    _change(model, _choose(found, where), 1, lambda s: np.roll(s, 1))


def _weights_off(model: ModelProto, where: float) -> None:
    """1 % of the weights of a layer, and at least one, one step larger."""

    def off(values: Array) -> Array:
        moved = values.astype(np.int64).ravel()
        moved[:: min(100, max(moved.size - 1, 1))] += 1
        return np.clip(moved, -128, 127).reshape(values.shape)

    found = [n for n in _nodes(model, "DequantizeLinear", weights=True) if not _is_bias(model, n)]
    _change(model, _choose(found, where), 0, off)


def _rounded_down(model: ModelProto, where: float) -> None:
    """Q(x, s) → Q(x - s / 2, s)."""
    node = _choose(_nodes(model, "QuantizeLinear"), where)
    half, name = f"{node.output[0]}.half", f"{node.output[0]}.lower"
    scale = numpy_helper.to_array(_weights(model)[node.input[1]])
    model.graph.initializer.append(numpy_helper.from_array(scale * np.float32(0.4999), half))
    _before(model, node, [helper.make_node("Sub", [node.input[0], half], [name])])
    node.input[0] = name


def _wrap_saturated_values(model: ModelProto, where: float) -> None:
    """Q(x, s, z) → Cast(Mod(Round(x / s) + z, 256)), for uint8: 256 becomes 0 and not 255."""
    known = _weights(model)
    found = [
        n
        for n in _nodes(model, "QuantizeLinear")
        if known[n.input[2]].data_type == TensorProto.UINT8
    ]
    node = _choose(found, where)
    source, scale, zero = node.input
    name = node.output[0]
    extra = {
        f"{name}.zero": numpy_helper.to_array(known[zero]).astype(np.float32),
        f"{name}.all": np.array(256, np.float32),
    }
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in extra.items())
    new = [
        helper.make_node("Div", [source, scale], [f"{name}.units"]),
        helper.make_node("Round", [f"{name}.units"], [f"{name}.round"]),
        helper.make_node("Add", [f"{name}.round", f"{name}.zero"], [f"{name}.sum"]),
        helper.make_node("Mod", [f"{name}.sum", f"{name}.all"], [f"{name}.mod"], fmod=1),
        helper.make_node("Add", [f"{name}.mod", f"{name}.all"], [f"{name}.up"]),
        helper.make_node("Mod", [f"{name}.up", f"{name}.all"], [f"{name}.wrapped"], fmod=1),
        helper.make_node("Cast", [f"{name}.wrapped"], [name], to=TensorProto.UINT8),
    ]
    _before(model, node, new)
    model.graph.node.remove(node)


def _drop_saturation(model: ModelProto, where: float) -> None:
    """DQ(Q(x)) → x, where the quantizer cuts values off: it stands for a Relu."""
    makers = {o: n for n in model.graph.node for o in n.output}
    found = [
        n
        for n in _nodes(model, "QuantizeLinear")
        if n.input[0] in makers and makers[n.input[0]].op_type == "Conv" and _is_undone(model, n)
    ]
    node = _choose(found, where)
    readers = [n for n in model.graph.node if node.output[0] in n.input]
    for each in readers:
        each.op_type = "Identity"
        del each.attribute[:]
        each.input[:] = [node.input[0]]
    model.graph.node.remove(node)


# --- what is right --------------------------------------------------------------------------------


def _rounded_otherwise(model: ModelProto, where: float, tie: Sequence[NodeProto]) -> None:
    known = _weights(model)
    node = _choose(_nodes(model, "QuantizeLinear"), where)
    name, kind = node.output[0], known[node.input[2]].data_type
    low, high = (0, 255) if kind == TensorProto.UINT8 else (-128, 127)
    constants = {"zero": numpy_helper.to_array(known[node.input[2]]), "half": 0.5}
    for key, value in (constants | {"low": low, "high": high}).items():
        array = np.array(value, np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, f"{name}.{key}"))
    new = [helper.make_node("Div", [node.input[0], node.input[1]], [f"{name}.units"])]
    for each in tie:
        copy = NodeProto()
        copy.CopyFrom(each)
        copy.input[:] = [f"{name}.{i}" for i in copy.input]
        copy.output[:] = [f"{name}.{o}" for o in copy.output]
        new.append(copy)
    new += [
        helper.make_node("Add", [f"{name}.whole", f"{name}.zero"], [f"{name}.sum"]),
        helper.make_node("Clip", [f"{name}.sum", f"{name}.low", f"{name}.high"], [f"{name}.in"]),
        helper.make_node("Cast", [f"{name}.in"], [name], to=kind),
    ]
    _before(model, node, new)
    model.graph.node.remove(node)


def _ties_up(model: ModelProto, where: float) -> None:
    """Q(x, s, z) → Clip(Floor(x / s + 1/2) + z): ties go up, not to the even integer."""
    tie = [
        helper.make_node("Add", ["units", "half"], ["above"]),
        helper.make_node("Floor", ["above"], ["whole"]),
    ]
    _rounded_otherwise(model, where, tie)


def _ties_down(model: ModelProto, where: float) -> None:
    """Q(x, s, z) → Clip(Ceil(x / s - 1/2) + z)."""
    tie = [
        helper.make_node("Sub", ["units", "half"], ["below"]),
        helper.make_node("Ceil", ["below"], ["whole"]),
    ]
    _rounded_otherwise(model, where, tie)


def _skip_rounding(model: ModelProto, where: float) -> None:
    """DQ(Q(x, s, z), s, z) → Clip(x, lowest, highest): less is rounded, no less is cut off."""
    known = _weights(model)
    inputs = {i.name for i in model.graph.input}
    every = _nodes(model, "QuantizeLinear")
    found = [n for n in every if n.input[0] not in inputs and _is_undone(model, n)]
    node = _choose([n for n in found if n is not every[-1]], where)
    scale, zero = (numpy_helper.to_array(known[n]) for n in node.input[1:])
    limits = np.iinfo(zero.dtype)
    names = [f"{node.output[0]}.low", f"{node.output[0]}.high"]
    for name, end in zip(names, (limits.min, limits.max), strict=True):
        array = np.array((end - int(zero)) * float(scale), np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    for each in [n for n in model.graph.node if node.output[0] in n.input]:
        each.op_type = "Clip"
        del each.attribute[:]
        each.input[:] = [node.input[0], *names]
    model.graph.node.remove(node)


def _integer_convolution(model: ModelProto, where: float) -> None:
    """Q(Conv(DQ(x), DQ(W), DQ(b))) → QLinearConv(x, W, b): sums of integers, one requantization."""
    makers = {o: n for n in model.graph.node for o in n.output}
    found = [
        n
        for n in _nodes(model, "QuantizeLinear")
        if n.input[0] in makers and makers[n.input[0]].op_type == "Conv"
    ]
    node = _choose(found, where)
    conv = makers[node.input[0]]
    x, weight, bias = (makers[name] for name in conv.input)
    fused = helper.make_node(
        "QLinearConv",
        [*x.input, *weight.input, *node.input[1:], bias.input[0]],
        list(node.output),
        name=node.name,
    )
    fused.attribute.extend(conv.attribute)
    _before(model, node, [fused])
    model.graph.node.remove(node)
    model.graph.node.remove(conv)


def _is_undone(model: ModelProto, node: NodeProto) -> bool:
    """Whether all readers of a quantizer are dequantizers."""
    readers = [n for n in model.graph.node if node.output[0] in n.input]
    outputs = {o.name for o in model.graph.output}
    undone = all(n.op_type == "DequantizeLinear" for n in readers)
    return bool(readers) and undone and node.output[0] not in outputs


def _before(model: ModelProto, node: NodeProto, new: Sequence[NodeProto]) -> None:
    at = list(model.graph.node).index(node)
    for offset, each in enumerate(new):
        model.graph.node.insert(at + offset, each)


QUANTIZED_FAULTS: Mapping[str, Plant] = {
    "scale_of_quantizer": _scale_of_quantizer,
    "scale_of_dequantizer": _scale_of_dequantizer,
    "scale_of_weight": _scale_of_weight,
    "scale_of_bias": _scale_of_bias,
    "zero_point": _zero_point,
    "shifted_channels": _shifted_channels,
    "weights_off": _weights_off,
    "rounded_down": _rounded_down,
    "wrapped": _wrap_saturated_values,
    "saturation_dropped": _drop_saturation,
}
"""Faults by name; each says in its first line what it rewrites."""

QUANTIZED_BENIGN: Mapping[str, Plant] = {
    "ties_up": _ties_up,
    "ties_down": _ties_down,
    "rounding_skipped": _skip_rounding,
    "integer_convolution": _integer_convolution,
}
"""Rewrites by name that compute something else, and nothing wrong."""
