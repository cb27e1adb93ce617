"""Whether other evaluators contradict a runtime's outputs of the original.

If they compute the original as differently as the accused optimizer does, it is unknown who is
wrong, or kernels may legally differ so much: by 5e-6 after a cancellation, for example.
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
_CLEAR = 0.1
"""The same where these agree with each other much closer: ``_CLOSER`` times."""
_CLOSER = 1000
_SHARE = 0.5
"""If others stray by more than this share of the difference, it is no evidence."""


def is_contradicted(
    expected: Values, opinions: Sequence[Values], error: float | None, noise: float | None
) -> bool:
    """Whether other results of the original stray as far from ``expected`` as the accused.

    True if one strays by half of the difference, or all by more than the rounding that the script
    of a bundle allows. Several that agree with each other show an error of the runtime sooner.

    Args:
        expected: Outputs of the runtime.
        opinions: Outputs of other evaluators, in the same types or as float64.
        error: Error of the accused, relative to the largest magnitude; None if it has no size.
        noise: Noise of the original, likewise.
    """
    strays = [_stray(expected, opinion) for opinion in opinions]
    apart = max((_stray(opinions[0], opinion) for opinion in opinions[1:]), default=math.inf)
    plain = _CLEAR if strays and _CLOSER * apart < min(strays) else PLAIN
    sized = error is not None and 0 < error < math.inf
    far = min(plain, _SHARE * error) if error is not None and sized else plain
    tolerated = telling_tolerance(error, noise) if sized else PLAIN
    return any(s > far for s in strays) or (bool(strays) and min(strays) > tolerated)


def explains_no(stray: float | None, error: float | None) -> bool:
    """Whether another opinion strays too little to explain an error, in units of one output."""
    # A difference of size 0 is one of NaN or infinities in other places, which has none.
    if not stray or error is None or not error < math.inf:
        return False
    # Errors beyond the largest magnitude say little of each other: one runs another function.
    return stray <= _SHARE * min(error, 1.0)


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
