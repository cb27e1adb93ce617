"""Charts of what was timed, and of what models are made of."""

from __future__ import annotations

from collections.abc import Iterator

from optvet.spec.records.bench import BenchResult, BenchVariant
from optvet.spec.records.charts import (
    BarChart,
    Chart,
    Interval,
    IntervalChart,
    Point,
    PointChart,
)
from optvet.spec.records.precision import PrecisionResult
from optvet.spec.records.timing import Timing
from optvet.spec.requirement import Requirement, read_requirement

ORIGINAL = "original"


def charts_of(result: BenchResult) -> list[Chart]:
    """The charts of one model's timing; those that nothing is known for are left out."""
    groups = (_speeds(result), _operators(result), _providers(result), _errors(result))
    return [chart for chart in groups if chart is not None]


def name_of(variant: BenchVariant) -> str:
    """What a variant is called: optimizer and pipeline."""
    return f"{variant.optimizer.name} {variant.pipeline}"


def label_of(variant: BenchVariant, result: BenchResult) -> str:
    """Its name among the variants of ``result``: the pipeline alone, of one optimizer."""
    one = len({each.optimizer.name for each in result.variants}) == 1
    return variant.pipeline if one else name_of(variant)


def short_operator(name: str) -> str:
    """An operator with the last part of its domain alone: ``nchwc::Conv``."""
    domain, separator, operator = name.rpartition("::")
    return f"{domain.rpartition('.')[2]}{separator}{operator}"


def curves_of(result: PrecisionResult) -> list[Chart]:
    """What is measured of each requirement with more and more nodes kept.

    Requirements on which keeping nodes has no effect are left out.
    """
    curves: list[Chart] = []
    for index, text in enumerate(result.requirements):
        readings = [(point.kept, point.readings[index]) for point in result.curve]
        known = [(kept, r) for kept, r in readings if r.measured is not None]
        if len({r.measured for _, r in known}) < _DIFFERENT:
            continue
        required = read_requirement(text)
        intervals = [
            Interval(
                label=f"{kept} of {result.parts} kept",
                value=reading.measured or 0.0,
                tone="good" if reading.met else "bad",
            )
            for kept, reading in known
        ]
        curves.append(
            IntervalChart(
                title=f"{result.model.source} in {result.precision}",
                note=f"Required: {text}. The line is the bound.",
                axis=required.metric if isinstance(required, Requirement) else "of the tolerance",
                origin=required.bound if isinstance(required, Requirement) else 1.0,
                intervals=intervals,
            )
        )
    return curves


_DIFFERENT = 2


# --- of one model --------------------------------------------------------------------------------


def _iter_timed(result: BenchResult) -> Iterator[tuple[BenchVariant, Timing]]:
    for variant in result.variants:
        if variant.timing is not None:
            yield variant, variant.timing


def _speeds(result: BenchResult) -> Chart | None:
    timings = {label_of(variant, result): timing for variant, timing in _iter_timed(result)}
    return IntervalChart.of(timings)


def _operators(result: BenchResult) -> Chart | None:
    known = [(ORIGINAL, result.original)]
    known += [(label_of(variant, result), variant.inventory) for variant in result.variants]
    counts = {
        label: {short_operator(name): count for name, count in each.operators.items()}
        for label, each in known
        if each is not None
    }
    return BarChart.of(counts, "Operators", "nodes")


def _providers(result: BenchResult) -> Chart | None:
    known = dict(result.placements)
    known |= {label_of(v, result): v.placement for v in result.variants if v.placement is not None}
    counts = {label: each.providers for label, each in known.items()}
    return BarChart.of(counts, "Placement", "nodes as they are executed")


def _errors(result: BenchResult) -> Chart | None:
    points: list[Point] = []
    baselines: dict[str, float] = {}
    for variant, timing in _iter_timed(result):
        if timing.reference is not None:
            baselines.setdefault(timing.baseline, timing.reference.latency_s)
        if timing.candidate is not None and timing.difference is not None:
            milliseconds = 1e3 * timing.candidate.latency_s
            points.append(
                Point(label=label_of(variant, result), x=timing.difference, y=milliseconds)
            )
    if not points:
        return None
    first = [Point(label=name, x=0.0, y=1e3 * s) for name, s in baselines.items()]
    return PointChart(
        title="Latency against error",
        note="The largest difference of an output, relative to its largest magnitude.",
        axis="relative difference",
        up="latency, ms",
        points=[*first, *points],
    )
