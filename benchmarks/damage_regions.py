"""Kinds of damage to one region of a model: a head, a slice, a bound, a branch, a row.

They are those that a few samples easily miss: a bound that no value reaches, the branch that is not
taken, a row that is not read. ``KINDS`` are all kinds, those of ``damage_kinds.py`` first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
from damage_kinds import KINDS, REAL, Place, damage, drawn, places, shape_of, types_of
from onnx import ModelProto, NodeProto, helper
from plants import attribute, set_attribute

from optvet.graph.walk import reads

__all__ = ["KINDS"]

LAST = np.iinfo(np.int32).max
"""Ends of a Slice from here on mean the end of the axis."""
PASSED = frozenset("Dropout Cast Identity Mul Where Reshape Transpose Add Unsqueeze".split())
"""What may stand between the probabilities of attention and their product with the values."""
NORMALIZATIONS = frozenset(
    "BatchNormalization InstanceNormalization LayerNormalization GroupNormalization "
    "RMSNormalization SimplifiedLayerNormalization SkipLayerNormalization "
    "MeanVarianceNormalization".split()
)
SMALL = 1e-2
"""What is added to a variance before its root is no larger."""


# --- a head of attention --------------------------------------------------------------------------


def _from_softmax(makers: Mapping[str, NodeProto], name: str, steps: int = 6) -> bool:
    """Whether a value is a Softmax's, but for what changes no order."""
    node = makers.get(name)
    if node is None or steps == 0:
        return False
    if node.op_type == "Softmax":
        return True
    within = node.op_type in PASSED
    return within and any(_from_softmax(makers, n, steps - 1) for n in node.input)


def _attention(model: ModelProto) -> Iterator[tuple[Place, np.ndarray]]:
    """Products of probabilities with values, and a mask that makes one head of them 0."""
    types = types_of(model)
    makers: dict[int, dict[str, NodeProto]] = {}
    for place in places(model):
        node, key = place.node, id(place.holder)
        if key not in makers:
            makers[key] = {o: n for n in place.holder.node for o in n.output}
        if node.op_type not in ("MatMul", "Einsum") or len(node.input) != 2:
            continue
        shape = shape_of(types, node.output[0])
        if shape is None or any(n in place.constants for n in node.input):
            continue
        if not _from_softmax(makers[key], node.input[0]):
            continue
        heads = shape[-3] if len(shape) > 2 else 1
        if heads:
            dtype = helper.tensor_dtype_to_np_dtype(types[node.output[0]].elem_type)
            mask = np.ones((heads, 1, 1) if len(shape) > 2 else (), dtype)
            mask.flat[0] = 0
            yield place, mask


@damage
def head_zeroed(model: ModelProto, rng: np.random.Generator) -> None:
    """One head of one attention gives 0."""
    place, mask = drawn(list(_attention(model)), rng, "no attention")
    node = place.node
    whole, own = node.output[0], f"{node.output[0]}_all_heads"
    masked = helper.make_node("Mul", [own, f"{own}_mask"], [whole])
    tensor = onnx.numpy_helper.from_array(mask, f"{own}_mask")
    constant = helper.make_node("Constant", [], [f"{own}_mask"], value=tensor)
    at = next(i for i, n in enumerate(place.holder.node) if n == node)
    node.output[0] = own
    place.holder.node.insert(at + 1, masked)
    place.holder.node.insert(at + 1, constant)


# --- a slice, an epsilon, a bound -----------------------------------------------------------------


def one_off(start: int, end: int, size: int) -> tuple[int, int] | None:
    """Bounds of a slice of the same length, one element before or after; None if there is none."""
    to_end = end >= LAST or (size and end >= size)
    if start > 0 or start < -1:
        if start < 0 and size and start <= -size:
            return None
        return start - 1, -1 if to_end else end - 1
    if start == -1:
        return -2, -1
    if to_end:
        return None
    return (1, LAST) if end == -1 else (1, end + 1)


def _slices(model: ModelProto) -> Iterator[tuple[Place, np.ndarray, np.ndarray]]:
    """Slices with their starts and ends, moved by one along one axis."""
    types = types_of(model)
    for place in places(model):
        node = place.node
        if node.op_type != "Slice":
            continue
        given = [_bounds(place, i, name) for i, name in ((1, "starts"), (2, "ends"))]
        if given[0] is None or given[1] is None:
            continue
        starts, ends = given[0], given[1]
        axes, steps = _bounds(place, 3, "axes"), place.value(4)
        if len(node.input) > 3 and node.input[3] and axes is None:
            continue
        shape = shape_of(types, node.input[0])
        for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            axis = int(axes[i]) if axes is not None else i
            size = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else 0
            if steps is not None and steps[i] < 1:
                continue
            moved = one_off(start, end, size)
            if moved is not None:
                starts[i], ends[i] = moved
                yield place, starts, ends
                break


def _bounds(place: Place, index: int, name: str) -> np.ndarray | None:
    """What a Slice was given, as an attribute or as a constant."""
    held = attribute(place.node, name)
    if isinstance(held, list):
        return np.array(held, np.int64)
    return place.value(index)


@damage
def slice_shifted(model: ModelProto, rng: np.random.Generator) -> None:
    """One Slice takes what lies one element beside."""
    place, starts, ends = drawn(list(_slices(model)), rng, "no slice that can move")
    for index, name, value in ((1, "starts", starts), (2, "ends", ends)):
        if attribute(place.node, name) is not None:
            set_attribute(place.node, name, value.tolist())
        else:
            place.feed(index, value)


@damage
def epsilon_scaled(model: ModelProto, rng: np.random.Generator) -> None:
    """The epsilon of one normalization times 100: an attribute, or what is added before a root."""
    found: list[tuple[Place, int | None]] = []
    for place in places(model):
        node = place.node
        if node.op_type in NORMALIZATIONS:
            found.append((place, None))
        if node.op_type != "Add":
            continue
        readers = {n.op_type for n in place.holder.node if node.output[0] in n.input}
        for index in (0, 1):
            value = place.value(index)
            small = value is not None and value.size == 1 and value.dtype.kind == "f"
            if small and value is not None and 0 < value.item() <= SMALL and "Sqrt" in readers:
                found.append((place, index))
    place, where = drawn(found, rng, "no normalization")
    if where is None:
        epsilon = attribute(place.node, "epsilon", 1e-5)
        assert isinstance(epsilon, float)
        set_attribute(place.node, "epsilon", 100 * epsilon)
    else:
        value = place.value(where)
        assert value is not None
        place.feed(where, (value.astype(np.float64) * 100).astype(value.dtype))


@damage
def clip_moved(model: ModelProto, rng: np.random.Generator) -> None:
    """One bound, of a Clip, Max or Min, moves inward by a tenth of the span."""
    found = list(_clips(model))
    place, name, value = drawn(found, rng, "no bound")
    if isinstance(name, str):
        set_attribute(place.node, name, float(value))
    else:
        place.feed(name, value)


def _clips(model: ModelProto) -> Iterator[tuple[Place, str | int, np.ndarray]]:
    """Bounds, where they are, and moved."""
    for place in places(model):
        node = place.node
        if node.op_type in ("Max", "Min"):
            sign = 1 if node.op_type == "Max" else -1
            for i in range(len(node.input)):
                value = place.value(i)
                if value is not None and value.dtype.kind == "f" and value.size == 1:
                    yield place, i, _moved(value, sign, abs(float(value.item())))
        if node.op_type != "Clip":
            continue
        low, high = (_bound(place, i, name) for i, name in ((1, "min"), (2, "max")))
        both = low is not None and high is not None
        span = float(high) - float(low) if both and low is not None and high is not None else 0.0
        for i, name, bound, sign in ((1, "min", low, 1), (2, "max", high, -1)):
            if bound is not None and abs(float(bound)) < 1e30:
                given = attribute(node, name) is not None
                size = span if 0 < span < 1e30 else abs(float(bound))
                yield place, name if given else i, _moved(bound, sign, size)


def _bound(place: Place, index: int, name: str) -> np.ndarray | None:
    held = attribute(place.node, name)
    if isinstance(held, float):
        return np.array(held, np.float32)
    value = place.value(index)
    return value if value is not None and value.dtype.kind == "f" else None


def _moved(value: np.ndarray, sign: int, span: float) -> np.ndarray:
    return (value.astype(np.float64) + sign * (span or 1.0) / 10).astype(value.dtype)


# --- branches and rows ----------------------------------------------------------------------------


@damage
def branches_exchanged(model: ModelProto, rng: np.random.Generator) -> None:
    """The branches of one If trade places."""
    node = drawn([p.node for p in places(model) if p.node.op_type == "If"], rng, "no If")
    for a in node.attribute:
        a.name = {"then_branch": "else_branch", "else_branch": "then_branch"}[a.name]


@damage
def rows_exchanged(model: ModelProto, rng: np.random.Generator) -> None:
    """Two rows of an embedding, or of points that inputs are compared with, trade places."""
    place, index = drawn(list(_tables(model)), rng, "no table")
    value = place.value(index)
    assert value is not None
    a, b = rng.choice(len(value), 2, replace=False)
    value[[a, b]] = value[[b, a]]
    place.feed(index, value)


def _tables(model: ModelProto) -> Iterator[tuple[Place, int]]:
    """Constants of which a row is read, or is compared with what the model is given."""
    for place in places(model):
        node = place.node
        indexes: Sequence[int] = ()
        if node.op_type == "Gather" and attribute(node, "axis", 0) == 0:
            indexes = () if node.input[1] in place.constants else (0,)
        elif node.op_type in ("CDist", "Scan"):
            indexes = range(len(node.input))
        elif node.op_type == "Sub":
            indexes = (0, 1)
        for index in indexes:
            tensor = place.constants.get(node.input[index])
            real = tensor is not None and tensor.data_type in REAL and len(tensor.dims) == 2
            if real and tensor is not None and min(tensor.dims) > 1:
                yield place, index


# --- what was damaged -----------------------------------------------------------------------------


def damaged_nodes(before: bytes, after: bytes) -> list[tuple[str, ...]]:
    """Names of nodes that are others or read other constants, and of their outputs, in order."""
    was, now = (_described(onnx.load_from_string(m)) for m in (before, after))
    return [names for names, text in was.items() if now.get(names) != text]


def _described(model: ModelProto) -> dict[tuple[str, ...], bytes]:
    """What each node of the graph does, with the constants that it reads."""
    functions = {
        (f.domain, f.name): f.SerializeToString(deterministic=True) for f in model.functions
    }
    constants = {t.name: t.raw_data or t.SerializeToString() for t in model.graph.initializer}
    found: dict[tuple[str, ...], bytes] = {}
    for node in model.graph.node:
        if node.op_type == "Constant":
            constants[node.output[0]] = node.attribute[0].SerializeToString(deterministic=True)
            continue
        read = [constants.get(n, n.encode()) for n in reads(node)]
        plain = NodeProto(op_type=node.op_type, domain=node.domain, attribute=node.attribute)
        parts = [plain.SerializeToString(deterministic=True), *read]
        parts.append(functions.get((node.domain, node.op_type), b""))
        found[tuple(n for n in (node.name, *node.output) if n)] = b"\0".join(parts)
    return found
