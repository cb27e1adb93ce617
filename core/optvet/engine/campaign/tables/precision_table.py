"""Models × precisions: what has to be kept, what it costs, what is gained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from optvet.engine.campaign.display_names import short_models
from optvet.engine.campaign.results import JobResult
from optvet.spec.records.precision import PrecisionReading, PrecisionResult
from optvet.spec.records.report_table import ReportTable

Cell = str | int | float | None


def precision_table(
    results: Iterable[PrecisionResult], without: Sequence[JobResult] = ()
) -> ReportTable:
    """Each model in each precision, as ``optvet precision`` answered.

    Args:
        results: Answers.
        without: Jobs of a campaign that have none, or an error.
    """
    ordered = sorted(
        results, key=lambda r: (r.model.source, r.precision, r.optimizer.name, r.accumulate)
    )
    names = short_models([*(r.model.source for r in ordered), *(job.model for job in without)])
    return ReportTable(
        title="Models in each precision",
        note="Kept: parts that stay as they are, of all that can be converted. Measured: the "
        "required metric with all converted, and with the list kept. Size and time are those of "
        "the mixed model, as shares of the original's; time is measured by --measure.",
        brief=True,
        columns=[
            "model",
            "precision",
            "optimizer",
            "verdict",
            "kept",
            "of",
            "required",
            "all converted",
            "list kept",
            "size",
            "time",
            "inferences",
        ],
        rows=[
            *(_row(result, names) for result in ordered),
            *(_row_without(j, names) for j in without),
        ],
    )


def _row_without(job: JobResult, names: Mapping[str, str]) -> list[Cell]:
    """A job without an answer of its own: why, the summary of the campaign says."""
    return [names[job.model], job.optimizer, "", job.verdict or job.state, *[None] * 8]


def _row(result: PrecisionResult, names: Mapping[str, str]) -> list[Cell]:
    found = result.verdict in ("found", "nothing-to-keep")
    sums = "" if result.accumulate == "fp32" else f", sums in {result.accumulate}"
    size = result.mixed_size_bytes
    timing = result.timing
    return [
        names[result.model.source],
        result.precision + sums,
        result.optimizer.name,
        result.verdict,
        len(result.kept) if found else None,
        result.parts,
        result.requirements[0] if result.requirements else "",
        _measured(result.whole),
        _measured(result.chosen) if found else None,
        None if size is None else _short(size / max(result.model.size_bytes, 1)),
        None if timing is None or timing.ratio is None else _short(timing.ratio),
        result.inferences,
    ]


def _measured(readings: Sequence[PrecisionReading]) -> float | None:
    """What is measured of the first requirement, which is the user's or the optimizer's."""
    value = readings[0].measured if readings else None
    return None if value is None else _short(value)


def _short(value: float) -> float:
    return float(f"{value:.3g}")
