"""The tables of OTX, a study of a compiler's optimization levels, for a stored campaign.

Each level is a variant: a pipeline, or a value of an option of the optimizer. None of the study's
figures was at hand, so none stands beside ours.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

from optvet.engine.campaign.tables.rows import Row, variants
from optvet.spec.records.report import ReportTable

Cell = str | int | float | None

_OPERATORS = 12
"""The most operators that are listed; the rest is summed up."""
_METRICS = 3
_AGREES = re.compile("agreement|accuracy")
"""Metrics that say how many answers stay come first."""


def otx(rows: Sequence[Row]) -> list[ReportTable]:
    """The study's tables, of the trials of one campaign."""
    return [levels(rows), structure(rows), operators(rows), answers(rows)]


def levels(rows: Sequence[Row]) -> ReportTable:
    """Per level: how many models are clean, drift, are faulty, or have no verdict."""
    lines: list[list[Cell]] = []
    for name, group in variants(rows).items():
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
                len(group) - len(judged),
                max(sizes, default=None),
            ]
        )
    return ReportTable(
        title="OTX: per level",
        note=f"{len({row.source for row in rows})} models of your own choice; the study's list of "
        "models and its figures are not known here. Times of inference are not measured.",
        columns=[
            "level",
            "models",
            "same",
            "rounded",
            "differ",
            "fail",
            "not judged",
            "largest error",
        ],
        rows=lines,
    )


def structure(rows: Sequence[Row]) -> ReportTable:
    """Per level: the number of nodes of the models before and after."""
    lines: list[list[Cell]] = []
    for name, group in variants(rows).items():
        pairs = [(r.structures.original, r.structures.optimized) for r in group if r.structures]
        ratios = [b.nodes / a.nodes for a, b in pairs if a.nodes]
        lines.append(
            [
                name,
                len(pairs),
                sum(a.nodes for a, _ in pairs) if pairs else None,
                sum(b.nodes for _, b in pairs) if pairs else None,
                median(ratios) if ratios else None,
                sum(a.size_bytes for a, _ in pairs) if pairs else None,
                sum(b.size_bytes for _, b in pairs) if pairs else None,
            ]
        )
    return ReportTable(
        title="OTX: nodes per level",
        note="Sums over the models whose optimized form is an ONNX graph, or can be shown as one; "
        "a compiled artifact hides its nodes. Ratio: the median over models.",
        columns=["level", "models", "nodes", "optimized", "ratio", "bytes", "optimized bytes"],
        rows=lines,
    )


def operators(rows: Sequence[Row]) -> ReportTable:
    """Per level: the operator types of the optimized models."""
    groups = variants(rows)
    originals: dict[str, Mapping[str, int]] = {}
    columns: dict[str, Counter[str]] = {}
    for name, group in groups.items():
        columns[name] = Counter()
        for row in group:
            if row.structures is not None:
                originals[row.digest] = row.structures.original.operators
                columns[name].update(row.structures.optimized.operators)
    columns = {name: found for name, found in columns.items() if found}
    before: Counter[str] = Counter()
    for operators in originals.values():
        before.update(operators)
    all_of = before + sum(columns.values(), Counter())
    shown = [name for name, _ in all_of.most_common(_OPERATORS)]
    lines: list[list[Cell]] = [
        [name, before[name], *(found[name] for found in columns.values())] for name in shown
    ]
    if len(all_of) > len(shown):
        rest = [sum(c.values()) - sum(c[n] for n in shown) for c in (before, *columns.values())]
        lines.append([f"{len(all_of) - len(shown)} others", *rest])
    return ReportTable(
        title="OTX: operators per level",
        note="Nodes of each operator, over all models with a known structure.",
        columns=["operator", "original", *columns],
        rows=lines,
    )


def answers(rows: Sequence[Row]) -> ReportTable:
    """Per level and comparator: how many answers change, and the comparator's metrics."""
    lines: list[list[Cell]] = []
    for name, group in variants(rows).items():
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
