"""What repeated timings of two models say: the ratio, its interval, and a verdict.

A *repeat* is one process in which both models were timed in turn, in rounds. The unit of the
statistics is the repeat, not the single run: layout of memory, placement of threads and what else
the machine does differ from process to process, so runs of one process are no independent
evidence::

    round: A B B A        log(B / A), which a linear drift of the machine's speed leaves unchanged
    repeat: its rounds    the median of their log ratios
    timing: its repeats   the mean over repeats, with an interval

The interval is the wider one, at each end, of two: a bootstrap in which whole repeats are drawn
with replacement, and Student's t over repeats, since a bootstrap of few units is too narrow. Rounds
are not drawn within a repeat: its median has their noise already, which would be counted twice.

Sources: Kalibera and Jones 2013, "Rigorous Benchmarking in Reasonable Time" (repeat at the highest
level that varies; effect sizes with intervals); Davison and Hinkley 1997, "Bootstrap Methods and
their Application", section 3.8 (nested data: draw at the upper level, keep the lower one); Cameron,
Gelbach and Miller 2008, "Bootstrap-Based Improvements for Inference with Clustered Errors" (few
units).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Call = Literal["slower", "faster", "no-difference", "undecided"]
CONFIDENCE = 0.99
"""Of an interval. Two equal models are called different in at most one of a hundred timings."""
LEAST_REPEATS = 3
_DRAWS = 2000
_SIGMA = 1.4826  # Median absolute deviation of a normal distribution, in standard deviations.


@dataclass(frozen=True)
class RatioInterval:
    """A ratio of times, candidate to reference, with the ends of its confidence interval."""

    ratio: float
    low: float
    high: float


def interval_of(
    repeats: Sequence[Sequence[float]], confidence: float = CONFIDENCE, *, seed: int = 0
) -> RatioInterval:
    """The ratio of times over all repeats.

    Args:
        repeats: Per repeat the log ratios of its rounds; at least ``LEAST_REPEATS`` repeats, each
            of at least one round.
        confidence: Probability with which such intervals hold the true ratio.
        seed: Seeds the bootstrap.
    """
    # Workers import this module for ``outliers``, each in a new process, and this takes a second.
    from scipy import stats

    centres = np.array([np.median(rounds) for rounds in repeats])
    mean, tail = float(centres.mean()), (1 - confidence) / 2
    half = float(stats.t.ppf(1 - tail, len(centres) - 1) * stats.sem(centres))
    drawn = _bootstrap(centres, seed)
    low, high = np.quantile(drawn, [tail, 1 - tail])
    ends = min(float(low), mean - half), max(float(high), mean + half)
    return RatioInterval(math.exp(mean), math.exp(ends[0]), math.exp(ends[1]))


def _bootstrap(centres: np.ndarray, seed: int) -> np.ndarray:
    """Means over repeats drawn with replacement."""
    random = np.random.default_rng(seed)
    chosen = random.integers(len(centres), size=(_DRAWS, len(centres)))
    return np.asarray(centres[chosen].mean(axis=1))


def call_of(interval: RatioInterval, threshold: float) -> Call:
    """What an interval says: only what holds for every ratio in it.

    Args:
        interval: Of the ratio.
        threshold: Relative difference that matters: 0.05 is 5 %. "No difference" means that the
            whole interval is closer to 1 than this, in either direction (an equivalence test).
    """
    limit = 1 + threshold
    if interval.low > limit:
        return "slower"
    if interval.high < 1 / limit:
        return "faster"
    if 1 / limit <= interval.low and interval.high <= limit:
        return "no-difference"
    return "undecided"


def ratio_of(rounds: Sequence[float]) -> float:
    """The ratio of times in one repeat, from the log ratios of its rounds."""
    return math.exp(float(np.median(rounds)))


def spread_of(repeats: Sequence[Sequence[float]]) -> float:
    """Relative standard deviation of the ratio from repeat to repeat: 0.02 is 2 %."""
    centres = [float(np.median(rounds)) for rounds in repeats]
    return math.expm1(float(np.std(centres, ddof=1))) if len(centres) > 1 else 0.0


def looks(repeats: int) -> tuple[int, ...]:
    """Numbers of repeats after which a sequential timing looks at its interval; the last is all.

    >>> looks(10)
    (3, 5, 10)
    """
    return tuple(dict.fromkeys(n for n in (LEAST_REPEATS, 5, repeats) if n <= repeats))


def growing_looks(repeats: int) -> tuple[int, ...]:
    """Numbers of repeats after which it is looked whether the interval is narrow enough to tell.

    >>> growing_looks(10)
    (10, 20, 40)
    """
    return (repeats, 2 * repeats, 4 * repeats)


def confidence_of_a_look(number_of_looks: int, confidence: float = CONFIDENCE) -> float:
    """Confidence of each interval, so that all of them hold together with ``confidence``.

    The error is divided among the looks (Bonferroni). The looks depend on each other, so less would
    do, but this needs no assumption on how. Source: Jennison and Turnbull 2000, "Group Sequential
    Methods with Applications to Clinical Trials", chapters 7 and 9.
    """
    return 1 - (1 - confidence) / number_of_looks


def outliers(durations: Sequence[float]) -> list[int]:
    """Indices of the durations beyond three standard deviations from the median.

    The deviation is estimated by the median absolute deviation, which outliers do not move, and is
    taken to be at least 1 % of the median: steady durations are no reason to doubt one of them.
    """
    values = np.asarray(durations, dtype=np.float64)
    if len(values) < LEAST_REPEATS:
        return []
    centre = float(np.median(values))
    deviation = max(_SIGMA * float(np.median(np.abs(values - centre))), 0.01 * centre)
    return [int(i) for i in np.flatnonzero(np.abs(values - centre) > 3 * deviation)]
