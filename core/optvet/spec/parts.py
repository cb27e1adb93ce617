"""Parts of a tensor whose values have other ranges, such as boxes and scores in one output.

Boxes of up to 640 pixels and scores below 1 may stand in one tensor. Relative to the largest of
all, an error that makes every score 0 is a thousandth. So each part is measured by its own range.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

APART = 8.0
"""From this ratio on, two ranges are those of different quantities."""
_VALUES = 16
"""Of fewer values the range is not known."""
_EACH = 4
"""An index of fewer values may be small by chance, such as the end of a sound that is silent."""
_LOST = 2.0**-14
"""Below this share of the largest values, a range is that of a saturated border, or what is left of
a cancellation; scores of 0.1 beside boxes of 1,280 pixels are above it."""
_STRIDES = range(2, 9)
"""Distances at which values of one kind may follow each other: x and y, or x, y and a score."""
_ALIKE = 4.0
"""Up to this ratio, ranges at such a distance are those of one quantity."""
_SCORE = 2.0
"""A range of more than this is of no scores: classes that came and others may alternate too."""
_MOST = 16
"""More parts than this are no quantities that somebody joined."""


@dataclass(frozen=True)
class OutputPart:
    """Indices along an axis of an output whose values have a range of their own.

    Attributes:
        axis: The axis.
        start: The first index.
        stop: The index behind the last one.
        largest: The largest magnitude of its finite values.
        step: From one index to the next.
    """

    axis: int
    start: int
    stop: int
    largest: float
    step: int = 1

    def of(self, value: np.ndarray) -> np.ndarray:
        """The part of ``value``, a view."""
        return value[(*[slice(None)] * self.axis, slice(self.start, self.stop, self.step))]

    def __str__(self) -> str:
        """As numpy writes it.

        >>> str(OutputPart(1, 4, 7, 0.9))
        '[:, 4:7]'
        """
        step = f":{self.step}" if self.step > 1 else ""
        return f"[{':, ' * self.axis}{self.start}:{self.stop}{step}]"


@dataclass
class _Axis:
    """The largest magnitude at each index of an axis, so far."""

    largest: np.ndarray
    whole: bool = True
    """Whether the values along the axis may be shares of one whole, as probabilities are."""
    total: float | None = None
    """What they add up to."""

    def look(self, value: np.ndarray, axis: int) -> None:
        """Whether those of ``value`` add up to the same, at each place."""
        with np.errstate(invalid="ignore", over="ignore"):
            totals = value.sum(axis=axis, dtype=np.float64)
            self.total = float(totals.flat[0]) if self.total is None else self.total
            equal = np.all(np.abs(totals - self.total) <= 1e-2 * abs(self.total))
            self.whole = bool(equal and self.total > 0 and np.all(value >= 0))


@dataclass
class Ranges:
    """Ranges of one output over samples, of which the parts follow."""

    _axes: dict[int, _Axis] = field(default_factory=dict)
    _shape: tuple[int, ...] | None = None
    _values: int = 0

    def add(self, value: np.ndarray) -> None:
        """Add the output of a sample; floats, of any shape."""
        if value.ndim == 0 or value.size == 0:
            return
        plain = value if value.dtype.kind == "f" else value.astype(np.float64)
        finite = np.isfinite(plain)
        size = np.abs(plain) if finite.all() else np.where(finite, np.abs(plain), 0)
        if self._shape is None:
            # The first axis of several is that of the samples, which are no parts of one.
            axes = range(1 if value.ndim > 1 else 0, value.ndim)
            self._axes = {a: _Axis(np.zeros(value.shape[a])) for a in axes if value.shape[a] > 1}
            self._shape = value.shape
        self._values += value.size
        for axis in list(self._axes):
            if len(self._shape) != value.ndim or self._shape[axis] != value.shape[axis]:
                del self._axes[axis]  # an axis of any length has no parts
                continue
            known = self._axes[axis]
            others = tuple(a for a in range(value.ndim) if a != axis)
            known.largest = np.maximum(known.largest, size.max(axis=others))
            if known.whole:
                known.look(plain, axis)

    def parts(self) -> tuple[OutputPart, ...]:
        """The parts along the axis where ranges differ most; none where they differ little."""
        best, found = 1.0, list[OutputPart]()
        for axis, known in self._axes.items():
            if known.whole:
                continue
            groups, step = self._cut(known), 1
            if len(groups) == 1:
                groups, step = self._interleaved(known)
            ranges = [float(known.largest[a:b:step].max()) for a, b in groups]
            least = _LOST * max(ranges)
            parts = [
                OutputPart(axis, *g, r, step)
                for g, r in zip(groups, ranges, strict=True)
                if r > least
            ]
            ratio = max(ranges) / min((p.largest for p in parts), default=math.inf)
            if len(parts) > 1 and len(groups) <= _MOST and ratio > best:
                best, found = ratio, parts
        return tuple(found)

    def _cut(self, axis: _Axis) -> list[tuple[int, int]]:
        each = self._values // len(axis.largest)
        if each < _EACH:
            return [(0, len(axis.largest))]
        return _cut(axis.largest, 0, len(axis.largest), -(-_VALUES // each))

    def _interleaved(self, axis: _Axis) -> tuple[list[tuple[int, int]], int]:
        """Every index at some distance, where their ranges are alike and of others apart."""
        count = len(axis.largest)
        whole = [(0, count)], 1
        if self._values // count < _EACH or axis.largest.max() <= _SCORE:
            return whole
        for step in _STRIDES:
            if (
                count % step
                or count < 2 * step
                or count // step * (self._values // count) < _VALUES
            ):
                continue
            rows = axis.largest.reshape(-1, step)
            high, low = rows.max(axis=0), rows.min(axis=0)
            order = np.argsort(high)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                jumps = low[order[1:]] / high[order[:-1]]
                alike = bool(np.all(high <= _ALIKE * low))
            if alike and np.max(jumps, initial=0.0) >= APART:
                return [(first, count) for first in range(step)], step
        return whole


def parts_of(values: Iterable[np.ndarray]) -> tuple[OutputPart, ...]:
    """Parts of an output, whose values on several samples are given; none of one range.

    A part is a run of indices along one axis, at both ends of which the range jumps by ``APART``,
    or every index at some distance, and holds enough values to know its range. Shares of one whole,
    such as probabilities of classes, are no parts: a class that did not come has no range of its
    own.

    >>> boxes, scores = np.arange(32.0).reshape(1, 4, 8) * 20, np.arange(24).reshape(1, 3, 8) / 24
    >>> [str(part) for part in parts_of([np.concatenate([boxes, scores], axis=1)])]
    ['[:, 0:4]', '[:, 4:7]']
    """
    ranges = Ranges()
    for value in values:
        ranges.add(value)
    return ranges.parts()


def parts_of_outputs(runs: Iterable[Mapping[str, np.ndarray]]) -> dict[str, tuple[OutputPart, ...]]:
    """Parts of each output of floats that has some; ``runs`` are its values on several samples."""
    ranges: dict[str, Ranges] = {}
    for run in runs:
        for name, value in run.items():
            if value.dtype.kind == "f" or "float" in value.dtype.name:
                ranges.setdefault(name, Ranges()).add(value)
    return {name: found for name, each in ranges.items() if (found := each.parts())}


def _cut(largest: np.ndarray, start: int, stop: int, least: int) -> list[tuple[int, int]]:
    """Runs of at least ``least`` indices between which the range jumps, from the largest jump on.

    A jump is clean: all ranges of one side are larger than all of the other. So a class that did
    not come, between others that did, is no part.
    """
    here = largest[start:stop]
    if len(here) < 2 * least:
        return [(start, stop)]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        low, high = np.minimum.accumulate(here), np.maximum.accumulate(here)
        low_behind = np.minimum.accumulate(here[::-1])[::-1]
        high_behind = np.maximum.accumulate(here[::-1])[::-1]
        ratios = np.fmax(low[:-1] / high_behind[1:], low_behind[1:] / high[:-1])
    ratios = np.where(np.isnan(ratios), 0.0, ratios)[least - 1 : len(ratios) - least + 1]
    if ratios.max(initial=0.0) < APART:
        return [(start, stop)]
    middle = start + least + int(ratios.argmax())
    return [*_cut(largest, start, middle, least), *_cut(largest, middle, stop, least)]
