"""Outputs judged part by part, where the parts of one have other ranges.

Beside boxes of 640 pixels, scores that all become 0 are an error of a thousandth of the largest
value, and less than the boxes are rounded by. So each part is judged by its own range, and by what
rounding moves it by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from optvet.engine.judge.judgement import Call, Judgement
from optvet.engine.judge.known_noise import Noise, runs_of
from optvet.engine.judge.sizes import (
    SLICE_ELEMENTS,
    largest_difference,
    other_places,
    spread_of,
    wide,
)
from optvet.engine.judge.thresholds import Thresholds
from optvet.engine.numerics.lost_parts import lost_by
from optvet.spec.parts import OutputPart, parts_of

_WORSE: tuple[Call, ...] = ("same", "drift", "sensitivity", "unsure", "fault")
Outputs = Mapping[str, np.ndarray]
JudgeValues = Callable[[Outputs, Outputs, Noise | None], Sequence[Judgement]]


def judge_parts(
    judged: Judgement,
    expected: np.ndarray,
    came: np.ndarray,
    noise: Noise | None,
    judge: JudgeValues,
) -> Judgement:
    """The judgement of the worst part, where it is worse than that of the whole.

    Where single indices hold enough values they are judged each for itself already (``slices``).
    """
    few = (expected.size // n < SLICE_ELEMENTS for n in expected.shape[1:] if n > 1)
    if not any(few):
        return judged
    worst, name = judged, judged.output
    for part in parts_of([expected]):
        of_part = None if noise is None else _noise_of(name, part, expected, noise)
        (found,) = judge({name: part.of(expected)}, {name: part.of(came)}, of_part)
        if _WORSE.index(found.call) > _WORSE.index(worst.call):
            worst = replace(found, part=str(part), largest=None)
    return worst


def _noise_of(name: str, part: OutputPart, expected: np.ndarray, noise: Noise) -> Noise:
    """The noise of one part of an output."""

    def cut(runs: Sequence[Outputs]) -> tuple[Outputs, ...]:
        return tuple({name: part.of(value)} for value in runs_of(name, expected, runs))

    truth = next(iter(cut([noise.truth])), {})
    return replace(noise, jitters=cut(noise.jitters), injected=cut(noise.injected), truth=truth)


def hold_parts_to(
    tolerance: float,
    judged: Judgement,
    expected: np.ndarray,
    came: np.ndarray,
    parts: Sequence[OutputPart],
    noise: Noise,
    limits: Thresholds,
) -> Judgement:
    """The judgement of the part that is furthest beyond a declared tolerance, or the largest error.

    A part that rounding moves by more than that is not held to it.
    """
    worst = judged
    for part in parts:
        if part.axis >= expected.ndim:
            continue
        one, other = part.of(expected), part.of(came)
        # Where nothing is found all scores are small: what counts is the usual range.
        usual = max(part.largest, float(np.max(np.abs(one), where=np.isfinite(one), initial=0.0)))
        runs = [part.of(run) for run in runs_of(judged.output, expected, noise.jitters)]
        moved = limits.jitter_max * float(spread_of(wide(one), runs).max(initial=0.0)) / usual
        allowed = max(tolerance, moved)
        error = largest_difference(one, other) / usual
        exceeds = math.inf if other_places(wide(one), wide(other)).any() else error / allowed
        if exceeds <= max(1.0, worst.exceeds):
            if error > (worst.error or 0.0) and worst.call == "drift":
                worst = replace(worst, error=error, exceeds=exceeds, part=str(part), largest=None)
        else:
            lost = lost_by(one, other)
            words = f"{tolerance:.2g} is declared" + (f"; it {lost}" if lost else "")
            worst = Judgement(judged.output, "fault", error, None, exceeds, words, part=str(part))
    return worst
