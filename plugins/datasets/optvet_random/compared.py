"""Inputs drawn from the constants that a model compares its inputs with.

Values from a distribution hardly ever come near the stored points of a nearest-neighbour model, or
between two thresholds of a tree. ``COMPARED`` says, for each operator that compares, which of its
constants it compares with and which values are worth an input: rows at the compared value, NaN
where any element does. ``columns`` takes these rows back to the inputs.

Where a comparison is exact (whole numbers, texts, indices), values are on the constant; elsewhere
they are beside it, by much more than rounding: on it, each kernel may fall to another side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from optvet.graph import attribute_of
from optvet.plugin import ValueInfo
from optvet_random.columns import ColumnView, InputColumns, columns_of, views_of
from optvet_random.graph import ConsumerGraph
from optvet_random.trees import rows_of

STEP = 1e-3
"""Distance from a constant, relative to the range of the constants: far above any rounding."""
MOST_ROWS = 4096
"""Of the nodes of trees, and of one sample."""
MOST_VALUES = 1 << 23
"""Of all drawn rows."""
_WORDS = 12
"""Words of one text."""
_HOPS = 12
"""From a product to the choice of the nearest."""


@dataclass(frozen=True)
class Compared:
    """A node that compares ``view`` with constants: what it is asked of."""

    graph: ConsumerGraph
    node: onnx.NodeProto
    view: ColumnView
    index: int
    whole: bool
    texts: list[str]

    def attribute(self, name: str) -> np.ndarray:
        """The numbers of an attribute, of either form; none where it is not given."""
        given = attribute_of(self.node, f"{name}_as_tensor", attribute_of(self.node, name))
        if isinstance(given, onnx.TensorProto):
            return onnx.numpy_helper.to_array(given)
        return np.array([] if given is None else given)

    def other(self) -> np.ndarray | None:
        """The other operand of two, if it is a constant."""
        return self.graph.constant_behind(self.node.input[1 - self.index])

    def codes(self, words: Sequence[object]) -> np.ndarray:
        """Numbers that stand for texts."""
        known = [w.decode() if isinstance(w, bytes) else str(w) for w in words]
        if self.view.words:
            known = [" ".join(known[i : i + _WORDS]) for i in range(0, len(known), _WORDS)]
        first = len(self.texts)
        self.texts.extend(known)
        return np.arange(first, len(self.texts), dtype=np.float64)


Rows = np.ndarray
"""float64 of shape [rows, *the view's columns]; NaN where any value does."""
Draw = Callable[[Compared, np.random.Generator], Rows | None]


def _over(constant: np.ndarray, shape: tuple[int, ...]) -> Rows:
    """A constant as rows of ``shape``: one for each element that a row is compared with."""
    whole = np.broadcast_to(constant, np.broadcast_shapes(constant.shape, shape))
    target = (1,) * (whole.ndim - len(shape)) + shape
    more = [a for a in range(whole.ndim) if target[a] == 1 and whole.shape[a] > 1]
    rows = np.moveaxis(whole, more, range(len(more)))
    return rows.reshape(-1, *shape).astype(np.float64)


def _beside(rows: Rows, rng: np.random.Generator) -> Rows:
    """Rows all near those given: each element a step off, in the direction that is drawn."""
    known = rows[np.isfinite(rows)]
    span = float(np.ptp(known)) if known.size else 0.0
    scale = span or float(np.abs(known).max(initial=0.0)) or 1.0
    return rows + STEP * scale * rng.choice([-1.0, 1.0], rows.shape) * rng.uniform(1, 2, rows.shape)


def _points(at: Compared, rng: np.random.Generator) -> Rows | None:
    """Beside each stored point: rows of which there are several, of several elements."""
    other = at.other()
    if other is None or other.dtype.kind not in "fiu":
        return None
    if at.node.op_type in ("MatMul", "Gemm"):
        flipped = at.node.op_type == "MatMul" or not attribute_of(at.node, "transB", 0)
        if at.index or other.ndim != 2 or not _chooses_smallest(at.graph, at.node.output[0]):
            return None
        other = other.T if flipped else other
    rows = _over(other, at.view.columns.shape)
    return _beside(rows, rng) if len(rows) > 1 and rows[0].size > 1 else None


def _chooses_smallest(graph: ConsumerGraph, name: str) -> bool:
    """Whether the smallest elements of a value are chosen, after arithmetic: a distance is one."""
    names = [name]
    for _ in range(_HOPS):
        following = [node for n in names for node, _ in graph.consumers.get(n, ())]
        if any(
            n.op_type == "ArgMin" or (n.op_type == "TopK" and not attribute_of(n, "largest", 1))
            for n in following
        ):
            return True
        names = [o for n in following[:_HOPS] if n.op_type in _DISTANCE for o in n.output]
    return False


_DISTANCE = frozenset("Add Sub Mul Sqrt Neg Max Relu Clip Transpose Reshape Cast Pow Sum".split())


def _support_vectors(at: Compared, rng: np.random.Generator) -> Rows | None:
    flat = at.attribute("support_vectors").astype(np.float64)
    width = at.view.columns.size
    return _beside(flat.reshape(-1, *at.view.columns.shape), rng) if flat.size >= width else None


def _threshold(at: Compared, rng: np.random.Generator) -> Rows | None:
    """On both sides of what is compared elementwise, and on it where that is exact."""
    other = at.other()
    return None if other is None else _sides(at, [other], rng)


def _sides(
    at: Compared, constants: Sequence[np.ndarray], rng: np.random.Generator, *, exact: bool = False
) -> Rows | None:
    if not constants:
        return None
    if constants[0].dtype.kind in "OU":
        return _spread(at, at.codes([*dict.fromkeys(w for c in constants for w in c.ravel())]))
    rows = np.concatenate([_over(c.astype(np.float64), at.view.columns.shape) for c in constants])
    rows = rows[np.isfinite(rows).reshape(len(rows), -1).all(1)]
    if not len(rows):
        return None
    step = 1.0 if at.whole else STEP * (float(np.ptp(rows)) or float(np.abs(rows).max()) or 1.0)
    moves = [-step, step, *([0.0] if at.whole or (exact and at.view.exact) else [])]
    wanted = np.concatenate([rows + move for move in moves])
    # Each row once as it is, and once more with elements of other rows: sides of all kinds meet.
    mixed = np.stack([rng.permutation(column) for column in wanted.reshape(len(wanted), -1).T], 1)
    return np.concatenate([wanted, mixed.reshape(wanted.shape)])


def _bounds(at: Compared, rng: np.random.Generator) -> Rows | None:
    """Both sides of the bounds of a Clip, inputs or attributes."""
    names = [*at.node.input[1:3]]
    found = [c for n in names if n and (c := at.graph.constant_behind(n)) is not None]
    found += [np.array(v) for k in ("min", "max") if (v := attribute_of(at.node, k)) is not None]
    return _sides(at, [c for c in found if c.size == 1 and abs(float(c.item())) < 1e30], rng)


def _attribute(name: str, default: float, *, exact: bool = False) -> Draw:
    def draw(at: Compared, rng: np.random.Generator) -> Rows | None:
        given = at.attribute(name)
        return _sides(at, [given if given.size else np.array([default])], rng, exact=exact)

    return draw


def _quantized(at: Compared, rng: np.random.Generator) -> Rows | None:
    """Both ends of a quantizer's range."""
    scale, zero = (
        at.graph.constant_behind(n) if n else None for n in [*at.node.input[1:3], "", ""][:2]
    )
    if scale is None or scale.size != 1:
        return None
    zero = np.zeros(1, np.uint8) if zero is None else zero
    if zero.dtype.kind not in "iu":
        return None
    limits = np.iinfo(zero.dtype)
    ends = [(float(e) - float(zero.item())) * float(scale.item()) for e in (limits.min, limits.max)]
    return _sides(at, [np.array(e) for e in ends], rng)


def _table(at: Compared, rng: np.random.Generator) -> Rows | None:
    """Every row of a table once, in an order that is drawn."""
    place = 2 if at.node.op_type == "EmbedLayerNormalization" else 0
    table = at.graph.shape(at.node, place + (2 if at.index == 1 and place else 0))
    axis = attribute_of(at.node, "axis", 0)
    if at.node.op_type == "Gather" and (at.index != 1 or at.node.input[0] not in at.graph.tensors):
        return None
    size = table[axis] if table and axis < len(table) else None
    return _spread(at, rng.permutation(size)) if size else None


def _keys(at: Compared, rng: np.random.Generator) -> Rows | None:
    """Every key of a vocabulary."""
    found = [
        at.attribute(name)
        for name in (
            *("keys_strings", "keys_int64s", "keys_floats", "keys_tensor", "cats_strings"),
            *("cats_int64s", "pool_strings", "pool_int64s", "stopwords"),
        )
    ]
    found = [keys for keys in found if keys.size]
    if not found:
        return None
    if found[0].dtype.kind in "OSU":
        return _spread(at, at.codes([*dict.fromkeys(k for keys in found for k in keys.tolist())]))
    return _spread(at, np.concatenate(found).astype(np.float64))


def _spread(at: Compared, values: np.ndarray) -> Rows:
    """Rows that have each of ``values`` in an element, and in each element if there are few."""
    size = at.view.columns.size
    count = len(values) if len(values) <= size else -(-len(values) // size)
    places = np.arange(count * size).reshape(count, size)
    places = places + (np.arange(count)[:, None] if len(values) <= size else 0)
    return values.astype(np.float64)[places % len(values)].reshape(count, *at.view.columns.shape)


def _tree(at: Compared, rng: np.random.Generator) -> Rows | None:
    """Both sides of each node's threshold, each in a row that comes to the node."""
    rows = rows_of(at.node.op_type, at.attribute, at.view.columns.size, STEP, MOST_ROWS // 2, rng)
    return np.array(rows).reshape(-1, *at.view.columns.shape) if rows else None


# By operator: the operands that may hold inputs, what the constants are called, and the rows.
COMPARED: Mapping[str, tuple[Sequence[int], str, Draw]] = {
    **dict.fromkeys(("Sub", "CDist", "MatMul", "Gemm"), ((0, 1), "stored points", _points)),
    **dict.fromkeys(("SVMClassifier", "SVMRegressor"), ((0,), "support vectors", _support_vectors)),
    **dict.fromkeys(
        ("TreeEnsembleClassifier", "TreeEnsembleRegressor", "TreeEnsemble"),
        ((0,), "thresholds", _tree),
    ),
    **dict.fromkeys(
        ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal", "Max", "Min"),
        ((0, 1), "thresholds", _threshold),
    ),
    "Clip": ((0,), "bounds", _bounds),
    "Binarizer": ((0,), "thresholds", _attribute("threshold", 0.0)),
    "ThresholdedRelu": ((0,), "thresholds", _attribute("alpha", 1.0)),
    "Shrink": ((0,), "thresholds", _attribute("lambd", 0.5)),
    "Imputer": ((0,), "replaced values", _attribute("replaced_value_float", 0.0, exact=True)),
    "QuantizeLinear": ((0,), "ends of the range", _quantized),
    "Gather": ((1,), "rows", _table),
    "EmbedLayerNormalization": ((0, 1), "rows", _table),
    **dict.fromkeys(
        ("LabelEncoder", "CategoryMapper", "OneHotEncoder", "TfIdfVectorizer", "StringNormalizer"),
        ((0,), "keys", _keys),
    ),
}


@dataclass(frozen=True)
class DrawnRows:
    """Rows of all inputs' columns, with texts by their number; NaN where any value does.

    ``told`` says which constants they were drawn from, ``numbers`` with how many numbers the model
    computes on each row.
    """

    inputs: Sequence[InputColumns] = ()
    rows: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    texts: Sequence[str] = ()
    told: Sequence[str] = ()
    numbers: int = 1

    def know(self, of: InputColumns) -> bool:
        """Whether a row has a value of this input."""
        return bool((~np.isnan(self.rows[:, of.first : of.first + of.count])).any())

    def fill(self, values: np.ndarray, info: ValueInfo, first: int) -> np.ndarray:
        """``values`` of an input with elements of the rows from ``first`` on in their place."""
        own = next(c for c in self.inputs if c.info.name == info.name)
        if not own.count or values.size % own.count:
            return values
        filled = values.reshape(-1, own.count).copy()
        mine = self.rows[:, own.first : own.first + own.count]
        rows = mine[(first + np.arange(len(filled))) % len(mine)]
        known = ~np.isnan(rows)
        if values.dtype == object:
            filled[known] = np.array([*self.texts, None], object)[rows[known].astype(int)]
        else:
            limits = np.iinfo(values.dtype) if values.dtype.kind in "iu" else None
            wanted = rows if limits is None else np.clip(np.rint(rows), limits.min, limits.max)
            filled[known] = wanted[known].astype(values.dtype)
        return filled.reshape(values.shape)


def drawn_rows(graph: ConsumerGraph, inputs: Sequence[ValueInfo], seed: int) -> DrawnRows:
    """Rows from all constants that ``inputs`` are compared with; none if there are none."""
    if not any(n.op_type in COMPARED for n in graph.nodes):
        return DrawnRows()
    columns = columns_of(inputs)
    views, texts = views_of(graph, columns), list[str]()
    total = sum(c.count for c in columns)
    whole = np.concatenate([np.full(c.count, c.whole) for c in columns])
    found, told, room = [], list[str](), MOST_VALUES
    for number, (at, words, draw) in enumerate(_comparisons(graph, views, whole, texts)):
        rows = _try(draw, at, np.random.default_rng([seed, number]))
        if rows is None or not rows.size or len(rows) * total > room:
            continue
        room -= len(rows) * total
        back = np.full((len(rows), total), np.nan)
        view = at.view
        with np.errstate(all="ignore"):
            values = (rows - view.shift) / view.scale
        back[:, view.columns.ravel()] = values.reshape(len(rows), -1)
        back[~np.isfinite(back)] = np.nan
        found.append(back)
        told.append(f"{words} of {at.node.op_type} {at.node.name or at.node.output[0]}")
    if not found:
        return DrawnRows()
    filled = _filled(np.concatenate(found), seed)
    return DrawnRows(columns, filled, texts, told, _numbers(graph, columns))


def _numbers(graph: ConsumerGraph, inputs: Sequence[InputColumns]) -> int:
    """Constants that a row is computed with; those of a convolution are used at each place."""
    tables = {n.input[0] for n in graph.nodes if n.op_type == "Gather"}
    count = sum(math.prod(t.dims) for name, t in graph.tensors.items() if name not in tables)
    count += sum(len(a.floats) for n in graph.nodes for a in n.attribute)
    places = max(c.count for c in inputs) if any("Conv" in n.op_type for n in graph.nodes) else 1
    return int(count * places)


def _try(draw: Draw, at: Compared, rng: np.random.Generator) -> Rows | None:
    try:
        return draw(at, rng)
    except (ValueError, IndexError, KeyError, TypeError):  # shapes that are not as they must be
        return None


def _comparisons(
    graph: ConsumerGraph, views: Mapping[str, ColumnView], whole: np.ndarray, texts: list[str]
) -> Iterator[tuple[Compared, str, Draw]]:
    for node in graph.nodes:
        indices, words, draw = COMPARED.get(node.op_type, ((), "", _points))
        for index in indices:
            view = views.get(node.input[index]) if index < len(node.input) else None
            if view is not None:
                exact = bool(whole[view.columns.ravel()].all())
                yield Compared(graph, node, view, index, exact, texts), words, draw


def _filled(rows: np.ndarray, seed: int) -> np.ndarray:
    """The rows in random order; values that do not matter are taken from other rows."""
    rng = np.random.default_rng([seed, len(rows)])
    rows = rng.permutation(rows)
    for column in rows.T:
        empty = np.isnan(column)
        if not empty.all():
            column[empty] = rng.choice(column[~empty], int(empty.sum()))
    return rows
