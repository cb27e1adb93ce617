"""The tables of OTX (Narsipur: the optimizer of ONNX Runtime on a GPU) for a stored campaign.

Each level is a variant: a pipeline, or a value of an option of the optimizer. The study's figures
(``published.toml``) stand beside ours where a level has the study's name for it, and of single
models where the catalogue's name is that of the study's model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from optvet.plugin import (
    BenchResult,
    ReportTable,
    Study,
    StudyData,
    TrialRow,
    hookimpl,
)
from optvet_otx.figures import (
    ITS_DETECTOR,
    Cell,
    by_level,
    level_of,
    percent,
    published,
    study_name_of,
)
from optvet_otx.gpu import devices, kernel_counts, kernels, utilization
from optvet_otx.graphs import each_level, operators, placed_models, placement, structure
from optvet_otx.scores import Values, scores, scores_of, scores_per_level
from optvet_otx.speeds import speed, times

_METRICS = 3
_AGREES = re.compile("agreement|accuracy")
"""Metrics that say how many answers stay come first."""


class Otx:
    """The study's tables."""

    name = "otx"
    description = "OTX: ONNX Runtime's optimization levels, model by model"

    def tables(self, data: StudyData) -> Sequence[ReportTable]:
        """The study's tables, of the trials of one campaign."""
        tables_made = (
            levels,
            structure,
            operators,
            answers,
            scores_per_level,
            scores,
            metrics,
            speed,
            times,
            placement,
            placed_models,
            each_level,
        )
        tables = [table(data.rows) for table in tables_made]
        of_benches = [table(data.benches) for table in (kernels, kernel_counts)]
        of_devices = devices(data.benches, data.rows)
        return [*tables, detectors(data.rows, data.benches), *of_benches, of_devices]


@hookimpl
def optvet_studies() -> Iterable[Study]:
    """The study."""
    return [Otx()]


def levels(rows: Sequence[TrialRow]) -> ReportTable:
    """Per level: how many models are clean, drift, are faulty, or have no verdict."""
    lines: list[list[Cell]] = []
    for name, group in by_level(rows).items():
        counted = Counter(row.outcome for row in group)
        judged = [row for row in group if row.judged]
        sizes = [row.error for row in judged if row.error is not None]
        lines.append(
            [
                name,
                len(group),
                counted["same"],
                counted["rounded"],
                counted["differs"],
                counted["crashes"],
                ", ".join(published()["failed"].get(level_of(group), ())) or None,
                len(group) - len(judged),
                max(sizes, default=None),
            ]
        )
    return ReportTable(
        title="OTX: per level",
        note=f"{_set_of_models(rows)} In the study no output differed.",
        columns=[
            "level",
            "models",
            "same",
            "rounded",
            "differ",
            "fail",
            "fail in OTX",
            "not judged",
            "largest error",
        ],
        rows=lines,
    )


def _set_of_models(rows: Sequence[TrialRow]) -> str:
    ours = {row.source for row in rows}
    shared = {study_name_of(row.source) for row in rows} - {""}
    known = len(published()["models"])
    return f"Of the study's {known} models, {len(shared)} are among these {len(ours)}."


def answers(rows: Sequence[TrialRow]) -> ReportTable:
    """Per level and comparator: how many answers change, and the comparator's metrics."""
    lines: list[list[Cell]] = []
    for name, group in by_level(rows).items():
        comparators = dict.fromkeys(r.impact.comparator for r in group if r.impact)
        for comparator in comparators:
            impacts = [r.impact for r in group if r.impact and r.impact.comparator == comparator]
            changed, samples = sum(i.changed for i in impacts), sum(i.samples for i in impacts)
            values: dict[str, list[float]] = {}
            for impact in impacts:
                for metric, value in impact.metrics.items():
                    if value is not None:
                        values.setdefault(metric, []).append(value)
            first = sorted(values.items(), key=lambda item: not _AGREES.search(item[0]))[:_METRICS]
            shown = ", ".join(f"{m} {sum(v) / len(v):.4g}" for m, v in first)
            lines.append([name, comparator, len(impacts), changed, samples, shown])
    return ReportTable(
        title="OTX: answers per level",
        note="What changes of the models' answers, as the comparator of their task reads them. "
        "Metrics are means over models.",
        columns=["level", "comparator", "models", "answers changed", "samples", "metrics"],
        rows=lines,
    )


def metrics(rows: Sequence[TrialRow]) -> ReportTable:
    """Per level and metric: its mean and its lowest and highest value over models."""
    lines: list[list[Cell]] = []
    for name, group in by_level(rows).items():
        values: dict[tuple[str, str], list[float]] = {}
        for impact in (row.impact for row in group if row.impact):
            for metric, value in impact.metrics.items():
                if value is not None:
                    values.setdefault((impact.comparator, metric), []).append(value)
        for (comparator, metric), found in values.items():
            mean = sum(found) / len(found)
            lines.append([name, comparator, metric, len(found), mean, min(found), max(found)])
    return ReportTable(
        title="OTX: metrics per level",
        note="Each metric of the comparators, over models.",
        columns=["level", "comparator", "metric", "models", "mean", "lowest", "highest"],
        rows=lines,
    )


def detectors(rows: Sequence[TrialRow], benches: Sequence[BenchResult] = ()) -> ReportTable:
    """The study's table of Faster R-CNN, and the same of each detector."""
    lines: list[list[Cell]] = []
    figures: Mapping[str, Sequence[float]] = published()["faster_rcnn"]
    complete = False
    for row in rows:
        is_theirs = study_name_of(row.source) == ITS_DETECTOR
        is_detector = row.impact is not None and row.impact.comparator == "detection"
        if row.parts.pipeline != "all" or row.timing is None or not (is_theirs or is_detector):
            continue
        complete = complete or is_theirs
        for what, pair in _of_detector(row, benches).items():
            theirs = figures.get(what, (None, None)) if is_theirs else (None, None)
            lines.append([row.model, what, *pair, *theirs])
    if not complete:
        lines += [[ITS_DETECTOR, what, None, None, *pair] for what, pair in figures.items()]
    return ReportTable(
        title="OTX: detectors",
        note="Level all. The utilization of a device needs a GPU, and models that were timed there "
        "(measure = true), or answers of `optvet bench MODEL --optimizer onnxruntime "
        "--pipeline all --provider CUDAExecutionProvider --json FILE`, in a folder that --answers "
        "names. Precision is against labels, where the data have some; agreement is the precision "
        "of the optimized model's boxes, the original's being right.",
        columns=["model", "", "original", "optimized", "OTX original", "OTX optimized"],
        rows=lines,
    )


def _of_detector(row: TrialRow, benches: Sequence[BenchResult]) -> dict[str, tuple[Cell, Cell]]:
    timing = row.timing
    sides = (timing.reference, timing.candidate) if timing else (None, None)
    precision = dict(scores_of(row)).get("precision", Values(None, None, None))
    memory = (s.memory_bytes if s else None for s in sides)
    return {
        "time of 50 images, s": _pair(50 * s.latency_s if s else None for s in sides),
        "samples per s": _pair(s.throughput if s else None for s in sides),
        "device utilization, %": utilization(benches, row.source, timing),
        "processor utilization, %": _pair(percent(s.cpu_utilization) if s else None for s in sides),
        "peak memory, GB": _pair(None if m is None else m / 1e9 for m in memory),
        "precision": (precision.original, precision.optimized),
        "agreement": (None, precision.agreement),
    }


def _pair(values: Iterable[float | None]) -> tuple[Cell, Cell]:
    first, second = values
    return first, second
