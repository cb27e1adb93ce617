"""Does a candidate's output differ from the reference's by more than rounding?

Main answers per output: *same* (bit for bit), *drift* (a difference that rounding explains),
*fault*. If rounding is possible, the noise of this model on this input is measured: the spread of
the reference's outputs when its inputs and weights are perturbed by one unit of roundoff, and, if
available, its own error against a float64 evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import replace

import numpy as np

from optvet.engine.judge.against_noise import Difference, judge_against_noise
from optvet.engine.judge.flipped_shapes import rows_excuse
from optvet.engine.judge.flips import flips_excuse, loose_excuse
from optvet.engine.judge.judgement import DECLARED, OTHER_PLACES, Call, Judgement
from optvet.engine.judge.known_noise import Noise, moved_runs, runs_of
from optvet.engine.judge.sizes import is_rounding, other_places, wide
from optvet.engine.judge.thresholds import THRESHOLDS, Thresholds
from optvet.engine.numerics import texts
from optvet.engine.numerics.floats import is_float, unit_roundoff

FEW = 0.01
"""Share of a discrete output that may lie so close to a decision that only float64 tells."""


def judge(
    reference: Mapping[str, np.ndarray],
    candidate: Mapping[str, np.ndarray],
    noise: Noise | None = None,
    thresholds: Thresholds = THRESHOLDS,
) -> list[Judgement]:
    """Compare all outputs of ``reference``; without ``noise``, unclear ones are "unsure"."""
    return [
        _judge_output(name, expected, candidate.get(name), noise, thresholds)
        for name, expected in reference.items()
    ]


def _judge_output(
    name: str, ref: np.ndarray, cand: np.ndarray | None, noise: Noise | None, limits: Thresholds
) -> Judgement:
    # From what needs no noise to what does: a missing output and another type are certain by
    # themselves, and so are equal bits. Only then does the size of a difference matter.
    if cand is None:
        return Judgement(name, "fault", exceeds=math.inf, detail="missing", structural=True)
    if texts.is_text(ref.dtype) and texts.is_text(cand.dtype):
        ref, cand = texts.plain(ref), texts.plain(cand)
    if ref.dtype != cand.dtype:
        detail = f"{texts.type_name(ref.dtype)} became {texts.type_name(cand.dtype)}"
        return Judgement(name, "fault", exceeds=math.inf, detail=detail, structural=True)
    if ref.shape != cand.shape:
        return _judge_shape(name, ref, cand, noise, limits)
    if _bits_equal(ref, cand):
        return Judgement(name, "same", 0.0)
    if not is_float(ref.dtype):
        return _judge_discrete(name, ref, cand, noise, limits)
    return _judge_float(name, ref, cand, noise, limits)


def _judge_shape(
    name: str, ref: np.ndarray, cand: np.ndarray, noise: Noise | None, limits: Thresholds
) -> Judgement:
    detail = f"shape {list(ref.shape)} became {list(cand.shape)}"
    # A decision may select other rows, so a shape behind one can change by rounding. Anywhere else
    # it is a fault, whatever the values are.
    if noise is not None and name in noise.discontinuous:
        loose = noise.loosened or () if noise.tolerance is not None else ()
        runs = [j[name] for j in (*noise.jitters, *noise.injected, *loose) if name in j]
        if _is_among(cand.shape, {ref.shape, *(run.shape for run in runs)}):
            words = rows_excuse(ref, cand, runs, limits)
            if words:
                detail = f"{detail}, as it does under jitter: {words}"
                return Judgement(name, "sensitivity", detail=detail)
    return Judgement(name, "fault", exceeds=math.inf, detail=detail, structural=True)


def _is_among(shape: tuple[int, ...], seen: Set[tuple[int, ...]]) -> bool:
    """Whether a shape is as close to the shapes under jitter as those are to each other.

    Losing all elements is unexplained where rounding adds or removes single ones.
    """
    alike = [other for other in seen if len(other) == len(shape)]
    if not alike:
        return False
    ranges = [(min(sizes), max(sizes)) for sizes in zip(*alike, strict=True)]
    return all(
        low - (high - low) <= size <= high + (high - low)
        for size, (low, high) in zip(shape, ranges, strict=True)
    )


def _bits_equal(a: np.ndarray, b: np.ndarray) -> bool:
    if is_float(a.dtype):
        return bool(np.array_equal(a, b)) or bool(np.all((a == b) | ((a != a) & (b != b))))
    return bool(np.array_equal(a, b))


# --- discrete outputs: integers, booleans, strings ---------------------------------------------


def _judge_discrete(
    name: str, ref: np.ndarray, cand: np.ndarray, noise: Noise | None, limits: Thresholds
) -> Judgement:
    wrong = np.asarray(ref != cand)
    share = f"{int(wrong.sum())} of {wrong.size} elements differ"
    if noise is None:
        return Judgement(name, "unsure", exceeds=1.0, detail=share)
    # A declared loss moves decisions further than rounding does. Outputs that no operation can
    # round are not loosened by it.
    if noise.tolerance is not None and name not in noise.exact:
        return _judge_loosened(name, ref, cand, noise, limits)
    if name in noise.exact:
        return Judgement(
            name, "fault", 1.0, 0.0, math.inf, share + "; nothing here can round", True
        )
    if not noise.measured:
        return Judgement(name, "unsure", exceeds=1.0, detail=share)
    # Jitters before injected noise: they move less, so what they explain needs no stronger reason.
    excuse = flips_excuse(name, ref, cand, wrong, noise, limits)
    if excuse is not None:
        words = f"{share}, as they do under jitter: {excuse.words}"
        return Judgement(name, "sensitivity", detail=words)
    if _is_taken_inside(name, cand, wrong, noise):
        words = ", as they do where operators round otherwise"
        return Judgement(name, "sensitivity", detail=share + words)
    # A measurement that is missing might have explained a few elements near a decision. It would
    # not explain many, if others were measured.
    few = int(wrong.sum()) <= max(1, FEW * wrong.size)
    if noise.missing and (few or not moved_runs(noise, limits)):
        return Judgement(name, "unsure", exceeds=1.0, detail=f"{share}; {noise.missing}")
    return Judgement(name, "fault", 1.0, 0.0, math.inf, share)


def _judge_loosened(
    name: str, ref: np.ndarray, cand: np.ndarray, noise: Noise, limits: Thresholds
) -> Judgement:
    """Judge a discrete output behind a lossy pass: it flips as it does where all moves as far."""
    wrong = np.asarray(ref != cand)
    share = f"{int(wrong.sum())} of {wrong.size} elements differ"
    moved = f"with all that decides moved by the declared {noise.tolerance:.2g}"
    # What the loss does to decisions must be measured. Without that, neither side is proven.
    if not noise.loosened:
        detail = f"{share}; how many do {moved} is not known"
        return Judgement(name, "unsure", exceeds=1.0, detail=detail)
    runs = runs_of(name, ref, noise.loosened)
    excuse = loose_excuse(ref, cand, wrong, runs, limits)
    most = max((int(np.sum(run != ref)) for run in runs), default=0)
    if excuse is None:
        return Judgement(name, "fault", 1.0, None, math.inf, f"{share}; {moved} up to {most} do")
    words = f"{share}, and up to {most} {moved}; {excuse.words}"
    return Judgement(name, "sensitivity", detail=words)


def _is_taken_inside(name: str, cand: np.ndarray, wrong: np.ndarray, noise: Noise) -> bool:
    """Whether each wrong element is what some run with operators moved by their rounding gives.

    Two scores that a Softmax rounds to one value tie whatever the inputs are moved by.
    """
    runs = [j[name] for j in noise.injected if name in j and j[name].shape == cand.shape]
    return bool(runs) and not np.any(wrong & ~np.logical_or.reduce([r == cand for r in runs]))


def _judge_float(
    name: str, ref: np.ndarray, cand: np.ndarray, noise: Noise | None, limits: Thresholds
) -> Judgement:
    y, z = wide(ref), wide(cand)
    pattern = other_places(y, z)
    with np.errstate(invalid="ignore", over="ignore"):
        finite = np.isfinite(y) & np.isfinite(z)
        # 1e308 - -1e308 overflows float64; use the largest double instead.
        d = np.where(finite, np.minimum(np.abs(y - z), np.finfo(np.float64).max), 0.0)
        scale = float(np.max(np.abs(y), where=finite, initial=0.0))
    # Relative to the tensor, not to each element: near zero any rounding is a large ratio.
    error = float(d.max(initial=0.0)) / scale if scale else (math.inf if d.any() else 0.0)
    u = unit_roundoff(ref.dtype)
    # A few roundoffs are drift without a measurement, which is true of most outputs, unless nothing
    # in the graph can round.
    if not pattern.any() and is_rounding(d, np.where(finite, y, 0.0), u, limits):
        if noise is None or name not in noise.exact:
            return Judgement(name, "drift", error, None, 0.5, largest=scale)
    # NaN and infinities in other places are beyond any declared size.
    if noise is not None and noise.tolerance is not None:
        exceeds = math.inf if pattern.any() else error / noise.tolerance
        call: Call = "fault" if exceeds > 1 else "drift"
        return Judgement(name, call, error, noise.tolerance, exceeds, DECLARED, largest=scale)
    if noise is None:
        detail = OTHER_PLACES if pattern.any() else ""
        return Judgement(name, "unsure", error, None, 1.0, detail, largest=scale)
    if name in noise.exact:
        # Nothing rounds, so any difference in value is a fault; -0 and +0 compare equal above.
        detail = "nothing in the graph can round"
        return Judgement(name, "fault", error, 0.0, math.inf, detail, True, largest=scale)
    difference = Difference(name, ref, y, z, d, pattern, finite, error, noise, limits)
    return replace(judge_against_noise(difference), largest=scale)
