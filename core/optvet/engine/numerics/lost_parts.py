"""What an output or a part of it lost: its values, their range or their order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from optvet.engine.numerics.floats import is_float
from optvet.spec.parts import OutputPart, parts_of

Runs = Mapping[str, Mapping[str, np.ndarray]]
_HALF = 0.5
"""A range that shrinks to less than this, or grows to more than its inverse, is another one."""
_ORDER = 0.8
"""Below this rank correlation the order is another one: quantization leaves ties, not this."""
_FEW = 16
_RANKED = 4096
"""Values of which ranks are compared, per sample."""


@dataclass
class _Seen:
    """What was seen of a part, over samples: the ends of its values on both sides, and ranks."""

    part: OutputPart | None
    ends: np.ndarray = field(default_factory=lambda: np.array([[math.inf, -math.inf]] * 2))
    order: list[float] = field(default_factory=list)

    def add(self, one: np.ndarray, other: np.ndarray) -> None:
        finite = np.isfinite(one) & np.isfinite(other)
        pair = [v[finite].astype(np.float64) for v in (one, other)]
        if not pair[0].size:
            return
        low = [v.min() for v in pair]
        high = [v.max() for v in pair]
        self.ends[:, 0] = np.minimum(self.ends[:, 0], low)
        self.ends[:, 1] = np.maximum(self.ends[:, 1], high)
        step = -(-pair[0].size // _RANKED)
        self.order.append(_rank_correlation(*(v[::step] for v in pair)))

    def lost(self) -> str:
        """What the part lost, in words; empty if nothing."""
        (low, high), (now_low, now_high) = self.ends
        size = high - low
        if not 0 < size < math.inf:
            return ""
        if now_high == now_low:
            return f"became constant: {now_low:.3g} where it was {low:.3g} to {high:.3g}"
        if not _HALF <= (now_high - now_low) / size <= 1 / _HALF:
            return f"is {now_low:.3g} to {now_high:.3g} where it was {low:.3g} to {high:.3g}"
        known = [value for value in self.order if not math.isnan(value)]
        order = float(np.mean(known)) if known else 1.0
        return f"has another order: its ranks correlate by {order:.2f}" if order < _ORDER else ""


def lost_by(one: np.ndarray, other: np.ndarray) -> str:
    """What ``other`` lost of ``one``, in words; empty if nothing."""
    seen = _Seen(None)
    seen.add(one, other)
    return seen.lost()


@dataclass
class LostParts:
    """Compares the parts of outputs over samples; parts are those of the first ones."""

    _seen: dict[str, list[_Seen]] = field(default_factory=dict)

    def add(self, reference: Runs, candidate: Runs) -> None:
        """Add samples; outputs of another shape are left out."""
        names = {n for run in reference.values() for n, v in run.items() if is_float(v.dtype)}
        for name in sorted(names):
            pairs = [
                (run[name], other[name])
                for sample, run in reference.items()
                if name in run
                and name in (other := candidate.get(sample, {}))
                and run[name].shape == other[name].shape
            ]
            if name not in self._seen:
                parts: Sequence[OutputPart | None] = parts_of(one for one, _ in pairs) or [None]
                self._seen[name] = [_Seen(part) for part in parts]
            for seen in self._seen[name]:
                for one, now in pairs:
                    if seen.part is None:
                        seen.add(one, now)
                    elif seen.part.axis < one.ndim:
                        seen.add(seen.part.of(one), seen.part.of(now))

    def words(self, output: str | None = None) -> list[str]:
        """A clause for each part that lost something; ``output`` is what was looked at alone."""
        found = []
        for name, parts in self._seen.items():
            for seen in parts:
                if lost := seen.lost():
                    where = f"{output or name}{'' if seen.part is None else seen.part}"
                    found.append(f"{where} {lost}")
        return found


def _rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's correlation, equal values with the mean of their ranks; NaN if all are equal.

    NaN of few values too, of which two that change places say nothing.
    """
    if one.size < _FEW:
        return math.nan
    ranks = []
    for values in (one, other):
        _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
        ends = np.cumsum(counts)
        ranks.append((ends - (counts - 1) / 2)[place.reshape(-1)])
    centered = [r - r.mean() for r in ranks]
    size = math.sqrt(float(np.prod([np.dot(c, c) for c in centered])))
    return float(np.dot(*centered)) / size if size else math.nan
