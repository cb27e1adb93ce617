"""Statistics of how random values depend on each other: elements of one output, and two outputs.

An optimizer that merges two random draws, or splits one, keeps the distribution of every element:
only products of elements show it. Each statistic is one number per run, so permuting the runs keeps
its distribution.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np

from optvet.engine.numerics.texts import is_text

Runs = Sequence[Mapping[str, np.ndarray]]
"""The outputs of one run each, by name."""

_OUTPUTS = 12
"""Of more outputs than these, each is paired with its next ones alone."""
_ELEMENTS = 16
"""Of how many elements, of all outputs together, every pair is looked at."""
_SHIFTS = 24
"""Of an axis longer than this, shifts by its whole parts and by powers of two are looked at."""


def of_pairs(runs: Runs, names: Sequence[str]) -> Iterator[tuple[str, str, np.ndarray]]:
    """Output, description and one value per run of each statistic of dependence.

    Outputs of varying shape, or of infinite values only, have no statistics.
    """
    tables: dict[str, np.ndarray] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name in names:
        if len({r[name].shape for r in runs}) == 1 and runs[0][name].size:
            tables[name] = _standardize(np.stack([numbers_of(r[name]) for r in runs]))
            shapes[name] = runs[0][name].shape
    for name, table in tables.items():
        if table.shape[1] == int(np.prod(shapes[name])):
            yield from _within(name, table.reshape(len(runs), *shapes[name]))
    for a, b in _couples(list(tables)):
        words = f"relation to {b!r}"
        one, other = tables[a], tables[b]
        if one.shape == other.shape:
            yield a, words, (one * other).mean(axis=1)
            yield (
                a,
                f"{words}, squared,",
                (_center_squares(one) * _center_squares(other)).mean(axis=1),
            )
        else:
            yield a, words, one.mean(axis=1) * other.mean(axis=1)
    yield from _of_elements(tables)


def _couples(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for i, j in combinations(range(len(names)), 2):
        if j - i < _OUTPUTS or len(names) <= _OUTPUTS:
            yield names[i], names[j]


def _within(name: str, values: np.ndarray) -> Iterator[tuple[str, str, np.ndarray]]:
    """Products of elements at some distance along an axis; the first axis is runs."""
    rest = tuple(range(1, values.ndim))
    for axis in rest:
        size = values.shape[axis]
        for shift in _shifts(size):
            moved = np.take(values, np.arange(shift, size), axis)
            still = np.take(values, np.arange(size - shift), axis)
            words = f"relation of elements {shift} apart along axis {axis - 1}"
            yield name, words, (moved * still).mean(axis=rest)


def _shifts(size: int) -> list[int]:
    """Shifts along an axis, among them the lengths of equal parts that it may be joined from."""
    if size <= _SHIFTS:
        return list(range(1, size))
    parts = {size // n for n in range(2, 17) if size % n == 0}
    return sorted(parts | {2**n for n in range(1, size.bit_length()) if 2**n < size})


def _of_elements(tables: Mapping[str, np.ndarray]) -> Iterator[tuple[str, str, np.ndarray]]:
    """Every pair of some elements, which are spread over all outputs."""
    each = max(1, _ELEMENTS // max(1, len(tables)))
    chosen = []
    for name, table in tables.items():
        places = np.linspace(0, table.shape[1] - 1, min(each, table.shape[1])).round().astype(int)
        chosen += [(name, place) for place in places]
    for (a, i), (b, j) in combinations(chosen[: 2 * _ELEMENTS], 2):
        words = f"relation of element {i} to element {j}" + (f" of {b!r}" if a != b else "")
        yield a, words, tables[a][:, i] * tables[b][:, j]


def _standardize(table: np.ndarray) -> np.ndarray:
    """Each element without its mean over all runs, in units of the spread of all elements."""
    table = np.nan_to_num(table, nan=0.0, posinf=0.0, neginf=0.0)
    top = float(np.abs(table).max(initial=0.0)) or 1.0
    table = table / top
    table = table - table.mean(axis=0)
    return np.asarray(table / (float(table.std()) or 1.0))


def _center_squares(table: np.ndarray) -> np.ndarray:
    squares = np.square(table)
    return np.asarray(squares - squares.mean(axis=0))


def numbers_of(array: np.ndarray) -> np.ndarray:
    """All elements as float64; complex ones as real and imaginary parts, words as numbers."""
    if array.dtype.kind == "c":
        parts = np.stack([array.real, array.imag], axis=-1)
        return np.asarray(parts.astype(np.float64)).ravel()
    if is_text(array.dtype):
        return np.array([zlib.crc32(str(v).encode()) % 1009 for v in array.ravel()], np.float64)
    return np.asarray(array.astype(np.float64)).ravel()
