"""The known rounding noise of a reference on one sample, and how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from optvet.engine.judge.sizes import spread_of, wide
from optvet.engine.judge.thresholds import THRESHOLDS, Thresholds
from optvet.engine.numerics.floats import is_float, unit_roundoff

_REFUTED = 1000.0
"""How many times the largest error that was measured an estimate of noise may be."""


@dataclass(frozen=True)
class Noise:
    """Numerical uncertainty of the reference on one sample.

    Attributes:
        jitters: Outputs of the reference under perturbations of one roundoff; by output name.
        injected: The same with every operator inside the graph moved by its own rounding, and by
            what it can resolve: noise that a saturated value hides from the jitters.
        truth: float64 outputs, if they are available and trustworthy.
        in_double: Outputs that the reference itself computed in float64, so that ``truth`` says
            nothing of how far rounding in the type of the candidate may lead.
        longest_reduction: Number of terms of the longest sum in the graph.
        exact: Outputs that no operation in the graph can round.
        discontinuous: Outputs that depend on a discrete decision (ArgMax, Floor, quantization, …)
            on rounded values.
        steps: Step of the quantization grid, for outputs that lie on one.
        grids: Size of the quantization grid of outputs whose step is an input. Kernels may compute
            from the ends of the grid, as OpenVINO says of its FakeQuantize: then a value near 0 is
            off by a roundoff of the ends.
        tolerance: Relative error that a lossy pass declares.
        loosened: Outputs of the reference with all that decides moved by ``tolerance``; None
            where they were not measured. Discrete outputs behind a lossy pass may flip as in them.
        measured: Whether ``jitters`` were measured. If not, only the bound for re-ordered sums is
            available, and a difference beyond it is "unsure".
        finite_inputs: Outputs whose inputs have no NaN and no infinity: their own were computed.
        checked: Whether float64 was asked for ``truth``, in vain or not. If not, a gross difference
            is "unsure" even if the jitters explain it, since they may be wrong by any factor.
        missing: Why something that could acquit was not measured, a limit of time or memory; what
            it might have explained is "unsure", since the answer must not depend on a slow machine.
    """

    jitters: Sequence[Mapping[str, np.ndarray]] = ()
    injected: Sequence[Mapping[str, np.ndarray]] = ()
    truth: Mapping[str, np.ndarray] = field(default_factory=dict)
    in_double: frozenset[str] = frozenset()
    longest_reduction: int = 1
    exact: frozenset[str] = frozenset()
    discontinuous: frozenset[str] = frozenset()
    steps: Mapping[str, float] = field(default_factory=dict)
    grids: Mapping[str, float] = field(default_factory=dict)
    tolerance: float | None = None
    loosened: Sequence[Mapping[str, np.ndarray]] | None = None
    finite_inputs: frozenset[str] = frozenset()
    measured: bool = True
    checked: bool = True
    missing: str = ""


def moved_runs(noise: Noise, limits: Thresholds) -> Sequence[Mapping[str, np.ndarray]]:
    """Outputs of the reference under perturbations no larger than rounding."""
    return (*noise.jitters, *noise.injected) if limits.other_kernels else noise.jitters


def bound_of_sums(u: float, noise: Noise, limits: Thresholds) -> float:
    """Bound for re-ordered sums, relative to the size of the output.

    It follows from the graph alone, so it explains at most ``limits.unmeasured``: for a sum of
    thousands of terms in half precision it allows 3 %, though few kernels add in half precision.
    """
    return min(limits.reduction * u * math.sqrt(noise.longest_reduction), limits.unmeasured)


def most_believable(name: str, ref: np.ndarray, noise: Noise) -> float:
    """The largest noise that the reference's own error against float64 does not refute.

    If rounding moved the output by a thousand times what the reference is off by on every one of
    its elements, that error would be a chance of less than 1 in 1,000, even if the elements moved
    together. Behind a decision an output that is not moved is no such chance, nor is one of zeros:
    terms that cancel exactly, such as equal values and their mean, do so on purpose.
    """
    truth = noise.truth.get(name)
    known = truth is not None and truth.shape == ref.shape and is_float(truth.dtype)
    if truth is None or not known or name in noise.in_double:
        return math.inf
    # Behind a decision both may agree exactly by luck, and one roundoff moves the output by a step.
    if name in noise.discontinuous or name in noise.steps:
        return math.inf
    y = wide(ref)
    finite = np.isfinite(y) & np.isfinite(truth)
    if not finite.any():
        return math.inf
    with np.errstate(invalid="ignore", over="ignore"):
        own = float(np.max(np.abs(y - truth), where=finite, initial=0.0))
    scale = float(np.max(np.abs(y), where=finite, initial=0.0))
    # Zeros that cancel on purpose are exact, and would refute any noise at all.
    if not scale:
        return math.inf
    # At least a roundoff: an own error of zero, by chance, would refute any noise.
    return _REFUTED * max(own, unit_roundoff(ref.dtype) * scale)


def runs_of(
    name: str, ref: np.ndarray, runs: Sequence[Mapping[str, np.ndarray]]
) -> list[np.ndarray]:
    """The values of an output in ``runs`` that have the reference's shape."""
    return [run[name] for run in runs if name in run and run[name].shape == ref.shape]


def noise_level(name: str, reference: np.ndarray, noise: Noise) -> float | None:
    """Largest allowed change of an output, from its change under jitter; None if unknown."""
    jitters = runs_of(name, reference, noise.jitters)
    if not jitters or not is_float(reference.dtype):
        return None
    moved = float(spread_of(wide(reference), jitters).max(initial=0.0))
    return THRESHOLDS.jitter_max * min(moved, most_believable(name, reference, noise))


def uncertainty(name: str, reference: np.ndarray, noise: Noise) -> float | None:
    """Largest difference of one element that counts as rounding; None if nothing is rounded.

    In units of the output. Comparators use it, so that drift is not reported as a changed answer.
    Without jitters it is the bound for re-ordered sums.
    """
    if not is_float(reference.dtype):
        return None
    if name in noise.exact:
        return 0.0
    values, u = wide(reference), unit_roundoff(reference.dtype)
    top = float(np.max(np.abs(values), where=np.isfinite(values), initial=0.0))
    floor = bound_of_sums(u, noise, THRESHOLDS)
    # Sums and jitters add up: a comparator must not report an answer that both together explain.
    sums = (floor + u) * top
    return max(THRESHOLDS.rounding * u * top, sums + (noise_level(name, reference, noise) or 0.0))
