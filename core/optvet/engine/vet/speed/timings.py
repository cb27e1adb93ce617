"""Timings of a case, and what they say as records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from optvet.engine.judge.failures import symptom_of
from optvet.engine.models import large
from optvet.engine.numerics import time_ratio
from optvet.engine.vet.session import VetSession
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.timing.paired_runs import Footprint
from optvet.engine.work.timing.stopwatch import Stopwatch, Timed
from optvet.engine.work.trials.case import Case
from optvet.engine.work.trials.trial_runner import Progress
from optvet.spec.records.bench import StepFailure
from optvet.spec.records.timing import Baseline, TimedSide, Timing
from optvet.spec.scratch import temporary_folder
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Sample


@contextmanager
def stopwatch(
    session: VetSession,
    case: Case,
    samples: tuple[Sample, ...],
    *,
    threshold: float,
    repeats: int,
    progress: Progress,
    more_s: float = 0.0,
) -> Iterator[Stopwatch]:
    """A stopwatch for ``case`` that uses the sandbox of ``session``."""
    is_large = large.is_large(case.model)
    # Results of large models are kept beside those of trials, which have room on a disk.
    place = session.runner.scratch if is_large else None
    with temporary_folder("optvet-timing-", place) as folder:
        yield Stopwatch(
            case,
            session.runner.sandbox,
            samples,
            Path(folder),
            threshold,
            repeats,
            is_large,
            progress,
            more_s,
        )


def failure_record(timed: Timed) -> StepFailure | None:
    """Why a pass sequence could not be timed; None if it was."""
    failure = timed.failure
    if failure is not None:
        return StepFailure(
            symptom=symptom_of(failure), stage=failure.stage, message=describe(failure)
        )
    if timed.interface_problem:
        problem = timed.interface_problem
        return StepFailure(symptom=Symptom.INTERFACE_CHANGE, stage="check", message=problem)
    return None


def timing_record(watch: Stopwatch, timed: Timed, *, memory: bool = True) -> Timing:
    """A timing without failure as a record; with what each side takes of a process of its own."""

    def takes(index: int) -> Footprint | None:
        return watch.footprint((watch.base, timed.passes)[index]) if memory else None

    baseline: Baseline = "original" if watch.base is None else "empty pipeline"
    return pair_record(timed, watch.samples, watch.threshold, baseline, takes)


def pair_record(
    timed: Timed,
    samples: Sequence[Sample],
    threshold: float,
    baseline: Baseline,
    footprint: Callable[[int], Footprint | None],
) -> Timing:
    """A timing of two models as a record.

    Args:
        timed: The timing, without failure.
        samples: The inputs.
        threshold: The relative difference that matters.
        baseline: What the candidate was timed against.
        footprint: What the reference (0) and the candidate (1) take of a process of their own.
    """
    repeats, interval = timed.repeats, timed.interval
    about: dict[str, Any] = {}
    if interval is not None:
        rows = _rows(samples)
        sides = [_side(timed, index, footprint(index), rows) for index in range(2)]
        differences = [r.difference for r in repeats]
        known = [d for d in differences if d is not None]
        about = {
            "ratio": interval.ratio,
            "low": interval.low,
            "high": interval.high,
            "rounds": round(median(len(r.log_ratios) for r in repeats)),
            "redone": sum(r.redone for r in repeats),
            "spread": time_ratio.spread_of([r.log_ratios for r in repeats]),
            "reference": sides[0],
            "candidate": sides[1],
            "ratios": [time_ratio.ratio_of(r.log_ratios) for r in repeats],
            "difference": max(known) if len(known) == len(differences) else None,
        }
    return Timing(
        verdict=timed.call,
        detail=_detail(threshold, timed),
        baseline=baseline,
        identical=timed.identical,
        confidence=timed.confidence,
        threshold=threshold,
        repeats=len(repeats),
        **about,
    )


def _side(timed: Timed, index: int, footprint: Footprint | None, rows: float) -> TimedSide:
    latency_s = median(median(r.latencies[index]) for r in timed.repeats)
    uses = [r.uses[index] for r in timed.repeats]
    return TimedSide(
        latency_s=latency_s,
        throughput=1 / latency_s,
        load_s=median(r.load_s[index] for r in timed.repeats),
        memory_bytes=footprint.memory_bytes if footprint else None,
        cpu_utilization=footprint.cpu_utilization if footprint else None,
        samples_per_s=rows / latency_s,
        warm_ups=sum(use.warm_ups for use in uses),
        warm_up_s=sum(use.warm_up_s for use in uses),
    )


def _rows(samples: Sequence[Sample]) -> float:
    """Rows of a sample, at the mean: the leading size that all its matrices share, else 1."""
    sizes = [{np.shape(v)[0] for v in s.feeds.values() if np.ndim(v) > 1} for s in samples]
    return mean(each.pop() if len(each) == 1 else 1 for each in sizes)


def _detail(threshold: float, timed: Timed) -> str:
    """Why there is no answer, or none was needed."""
    if timed.identical:
        return "the same bytes as the original, which were not timed"
    found = timed.interval
    if found is None or timed.call != "undecided":
        return ""
    spread = time_ratio.spread_of([r.log_ratios for r in timed.repeats])
    return (
        f"the interval from {found.low:.2f} to {found.high:.2f} is too wide to tell faster from "
        f"slower at a threshold of {threshold:.0%}; the ratio varies by {spread:.0%} from "
        f"process to process, of which there were {len(timed.repeats)}: use a quieter machine or "
        "more repeats"
    )
