"""Tests whether the random outputs of two models have the same distribution.

A permutation test of many statistics at once. If both models have one distribution, their runs are
exchangeable, whether the distribution is continuous or discrete, of one element or of millions. So
the largest difference of any statistic is compared with the largest one after the runs are randomly
reassigned to the two models, many times. The test is exact, and corrects for the number of
statistics and outputs.

Source: Westfall and Young 1993, "Resampling-Based Multiple Testing", Sec. 2.5 (max-T). For values
that vary in one model only, the probability is computed by counting.

Copies of this module and of ``dependence`` lie beside scripts that run without optvet: they import
nothing else of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from optvet.engine.judge.dependence import Runs, numbers_of, of_pairs
from optvet.engine.numerics.texts import is_text

EFFECT = 2e-3
"""Differences of a mean below this part of its scale are ignored: rounding, or not relevant."""
_EDGE = 1e-3
"""Width of a threshold's linear ramp, in scales, so that rounding does not flip a count."""
_POSITIONS = 16
_QUANTILES = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98)
_TINY = 1e-300
_ROUNDINGS = 64
"""Of an element that does not vary, a difference by so many roundoffs of the output is ignored."""
_BEYOND_DOUBT = 1e-6
"""With a p-value below this, no further test is made."""


@dataclass(frozen=True)
class Unlike:
    """The most significant difference of two sets of runs.

    ``p`` is the probability that any statistic of any output differs as much if the distributions
    are equal. ``detail`` says what differs; ``stuck`` is True if the output no longer varies.
    ``effect`` is by how many standard deviations of both together their means differ; infinite
    where something varies on one side only.
    """

    output: str
    p: float
    detail: str
    stuck: bool = False
    effect: float = math.inf


def most_unlike(
    reference: Runs,
    candidate: Runs,
    names: Sequence[str],
    *,
    permutations: int,
    seed: int,
    joint: bool = True,
) -> Unlike | None:
    """The most significant difference of the distributions of two sets of independent runs.

    Args:
        reference: Runs of the original.
        candidate: Runs of the optimized model.
        names: Outputs to be compared, which all runs have.
        permutations: Number of random reassignments; p is at least about 1 / permutations.
        seed: Seed of the reassignments.
        joint: Whether it counts how elements and outputs depend on each other.

    Returns:
        The difference with its p; None if no statistic differs by more than ``EFFECT``.
    """
    found: list[Unlike] = []
    columns: list[tuple[str, str, np.ndarray]] = []
    for name in names:
        expected, actual = [r[name] for r in reference], [r[name] for r in candidate]
        shapes = ({a.shape for a in expected}, {a.shape for a in actual})
        if shapes[0].isdisjoint(shapes[1]) and len(shapes[0]) == 1:
            words = f"shape {list(expected[0].shape)} became {list(actual[0].shape)}"
            return Unlike(name, 0.0, words)
        columns += ((name, *each) for each in _statistics([*expected, *actual]))
        stuck = _find_one_sided_change(name, expected, actual, len(names))
        if stuck is not None:
            found.append(stuck)
    if joint:
        columns += of_pairs([*reference, *candidate], names)
    if all(u.p > _BEYOND_DOUBT for u in found):
        found += _most_different(columns, len(reference), permutations, seed)
    return min(found, key=lambda u: u.p, default=None)


def _most_different(
    columns: Sequence[tuple[str, str, np.ndarray]], first: int, permutations: int, seed: int
) -> Iterator[Unlike]:
    """The statistic whose means differ most; the ``first`` runs are those of the reference."""
    if not columns:
        return
    table = np.stack([values for _, _, values in columns], axis=1)
    difference = table[:first].mean(axis=0) - table[first:].mean(axis=0)
    deviation = table.std(axis=0)
    # A statistic is in units of its own scale, so both bounds are free of units.
    chosen = (np.abs(difference) > EFFECT) & (deviation > 0)
    if not chosen.any():
        return
    scaled = (table - table.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    count = len(table)
    weights = np.where(np.arange(count) < first, 1 / first, -1 / (count - first))
    seen = np.where(chosen, np.abs(weights @ scaled), 0.0)
    largest = float(seen.max())
    rng = np.random.default_rng(seed)
    beaten, left = 0, permutations
    # After ten larger permuted differences the p-value is too large to matter.
    while left > 0 and beaten < 10:
        some = min(left, 1000)
        dealt = rng.permuted(np.broadcast_to(weights, (some, count)), axis=1)
        # All statistics, not the chosen one alone, since the same runs chose it.
        beaten += int((np.abs(dealt @ scaled).max(axis=1) >= largest * (1 - 1e-9)).sum())
        left -= some
    name, words, _ = columns[int(seen.argmax())]
    p = (1 + beaten) / (1 + permutations - left)
    yield Unlike(name, p, f"its {words} has another distribution", effect=largest)


# --- values that vary on one side only ------------------------------------------------------------


def _find_one_sided_change(
    name: str, reference: Sequence[np.ndarray], candidate: Sequence[np.ndarray], outputs: int
) -> Unlike | None:
    """A difference in elements that are constant in one model or in both."""
    if len({a.shape for a in (*reference, *candidate)}) != 1 or not reference[0].size:
        return None
    a, b = _table(reference), _table(candidate)
    # NaN and infinity are covered by the statistics.
    finite = np.isfinite(a).all(axis=0) & np.isfinite(b).all(axis=0)
    a, b = a[:, finite], b[:, finite]
    if not a.size:
        return None
    if _are_different_constants(a, b, reference[0].dtype):
        p = math.exp(-_log_choose(len(a) + len(b), len(a))) * 2 * a.shape[1] * outputs
        return Unlike(name, min(p, 1.0), "elements that are not random have other values")
    one = _constancy(a, b)
    other = _constancy(b, a)
    p = min(one, other) * 2 * a.shape[1] * outputs
    if p >= 1:
        return None
    if one <= other:
        whole = bool((b == b[0]).all())
        words = "it no longer varies at all" if whole else "some of its elements no longer vary"
        return Unlike(name, p, words, stuck=True)
    return Unlike(name, p, "elements vary that never did")


def _are_different_constants(reference: np.ndarray, candidate: np.ndarray, dtype: np.dtype) -> bool:
    """Whether an element is one constant in all runs of one model, and another in the other's.

    Beyond rounding: differences are in units of the constants' scale, and no smaller than what is
    rounded off the largest of all elements.
    """
    stable = _same(reference, reference[0], reference).all(axis=0) & _same(
        candidate, candidate[0], candidate
    ).all(axis=0)
    if not stable.any():
        return False
    least = EFFECT * _scale(np.concatenate([reference[:1, stable], candidate[:1, stable]]))
    if dtype.kind == "f" or "float" in dtype.name:
        rounded = _ROUNDINGS / 2 * float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]
        least = max(least, rounded * float(np.abs(np.concatenate([reference, candidate])).max()))
    return bool((np.abs(reference[0] - candidate[0])[stable] > least).any())


def _constancy(varying: np.ndarray, fixed: np.ndarray) -> float:
    """Smallest probability, over elements, that by chance only the first side varies."""
    same = _same(fixed, fixed[0], fixed, varying).all(axis=0)
    moving = ~_same(varying, varying[0], fixed, varying).all(axis=0)
    deviating = (~_same(varying, fixed[0], fixed, varying)).sum(axis=0)
    most = int(np.where(same & moving, deviating, 0).max())
    return math.exp(_log_choose(len(varying), most) - _log_choose(len(varying) + len(fixed), most))


def _same(values: np.ndarray, value: np.ndarray, *tables: np.ndarray) -> np.ndarray:
    """Where ``values`` equal ``value`` except for rounding."""
    largest = np.abs(np.concatenate(tables)).max(axis=0)
    return np.asarray(np.abs(values - value) <= EFFECT * largest)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


# --- statistics -----------------------------------------------------------------------------------


def _statistics(runs: Sequence[np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Statistics with their names; one number per run, in units of the statistic's scale.

    Scales and thresholds are computed from the runs of both models together.
    """
    if len({a.shape for a in runs}) > 1:
        sizes = np.array([a.size for a in runs], np.float64)
        yield "number of elements", sizes / sizes.max()
        yield from _of_whole([numbers_of(a) for a in runs])
        return
    if not runs[0].size:
        return
    table = _table(runs)
    yield from _of_whole(list(table))
    scale = _scale(table)
    table = np.nan_to_num(table, nan=0.0, posinf=0.0, neginf=0.0) / scale
    if table.shape[1] > 1:
        yield "relation of neighbours", (table[:, 1:] * table[:, :-1]).mean(axis=1)
    places = np.unique(np.linspace(0, table.shape[1] - 1, _POSITIONS).round().astype(int))
    for place in places:
        yield f"element {place}", table[:, place]
        yield f"element {place}, squared,", table[:, place] ** 2


def _of_whole(runs: Sequence[np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Statistics of all elements of a run together."""
    for words, test in (
        ("share of NaN", np.isnan),
        ("share of infinities", np.isposinf),
        ("share of negative infinities", np.isneginf),
    ):
        shares = np.array([test(r).mean() if r.size else 0.0 for r in runs])
        if shares.any():
            yield words, shares
    finite = [r[np.isfinite(r)] for r in runs]
    pooled = np.concatenate(finite)
    if not pooled.size:
        return
    scale = _scale(pooled)
    finite = [(r if r.size else np.zeros(1)) / scale for r in finite]

    def each(f: object) -> np.ndarray:
        return np.array([f(r) for r in finite], np.float64)  # type: ignore[operator]

    yield "mean", each(np.mean)
    yield "mean square", each(lambda r: np.mean(r * r))
    yield "mean magnitude", each(lambda r: np.mean(np.abs(r)))
    yield "spread", each(np.std)
    for words, f in (("largest value", np.max), ("smallest value", np.min)):
        extremes = each(f)
        yield words, extremes / max(1.0, float(np.abs(extremes).max()))
    yield "share of zeros", each(lambda r: np.mean(np.abs(r) <= 1e-6))
    if max(r.size for r in finite) > 1:
        # On a grid, so that values that differ by rounding count as one.
        yield "number of different values", each(lambda r: len(np.unique(r.round(4))) / r.size)
    for threshold in np.unique(np.quantile(pooled / scale, _QUANTILES)):
        edge = threshold + _EDGE
        words = f"share of values up to {threshold * scale:.2g}"
        yield words, each(lambda r, e=edge: _up_to(r, e).mean())


def _up_to(values: np.ndarray, edge: float) -> np.ndarray:
    """1 below ``edge``, 0 above it, and a linear ramp around it."""
    return np.clip((edge + _EDGE / 2 - values) / _EDGE, 0.0, 1.0)


def _scale(values: np.ndarray) -> float:
    """Root of the mean square of the finite elements."""
    finite = values[np.isfinite(values)]
    largest = float(np.abs(finite).max(initial=0.0))
    if largest <= _TINY:
        return 1.0
    return largest * float(np.sqrt(np.mean((finite / largest) ** 2)))


def _table(runs: Sequence[np.ndarray]) -> np.ndarray:
    """One row per run."""
    if is_text(runs[0].dtype):
        # Strings can only be compared for equality.
        words = np.stack([a.astype(str).ravel() for a in runs])
        _, numbers = np.unique(words, return_inverse=True)
        return np.asarray(numbers.reshape(words.shape), np.float64)
    return np.stack([numbers_of(a) for a in runs])
