"""Whether what a runtime gave of the original is contradicted by other evaluators of it.

An optimizer is accused of a difference from what was expected. Where others compute the original
itself as differently, it is not known who is wrong, or the difference is one that kernels may make:
a value of 5e-6 that came out of a cancellation, say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from optvet.engine.judge.judgement import OTHER_PLACES, Judgement
from optvet.engine.judge.sample import Setting, judge_outputs, telling_tolerance
from optvet.engine.numerics.floats import is_float

Values = Mapping[str, np.ndarray]
PLAIN = 0.3
"""Beyond so much of an output's largest value, no difference of two evaluators is rounding."""
_SHARE = 0.5
"""Share of the difference that is told beyond which the expected outputs prove nothing of it."""


def is_contradicted(
    expected: Values, opinions: Sequence[Values], error: float | None, noise: float | None
) -> bool:
    """Whether opinions on the original stray as far from what is expected as the accused does.

    One of them by half of the difference, or all of them by more than what the script of a bundle
    takes for rounding.

    Args:
        expected: What the runtime gave.
        opinions: What others gave, in the same types or as float64.
        error: Of the accused, relative to the largest magnitude; None if it has no size.
        noise: Of the original, likewise.
    """
    strays = [_stray(expected, opinion) for opinion in opinions]
    sized = error is not None and 0 < error < math.inf
    far = min(PLAIN, _SHARE * error) if error is not None and sized else PLAIN
    tolerated = telling_tolerance(error, noise) if sized else PLAIN
    return any(s > far for s in strays) or (bool(strays) and min(strays) > tolerated)


def _stray(expected: Values, opinion: Values) -> float:
    """The largest difference, relative to the largest magnitude; infinite where it has no size."""
    if expected.keys() != opinion.keys():
        return math.inf  # a sequence of another length
    typed = {name: _in_type_of(expected[name], value) for name, value in opinion.items()}
    return max((_size(j) for j in judge_outputs(expected, typed, None, Setting())), default=0.0)


def _size(judgement: Judgement) -> float:
    if judgement.call in ("same", "drift"):
        return 0.0
    sized = judgement.error is not None and judgement.detail != OTHER_PLACES
    return judgement.error if judgement.error is not None and sized else math.inf


def _in_type_of(expected: np.ndarray, value: np.ndarray) -> np.ndarray:
    if value.dtype == np.float64 and is_float(expected.dtype):
        with np.errstate(over="ignore"):
            return value.astype(expected.dtype)
    return value
