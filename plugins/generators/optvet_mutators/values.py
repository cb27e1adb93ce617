"""Mutators of attributes, constants, inputs and types."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

from optvet.graph import (
    ONNX_DOMAIN,
    attribute_of,
    domain_of,
    schema_of,
    to_opset,
    type_of,
    types_of,
)
from optvet.plugin import Candidate, Vocabulary
from optvet_mutators.common import (
    constants,
    onnx_version,
    pick,
    schema,
    set_value,
    version_with,
)

_FLOATS = {1: np.float32, 10: np.float16, 11: np.float64}
_SMALL = 4.0
_SPREADS = (4.0, 8.0, 32.0)
"""In turn along each value, beginning at another one in each: of two integers that are divided, for
example, either one is sometimes the larger."""
_INTEGERS = {6: np.int32, 7: np.int64}


def change_attribute(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """Drop it, or give it its default, another number, another order, or a value seen elsewhere."""
    edits: list[tuple[NodeProto, AttributeProto, AttributeProto | None]] = []
    for node in candidate.model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                continue
            known = vocabulary.attributes.get((node.domain, node.op_type, attribute.name), ())
            others = _distinct([*known, *_varied(attribute)], attribute)
            edits += [(node, attribute, other) for other in (None, *others)]
    if not edits:
        return False
    node, attribute, now = random.choice(edits)
    if now is None:
        node.attribute.remove(attribute)
    else:
        attribute.CopyFrom(now)
    return True


def _distinct(options: Iterable[AttributeProto], but: AttributeProto) -> list[AttributeProto]:
    """Each once, and not what is there."""
    found = {o.SerializeToString(deterministic=True): o for o in options}
    found.pop(but.SerializeToString(deterministic=True), None)
    return list(found.values())


def _varied(attribute: AttributeProto) -> list[AttributeProto]:
    """An attribute with other numbers: each one changed, in another order, one more or fewer."""
    kind, name = attribute.type, attribute.name
    if kind == AttributeProto.INT:
        return [helper.make_attribute(name, n) for n in (0, 1, -1, 2, *_beside(attribute.i))]
    if kind == AttributeProto.FLOAT:
        numbers = [0.0, 1.0, -1.0, 0.5, 2.0, -attribute.f, 1e-12, 1e30]
        return [helper.make_attribute(name, float(n)) for n in numbers]
    whole = kind == AttributeProto.INTS
    now: list[Any] = list(attribute.ints if whole else attribute.floats)
    if not now:
        return []
    lists = []
    for place, number in enumerate(now):
        others = [0, 1, -1, *_beside(number)] if whole else [0.0, 1.0, -1.0, 0.5]
        lists += [[*now[:place], other, *now[place + 1 :]] for other in others]
        lists += [[*now[:place], *now[place + 1 :]]] if whole else []
    if whole:
        lists += [
            now[::-1],
            *([*now, n] for n in (0, 1, now[-1])),
            *([n] * len(now) for n in (0, 1, 2)),
        ]
    return [helper.make_attribute(name, numbers) for numbers in lists if numbers]


def _beside(number: int) -> list[int]:
    """The next numbers, and the opposite one, of those that 64 bits hold."""
    limits = np.iinfo(np.int64)
    return [n for n in (number + 1, number - 1, -number) if limits.min <= n <= limits.max]


def add_attribute(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """Give an attribute that is unset: its default, a value seen elsewhere, or a small number."""
    options: list[tuple[NodeProto, AttributeProto]] = []
    for node in candidate.model.graph.node:
        known = schema(candidate, node)
        present = {a.name for a in node.attribute}
        for name, formal in known.attributes.items() if known else ():
            if name not in present:
                options += [(node, a) for a in values_of_attribute(node, formal, vocabulary)]
    if not options:
        return False
    node, attribute = random.choice(options)
    node.attribute.append(attribute)
    return True


def values_of_attribute(
    node: NodeProto, formal: onnx.defs.OpSchema.Attribute, vocabulary: Vocabulary
) -> list[AttributeProto]:
    """The default of an attribute, values seen elsewhere, and small numbers."""
    name = formal.name
    options = list(vocabulary.attributes.get((node.domain, node.op_type, name), ()))
    if formal.default_value.type:
        options.append(formal.default_value)
    types = onnx.defs.OpSchema.AttrType
    if formal.type == types.INT:
        options += [helper.make_attribute(name, v) for v in (0, 1, -1)]
    elif formal.type == types.FLOAT:
        options += [helper.make_attribute(name, v) for v in (0.0, 1.0, 0.5)]
    elif formal.type == types.INTS:
        options += [helper.make_attribute(name, v) for v in ([0], [1], [-1], [0, 1], [1, 0])]
    return _distinct(options, AttributeProto())


_PLACES = 6
"""Elements of a constant that are changed one at a time."""


def change_constant(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """Another value of a weight or a Constant, of the same shape."""
    tensors = [t for t in constants(candidate.model.graph) if t.data_type in {*_FLOATS, *_INTEGERS}]
    edits: list[tuple[TensorProto, float | str | tuple[int, int]]] = []
    for tensor in tensors:
        kinds: list[float | str] = [0, 1, -1, 2, "range", "reversed", "negative", "next"]
        if tensor.data_type in _FLOATS:
            kinds += [0.5, -0.0, float("nan"), float("inf"), 1e30, 1e-30, "normal"]
        size = int(np.prod(tensor.dims)) if tensor.dims else 1
        places = range(min(size, _PLACES)) if size > 1 else ()
        edits += [(tensor, kind) for kind in kinds]
        edits += [(tensor, (place, number)) for place in places for number in (0, 1, -1, 2)]
    if not edits:
        return False
    tensor, kind = random.choice(edits)
    set_value(candidate, tensor, _other(numpy_helper.to_array(tensor), kind, random))
    return True


def _other(old: np.ndarray, kind: float | str | tuple[int, int], random: Random) -> np.ndarray:
    """The value with one element replaced (its place and the number), or another one of a kind."""
    if isinstance(kind, tuple):
        new = old.copy()
        new.flat[kind[0]] = kind[1]
        return new
    if not isinstance(kind, str):
        return np.full_like(old, kind)
    new = old.copy()
    if kind == "range":
        return np.arange(old.size).reshape(old.shape).astype(old.dtype)
    if kind == "reversed":
        new = np.ascontiguousarray(old.ravel()[::-1]).reshape(old.shape)
    elif kind == "negative":
        new = -old
    elif kind == "next":
        new = old + np.ones_like(old)
    elif kind == "normal":
        generator = np.random.default_rng(random.getrandbits(32))
        new = generator.normal(size=old.shape).astype(old.dtype)
    return np.asarray(new, old.dtype)


def change_constant_shape(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """A weight or Constant of another shape: one element, a scalar, another rank, none at all."""
    tensors = [t for t in constants(candidate.model.graph) if t.data_type != 8]
    if not tensors:
        return False
    tensor = random.choice(tensors)
    old = numpy_helper.to_array(tensor)
    set_value(candidate, tensor, _reshaped(old, random.choice(_KINDS_OF_SHAPES)))
    return True


def change_input_shape(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """An input with another dimension or rank."""
    edits: list[tuple[str, str | tuple[int, int]]] = []
    for name, value in candidate.feeds.items():
        for axis, now in enumerate(value.shape):
            sizes = dict.fromkeys([0, 1, 2, 3, now + 1, 2 * now, max(now - 1, 0)])
            edits += [(name, (axis, size)) for size in sizes if size != now]
        edits += [(name, kind) for kind in _KINDS_OF_SHAPES]
    if not edits:
        return False
    name, edit = random.choice(edits)
    old = candidate.feeds[name]
    if isinstance(edit, str):
        candidate.feeds[name] = _reshaped(old, edit)
        return True
    axis, size = edit
    shape = (*old.shape[:axis], size, *old.shape[axis + 1 :])
    none = np.full(shape, "" if old.dtype == object else 0, old.dtype)
    candidate.feeds[name] = np.resize(old, shape) if old.size else none
    return True


_KINDS_OF_SHAPES = (
    *("scalar", "single", "leading", "trailing", "squeezed", "empty", "flat", "high", "stacked"),
)


def change_input_value(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """Another value of an input, of the same shape: numbers may be shapes, axes or places."""
    edits: list[tuple[str, float | str | tuple[int, int]]] = []
    for name, value in candidate.feeds.items():
        if type_of(value) in {*_FLOATS, *_INTEGERS}:
            kinds: list[float | str] = [0, 1, -1, "reversed", "negative", "range"]
            kinds += [-0.0, 1e30, 1e-30] if value.dtype.kind == "f" else []
            places = range(min(value.size, _PLACES)) if value.dtype.kind == "i" else ()
            edits += [(name, kind) for kind in kinds]
            edits += [(name, (place, number)) for place in places for number in (0, 1, -1, 2)]
    if not edits:
        return False
    name, kind = random.choice(edits)
    candidate.feeds[name] = _other(candidate.feeds[name], kind, random)
    return True


def _reshaped(old: np.ndarray, kind: str) -> np.ndarray:
    flat = old.ravel()
    if kind in ("scalar", "single") and old.size:
        return np.asarray(flat[0] if kind == "scalar" else flat[:1]).astype(old.dtype)
    if kind == "leading":
        return old[np.newaxis]
    if kind == "high":
        return old.reshape((1,) * 3 + old.shape)
    if kind == "stacked":
        return np.stack([old, old])
    if kind == "trailing":
        return old[..., np.newaxis]
    if kind == "squeezed" and old.ndim:
        return np.asarray(old.take(0, 0)) if old.shape[0] else old
    if kind == "empty":
        return np.zeros((0, *old.shape[1:]), old.dtype)
    return flat


def equal_dimensions(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """All dimensions of inputs and weights one number, so that wrong axes keep their shapes."""
    size = random.choice([2, 3, 4])

    def cube(old: np.ndarray) -> np.ndarray:
        if old.ndim == 0 or old.dtype.kind != "f" or not old.size:
            return old
        return np.resize(old, (size,) * old.ndim)

    for name, value in candidate.feeds.items():
        candidate.feeds[name] = cube(value)
    for tensor in candidate.model.graph.initializer:
        if tensor.data_type in _FLOATS:
            set_value(candidate, tensor, cube(numpy_helper.to_array(tensor)))
    return True


def distinct_values(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """Weights and inputs of positive numbers that all differ, so that a wrong order shows."""
    step = random.choice([0.125, -0.0625])

    def distinct(old: np.ndarray) -> np.ndarray:
        numbers = 1.5 + step * (np.arange(old.size) % 16) + 0.001 * np.arange(old.size)
        return numbers.reshape(old.shape).astype(old.dtype)

    for name, value in candidate.feeds.items():
        if value.dtype.kind == "f":
            candidate.feeds[name] = distinct(value)
    for tensor in constants(candidate.model.graph):
        if tensor.data_type in _FLOATS:
            set_value(candidate, tensor, distinct(numpy_helper.to_array(tensor)))
    return True


def opposite_magnitudes(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """Large constants and small inputs, or the reverse: what is regrouped may overflow or vanish.

    The products of both are as they were; those of two constants are beyond the type.
    """
    tensors = [t for t in constants(candidate.model.graph) if t.data_type in _FLOATS]
    single = [t for t in tensors if set(t.dims) <= {1}]
    chosen = random.choice([single, tensors])
    large, names = random.choice([True, False]), list(candidate.feeds)
    names = [n for n in names if type_of(candidate.feeds[n]) in _FLOATS]
    if not chosen or not names:
        return False
    for tensor in chosen:
        old = numpy_helper.to_array(tensor)
        set_value(candidate, tensor, _times_power(old, 1 if large else -1))
    for name in names:
        candidate.feeds[name] = _times_power(candidate.feeds[name], -1 if large else 1)
    return True


def _times_power(old: np.ndarray, sign: int) -> np.ndarray:
    """The values times, or over, a number whose square the type does not hold."""
    factor = np.ldexp(1.0, sign * (3 * int(np.finfo(old.dtype).maxexp) // 4))
    with np.errstate(all="ignore"):
        return np.asarray(old * old.dtype.type(factor), old.dtype)


def change_type(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """All values of one element type of another: float as double, int64 as int32."""
    among = [t for t in _types_used(candidate) if t in _FLOATS or t in _INTEGERS]
    if not among:
        return False
    was = random.choice(among)
    family = _FLOATS if was in _FLOATS else _INTEGERS
    _retype(candidate, was, random.choice([t for t in family if t != was]))
    return True


def as_integers(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """All numbers with a point of one element type as integers, whose arithmetic is another."""
    among = [t for t in _types_used(candidate) if t in _FLOATS]
    if not among:
        return False
    _retype(candidate, random.choice(among), random.choice(list(_INTEGERS)))
    return True


def _types_used(candidate: Candidate) -> list[int]:
    used = {type_of(v) for v in candidate.feeds.values()}
    return sorted(used | {t.data_type for t in constants(candidate.model.graph)})


def _retype(candidate: Candidate, was: int, now: int) -> None:
    kind = np.dtype((_FLOATS | _INTEGERS)[now])
    with np.errstate(all="ignore"):
        for place, (name, value) in enumerate(candidate.feeds.items()):
            if type_of(value) == was:
                candidate.feeds[name] = _convert(value, kind, place)
        for tensor in constants(candidate.model.graph):
            if tensor.data_type == was:
                set_value(candidate, tensor, _convert(numpy_helper.to_array(tensor), kind))
    for node in candidate.model.graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == was:
                attribute.i = now


def _convert(old: np.ndarray, kind: np.dtype, place: int = 0) -> np.ndarray:
    """The values in another type.

    Numbers with a point never become an integer zero, and small ones are not all 1: between those,
    a division of integers is no different from one of numbers with a point.
    """
    if old.dtype.kind != "f" or kind.kind not in "iu":
        return old.astype(kind)
    spreads = np.resize(np.roll(_SPREADS, place), old.shape)
    wide = old * np.where((old == np.round(old)) | (abs(old) > _SMALL), 1, spreads)
    return np.asarray(np.where(wide < 0, np.floor(wide), np.ceil(wide) + (wide == 0))).astype(kind)


def change_size(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """One number for another wherever it is a dimension: of inputs, weights, and shapes in them."""
    sizes = _sizes(candidate)
    if not sizes:
        return False
    was = random.choice(sizes)
    now = random.choice([n for n in (0, 1, 2, was + 1) if n != was])
    if not now and random.random() < 0.5:
        _let_zero_be_a_size(candidate)
    _resize(candidate, was, now)
    return True


def empty_dimension(candidate: Candidate, random: Random) -> bool:
    """0 in place of one number wherever it is a dimension, and 0 is a size in shapes too."""
    sizes = _sizes(candidate)
    if sizes:
        _let_zero_be_a_size(candidate)
        _resize(candidate, random.choice(sizes), 0)
    return bool(sizes)


def _sizes(candidate: Candidate) -> list[int]:
    shapes = [v.shape for v in candidate.feeds.values()]
    shapes += [tuple(t.dims) for t in constants(candidate.model.graph)]
    return sorted({d for shape in shapes for d in shape if d})


def _resize(candidate: Candidate, was: int, now: int) -> None:
    """Another size wherever one is a dimension."""

    def resized(old: np.ndarray) -> np.ndarray:
        shape = tuple(now if d == was else d for d in old.shape)
        if shape == old.shape or old.dtype == object or not old.size:
            return old
        return np.resize(old, shape) if now else np.zeros(shape, old.dtype)

    for name, value in candidate.feeds.items():
        candidate.feeds[name] = resized(value)
    for tensor in constants(candidate.model.graph):
        value = numpy_helper.to_array(tensor)
        if tensor.data_type in _FLOATS:
            set_value(candidate, tensor, resized(value))
        elif tensor.data_type in _INTEGERS and value.ndim == 1 and was > 1:
            set_value(candidate, tensor, np.where(value == was, now, value).astype(value.dtype))


def _let_zero_be_a_size(candidate: Candidate) -> None:
    """Where an operator can take 0 in a shape for "as before", it takes it for a size.

    In the first operator set in which it can do so, if the model's is older. Sizes that are copied
    or worked out are written as they are: it means something else there.
    """
    latest = {ONNX_DOMAIN: onnx.defs.onnx_opset_version()}
    nodes = [n for n in candidate.model.graph.node if domain_of(n) == ONNX_DOMAIN]
    for kind in dict.fromkeys(n.op_type for n in nodes):
        newest = schema_of(ONNX_DOMAIN, kind, latest)
        if newest is not None and "allowzero" in newest.attributes:
            _write_shapes_out(candidate, kind, [i.name for i in newest.inputs].index("shape"))
            since = version_with(kind, "allowzero")
            if onnx_version(candidate) < since:
                to_opset(candidate, ONNX_DOMAIN, since)
    for node in candidate.model.graph.node:
        known = schema(candidate, node)
        if known is not None and "allowzero" in known.attributes:
            kept = [a for a in node.attribute if a.name != "allowzero"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("allowzero", 1)])


def _write_shapes_out(candidate: Candidate, kind: str, slot: int) -> None:
    """Constant shapes that operators of a kind read, with every size as a number."""
    graph, typed = candidate.model.graph, types_of(candidate.model)
    known = {t.name: t for t in graph.initializer}
    for node in graph.node:
        value = attribute_of(node, "value") if node.op_type == "Constant" else None
        if value is not None:
            known[node.output[0]] = value
    for node in graph.node:
        if node.op_type != kind or len(node.input) <= slot or node.output[0] not in typed:
            continue
        shape = typed[node.output[0]][1]
        if node.input[slot] in known and None not in shape:
            set_value(candidate, known[node.input[slot]], np.array(shape, np.int64))


def repeat_dimension(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """A dimension of one value becomes 1, so that it is repeated; what it meets has another size.

    Dimensions meet that are as far from the last one, and numbers of shapes that are constant.
    """
    tensors = [t for t in constants(candidate.model.graph) if t.data_type in {*_FLOATS, *_INTEGERS}]
    names = [n for n, v in candidate.feeds.items() if v.dtype != object and v.size]
    fixed = [n for n, t in enumerate(tensors) if t.data_type in _FLOATS and 0 not in t.dims]
    shapes: dict[str | int, tuple[int, ...]] = {n: candidate.feeds[n].shape for n in names}
    shapes |= {n: tuple(tensors[n].dims) for n in fixed}
    places = [(n, axis) for n, shape in shapes.items() for axis in range(1, len(shape) + 1)]
    if not places:
        return False
    chosen, axis = random.choice(places)
    was = shapes[chosen][-axis]
    now = random.choice([was, *(n for n in (0, 2, 3) if n != was)])

    def resized(name: str | int, old: np.ndarray) -> np.ndarray:
        size = 1 if name == chosen else now
        meets = old.ndim >= axis and old.shape[-axis] == was
        return np.take(old, np.arange(size) % was, -axis) if meets else old

    for name in names:
        candidate.feeds[name] = resized(name, candidate.feeds[name])
    for number, tensor in enumerate(tensors):
        old = numpy_helper.to_array(tensor)
        if number in fixed:
            set_value(candidate, tensor, resized(number, old))
        elif old.ndim == 1 and old.size >= axis and old[-axis] == was:
            new = old.copy()
            new[-axis] = now
            set_value(candidate, tensor, new)
    return True


_QUANTIZED = (2, 3, 4, 5, 17, 19, 21, 22)
"""Element types that operators of quantization take: 8, 16 and 4 bits, and floats of 8."""


def change_quantized_type(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """All integers of one quantized type as another one, at an operator set that has it."""
    tensors = [t for t in constants(candidate.model.graph) if t.data_type in _QUANTIZED]
    used = sorted({t.data_type for t in tensors})
    if not used:
        return False
    was = random.choice(used)
    now = random.choice([t for t in _QUANTIZED if t != was])
    kind = helper.tensor_dtype_to_np_dtype(now)
    low, high = {21: (0, 15), 22: (-8, 7)}.get(now, (0, 127))
    with np.errstate(all="ignore"):
        for name, value in candidate.feeds.items():
            if type_of(value) == was:
                candidate.feeds[name] = np.clip(value.astype(np.int64), low, high).astype(kind)
        for tensor in tensors:
            if tensor.data_type == was:
                value = numpy_helper.to_array(tensor).astype(np.int64)
                set_value(candidate, tensor, np.clip(value, low, high).astype(kind))
    if now not in (2, 3):
        to_opset(candidate, ONNX_DOMAIN, max(onnx_version(candidate), 21))
    return True


def change_input_type(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """One input of another element type."""
    name = pick(random, list(candidate.feeds))
    if name is None or candidate.feeds[name].dtype == object:
        return False
    kinds = [np.float32, np.float64, np.float16, np.int64, np.int32, np.uint8, np.int8, np.bool_]
    with np.errstate(all="ignore"):
        candidate.feeds[name] = candidate.feeds[name].astype(random.choice(kinds))
    return True


def change_cast(candidate: Candidate, vocabulary: Vocabulary, random: Random) -> bool:
    """Another type that a Cast casts to."""
    casts = [a for n in candidate.model.graph.node if n.op_type == "Cast" for a in n.attribute]
    targets = [a for a in casts if a.name == "to"]
    if not targets:
        return False
    random.choice(targets).i = random.choice([1, 10, 11, 6, 7, 9, 3, 2])
    return True
