"""Kinds of damage to a model, and the places where it can be done.

A kind changes the model that it is given, at a place drawn from a generator of random numbers. A
kind that finds nothing to damage raises ``NotApplicable``, and ``Equivalent`` where what it does
changes no output on any input. Here are kinds of numbers and of nodes; ``damage_regions.py`` has
those of one part of the graph, ``damages.py`` the optimizer of them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import onnx
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    helper,
    numpy_helper,
)
from plants import NotApplicable, attribute, set_attribute

from optvet.graph.walk import bodies_of

Holder = GraphProto | FunctionProto


class Equivalent(NotApplicable):
    """The damaged model gives the same as before on every input."""


LAYERS: Mapping[str, tuple[int, ...]] = {
    "Conv": (1,),
    "FusedConv": (1,),
    "ConvTranspose": (1,),
    "Gemm": (1,),
    "MatMul": (0, 1),
    "LSTM": (1, 2),
    "GRU": (1, 2),
    "RNN": (1, 2),
    "QLinearConv": (3,),
    "QLinearMatMul": (3,),
    "ConvInteger": (1,),
    "MatMulInteger": (1,),
    "Gather": (0,),
}
"""Operators with weights, by the places of these among their inputs."""
OTHERS: Mapping[str, tuple[int, ...]] = {
    "Add": (0, 1),
    "Mul": (0, 1),
    "BatchNormalization": (1, 2, 3, 4),
    "InstanceNormalization": (1, 2),
    "LayerNormalization": (1, 2),
    "PRelu": (1,),
    "DequantizeLinear": (0,),
    "CDist": (0, 1),
    "Scan": (0, 1),
    **{name: (2,) for name in ("Conv", "FusedConv", "ConvTranspose", "Gemm")},
    **{name: (3,) for name in ("LSTM", "GRU", "RNN")},
}
"""Where else numbers are learned: biases, factors, statistics."""
LEARNED = (
    "coefficients",
    "intercepts",
    "nodes_values",
    "class_weights",
    "target_weights",
    "scale",
    "weights",
)
"""Learned attributes of the operators of ai.onnx.ml."""
ACTIVATIONS = frozenset(
    "Relu LeakyRelu PRelu Sigmoid Tanh Clip HardSwish HardSigmoid Elu Selu Gelu Erf Swish Softmax "
    "Softplus Max Min".split()
)
_WHOLE = (TensorProto.INT8, TensorProto.UINT8)
REAL = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


@dataclass(frozen=True)
class Place:
    """A node, the graph or function that holds it, and the constants that it can read."""

    holder: Holder
    node: NodeProto
    constants: Mapping[str, TensorProto]

    def constant(self, index: int) -> TensorProto | None:
        """The constant of numbers behind an input; behind a DequantizeLinear the integers."""
        names = self.node.input
        if index >= len(names):
            return None
        found = self.constants.get(names[index])
        return found if found is not None and found.data_type in (*_WHOLE, *REAL) else None

    def value(self, index: int) -> np.ndarray | None:
        """The value of a constant input of any type."""
        names = self.node.input
        found = self.constants.get(names[index]) if index < len(names) else None
        return None if found is None else numpy_helper.to_array(found).copy()

    def feed(self, index: int, value: np.ndarray) -> None:
        """Give an input a constant of its own, so that other readers of the old one keep it."""
        own = f"damaged_{self.node.input[index]}"
        tensor = numpy_helper.from_array(np.ascontiguousarray(value), own)
        self.node.input[index] = own
        self.insert_before(helper.make_node("Constant", [], [own], value=tensor))

    def insert_before(self, node: NodeProto) -> None:
        """Put another node in front of this one."""
        at = next(i for i, n in enumerate(self.holder.node) if n is self.node or n == self.node)
        self.holder.node.insert(at, node)


T = TypeVar("T")
Damage = Callable[[ModelProto, np.random.Generator], None]
KINDS: dict[str, Damage] = {}


def damage(do: Damage) -> Damage:
    """Register a kind of damage by its function's name."""
    KINDS[do.__name__] = do
    return do


# --- finding places -------------------------------------------------------------------------------


def places(model: ModelProto) -> Iterator[Place]:
    """All nodes: of the graph, of those inside it, and of functions."""
    yield from _places(model.graph, {})
    for function in model.functions:
        yield from _places(function, {})


def _places(holder: Holder, outer: Mapping[str, TensorProto]) -> Iterator[Place]:
    known = dict(outer)
    if isinstance(holder, GraphProto):
        known |= {t.name: t for t in holder.initializer}
    for node in holder.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            known[node.output[0]] = node.attribute[0].t
        if node.op_type == "Identity" and node.input[0] in known:
            known[node.output[0]] = known[node.input[0]]
        if node.op_type == "DequantizeLinear" and node.input[0] in known:
            known[node.output[0]] = known[node.input[0]]
    for node in holder.node:
        yield Place(holder, node, known)
        for body in bodies_of(node):
            yield from _places(body, known)


def types_of(model: ModelProto) -> Mapping[str, TypeProto.Tensor]:
    """Inferred types of the values of the graph, and of those inside it, as far as known."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except (RuntimeError, onnx.shape_inference.InferenceError):
        return {}
    found: dict[str, TypeProto.Tensor] = {}

    def read(graph: GraphProto) -> None:
        for v in (*graph.input, *graph.value_info, *graph.output):
            found[v.name] = v.type.tensor_type
        for node in graph.node:
            for body in bodies_of(node):
                read(body)

    read(inferred.graph)
    return found


def shape_of(types: Mapping[str, TypeProto.Tensor], name: str) -> list[int] | None:
    """A shape with 0 for sizes that are open; None where it is not known."""
    kind = types.get(name)
    if kind is None or not kind.HasField("shape"):
        return None
    return [int(d.dim_value) for d in kind.shape.dim]


def weights(model: ModelProto, *, least_rank: int = 2) -> list[tuple[Place, TensorProto]]:
    """Layers with their weights, each weight once, as the graph runs; at least one."""
    found: dict[int, tuple[Place, TensorProto]] = {}
    for place in places(model):
        for index in LAYERS.get(place.node.op_type, ()):
            tensor = place.constant(index)
            if tensor is not None and len(tensor.dims) >= least_rank:
                found.setdefault(id(tensor), (place, tensor))
    if not found:
        raise NotApplicable("no weights")
    return list(found.values())


def learned(model: ModelProto) -> list[TensorProto]:
    """Every tensor of more than one number that was learned."""
    found: dict[int, TensorProto] = {}
    for place in places(model):
        for table in (LAYERS, OTHERS):
            for index in table.get(place.node.op_type, ()):
                tensor = place.constant(index)
                if tensor is not None and int(np.prod(tensor.dims)) > 1:
                    found.setdefault(id(tensor), tensor)
    return list(found.values())


def drawn(found: Sequence[T], rng: np.random.Generator, words: str) -> T:
    """One of them; at least one there must be."""
    if not found:
        raise NotApplicable(words)
    return found[int(rng.integers(len(found)))]


def change(tensor: TensorProto, how: Callable[[np.ndarray], np.ndarray]) -> None:
    """Replace a tensor's value, rounded and bounded where it is of integers."""
    was = numpy_helper.to_array(tensor)
    now = how(was.astype(np.float64))
    if was.dtype.kind in "iu":
        bounds = np.iinfo(was.dtype)
        now = np.clip(np.round(now), bounds.min, bounds.max)
    tensor.CopyFrom(numpy_helper.from_array(now.astype(was.dtype), tensor.name))


def become_identity(node: NodeProto, source: str = "") -> None:
    """Make a node hand on its first input, or ``source``."""
    node.op_type, node.domain = "Identity", ""
    node.input[:] = [source or node.input[0]]
    del node.output[1:], node.attribute[:]


# --- numbers --------------------------------------------------------------------------------------


def _moved(share: float, model: ModelProto, rng: np.random.Generator) -> None:
    def move(value: np.ndarray) -> np.ndarray:
        return value * (1 + share * rng.choice([-1.0, 1.0], value.shape))

    found = learned(model)
    for tensor in found:
        change(tensor, move)
    lists = [a for p in places(model) for a in p.node.attribute if a.name in LEARNED and a.floats]
    for a in lists:
        a.floats[:] = move(np.array(a.floats)).astype(np.float32).tolist()
    if not found and not lists:
        raise NotApplicable("no weights")


for _percent in (1, 3, 10):
    KINDS[f"weights_{_percent}_percent"] = partial(_moved, _percent / 100)


@damage
def channels_swapped(model: ModelProto, rng: np.random.Generator) -> None:
    """Two output channels of one layer's weights trade places."""

    def axis_of(place: Place) -> int:
        """Axis of output channels."""
        if place.node.op_type in ("MatMul", "QLinearMatMul", "MatMulInteger"):
            return -1 if place.constant(0) is None else -2
        if place.node.op_type in ("LSTM", "GRU", "RNN", "ConvTranspose"):
            return 1
        if place.node.op_type == "Gemm":
            return 0 if attribute(place.node, "transB", 0) else 1
        return 0

    found = [(p, t) for p, t in weights(model) if t.dims[axis_of(p)] > 1]
    place, tensor = drawn(found, rng, "one channel each")
    axis = axis_of(place)
    a, b = rng.choice(tensor.dims[axis], 2, replace=False)

    def swap(value: np.ndarray) -> np.ndarray:
        order = np.arange(value.shape[axis])
        order[[a, b]] = order[[b, a]]
        return np.take(value, order, axis)

    change(tensor, swap)


@damage
def bias_zeroed(model: ModelProto, rng: np.random.Generator) -> None:
    """One bias becomes 0: of a layer, or what is added to one."""
    found: dict[int, TensorProto] = {}
    for place in places(model):
        op = place.node.op_type
        for index in OTHERS.get(op, ()) if op in LAYERS or op == "Add" else ():
            tensor = place.constant(index)
            known = tensor is not None and tensor.data_type in REAL
            if known and tensor is not None and numpy_helper.to_array(tensor).any():
                found.setdefault(id(tensor), tensor)
    lists = [
        a
        for p in places(model)
        for a in p.node.attribute
        if a.name in ("intercepts", "base_values") and any(a.floats)
    ]
    if found:
        change(drawn(list(found.values()), rng, ""), np.zeros_like)
    else:
        chosen = drawn(lists, rng, "no bias")
        chosen.floats[:] = [0.0] * len(chosen.floats)


@damage
def one_weight_scaled(model: ModelProto, rng: np.random.Generator) -> None:
    """The largest element of one layer's weights times 10."""

    def scale(value: np.ndarray) -> np.ndarray:
        value.flat[np.argmax(np.abs(value))] *= 10
        return value

    change(drawn(weights(model), rng, "")[1], scale)


@damage
def one_layer_scaled(model: ModelProto, rng: np.random.Generator) -> None:
    """All weights of one layer times 1.1."""
    change(drawn(weights(model), rng, "")[1], lambda value: value * 1.1)


# --- nodes ----------------------------------------------------------------------------------------


@damage
def activation_dropped(model: ModelProto, rng: np.random.Generator) -> None:
    """One activation does nothing."""
    found = [p for p in places(model) if p.node.op_type in ACTIVATIONS]
    place = drawn(found, rng, "no activation")
    readers = [p for p in places(model) if place.node.output[0] in p.node.input]
    outputs = {o.name for o in place.holder.output if isinstance(place.holder, GraphProto)}
    if (
        readers
        and place.node.output[0] not in outputs
        and all(_saturates(place, r) for r in readers)
    ):
        raise Equivalent("what quantizes it has no numbers beyond its bounds")
    become_identity(place.node)


def _saturates(place: Place, reader: Place) -> bool:
    """Whether a reader quantizes to a range that lies within the bounds of a Relu or Clip."""
    low, high = (place.value(i) for i in (1, 2))
    if place.node.op_type == "Relu":
        low, high = np.zeros(()), np.array(np.inf)
    elif place.node.op_type != "Clip" or low is None or high is None:
        return False
    scale, zero = (reader.value(i) for i in (1, 2))
    if reader.node.op_type != "QuantizeLinear" or scale is None or zero is None:
        return False
    ends = np.iinfo(zero.dtype)
    least, most = ((end - zero.astype(np.int64)) * scale for end in (ends.min, ends.max))
    return bool((least >= low).all() and (most <= high).all())


def _other_attribute(node: NodeProto) -> tuple[str, object] | None:
    """An attribute that the operator keeps its shapes with, and another value of it."""
    op = node.op_type
    pads = attribute(node, "pads")
    if op in ("Conv", "MaxPool", "AveragePool", "FusedConv") and isinstance(pads, list):
        half = len(pads) // 2
        moved = [0] * half + [pads[i] + pads[i + half] for i in range(half)]
        return ("pads", moved) if any(pads[:half]) else None
    if op in ("BatchNormalization", "InstanceNormalization", "LayerNormalization"):
        return "epsilon", 0.1
    other_mode = "linear" if attribute(node, "mode", b"nearest") == b"nearest" else "nearest"
    known: dict[str, tuple[str, object]] = {
        "LeakyRelu": ("alpha", 3 * float(attribute(node, "alpha", 0.01))),  # type: ignore[arg-type]
        "Gemm": ("alpha", 1.2 * float(attribute(node, "alpha", 1.0))),  # type: ignore[arg-type]
        "Softmax": ("axis", 1 if attribute(node, "axis", -1) == 0 else 0),
        "LSTM": ("direction", "reverse"),
        "GRU": ("direction", "reverse"),
        "Resize": ("mode", other_mode),
        "Upsample": ("mode", other_mode),
        "LinearClassifier": ("post_transform", "SOFTMAX_ZERO"),
        "TreeEnsembleRegressor": ("aggregate_function", "AVERAGE"),
        "TreeEnsembleClassifier": ("post_transform", "SOFTMAX"),
        "Normalizer": ("norm", "MAX"),
    }
    if op in ("LSTM", "GRU") and attribute(node, "direction", b"forward") != b"forward":
        return None
    return known.get(op)


@damage
def attribute_changed(model: ModelProto, rng: np.random.Generator) -> None:
    """One attribute of one operator has another value."""
    found = [(p.node, other) for p in places(model) if (other := _other_attribute(p.node))]
    types = types_of(model)
    # A sequence of one is the same in both directions.
    short = {n for n in types if (shape_of(types, n) or [0])[0] == 1}
    found = [(n, o) for n, o in found if o[0] != "direction" or n.input[0] not in short]
    node, (name, value) = drawn(found, rng, "no such attribute")
    set_attribute(node, name, value)


@damage
def mask_inverted(model: ModelProto, rng: np.random.Generator) -> None:
    """A choice is made the other way: of Where, of a comparison, of 1 - mask."""
    found = []
    for place in places(model):
        op = place.node.op_type
        first = place.constant(0)
        lone = first is not None and int(np.prod(first.dims)) == 1
        ones = lone and first is not None and float(numpy_helper.to_array(first).item()) == 1
        if op in ("Where", "Not", "Greater", "Less", "If") or (op == "Sub" and ones):
            found.append(place.node)
    node = drawn(found, rng, "no mask")
    if node.op_type == "Where":
        node.input[1], node.input[2] = node.input[2], node.input[1]
    elif node.op_type == "Not":
        become_identity(node)
    elif node.op_type == "Sub":
        become_identity(node, node.input[1])
    elif node.op_type == "If":
        a, b = node.attribute
        a.name, b.name = b.name, a.name
    else:
        node.op_type = {"Greater": "Less", "Less": "Greater"}[node.op_type]


@damage
def layer_skipped(model: ModelProto, rng: np.random.Generator) -> None:
    """One layer that keeps the shape hands on what it gets."""
    inferred = onnx.shape_inference.infer_shapes(model)
    given = [*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output]
    types = {v.name: v.type.tensor_type for v in given}

    def keeps_shape(node: NodeProto) -> bool:
        before, after = (types.get(names[0]) for names in (node.input, node.output))
        return (
            before is not None
            and after is not None
            and before.elem_type == after.elem_type
            and before.HasField("shape")
            and before.shape == after.shape
        )

    def does_something(place: Place) -> bool:
        """Whether it is no addition of 0, and no product with 1."""
        neutral = {"Add": 0.0, "Mul": 1.0}.get(place.node.op_type)
        values = (place.value(i) for i in (0, 1))
        return neutral is None or all(v is None or (v != neutral).any() for v in values)

    layers = [
        p.node
        for p in _places(model.graph, {})
        if p.node.op_type in {*LAYERS, *OTHERS} - {"DequantizeLinear", "Gather"}
        and p.node.input
        and does_something(p)
        and keeps_shape(p.node)
    ]
    heavy = [n for n in layers if n.op_type in LAYERS]
    become_identity(drawn(heavy or layers, rng, "no layer that keeps its shape"))
