"""Matches the values of a converted model with those of its source.

A conversion changes names and layouts, but no values: a value of the converted model is known if
some value of the source equals it, up to a permutation of its axes or another shape, and to the
noise that is measured on the source. The search goes back from the outputs on both sides and stops
at what is known; what is left is the region that breaks the model.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from onnx import ModelProto, NodeProto

from optvet.engine.numerics.floats import is_float, unit_roundoff
from optvet.graph.walk import reads
from optvet.graph.weights import constants_of
from optvet.spec.converters import SourceInside, SourceValue

K = TypeVar("K")
_FACTOR = 32.0
"""How many times its spread under perturbation a value may be off: kernels are others."""
_ROUNDOFFS = 8.0
_AXES = 5
"""Permutations are tried of values with at most so many axes."""
_SHAPES = frozenset({"Shape", "Size", "Constant", "ConstantOfShape"})


@dataclass(frozen=True)
class Known:
    """Values that both sides have in common.

    Attributes:
        target: Place in the source of each known value of the converted model, by name.
        source: Places of values of the source that the converted model has.
        neutral: Values of the converted model that depend on no input, or on shapes alone.
    """

    target: Mapping[str, int]
    source: frozenset[int]
    neutral: frozenset[str]


@dataclass(frozen=True)
class SuspectRegion:
    """The operators between known values and a wrong output, on both sides.

    Attributes:
        nodes: Indices of nodes of the converted model, in order.
        entry: The first of these nodes whose inputs are all known.
        operators: Places of values of the source that the converted model does not have.
        first: The first of these all of whose inputs it has; None if it has them all.
    """

    nodes: tuple[int, ...] = ()
    entry: int | None = None
    operators: tuple[int, ...] = ()
    first: int | None = None


@dataclass(frozen=True)
class Tolerances:
    """The allowed error of each value of the source."""

    values: Sequence[float]

    @classmethod
    def of(cls, plain: SourceInside, moved: Sequence[SourceInside]) -> Tolerances:
        """From runs that were moved by roundoffs."""
        found = []
        for i, each in enumerate(plain.values):
            if not is_float(each.value.dtype):
                found.append(0.0)
                continue
            wide = each.value.astype(np.float64)
            top = _top(wide)
            spread = 0.0
            for run in moved:
                other = run.values[i].value if i < len(run.values) else each.value
                if other.shape == wide.shape:
                    with np.errstate(invalid="ignore"):
                        spread = max(spread, _top(other.astype(np.float64) - wide))
            found.append(_FACTOR * spread + _ROUNDOFFS * unit_roundoff(each.value.dtype) * top)
        return cls(found)


def known_values(
    model: ModelProto, values: Mapping[str, np.ndarray], source: SourceInside, allowed: Tolerances
) -> Known:
    """All pairs of equal values; a value of the converted model may equal several.

    ``values`` has the model's inputs too: what is one of them in another shape is known. Floats
    that depend on no input are no value of the source that does: zeros are found everywhere.
    """
    inputs_known = [values[i.name] for i in model.graph.input if i.name in values]
    neutral = _neutral(model)
    fixed = frozenset(n for n in neutral if n in values and is_float(values[n].dtype))
    target, seen, inputs = _pairs(values, source, allowed, inputs_known, fixed)
    return Known(target, seen, inputs | neutral)


def _pairs(
    values: Mapping[K, np.ndarray],
    source: SourceInside,
    allowed: Tolerances,
    input_values: Sequence[np.ndarray],
    fixed: frozenset[K] = frozenset(),
) -> tuple[dict[K, int], frozenset[int], frozenset[K]]:
    """Which values the source has, at which places; and which are one of ``input_values``.

    ``fixed`` are values that only a constant of the source can be.
    """
    by_size: dict[tuple[int, str], list[int]] = {}
    for i, each in enumerate(source.values):
        by_size.setdefault((each.value.size, _sort(each.value)), []).append(i)
    ranges = [_range(each.value) for each in source.values]
    target: dict[K, int] = {}
    seen: set[int] = set()
    inputs: set[K] = set()
    for name, value in values.items():
        if any(
            _sort(g) == _sort(value) and equal_up_to_layout(g, value, 0.0) for g in input_values
        ):
            inputs.add(name)
        low, high = _range(value)
        for i in by_size.get((value.size, _sort(value)), ()):
            # In whichever layout, equal values have one range: iterations have many values.
            if max(abs(ranges[i][0] - low), abs(ranges[i][1] - high)) > allowed.values[i]:
                continue
            if name in fixed and not source.values[i].constant:
                continue
            if equal_up_to_layout(source.values[i].value, value, allowed.values[i]):
                target.setdefault(name, i)
                seen.add(i)
    return target, frozenset(seen), frozenset(inputs)


def _range(value: np.ndarray) -> tuple[float, float]:
    """The least and the largest finite number; zeros of what has none."""
    if value.dtype.kind in "OSU":
        return 0.0, 0.0
    wide = value.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


def _sort(value: np.ndarray) -> str:
    return "f" if is_float(value.dtype) else "i" if value.dtype.kind in "iu" else value.dtype.kind


def equal_up_to_layout(one: np.ndarray, other: np.ndarray, allowed: float) -> bool:
    """Whether ``other`` is ``one`` in another shape, or with its axes permuted."""
    if one.size != other.size:
        return False
    if one.size <= 1:
        return _close(one.reshape(-1), other.reshape(-1), allowed)
    if _close(one.reshape(-1), other.reshape(-1), allowed):
        return True
    # The values of a permuted tensor are the same ones; sorting tells most that are not.
    if not _close(np.sort(one, axis=None), np.sort(other, axis=None), allowed):
        return False
    return any(_close(turned, other, allowed) for turned, _ in iter_permutations(one, other.shape))


def iter_permutations(
    value: np.ndarray, shape: Sequence[int]
) -> Iterator[tuple[np.ndarray, tuple[int, ...]]]:
    """Every other permutation of the axes of ``value`` that has ``shape``."""
    if value.ndim != len(shape) or value.ndim > _AXES:
        return
    axes = tuple(range(value.ndim))
    for order in itertools.permutations(axes):
        if order != axes and tuple(value.shape[a] for a in order) == tuple(shape):
            yield value.transpose(order), order


def _close(a: np.ndarray, b: np.ndarray, allowed: float) -> bool:
    if a.dtype.kind in "OSUb":
        return bool(np.all(a == b))
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        same = (np.abs(x - y) <= allowed) | (x == y) | (np.isnan(x) & np.isnan(y))
    return bool(same.all())


def _top(value: np.ndarray) -> float:
    top = float(np.max(np.abs(value), where=np.isfinite(value), initial=0.0))
    return top if math.isfinite(top) else 0.0


def _neutral(model: ModelProto) -> frozenset[str]:
    """Values that depend on weights and shapes alone."""
    found = {"", *constants_of(model), *(t.name for t in model.graph.initializer)}
    for node in model.graph.node:
        if node.op_type in _SHAPES or all(name in found for name in reads(node)):
            found.update(node.output)
    return frozenset(found)


def broken_region(
    model: ModelProto, source: SourceInside, known: Known, output: str, place: int
) -> SuspectRegion:
    """The region to blame for the wrong ``output``, the value at ``place`` of the source."""
    sound = {i.name for i in model.graph.input} | known.neutral | known.target.keys()
    maker = {name: i for i, node in enumerate(model.graph.node) for name in node.output}
    todo, wanted = [output], set[int]()
    while todo:
        name = todo.pop()
        if name in maker and maker[name] not in wanted and (name not in sound or name == output):
            wanted.add(maker[name])
            todo += reads(model.graph.node[maker[name]])
    nodes = tuple(sorted(wanted))
    entry = next((i for i in nodes if _is_fed(model.graph.node[i], sound)), None)
    lacking, first = _lacking(source, known, place)
    if first is None or entry is None:
        return SuspectRegion(nodes, entry, lacking, first)
    # What only says where an operator writes is no operator to blame.
    readers = nodes if source.values[first].is_view else (entry,)
    names = {name for i in readers for name in reads(model.graph.node[i])}
    read = {known.target[name] for name in names & known.target.keys()}
    lost = lost_write(source, known, lacking, read)
    return SuspectRegion(nodes, entry, lacking, first if lost is None else lost)


def lost_write(
    source: SourceInside, known: Known, lacking: Sequence[int], read: Collection[int]
) -> int | None:
    """The last write in place among ``lacking`` that the converted model lacks.

    It has what was there before, which is at one of the places ``read`` in the source.
    """

    def is_read(before: int) -> bool:
        value = source.values[before].value
        return any(equal_up_to_layout(value, source.values[i].value, 0.0) for i in read)

    overwritten = ((i, source.values[i].overwrites) for i in reversed(lacking))
    return next(
        (i for i, b in overwritten if b is not None and b in known.source and is_read(b)), None
    )


def broken_operators(
    target: SourceInside,
    source: SourceInside,
    allowed: Tolerances,
    input_values: Sequence[np.ndarray],
    place: int,
    output: int,
) -> SuspectRegion:
    """Like ``broken_region``, for a converted model of which only the values are known.

    Args:
        target: The values of the converted model.
        source: Those of the source.
        allowed: How far these may be off.
        input_values: The inputs of both.
        place: The wrong output among the values of the source.
        output: The same among those of the converted model.
    """
    values = dict(enumerate(v.value for v in target.values))
    pairs, seen, inputs = _pairs(values, source, allowed, input_values)
    # A constant that is computed may be a weight that is read, or unpacked, wrongly.
    sound = pairs.keys() | inputs
    todo, wanted = [output], set[int]()
    while todo:
        i = todo.pop()
        if i not in wanted and (i not in sound or i == output):
            wanted.add(i)
            todo += target.values[i].reads
    nodes = tuple(sorted(wanted))
    entry = next((i for i in nodes if sound.issuperset(target.values[i].reads)), None)
    return SuspectRegion(nodes, entry, *_lacking(source, Known({}, seen, frozenset()), place))


def _is_fed(node: NodeProto, sound: set[str]) -> bool:
    return all(name in sound for name in reads(node))


def _lacking(source: SourceInside, known: Known, place: int) -> tuple[tuple[int, ...], int | None]:
    """Values of the source on the way to ``place`` that the converted model does not have."""
    had = known.source | {i for i, v in enumerate(source.values) if v.constant}
    todo, lacking = [place], set[int]()
    while todo:
        i = todo.pop()
        if i in lacking or (i in had and i != place):
            continue
        lacking.add(i)
        todo += source.values[i].reads
    listed = tuple(sorted(lacking))
    return listed, next((i for i in listed if had.issuperset(source.values[i].reads)), None)


def origin_of(
    source: SourceInside, target: SourceInside, allowed: Tolerances, pair: tuple[int, int]
) -> tuple[int, int]:
    """The operators at which values begin to differ, searched back from two differing results.

    Constants and values in another shape count as known. If an operator reads them on one side
    only, the operator that computed them is to blame.
    """
    while True:
        one, other = source.values[pair[0]], target.values[pair[1]]
        if plain_name(one) != plain_name(other):
            return pair
        operands = zip(one.reads, other.reads, strict=False)
        parts = (p for p in operands if not _is_equal(source, target, allowed, p))
        before = next(parts, None)
        if before is None:
            return pair
        pair = before


def plain_name(value: SourceValue) -> str:
    """``aten.upsample_nearest2d (of interpolate)`` → ``aten.upsample_nearest2d``."""
    return value.operator.partition(" ")[0]


def _is_equal(
    source: SourceInside, target: SourceInside, allowed: Tolerances, pair: tuple[int, int]
) -> bool:
    one, other = source.values[pair[0]].value, target.values[pair[1]].value
    return one.shape == other.shape and _close(one, other, allowed.values[pair[0]])


def reader_of(
    source: SourceInside,
    values: Mapping[str, np.ndarray],
    allowed: Tolerances,
    read: set[int],
    inputs: frozenset[str] = frozenset(),
) -> int | None:
    """The value of the source that is computed from most of ``read`` and of ``inputs``, by name.

    It is none of ``values``; of several that are computed from as many, it is the first.
    """
    best, most = None, 0
    for i, each in enumerate(source.values):
        names = inputs.intersection(operand.input for operand in each.operands)
        shared = len(read.intersection(each.reads)) + len(names)
        if shared > most and not any(
            each.value.shape == v.shape and _close(each.value, v, allowed.values[i])
            for v in values.values()
            if _sort(v) == _sort(each.value)
        ):
            best, most = i, shared
    return best


def first_lacking(source: SourceInside, known: Known, places: Sequence[int]) -> int | None:
    """The first value on the way to any of ``places`` that the converted model lacks."""
    firsts = (_lacking(source, known, place)[1] for place in places if place not in known.source)
    return min((first for first in firsts if first is not None), default=None)


@dataclass(frozen=True)
class MatchedWeight:
    """A parameter of the source that a weight of the converted model should be.

    Attributes:
        name: The parameter.
        weight: The weight.
        value: The parameter's value in the weight's shape and type.
        error: The largest difference, relative to the largest magnitude.
        how: How the parameter was turned: empty, or "transposed (1, 0)".
    """

    name: str
    weight: str
    value: np.ndarray = field(compare=False)
    error: float
    how: str = ""


def differing_weights(
    weights: Mapping[str, np.ndarray], parameters: Mapping[str, np.ndarray]
) -> list[MatchedWeight]:
    """Weights that differ from the parameter of their name in every layout.

    A weight without such a parameter is skipped: it may be the result of folding.
    """
    found = []
    for name, weight in weights.items():
        parameter = parameters.get(name)
        if parameter is None or parameter.size != weight.size or not parameter.size:
            continue
        ways = [
            (w, h) for w, h in iter_layouts(parameter, weight.shape) if _sort(w) == _sort(weight)
        ]
        as_weight = [(w.astype(weight.dtype), how) for w, how in ways]
        if not as_weight or any(np.array_equal(w, weight, equal_nan=True) for w, _ in as_weight):
            continue
        value, how = as_weight[0]
        found.append(MatchedWeight(name, name, value, _relative(value, weight), how))
    return found


def iter_layouts(parameter: np.ndarray, shape: Sequence[int]) -> Iterator[tuple[np.ndarray, str]]:
    """A parameter in every layout that has ``shape``, the given one first."""
    if parameter.shape == tuple(shape):
        yield parameter, ""
    for value, order in iter_permutations(parameter, shape):
        yield value, f"transposed {order}"
    if parameter.size == math.prod(shape) and parameter.shape != tuple(shape):
        yield parameter.reshape(shape), "reshaped"


def _relative(value: np.ndarray, other: np.ndarray) -> float:
    top = _top(value.astype(np.float64))
    difference = _top(value.astype(np.float64) - other.astype(np.float64))
    return difference / top if top else math.inf
