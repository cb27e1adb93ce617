"""The verdict on one output of one sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Call = Literal["same", "drift", "sensitivity", "fault", "unsure"]
DECLARED = "declared tolerance"
OTHER_PLACES = "NaN or infinity in other places"


@dataclass(frozen=True)
class Judgement:
    """Verdict on one output of one sample.

    ``error`` is the largest difference relative to the reference's largest magnitude; ``noise``
    the same for the reference's own spread. ``exceeds`` is the ratio of the error to the allowed
    error (above 1: more than drift). ``structural``: noise does not matter, since dtype or
    shape differ, or nothing in the graph can round. ``layered``: the verdict comes from the
    single layers of a quantized model, not from the noise of the whole. ``contradicted``:
    the candidate gives the exact result, and the reference is so far from it that its runtime must
    be wrong. ``excused``: the largest error that its excuse covers, such as decisions inside the
    model that rounding turns; None where no more than noise was needed. ``part``: the worst
    part of the output, as numpy writes it; then ``error`` and ``noise`` are shares of its range.
    ``largest``: the reference's largest magnitude, where both are floats and no part is meant.
    """

    output: str
    call: Call
    error: float | None = None
    noise: float | None = None
    exceeds: float = 0.0
    detail: str = ""
    structural: bool = False
    layered: bool = False
    contradicted: bool = False
    excused: float | None = None
    part: str = ""
    largest: float | None = None
