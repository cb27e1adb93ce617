"""How large a difference may be: the limits by which outputs are judged.

``benchmarks/calibrate.py`` prints how many faults they miss and how many false alarms they raise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


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
    gross_rms: float = 4.0
    gross_max: float = 5.0
    gross_truth: float = 4.0
    flips: float = 4.0
    believable: float = 30.0
    other_kernels: bool = False

    def for_gross(self) -> Thresholds:
        """Thresholds for differences beyond ``unmeasured``."""
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
