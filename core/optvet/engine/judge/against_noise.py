"""Whether rounding explains a difference of floats: by jitter, injected noise and float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from optvet.engine.judge.flips import REACH, Flips, by_all, flips_excuse, is_place_explained
from optvet.engine.judge.judgement import OTHER_PLACES, Call, Judgement
from optvet.engine.judge.known_noise import (
    Noise,
    bound_of_sums,
    most_believable,
    moved_runs,
    runs_of,
)
from optvet.engine.judge.sizes import (
    exceeds_allowance,
    other_places,
    ratio_to_allowance,
    rms_of_all,
    spread_of,
    usual_spread_of,
    wide,
)
from optvet.engine.judge.thresholds import Thresholds
from optvet.engine.numerics.floats import is_float, unit_roundoff

_DRAWS = 10
"""Fewest draws of noise by which a gross difference is judged: of fewer the largest says little."""
_CONTRADICTED = "the original as its runtime computes it is not, and no rounding explains that: off"


@dataclass
class Difference:
    """Two float arrays of one shape that differ, beside what is known of the noise.

    Attributes:
        name: The output.
        ref: What the reference gave, in its own type.
        y: The same in float64.
        z: What the candidate gave.
        d: ``abs(y - z)``, 0 where either is not finite.
        pattern: Where NaN or an infinity is in one of the two alone.
        finite: Where both are finite.
        error: The largest difference, relative to the reference's largest magnitude.
        noise: Of the reference on this sample.
        limits: What may pass for rounding.
    """

    name: str
    ref: np.ndarray
    y: np.ndarray
    z: np.ndarray
    d: np.ndarray
    pattern: np.ndarray
    finite: np.ndarray
    error: float
    noise: Noise
    limits: Thresholds
    jitters: list[np.ndarray] = field(init=False)
    truth: np.ndarray | None = field(init=False)

    def __post_init__(self) -> None:
        name, ref, noise = self.name, self.ref, self.noise
        self.u = unit_roundoff(ref.dtype)
        self.floor = bound_of_sums(self.u, noise, self.limits)
        self.jitters = runs_of(name, ref, moved_runs(noise, self.limits))
        self.clean = np.where(self.finite, self.y, 0.0)
        self.scale = float(np.max(np.abs(self.clean), initial=0.0))
        # Perturbations can blow up where the model itself is exact: its own error bounds the noise.
        most = most_believable(name, ref, noise)
        # What a decision does in single runs is no noise of all elements: see ``flips``.
        spread_in = usual_spread_of if self.decided else spread_of
        self.inside = np.minimum(spread_in(self.y, runs_of(name, ref, noise.injected)), most)
        spread = np.minimum(spread_in(self.y, runs_of(name, ref, noise.jitters)), most)
        # Another runtime rounds inside each operator in its own way, so injected noise counts as
        # noise. The reference's own kernels are held to the jitters first.
        if self.limits.other_kernels:
            spread = np.maximum(spread, self.inside)
        self.level = float(spread.max(initial=0.0)) / self.scale if self.scale else math.inf
        # A slice of zeros has no scale: some Sigmoid kernels give 0 where others give 1e-12. So
        # every slice may differ by one roundoff of the tensor's largest value.
        self.spread = np.maximum(spread, self.u * self.scale / self.limits.jitter_max)
        if self.limits.other_kernels and name in noise.grids:
            of_grid = self.u * noise.grids[name] / self.limits.jitter_rms
            self.spread = np.maximum(self.spread, of_grid)
        self.exceeds = self.ratio(self.spread)
        truth = noise.truth.get(name)
        # Another shape means that the evaluator decided differently: no element has a counterpart.
        trusted = truth is not None and truth.shape == ref.shape and is_float(truth.dtype)
        self.truth = truth if trusted else None

    def ratio(self, spread: np.ndarray) -> float:
        """Ratio of the difference to what ``spread`` allows."""
        return ratio_to_allowance(self.d, spread, self.clean, self.floor, self.limits)

    @property
    def deciding_noise(self) -> float:
        """The noise that decides: that of the jitters, or the bound for sums if larger.

        It is the reference's own error against float64 if that is larger, unless the difference is
        no larger than this error: then one of the two must be wrong.
        """
        return max(self.level, self.floor, self.own if self.own < self.error else 0.0)

    @property
    def own(self) -> float:
        """The reference's error against float64, by its largest magnitude; 0 if unknown."""
        if self.truth is None or not self.scale:
            return 0.0
        known = self.finite & np.isfinite(self.truth)
        with np.errstate(invalid="ignore", over="ignore"):
            off = np.max(np.abs(self.y - self.truth), where=known, initial=0.0)
        return float(off) / self.scale

    @property
    def decided(self) -> bool:
        """Whether the output lies behind a discrete decision on rounded values."""
        return self.name in self.noise.discontinuous or self.name in self.noise.steps

    @property
    def of_finite_inputs(self) -> bool:
        """Whether no input of the output is NaN or infinite."""
        return self.name in self.noise.finite_inputs

    def to_judgement(self, call: Call, exceeds: float, detail: str = "") -> Judgement:
        """A judgement with the numbers of this difference."""
        return Judgement(self.name, call, self.error, self.deciding_noise, exceeds, detail)


def judge_against_noise(found: Difference) -> Judgement:
    """Decide whether the known noise explains a difference."""
    noise = found.noise
    # Cheap reasons first. Places before sizes: elements with NaN have no size, and those explained
    # no longer count as different.
    judged = _by_places(found) or _by_noise(found)
    if judged is not None:
        return judged
    if not noise.measured:
        detail = _places(found) if found.pattern.any() else ""
        return replace(found.to_judgement("unsure", found.exceeds, detail), noise=None)
    # Float64 before flips: an exact result says who is right, perturbed runs say only that either
    # may be.
    judged = _by_truth(found) or _by_flips(found)
    if judged is not None:
        return judged
    # Something that could acquit was not measured. A difference far beyond any rounding is a fault
    # all the same, but only where jitters gave a scale to compare with.
    believable = found.exceeds <= found.limits.believable and not found.pattern.any()
    if noise.missing and (not found.jitters or believable):
        unsure = found.to_judgement("unsure", found.exceeds, noise.missing)
        return unsure if found.jitters else replace(unsure, noise=None)
    if found.pattern.any():
        return found.to_judgement("fault", found.exceeds, OTHER_PLACES)
    # Whoever reports it must know whether kernels lose accuracy or compute something else.
    less = _less_exact(found) if found.limits.other_kernels else None
    detail = f"{less:.2g} times as far from the exact result as the original" if less else ""
    return found.to_judgement("fault", found.exceeds, detail)


def _places(found: Difference) -> str:
    share = f"{int(found.pattern.sum())} of {found.pattern.size}"
    return f"NaN or infinity in {share} elements of one"


def _by_places(found: Difference) -> Judgement | None:
    """Judge NaN and infinities in other places, except for those that overflow."""
    y, z, pattern = found.y, found.z, found.pattern
    if not pattern.any():
        return None
    # If the reference overflows on finite inputs and the candidate does not (a fused
    # log(softmax(x)), say), the float range was exceeded: reported, but not as a fault.
    outgrown = pattern & np.isinf(y) & np.isfinite(z) & found.of_finite_inputs
    # An overflowed value is larger than all finite ones; 1/Relu(x) is infinite without overflow.
    outgrown &= (np.sign(z) == np.sign(y)) & (np.abs(z) >= found.scale)
    right, open_ = _by_exact_values(found, outgrown)
    beyond = pattern & np.isinf(y) & np.isnan(z) & _overflows(found)
    found.pattern = pattern = pattern & ~right & ~open_ & ~beyond
    if not pattern.any():
        if found.exceeds > 1:
            return None
        return _outgrown(found, right, open_, beyond)
    # What is left may come and go under jitter, like a root of a value near zero.
    flipped = is_place_explained(found.ref, z, found.jitters)
    explained = not np.any(pattern & ~flipped)
    if explained and found.exceeds <= 1:
        if open_.any():
            return _outgrown(found, right, open_, beyond)
        words = f"{_places(found)}, as under jitter{_between(found, pattern)}"
        return found.to_judgement("sensitivity", 1.0, words)
    found.exceeds = found.exceeds if explained else math.inf
    return None


def _by_exact_values(found: Difference, outgrown: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where numbers in place of infinities are the exact ones, and where that is not known."""
    if found.truth is None:
        return np.zeros_like(outgrown), outgrown
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.abs(found.z - found.truth)
        near = np.isfinite(found.truth) & (off <= found.limits.unmeasured * np.abs(found.truth))
    return outgrown & near, outgrown & ~np.isfinite(found.truth)


def _outgrown(
    found: Difference, right: np.ndarray, open_: np.ndarray, beyond: np.ndarray
) -> Judgement:
    """The judgement of an output that differs only where the reference's range is exceeded."""
    if open_.any():
        share = f"{int(open_.sum())} of {open_.size} elements are finite now, infinite before"
        detail = f"{share}, and no exact result says what they are"
        return found.to_judgement("unsure", 1.0, detail)
    if right.any():
        share = f"{int(right.sum())} of {right.size} elements are finite now, infinite before"
        within = f"they are the exact ones to {found.limits.unmeasured:.0e} of their size"
        return found.to_judgement("sensitivity", 1.0, f"{share}; {within}")
    share = f"of {int(beyond.sum())} of {beyond.size} elements the exact result overflows"
    return found.to_judgement("sensitivity", 1.0, share)


def _between(found: Difference, pattern: np.ndarray) -> str:
    """The sizes of numbers that perturbed runs have in place of infinities and NaN, in words."""
    new = pattern & np.isfinite(found.z)
    sizes = [s for run in found.jitters if (s := np.abs(wide(run)[new])).size]
    sizes = [s[np.isfinite(s)] for s in sizes]
    if not new.any() or not any(s.size for s in sizes):
        return ""
    low, high = (f(np.concatenate(sizes)) for f in (np.min, np.max))
    return f", where they are {low:.2g} to {high:.2g} in size, and up to {REACH:g} times as far"


def _overflows(found: Difference) -> np.ndarray:
    """Where the exact result is finite, and too large for the type: an infinity, or NaN inside."""
    if found.truth is None or not found.of_finite_inputs:
        return np.zeros(found.y.shape, bool)
    largest = float(np.finfo(found.ref.dtype).max) if found.ref.dtype.kind == "f" else math.inf
    return np.asarray(np.isfinite(found.truth) & (np.abs(found.truth) > largest))


def _by_noise(found: Difference) -> Judgement | None:
    """Drift or sensitivity that jitters explain; None if they do not."""
    if found.exceeds > 1:
        return None
    noise, limits = found.noise, found.limits
    if noise.measured and found.error > limits.unmeasured:
        # A gross difference needs more than jitters, which can be wrong by any factor near a pole:
        # float64, the stricter limits, and enough draws to know the largest.
        if not noise.checked:
            return found.to_judgement("unsure", found.exceeds, "not compared with float64")
        if not limits.other_kernels:
            found.limits = limits.for_gross()
            found.exceeds = found.ratio(np.maximum(found.spread, found.inside))
            # What is shown is what decides.
            inner = float(found.inside.max(initial=0.0))
            found.level = max(found.level, inner / found.scale if found.scale else math.inf)
            if found.exceeds > 1 and len(noise.jitters) < _DRAWS:
                return found.to_judgement("unsure", found.exceeds, "too few draws of noise")
    return (
        _explain_difference(found.to_judgement("drift", found.exceeds), found)
        if found.exceeds <= 1
        else None
    )


def _by_truth(found: Difference) -> Judgement | None:
    """Acquit by float64; None if it does not acquit, or there are no float64 results."""
    if found.truth is None:
        return None
    own = np.maximum(found.spread, found.inside)
    verdict = _against_truth(found, own)
    # Acquitted by float64. If it says also that the reference is far off, more than rounding can
    # explain, the answer tells so: the original's runtime is contradicted.
    if verdict is not None:
        words, off = verdict
        moved = float(own.max(initial=0.0)) / found.scale if found.scale else 0.0
        if off > max(found.limits.believable * moved, found.limits.unmeasured):
            words = f"{words}; {_CONTRADICTED} by {off:.2g} of its largest value"
            return replace(found.to_judgement("drift", 0.9, words), contradicted=True)
        right = replace(found.to_judgement("drift", 0.9, words), noise=max(off, moved))
        return _explain_difference(right, found)
    # Beyond this, only a decision could turn one exact value into two right answers.
    if not found.decided or found.pattern.any():
        return None
    # Exact ties (k + 1/2 into a quantizer) may be rounded either way, and scales are not
    # jittered. So the reference's distance from the float64 result counts as noise too.
    exact = found.truth.astype(found.ref.dtype)
    unmoved = all(np.array_equal(wide(j), found.y, equal_nan=True) for j in found.jitters)
    z = found.z.astype(found.ref.dtype)
    excuse = by_all(found.ref, z, found.d > 0, [exact], found.limits) if unmoved else None
    if excuse is None:
        return None
    words = "no further from the reference than the reference from the exact result: it is off by "
    return _excused(found, excuse, f"{words}{excuse.moved:.2g}")


def _by_flips(found: Difference) -> Judgement | None:
    """Acquit elements behind a decision that flip no further than in the perturbed reference."""
    name, noise = found.name, found.noise
    if not found.decided:
        return None
    quiet = np.maximum(found.spread, found.inside)
    allowed = (quiet, found.clean, found.floor, found.limits)
    wrong = exceeds_allowance(found.d, *allowed) | found.pattern
    flipped = found.z.astype(found.ref.dtype)
    excuse = flips_excuse(name, found.ref, flipped, wrong, noise, found.limits)
    if excuse is None:
        return None
    # An excuse for a gross difference asks for the same care as an explanation by noise.
    gross = found.error > found.limits.unmeasured and not found.limits.other_kernels
    if gross and not noise.checked:
        return found.to_judgement("unsure", found.exceeds, "not compared with float64")
    if gross and len(noise.jitters) < _DRAWS and name not in noise.steps:
        return found.to_judgement("unsure", found.exceeds, "too few draws of noise")
    share = f"{int(wrong.sum())} of {wrong.size} elements flip, by up to "
    share += f"{float(np.max(found.d, where=wrong, initial=0.0)):.2g}; {excuse.words}"
    return _excused(found, excuse, share)


def _excused(found: Difference, excuse: Flips, words: str) -> Judgement:
    """Sensitivity that says how far the excuse reaches, in shares of the largest magnitude."""
    moved, allowed = (
        size / found.scale if found.scale else 0.0 for size in (excuse.moved, excuse.allowed)
    )
    noise = max(found.deciding_noise, moved)
    return replace(
        found.to_judgement("sensitivity", 1.0, words), noise=noise, excused=max(allowed, noise)
    )


def _explain_difference(judged: Judgement, found: Difference) -> Judgement:
    """Drift; or, for a large difference that noise explains, how sensitive the model is."""
    if not found.noise.measured:
        return replace(judged, noise=None)
    assert judged.error is not None
    if judged.error <= found.limits.plain or judged.noise is None:
        return judged
    words = f"differs by {judged.error:.2g} of its largest value, and rounding alone may move it so"
    words += f" far: by {judged.noise:.2g} in one draw (its largest value is {found.scale:.2g})"
    return replace(judged, call="sensitivity", detail=f"{words}; {judged.detail}".rstrip("; "))


def _against_truth(found: Difference, spread: np.ndarray) -> tuple[str, float] | None:
    """(reason, the reference's error) if float64 shows that the candidate is right, else None.

    A difference from float64 alone never makes a fault. The candidate may differ from it by a
    constant factor more than the reference does, or than its operators resolve. If both outputs
    differ from it beyond their noise, the evaluator is not evidence: one of the two must agree.
    """
    y, z, truth, floor, limits = found.y, found.z, found.truth, found.floor, found.limits
    assert truth is not None
    with np.errstate(over="ignore", invalid="ignore"):
        t = wide(truth.astype(found.ref.dtype))
    # The exact result has NaN or infinity elsewhere than the candidate: that is no acquittal.
    if other_places(t, z).any():
        return None
    finite = np.isfinite(t)
    clean = np.where(finite, t, 0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        of_candidate = np.where(finite, np.abs(z - truth), 0.0)
        of_reference = np.where(finite & np.isfinite(y), np.abs(y - truth), 0.0)
    own = float(of_reference.max(initial=0.0)) / found.scale if found.scale else 0.0
    plausible = replace(limits, jitter_rms=limits.truth, jitter_max=limits.truth)
    own_noise = np.maximum(spread, found.u * np.abs(clean))
    # The plain case: the candidate is near the exact result by itself, whatever the reference is.
    if ratio_to_allowance(of_candidate, own_noise, clean, floor, plausible) <= 1:
        return "as close to the exact result as rounding allows", own
    if other_places(t, y).any():
        return None
    # Else it may be as far off as the reference is, element by element.
    allowed = np.maximum(of_reference, own_noise)
    if ratio_to_allowance(of_candidate, allowed, clean, floor, plausible) <= 1:
        # Both far from float64: an error of the reference itself, unless the evaluator is wrong.
        if ratio_to_allowance(of_reference, own_noise, clean, floor, limits) <= limits.believable:
            return "no further from the exact result than the reference", own
    return None


def _less_exact(found: Difference) -> float | None:
    """The candidate's RMS error against float64 over the reference's; None if either has none."""
    y, z, truth = found.y, found.z, found.truth
    if truth is None:
        return None
    known = np.isfinite(truth) & np.isfinite(y) & np.isfinite(z)
    with np.errstate(invalid="ignore", over="ignore"):
        reference_rms, candidate_rms = (rms_of_all(np.where(known, v - truth, 0.0)) for v in (y, z))
    ratio = candidate_rms / reference_rms if reference_rms else math.inf
    return ratio if math.isfinite(ratio) else None
