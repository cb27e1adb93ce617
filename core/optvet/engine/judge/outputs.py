"""The oracle: does a candidate's output differ from the reference's by more than rounding?

Main answers per output: *same* (bit for bit), *drift* (a difference that rounding explains),
*fault*. If rounding is possible, the noise of this model on this input is measured: the spread of
the reference's outputs when its inputs and weights are perturbed by one unit of roundoff, and, if
available, its own error against a float64 evaluation. All thresholds are in ``Thresholds``;
``benchmarks/calibrate.py`` prints how many faults they miss and how many false alarms they raise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from optvet.engine.numerics.floats import is_float, unit_roundoff

Call = Literal["same", "drift", "sensitivity", "fault", "unsure"]


@dataclass(frozen=True)
class Thresholds:
    """Largest differences that count as drift. Unitless; ``u`` is the output dtype's roundoff.

    Attributes:
        rounding: Differences below this many ``u`` of a slice's RMS (and this many ``u`` of its
            largest element) are rounding without any measurement.
        jitter_rms: Maximal ratio of a slice's RMS difference to its RMS spread under jitter.
        jitter_max: The same ratio for the largest element of a slice.
        truth: Maximal ratio of the candidate's RMS error against float64 to the reference's.
        reduction: Bound for legally re-ordered sums, in ``u * sqrt(n) * RMS``; n is the length
            of the longest reduction.
        unmeasured: The most that this bound explains, and jitters that were not compared with the
            reference's own error, as a share of the output's size.
        plain: The largest difference that is called drift, as a share of the output's size. Of a
            larger one that noise explains it is told that the model is so sensitive.
        gross_rms: ``jitter_rms`` of differences beyond ``unmeasured``, of which more draws are made
            and which are compared with injected noise too, since so much more is at stake.
        gross_max: ``jitter_max`` of these.
        gross_truth: ``truth`` of these.
        flips: Maximal ratio of the number of changed elements of a discontinuous output to that
            under jitter.
        believable: How many times what is allowed an error of rounding may be, where only an exact
            result could tell and there is none: beyond it, it is no rounding.
        other_kernels: Whether the operators of the candidate are not the reference's own; then what
            each operator may be off counts like jitter.
    """

    rounding: float = 8.0
    jitter_rms: float = 6.0
    jitter_max: float = 8.0
    truth: float = 5.0
    reduction: float = 1.0
    unmeasured: float = 1e-3
    plain: float = 1e-2
    gross_rms: float = 2.0
    gross_max: float = 2.5
    gross_truth: float = 2.0
    flips: float = 4.0
    believable: float = 30.0
    other_kernels: bool = False

    def for_gross(self) -> Thresholds:
        """What holds for differences beyond ``unmeasured``."""
        return replace(
            self,
            jitter_rms=self.gross_rms,
            jitter_max=self.gross_max,
            truth=self.gross_truth,
        )


THRESHOLDS = Thresholds()
OTHER_KERNELS = replace(
    THRESHOLDS,
    rounding=4 * THRESHOLDS.rounding,
    jitter_rms=4 * THRESHOLDS.jitter_rms,
    jitter_max=4 * THRESHOLDS.jitter_max,
    truth=4 * THRESHOLDS.truth,
    reduction=4 * THRESHOLDS.reduction,
    other_kernels=True,
)
"""For comparing two runtimes, which may compute every sum of the graph in another order."""
DECLARED = "declared tolerance"
OTHER_PLACES = "NaN or infinity in other places"
_SLICE_ELEMENTS = 16
_FEW = 0.01
"""Share of a discrete output that may lie so close to a decision that only float64 tells."""
_DRAWS = 10
"""Fewest draws of noise by which a gross difference is judged: of fewer the largest says little."""
_REFUTED = 1000.0
"""How many times the largest error that was measured an estimate of noise may be."""
_FLIP = 1024
"""Downstream of a discrete decision, a change by so many roundoffs counts as a flip."""


@dataclass(frozen=True)
class Noise:
    """Numerical uncertainty of the reference on one sample.

    Attributes:
        jitters: Outputs of the reference under perturbations of one roundoff; by output name.
        injected: The same with every operator inside the graph moved by its own rounding, and by
            what it can resolve: noise that a saturated value hides from the jitters.
        truth: float64 outputs, if they are available and trustworthy.
        longest_reduction: Number of terms of the longest sum in the graph.
        exact: Outputs that no operation in the graph can round.
        discontinuous: Outputs that depend on a discrete decision (ArgMax, Floor, quantization, …)
            on rounded values.
        steps: Step of the quantization grid, for outputs that lie on one.
        tolerance: Relative error that a lossy pass declares.
        measured: Whether ``jitters`` were measured. If not, only the bound for re-ordered sums is
            available, and a difference beyond it is "unsure".
        finite_inputs: The sample has no NaN and no infinity, so those in outputs were computed.
        checked: Whether float64 was asked for ``truth``, in vain or not. If not, a gross difference
            is "unsure" even if the jitters explain it, since they may be wrong by any factor.
        missing: Why something that could acquit was not measured, a limit of time or memory; what
            it might have explained is "unsure", since the answer must not depend on a slow machine.
    """

    jitters: Sequence[Mapping[str, np.ndarray]] = ()
    injected: Sequence[Mapping[str, np.ndarray]] = ()
    truth: Mapping[str, np.ndarray] = field(default_factory=dict)
    longest_reduction: int = 1
    exact: frozenset[str] = frozenset()
    discontinuous: frozenset[str] = frozenset()
    steps: Mapping[str, float] = field(default_factory=dict)
    tolerance: float | None = None
    finite_inputs: bool = False
    measured: bool = True
    checked: bool = True
    missing: str = ""


@dataclass(frozen=True)
class Judgement:
    """Verdict on one output of one sample.

    ``error`` is the largest difference relative to the reference's largest magnitude; ``noise``
    the same for the reference's own spread. ``exceeds`` is the ratio of the error to the allowed
    error (above 1: more than drift). ``structural``: the answer does not depend on noise, since
    dtype or shape differ, or nothing in the graph can round. ``layered``: it rests on the
    layers of a quantized model, one by one, and not on the noise of the whole.
    """

    output: str
    call: Call
    error: float | None = None
    noise: float | None = None
    exceeds: float = 0.0
    detail: str = ""
    structural: bool = False
    layered: bool = False


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
    if cand is None:
        return Judgement(name, "fault", exceeds=math.inf, detail="missing", structural=True)
    if ref.dtype != cand.dtype:
        detail = f"{ref.dtype} became {cand.dtype}"
        return Judgement(name, "fault", exceeds=math.inf, detail=detail, structural=True)
    if ref.shape != cand.shape:
        return _judge_shape(name, ref, cand, noise)
    if _bits_equal(ref, cand):
        return Judgement(name, "same", 0.0)
    if not is_float(ref.dtype):
        return _judge_discrete(name, ref, cand, noise, limits)
    return _judge_float(name, ref, cand, noise, limits)


def _judge_shape(name: str, ref: np.ndarray, cand: np.ndarray, noise: Noise | None) -> Judgement:
    detail = f"shape {list(ref.shape)} became {list(cand.shape)}"
    if noise is not None and name in noise.discontinuous:
        shapes = {j[name].shape for j in (*noise.jitters, *noise.injected) if name in j}
        if cand.shape in shapes or shapes - {ref.shape}:
            return Judgement(name, "sensitivity", detail=detail + ", as it does under jitter")
    return Judgement(name, "fault", exceeds=math.inf, detail=detail, structural=True)


def _bits_equal(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype == object or a.dtype.kind in "US":
        return bool(np.all(a == b))
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
    if noise.tolerance is not None and name not in noise.exact:
        return Judgement(name, "sensitivity", detail=f"{share}, after a lossy pass")
    if name in noise.exact:
        return Judgement(
            name, "fault", 1.0, 0.0, math.inf, share + "; nothing here can round", True
        )
    if not noise.measured:
        return Judgement(name, "unsure", exceeds=1.0, detail=share)
    if _flips_explain(name, ref, cand, wrong, noise, limits):
        return Judgement(name, "sensitivity", detail=share + ", as they do under jitter")
    few = int(wrong.sum()) <= max(1, _FEW * wrong.size)
    if noise.missing and (few or not _moved(noise, limits)):
        return Judgement(name, "unsure", exceeds=1.0, detail=f"{share}; {noise.missing}")
    return Judgement(name, "fault", 1.0, 0.0, math.inf, share)


def _flips_explain(
    name: str,
    ref: np.ndarray,
    cand: np.ndarray,
    wrong: np.ndarray,
    noise: Noise,
    limits: Thresholds,
) -> bool:
    """Whether as many elements as in ``wrong`` change when the reference is perturbed."""
    if ref.dtype.kind in "iuf" or is_float(ref.dtype):
        size = np.abs(_wide(ref)[wrong] - _wide(cand)[wrong])
        step = noise.steps.get(name)
        if step is not None and bool(np.all(size <= 1.01 * step)):
            return True
    jitters = [j[name] for j in _moved(noise, limits) if name in j]
    if any(j.shape != ref.shape for j in jitters):
        return True
    truth = noise.truth.get(name)
    if truth is not None and truth.shape == ref.shape and not is_float(truth.dtype):
        # Where the float64 evaluation decides differently, the reference is close to a threshold.
        # Jitter hardly changes a model of integers, so for these this is the only measure.
        jitters.append(truth)
    flips = [np.asarray(_differs(ref, j)) for j in jitters]
    if not flips:
        return False
    ever = np.logical_or.reduce(flips)
    if not np.any(wrong & ~ever):
        return True
    if wrong.size < 64 or ref.dtype.kind not in "iuf":
        return False
    # With enough elements, compare rates: no more flips, and no larger ones, than under jitter.
    rate = max(int(f.sum()) for f in flips)
    largest = max(
        (
            float(np.max(np.abs(_wide(ref)[f] - _wide(j)[f])))
            for f, j in zip(flips, jitters, strict=True)
            if f.any()
        ),
        default=0.0,
    )
    worst = float(np.max(np.abs(_wide(ref)[wrong] - _wide(cand)[wrong])))
    return bool(wrong.sum() <= limits.flips * rate and worst <= 2 * largest)


def _moved(noise: Noise, limits: Thresholds) -> Sequence[Mapping[str, np.ndarray]]:
    """Outputs of the reference, moved by what may pass for rounding."""
    return (*noise.jitters, *noise.injected) if limits.other_kernels else noise.jitters


def _differs(ref: np.ndarray, other: np.ndarray) -> np.ndarray:
    if is_float(ref.dtype):
        a, b = _wide(ref), _wide(other)
        scale = 64 * unit_roundoff(ref.dtype) * np.maximum(np.abs(a), np.abs(b))
        with np.errstate(invalid="ignore"):
            near = np.abs(a - b) <= scale
        return np.asarray(~(near | (a == b) | (np.isnan(a) & np.isnan(b))))
    return np.asarray(ref != other)


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


# --- floating-point outputs ---------------------------------------------------------------------


def _judge_float(
    name: str, ref: np.ndarray, cand: np.ndarray, noise: Noise | None, limits: Thresholds
) -> Judgement:
    y, z = _wide(ref), _wide(cand)
    pattern = _pattern_differs(y, z)
    with np.errstate(invalid="ignore", over="ignore"):
        finite = np.isfinite(y) & np.isfinite(z)
        # 1e308 - -1e308 overflows float64; use the largest double instead.
        d = np.where(finite, np.minimum(np.abs(y - z), np.finfo(np.float64).max), 0.0)
        scale = float(np.max(np.abs(y), where=finite, initial=0.0))
    error = float(d.max(initial=0.0)) / scale if scale else (math.inf if d.any() else 0.0)
    u = unit_roundoff(ref.dtype)
    if not pattern.any() and _is_rounding(d, np.where(finite, y, 0.0), u, limits):
        if noise is None or name not in noise.exact:
            return Judgement(name, "drift", error, None, 0.5)
    if noise is not None and noise.tolerance is not None:
        exceeds = math.inf if pattern.any() else error / noise.tolerance
        call: Call = "fault" if exceeds > 1 else "drift"
        return Judgement(name, call, error, noise.tolerance, exceeds, DECLARED)
    if noise is None:
        detail = OTHER_PLACES if pattern.any() else ""
        return Judgement(name, "unsure", error, None, 1.0, detail)
    if name in noise.exact:
        # Nothing rounds, so any difference in value is a fault; -0 and +0 compare equal above.
        detail = "nothing in the graph can round"
        return Judgement(name, "fault", error, 0.0, math.inf, detail, True)
    return _judge_against_noise(name, ref, y, z, d, pattern, finite, error, noise, limits)


def _judge_against_noise(
    name: str,
    ref: np.ndarray,
    y: np.ndarray,
    z: np.ndarray,
    d: np.ndarray,
    pattern: np.ndarray,
    finite: np.ndarray,
    error: float,
    noise: Noise,
    limits: Thresholds,
) -> Judgement:
    u = unit_roundoff(ref.dtype)
    floor = _bound_of_sums(u, noise, limits)
    jitters = _of(name, ref, _moved(noise, limits))
    clean = np.where(finite, y, 0.0)
    scale = float(np.max(np.abs(clean), initial=0.0))
    most = _most_believable(name, ref, noise)
    inside = np.minimum(_spread(y, _of(name, ref, noise.injected)), most)
    spread = np.minimum(_spread(y, _of(name, ref, noise.jitters)), most)
    spread = np.maximum(spread, inside) if limits.other_kernels else spread
    level = float(spread.max(initial=0.0)) / scale if scale else math.inf
    # What is told is what decides: the jitters, or the bound for sums where that explains more.
    told = max(level, floor)
    # A slice of zeros has no scale: some Sigmoid kernels give 0 where others give 1e-12. So every
    # slice may differ by one roundoff of the tensor's largest value.
    spread = np.maximum(spread, u * scale / limits.jitter_max)
    truth = noise.truth.get(name)
    trusted = truth is not None and truth.shape == ref.shape and is_float(truth.dtype)
    exceeds = _exceeds(d, spread, clean, floor, limits)
    detail = ""
    # If the reference overflows on finite inputs and the candidate does not (a fused
    # log(softmax(x)), say), the float range was exceeded: reported, but not as a fault.
    outgrown = pattern & np.isinf(y) & np.isfinite(z) if noise.finite_inputs else pattern & False
    # An overflowed value is larger than all finite ones; 1/Relu(x) is infinite without overflow.
    outgrown &= (np.sign(z) == np.sign(y)) & (np.abs(z) >= scale)
    pattern = pattern & ~outgrown
    if outgrown.any() and not pattern.any() and exceeds <= 1:
        share = f"{int(outgrown.sum())} of {outgrown.size} elements are finite now"
        return Judgement(name, "sensitivity", error, told, 1.0, share + ", infinite before")
    if pattern.any():
        detail = f"NaN or infinity in {int(pattern.sum())} of {pattern.size} elements of one"
        flipped = [_pattern_differs(y, _wide(j)) for j in jitters]
        explained = bool(flipped) and not np.any(pattern & ~np.logical_or.reduce(flipped))
        exceeds = exceeds if explained else math.inf
        if explained and exceeds <= 1:
            return Judgement(name, "sensitivity", error, told, 1.0, detail + ", as under jitter")
    if exceeds <= 1 and name in noise.discontinuous and min(error, level) > _FLIP * u:
        return Judgement(name, "sensitivity", error, told, exceeds, "flips as under jitter")
    if exceeds <= 1 and noise.measured and error > limits.unmeasured:
        if not noise.checked:
            return Judgement(name, "unsure", error, told, exceeds, "not compared with float64")
        if not limits.other_kernels:
            limits = limits.for_gross()
            exceeds = _exceeds(d, np.maximum(spread, inside), clean, floor, limits)
            if exceeds > 1 and len(noise.jitters) < _DRAWS:
                return Judgement(name, "unsure", error, told, exceeds, "too few draws of noise")
    if exceeds <= 1:
        return _explained(Judgement(name, "drift", error, told, exceeds), noise, limits)
    if not noise.measured:
        return Judgement(name, "unsure", error, None, exceeds, detail)
    if trusted and truth is not None:
        own = np.maximum(spread, inside)
        verdict = _against_truth(ref, y, z, truth, own, floor, limits)
        if verdict is not None:
            right, off = verdict
            moved = float(own.max(initial=0.0)) / scale if scale else 0.0
            return _explained(
                Judgement(name, "drift", error, max(off, moved), 0.9, right), noise, limits
            )
    if trusted and truth is not None and name in noise.discontinuous and not pattern.any():
        # Exact ties (k + 1/2 into a quantizer) may be rounded either way, and scales are not
        # jittered. So the reference's distance from the float64 result counts as noise too.
        own_error = np.where(np.isfinite(truth), np.abs(y - truth), 0.0)
        unmoved = all(np.array_equal(_wide(j), y, equal_nan=True) for j in jitters)
        if unmoved and _rms_all(d) <= 2 * _rms_all(own_error):
            words = "no further from the reference than the reference from the exact result"
            return Judgement(name, "sensitivity", error, told, 1.0, words)
    if name in noise.discontinuous or name in noise.steps:
        wrong = _beyond(d, spread, clean, floor, limits) | pattern
        if _flips_explain(name, ref, z.astype(ref.dtype), wrong, noise, limits):
            share = f"{int(wrong.sum())} of {wrong.size} elements flip, as they do under jitter"
            return Judgement(name, "sensitivity", error, told, 1.0, share)
    if noise.missing and (not jitters or (exceeds <= limits.believable and not pattern.any())):
        return Judgement(name, "unsure", error, told if jitters else None, exceeds, noise.missing)
    if pattern.any():
        return Judgement(name, "fault", error, told, exceeds, OTHER_PLACES)
    # Whoever reports it must know whether kernels lose accuracy or compute something else.
    less = _less_exact(y, z, truth) if limits.other_kernels and trusted else None
    detail = f"{less:.2g} times as far from the exact result as the original" if less else ""
    return Judgement(name, "fault", error, told, exceeds, detail)


def _less_exact(y: np.ndarray, z: np.ndarray, truth: np.ndarray | None) -> float | None:
    """The candidate's RMS error against float64 over the reference's; None if either has none."""
    if truth is None:
        return None
    known = np.isfinite(truth) & np.isfinite(y) & np.isfinite(z)
    ours, theirs = (_rms_all(np.where(known, v - truth, 0.0)) for v in (y, z))
    return theirs / ours if ours and math.isfinite(theirs / ours) else None


def _explained(found: Judgement, noise: Noise, limits: Thresholds) -> Judgement:
    """Drift, or if it is a large difference that noise explains, how sensitive the model is."""
    if not noise.measured:
        return replace(found, noise=None)
    assert found.error is not None
    if found.error <= limits.plain or found.noise is None:
        return found
    words = f"differs by {found.error:.2g} of its largest value, and rounding alone may move it so"
    words += f" far: by {found.noise:.2g} in one draw"
    return replace(found, call="sensitivity", detail=f"{words}; {found.detail}".rstrip("; "))


def _bound_of_sums(u: float, noise: Noise, limits: Thresholds) -> float:
    """Bound for re-ordered sums, relative to the size of the output.

    It follows from the graph alone, so it explains no more than ``limits.unmeasured``: of a sum of
    thousands of terms in half precision it allows for 3 %, and most kernels do not add in halves.
    """
    return min(limits.reduction * u * math.sqrt(noise.longest_reduction), limits.unmeasured)


def _most_believable(name: str, ref: np.ndarray, noise: Noise) -> float:
    """The largest noise that the reference's own error against float64 does not refute.

    If rounding moved the output by a thousand times what the reference is off by on every one of
    its elements, that error would be a chance of less than 1 in 1,000, even if the elements moved
    together. Behind a decision an output that is not moved is no such chance.
    """
    truth = noise.truth.get(name)
    known = truth is not None and truth.shape == ref.shape and is_float(truth.dtype)
    if truth is None or not known or name in noise.discontinuous or name in noise.steps:
        return math.inf
    y = _wide(ref)
    finite = np.isfinite(y) & np.isfinite(truth)
    if not finite.any():
        return math.inf
    with np.errstate(invalid="ignore", over="ignore"):
        own = float(np.max(np.abs(y - truth), where=finite, initial=0.0))
    scale = float(np.max(np.abs(y), where=finite, initial=0.0))
    return _REFUTED * max(own, unit_roundoff(ref.dtype) * scale)


def _of(name: str, ref: np.ndarray, runs: Sequence[Mapping[str, np.ndarray]]) -> list[np.ndarray]:
    return [run[name] for run in runs if name in run and run[name].shape == ref.shape]


def noise_level(name: str, reference: np.ndarray, noise: Noise) -> float | None:
    """Largest allowed change of an output, from its change under jitter; None if unknown."""
    jitters = _of(name, reference, noise.jitters)
    if not jitters or not is_float(reference.dtype):
        return None
    moved = float(_spread(_wide(reference), jitters).max(initial=0.0))
    return THRESHOLDS.jitter_max * min(moved, _most_believable(name, reference, noise))


def uncertainty(name: str, reference: np.ndarray, noise: Noise) -> float | None:
    """Largest difference of one element that counts as rounding; None if nothing is rounded.

    In units of the output. Comparators use it, so that drift is not reported as a changed answer.
    Without jitters it is the bound for re-ordered sums.
    """
    if not is_float(reference.dtype):
        return None
    if name in noise.exact:
        return 0.0
    wide, u = _wide(reference), unit_roundoff(reference.dtype)
    top = float(np.max(np.abs(wide), where=np.isfinite(wide), initial=0.0))
    floor = _bound_of_sums(u, noise, THRESHOLDS)
    sums = (floor + u) * top
    return max(THRESHOLDS.rounding * u * top, sums + (noise_level(name, reference, noise) or 0.0))


def largest_difference(y: np.ndarray, z: np.ndarray) -> float:
    """Largest difference of two elements of float arrays of one shape; of finite ones only."""
    a, b = _wide(y), _wide(z)
    both = np.isfinite(a) & np.isfinite(b)
    with np.errstate(invalid="ignore"):
        return float(np.max(np.abs(a - b), where=both, initial=0.0))


def _pattern_differs(y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Where exactly one of the two is NaN, or has an infinity that the other has not."""
    with np.errstate(invalid="ignore"):
        same = (np.isfinite(y) & np.isfinite(z)) | (np.isnan(y) & np.isnan(z)) | (y == z)
    return np.asarray(~same)


def _spread(y: np.ndarray, jitters: Sequence[np.ndarray]) -> np.ndarray:
    """Elementwise RMS change of the reference under jitter; 0 for elements that are not finite."""
    if not jitters:
        return np.zeros_like(y)
    squares = np.zeros_like(y)
    with np.errstate(invalid="ignore", over="ignore"):
        # One at a time: in double, all runs of a large output at once would take gigabytes.
        for jitter in jitters:
            squares += np.square(_wide(jitter) - y)
    squares /= len(jitters)
    return np.sqrt(np.where(np.isfinite(squares), squares, 0.0))


def _slices(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Axes to reduce: all axes, and all but one axis if enough elements are left.

    A tensor may hold quantities of different size (box coordinates and scores, say); one bound from
    the largest values would hide faults in the small ones.
    """
    axes = tuple(range(len(shape)))
    yield axes
    size = math.prod(shape)
    for axis in axes:
        if 1 < shape[axis] and size // shape[axis] >= _SLICE_ELEMENTS:
            yield tuple(a for a in axes if a != axis)


def _rms(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    if x.size == 0:
        return np.zeros(1)
    # Scaled first: squares of huge values overflow even float64, those of tiny ones underflow.
    top = np.max(np.abs(x), axis=axes, keepdims=True)
    safe = np.where(top > 0, top, 1.0)
    return np.asarray(np.sqrt(np.mean(np.square(x / safe), axis=axes, keepdims=True)) * top)


def _rms_all(x: np.ndarray) -> float:
    return float(_rms(x, tuple(range(x.ndim))).max(initial=0.0))


def _is_rounding(d: np.ndarray, y: np.ndarray, u: float, limits: Thresholds) -> bool:
    if bool(np.all(d <= 4 * u * np.abs(y))):
        return True
    bound = limits.rounding * u
    for axes in _slices(d.shape):
        top = np.max(np.abs(y), axis=axes, keepdims=True, initial=0.0)
        if np.any(np.max(d, axis=axes, keepdims=True, initial=0.0) > bound * top):
            return False
        if np.any(_rms(d, axes) > bound * _rms(y, axes)):
            return False
    return True


def _exceeds(
    d: np.ndarray, spread: np.ndarray, y: np.ndarray, floor: float, limits: Thresholds
) -> float:
    """Largest ratio of difference to allowance, over the whole tensor and its slices."""
    worst = 0.0
    for axes in _slices(d.shape):
        # A slice of few elements is a poor estimate of its noise: add a share of the tensor's.
        rms = limits.jitter_rms * _rms(spread, axes) + floor * _rms(y, axes)
        top = limits.jitter_max * np.max(spread, axis=axes, keepdims=True, initial=0.0)
        top = top + floor * np.max(np.abs(y), axis=axes, keepdims=True, initial=0.0)
        largest = np.max(d, axis=axes, keepdims=True, initial=0.0)
        worst = max(worst, _ratio(_rms(d, axes), rms), _ratio(largest, top))
    return worst


def _ratio(value: np.ndarray, allowed: np.ndarray) -> float:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(value > 0, value / allowed, 0.0)
    return float(np.max(ratio, initial=0.0))


def _beyond(
    d: np.ndarray, spread: np.ndarray, y: np.ndarray, floor: float, limits: Thresholds
) -> np.ndarray:
    quiet = np.median(spread) if spread.size else 0.0
    allowed = limits.jitter_max * np.maximum(spread, quiet) + 4 * floor * np.abs(y)
    return np.asarray(d > allowed)


def _against_truth(
    ref: np.ndarray,
    y: np.ndarray,
    z: np.ndarray,
    truth: np.ndarray,
    spread: np.ndarray,
    floor: float,
    limits: Thresholds,
) -> tuple[str, float] | None:
    """(reason, the reference's error) if float64 shows that the candidate is right, else None.

    A difference from float64 alone never makes a fault. The candidate may differ from it by a
    constant factor more than the reference does, or than its operators resolve. If both outputs
    differ from it beyond their noise, the evaluator is not evidence: one of the two must agree.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        t = _wide(truth.astype(ref.dtype))
    if _pattern_differs(t, z).any():
        return None
    finite = np.isfinite(t)
    clean = np.where(finite, t, 0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        of_candidate = np.where(finite, np.abs(z - truth), 0.0)
        of_reference = np.where(finite & np.isfinite(y), np.abs(y - truth), 0.0)
    scale = float(np.max(np.abs(clean), initial=0.0))
    own = float(of_reference.max(initial=0.0)) / scale if scale else 0.0
    plausible = replace(limits, jitter_rms=limits.truth, jitter_max=limits.truth)
    own_noise = np.maximum(spread, unit_roundoff(ref.dtype) * np.abs(clean))
    if _exceeds(of_candidate, own_noise, clean, floor, plausible) <= 1:
        return "as close to the exact result as rounding allows", own
    if _pattern_differs(t, y).any():
        return None
    allowed = np.maximum(of_reference, own_noise)
    if _exceeds(of_candidate, allowed, clean, floor, plausible) <= 1:
        # Both far from float64: an error of the reference itself, unless the evaluator is wrong.
        if _exceeds(of_reference, own_noise, clean, floor, limits) <= limits.believable:
            return "no further from the exact result than the reference", own
    return None
