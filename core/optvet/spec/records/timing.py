"""How fast a model is beside another: part of other documents."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from optvet.spec.records.base import Record
from optvet.spec.records.devices import DeviceUse

Baseline = Literal["original", "empty pipeline", "source"]
"""What a candidate is timed against."""


class TimedSide(Record):
    """One of two models that were timed.

    ``latency_s`` is the median time of one run, ``throughput`` the runs per second that it comes
    to, ``load_s`` the median time to create the session. ``memory_bytes`` is the peak memory that
    loading and running it adds to a process of its own, ``cpu_utilization`` the processors that it
    keeps busy while it runs (1.0 is one processor all of the time); None if that was not measured.
    ``samples_per_s`` is the throughput times the rows of a sample, which are the leading size that
    all its inputs of two or more dimensions share, else 1. ``warm_ups`` runs, which took
    ``warm_up_s`` seconds, were not timed, in all processes together. ``device`` is what the device
    that it runs on does meanwhile, where the runtime uses one and ``vet`` timed it; the answer of
    ``bench`` has it by variant.
    """

    latency_s: float
    throughput: float
    load_s: float
    memory_bytes: int | None = None
    cpu_utilization: float | None = None
    samples_per_s: float | None = None
    warm_ups: int = 0
    warm_up_s: float = 0.0
    device: DeviceUse | None = None


class Pace(Record):
    """How fast a model writes text: medians over ``repeats`` answers to each prompt.

    ``first_token_s`` is the time of the run that reads the prompt, ``per_token_s`` that of a run
    for one further token, ``tokens`` the number of tokens of an answer, at the mean. It is measured
    in a process of its own for each model, not in turn, so it carries no verdict.
    """

    first_token_s: float
    per_token_s: float
    tokens: int
    repeats: int


class Timing(Record):
    """Two models timed in turn, in ``repeats`` processes of ``rounds`` rounds each at the median.

    ``ratio`` is the candidate's time over the reference's, ``low`` and ``high`` the ends of its
    interval at ``confidence``. ``verdict`` holds for all of the interval: "slower" is above
    1 + ``threshold``, "faster" below 1 / (1 + ``threshold``), "no-difference" between the two;
    else it is undecided, for the reason in ``detail``. ``identical``: both are the same bytes, and
    neither was timed. ``spread`` is the relative standard deviation of the ratio from process to
    process, ``redone`` the number of rounds beyond three standard deviations that were measured
    again. ``ratios`` has one entry per process. ``baseline`` tells what the candidate was compared
    with. ``difference`` is the largest difference of an output, relative to the largest magnitude
    of the reference's; None where outputs cannot be compared element by element, and no verdict on
    them: that is the task of ``vet``.
    """

    verdict: Literal["slower", "faster", "no-difference", "undecided"]
    detail: str = ""
    baseline: Baseline
    identical: bool = False
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float
    threshold: float
    repeats: int = 0
    rounds: int = 0
    redone: int = 0
    spread: float | None = None
    reference: TimedSide | None = None
    candidate: TimedSide | None = None
    ratios: list[float] = Field(default_factory=list)
    difference: float | None = None
