"""The test inputs of a conversion: example, user's, random, other sizes, edge values.

Each input is unusual in one way only, so that a failing sample explains itself. Inputs that the
source refuses are dropped later.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from optvet.engine.numerics.floats import is_float
from optvet.engine.numerics.texts import is_text
from optvet.spec.converters import SourceFacts
from optvet.spec.types import Sample

Origin = Literal["example", "given", "random", "edge", "size"]
Feeds = Mapping[str, np.ndarray]
_LARGE_INTEGER = 2**31 + 1
_MAX_ELEMENTS = 1 << 20
"""Inputs with more elements get no edge values, which would each cost a run of all stages."""


@dataclass(frozen=True)
class ConversionInput:
    """A sample, where it comes from, and what is unusual about it.

    ``outside_domain``: it has NaN or infinity, but neither the example nor any input of the user
    has; or its error is below the rounding of usual outputs.
    ``number`` counts the inputs of one origin, from 1.
    """

    sample: Sample
    origin: Origin
    about: str = ""
    outside_domain: bool = False
    number: int = 0


def inputs_of(
    facts: SourceFacts, *, seed: int, random: int, edges: bool, sizes: bool
) -> list[ConversionInput]:
    """All inputs for a source, the example first."""
    drawn = [_make_input("example", 0, facts.inputs)]
    drawn += [_make_input("given", i, f) for i, f in enumerate(facts.others, 1)]
    rng = np.random.default_rng(seed)
    drawn += [_make_input("random", i + 1, _like(facts, rng)) for i in range(random)]
    if sizes:
        sized = _sizes(facts, rng)
        drawn += [_make_input("size", i, f, words) for i, (words, f) in enumerate(sized, 1)]
    if edges:
        finite = all(is_finite(v) for f in (facts.inputs, *facts.others) for v in f.values())
        for i, (words, feeds) in enumerate(_edges(facts), 1):
            outside_domain = finite and not all(map(is_finite, feeds.values()))
            drawn.append(_make_input("edge", i, feeds, words, outside_domain))
    return drawn


def _make_input(
    origin: Origin, number: int, feeds: Feeds, about: str = "", outside_domain: bool = False
) -> ConversionInput:
    name = origin if not number else f"{origin} {number}"
    sample = Sample(name, {k: np.asarray(v, order="C") for k, v in feeds.items()}, origin=origin)
    return ConversionInput(sample, origin, about, outside_domain, number)


def is_finite(value: np.ndarray) -> bool:
    """Whether ``value`` has no NaN and no infinity."""
    return not is_float(value.dtype) or bool(np.isfinite(value.astype(np.float64)).all())


def _like(facts: SourceFacts, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random inputs like the example: floats of equal mean and spread, other values shuffled.

    Whole numbers in a column of a table may be categories: they are shuffled as well.
    """
    drawn = {}
    for name, value in facts.inputs.items():
        drawn[name] = _values_like(value, rng)
        if name in facts.tables:
            whole = _whole_columns(value)
            drawn[name][:, whole] = rng.permuted(value[:, whole], axis=0)
    return drawn


def _whole_columns(table: np.ndarray) -> np.ndarray:
    """Which columns of a table hold whole numbers alone, beside missing ones; none of no table."""
    if table.ndim != 2 or not is_float(table.dtype):
        return np.zeros(table.shape[1] if table.ndim == 2 else 0, bool)
    wide = table.astype(np.float64)
    whole = (wide == np.round(wide)) | np.isnan(wide)
    return np.asarray(np.all(whole, axis=0) & np.any(np.isfinite(wide), axis=0))


def _values_like(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if value.size == 0 or value.ndim == 0:
        return value
    if not is_float(value.dtype):
        return rng.permutation(value.reshape(-1)).reshape(value.shape)
    wide = value.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    if not finite.size:
        return value
    low, high = float(finite.min()), float(finite.max())
    drawn = rng.normal(float(finite.mean()), float(finite.std()), value.shape)
    # Not beyond what the example shows: a model may ask for probabilities, or for what is positive.
    drawn = np.where(np.isfinite(wide), np.clip(drawn, low, high), wide)
    return drawn.astype(value.dtype)


def _sizes(facts: SourceFacts, rng: np.random.Generator) -> Iterator[tuple[str, Feeds]]:
    """Inputs with each dynamic size set to 1, and to a larger value."""
    names = dict.fromkeys(n for axes in facts.dynamic.values() for n in axes.values())
    for name in names:
        where = [(i, a) for i, axes in facts.dynamic.items() for a, n in axes.items() if n == name]
        now = facts.inputs[where[0][0]].shape[where[0][1]]
        for size in (1, now + 3) if now != 1 else (2, 4):
            feeds = dict(facts.inputs)
            for sized, axis in where:
                old = feeds[sized].shape[axis]
                if old:
                    feeds[sized] = np.take(feeds[sized], rng.integers(0, old, size), axis)
            yield f"{name}={size}", feeds


def _edges(facts: SourceFacts) -> Iterator[tuple[str, Feeds]]:
    """Edge values, one kind in one input at a time; what may be a category is never a fraction."""
    feeds = facts.inputs
    for name, value in feeds.items():
        if not value.size or value.size > _MAX_ELEMENTS:
            continue
        whole = _whole_columns(value) if name in facts.tables else np.zeros(0, bool)
        for words, edge in _edges_of(value):
            if whole.any():
                wide = edge.astype(np.float64)
                fraction = np.isfinite(wide) & (wide != np.round(wide))
                edge = np.where(fraction & whole, value, edge)
            same_type = edge.dtype == value.dtype or is_text(value.dtype)
            if same_type and not np.array_equal(edge, value):
                yield f"{name}: {words}", {**feeds, name: edge}
    for name in facts.tables:
        value = feeds[name]
        if value.ndim == 2 and is_float(value.dtype) and 0 < value.size <= _MAX_ELEMENTS:
            yield f"{name}: NaN in one column of each row", {**feeds, name: _one_in_each(value)}


def _one_in_each(table: np.ndarray) -> np.ndarray:
    """A table where each row lacks the value of one column: each column has a rule of its own."""
    changed = table.copy()
    rows = np.arange(len(table))
    changed[rows, rows % table.shape[1]] = math.nan
    return changed


def _edges_of(value: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    kind = value.dtype
    if is_text(kind):
        yield "a text that is nowhere else", _one(value, "\N{SNOWMAN} unseen")
        yield "an empty text", _one(value, "")
    elif kind.kind == "b":
        yield "all false", np.zeros_like(value)
        yield "all true", np.ones_like(value)
    elif is_float(kind):
        yield "all zero", np.zeros_like(value)
        yield "all negative", -np.abs(value)
        yield "all equal", np.full_like(value, value.reshape(-1)[0])
        # Ties: modes of rounding differ only there.
        halves = np.arange(value.size) % 8 - 3.5
        yield "halfway between integers", halves.reshape(value.shape).astype(kind)
        with np.errstate(over="ignore"):
            yield "a hundred times as large", (value * kind.type(100)).astype(kind)
            yield "a millionth as large", (value * kind.type(1e-6)).astype(kind)
        yield "NaN in one place", _one(value, math.nan)
        yield "infinity in one place", _one(value, math.inf)
    elif kind.kind in "iu":
        yield "all zero", np.zeros_like(value)
        if kind.kind == "i":
            yield "all negative", -np.abs(value)
            yield "-1 in one place", _one(value, -1)
        if value.ndim and kind.itemsize == 8:
            yield "a large number in one place", _one(value, _LARGE_INTEGER)


def _one(value: np.ndarray, edge: object) -> np.ndarray:
    # A text may be longer than the type of the others has room for.
    changed = np.array(value, dtype=object if is_text(value.dtype) else None)
    changed.reshape(-1)[value.size // 2] = edge
    return changed.astype(str) if value.dtype.kind in "SU" else changed.astype(value.dtype)
