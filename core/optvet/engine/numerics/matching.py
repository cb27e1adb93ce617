"""Matches the quantized tensors of an optimized model with those of the original.

Optimizers may rename tensors, change int8 to uint8, and change the layout. So tensors are matched
by scale, number of elements, and values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import ModelProto

from optvet.engine.numerics.forced import Plain, cut
from optvet.graph.quantized import Array, Grid, Quantizer

Values = Mapping[str, Array]
Run = Callable[[ModelProto, Sequence[Values]], Iterable[dict[str, Array]]]
"""Runs a model on several feeds, one after the other."""
_MOST, _FEW = 0.5, 0.1
"""Share of elements that may differ by more than two steps: if name or scale match too (a fault may
change values), and if the tensor is matched by values alone."""


@dataclass(frozen=True)
class InnerValues:
    """Values of the optimized model on one sample.

    Attributes:
        integers: Its quantized tensors, by name.
        outputs: Its outputs, by their names in the original.
    """

    integers: Values
    outputs: Values


@dataclass(frozen=True)
class Match:
    """The tensor of the optimized model that matches a quantized tensor of the original.

    ``name`` is its name in the optimized model. ``order`` is the permutation of axes from the
    optimized model to the original, None if the tensor is reshaped to ``shape``. ``offset`` is
    subtracted from its integers. ``by_scale`` is True if name or scale match, not the values alone.
    """

    name: str
    order: tuple[int, ...] | None
    shape: tuple[int, ...]
    offset: int
    by_scale: bool = True

    def read(self, inner: InnerValues, grid: Grid) -> Array:
        """The integers with the layout, type and zero point of the original."""
        value = inner.integers[self.name]
        value = value.reshape(self.shape) if self.order is None else value.transpose(self.order)
        low, high = grid.range
        moved = np.clip(value.astype(np.int64) - self.offset, low, high)
        return moved.astype(grid.zero.dtype if grid.zero.dtype.kind in "iu" else np.uint8)


def match(
    original: Plain,
    run: Run,
    feeds: Values,
    inner: InnerValues,
    grids: Mapping[str, Grid],
    *,
    named: bool = False,
) -> dict[str, Match]:
    """The matched quantized tensors, by their names in the original.

    Matched by name, or by scale and values: first by the values of the original; then, since
    differences accumulate, by those computed from the integers of the optimized model. ``named``:
    the names are the original's own, so that nothing has to be found by values.
    """
    if named:
        known = {q.name for q in original.quantizers} & grids.keys()
        rank = {n: inner.integers[n].ndim for n in known}
        return {n: Match(n, tuple(range(rank[n])), inner.integers[n].shape, 0) for n in known}
    found: dict[str, Match] = {}
    for _ in range(3):
        (values,) = run(cut(original, found), [{**feeds, **forced_inputs(original, found, inner)}])
        again = _match(original, {**feeds, **values}, inner, grids)
        if again == found:
            break
        found = again
    return found


def _match(
    original: Plain, values: Values, inner: InnerValues, grids: Mapping[str, Grid]
) -> dict[str, Match]:
    found: dict[str, Match] = {}
    closeness: dict[str, tuple[float, bool]] = {}
    for quantizer in original.quantizers:
        best = _best(quantizer, values, inner, _alike(quantizer, grids))
        if best is None:
            continue
        (distance, unnamed, _), each = best
        if distance <= _MOST or not unnamed or _only_of_its_kind(quantizer, original, values):
            found[quantizer.name] = each
            closeness[quantizer.name] = distance, unnamed
    found = _one_each(original, found, closeness)
    # A wrong scale is a fault too, so a tensor may have to be matched by values alone.
    taken = {each.name for each in found.values()}
    others = {name: grid for name, grid in grids.items() if name not in taken}
    for quantizer in original.quantizers:
        best = None if quantizer.name in found else _best(quantizer, values, inner, others)
        if best is not None and best[0][0] <= _FEW:
            found[quantizer.name] = replace(best[1], by_scale=False)
    return found


def _one_each(
    original: Plain, found: Mapping[str, Match], closeness: Mapping[str, tuple[float, bool]]
) -> dict[str, Match]:
    """``found`` without tensors that another quantizer matches better.

    A Relu between two quantizers of one scale makes them look alike where few values are negative;
    only quantizers of one value may share a tensor.
    """
    sources = {q.name: q.source for q in original.quantizers}
    owners: dict[str, str] = {}
    for name in sorted(found, key=closeness.__getitem__):
        owners.setdefault(found[name].name, name)
    return {n: m for n, m in found.items() if sources[owners[m.name]] == sources[n]}


def _alike(quantizer: Quantizer, grids: Mapping[str, Grid]) -> dict[str, Grid]:
    """Tensors with the name or the scale of a quantizer."""
    return {
        name: grid
        for name, grid in grids.items()
        if name == quantizer.name or grid.same_scale(quantizer.grid)
    }


def _best(
    quantizer: Quantizer, values: Values, inner: InnerValues, grids: Mapping[str, Grid]
) -> tuple[tuple[float, bool, bool], Match] | None:
    """The tensor closest to the result of a quantizer, and the key by which it is closest."""
    source = values.get(quantizer.source)
    if source is None or not grids:
        return None
    expected = quantizer.grid.unrounded_steps(source)
    best: tuple[tuple[float, bool, bool], Match] | None = None
    for name, grid in grids.items():
        value = inner.integers.get(name)
        if value is None or value.size != expected.size:
            continue
        for each in _ways(name, grid, value, quantizer, expected.shape):
            distance = _apart(each, inner, expected, quantizer.grid)
            rank = distance, name != quantizer.name, each.order is None
            if best is None or rank < best[0]:
                best = rank, each
    return best


def _only_of_its_kind(quantizer: Quantizer, original: Plain, values: Values) -> bool:
    """Whether no other quantizer has this scale and a result of this size."""
    size = values[quantizer.source].size
    same = [
        q
        for q in original.quantizers
        if q.source in values
        and values[q.source].size == size
        and q.grid.same_scale(quantizer.grid)
    ]
    return len(same) == 1


def _ways(
    name: str, grid: Grid, value: Array, quantizer: Quantizer, shape: tuple[int, ...]
) -> Iterator[Match]:
    """The possible layouts of a tensor: as it is, or channels last."""
    offset = grid.range[0] - quantizer.grid.range[0]
    rank = value.ndim
    orders = [tuple(range(rank))]
    if rank > 2:
        orders += [(0, rank - 1, *range(1, rank - 1)), (0, *range(2, rank), 1)]
    fitting = [o for o in orders if tuple(value.shape[i] for i in o) == shape]
    if not fitting:
        yield Match(name, None, (-1, *shape[1:]), offset)  # any batch size
    for order in fitting:
        yield Match(name, order, shape, offset)


def _apart(each: Match, inner: InnerValues, expected: Array, grid: Grid) -> float:
    """Share of elements that differ from ``expected`` by more than two steps."""
    if expected.size == 0:
        return 0.0
    step = max(1, expected.size // 65_536)
    value = each.read(inner, grid).ravel()[::step].astype(np.float64)
    return float(np.mean(np.abs(value - expected.ravel()[::step]) > 2.0))


def forced_inputs(
    original: Plain, matches: Mapping[str, Match], inner: InnerValues
) -> dict[str, Array]:
    """Inputs of the model that is cut at ``matches``: the integers of the optimized model."""
    by_name = {q.name: q for q in original.quantizers}
    return {name: each.read(inner, by_name[name].grid) for name, each in matches.items()}
