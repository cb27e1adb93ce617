"""The tables of OTX, a study of a compiler's optimization levels, for a stored campaign.

Each level is a variant: a pipeline, or a value of an option of the optimizer. None of the study's
figures was at hand, so none stands beside ours.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from optvet.plugin import (
    Placement,
    ReportTable,
    Study,
    StudyData,
    Timing,
    TrialRow,
    hookimpl,
    variants,
)

Cell = str | int | float | None

_OPERATORS = 12
"""The most operators that are listed; the rest is summed up."""
_METRICS = 3
_MOST_FREQUENT = 5
_AGREES = re.compile("agreement|accuracy")
"""Metrics that say how many answers stay come first."""


class Otx:
    """The study's tables."""

    name = "otx"
    description = "OTX: the optimization levels of a compiler, model by model"

    def tables(self, data: StudyData) -> Sequence[ReportTable]:
        """The study's tables, of the trials of one campaign."""
        made = (levels, structure, operators, answers, metrics, placement, speed, each_level)
        return [table(data.rows) for table in made]


@hookimpl
def optvet_studies() -> Iterable[Study]:
    """The study."""
    return [Otx()]


def levels(rows: Sequence[TrialRow]) -> ReportTable:
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
        "models and its figures are not known here.",
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


def structure(rows: Sequence[TrialRow]) -> ReportTable:
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
                sum(b.nodes - a.nodes for a, b in pairs) if pairs else None,
                median(ratios) if ratios else None,
                sum(a.size_bytes for a, _ in pairs) if pairs else None,
                sum(b.size_bytes for _, b in pairs) if pairs else None,
            ]
        )
    return ReportTable(
        title="OTX: nodes per level",
        note="Sums over the models whose optimized form is an ONNX graph, or can be shown as one; "
        "a compiled artifact hides its nodes. Ratio: the median over models.",
        columns=[
            "level",
            "models",
            "nodes",
            "optimized",
            "change",
            "ratio",
            "bytes",
            "optimized bytes",
        ],
        rows=lines,
    )


def operators(rows: Sequence[TrialRow]) -> ReportTable:
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


def answers(rows: Sequence[TrialRow]) -> ReportTable:
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


def metrics(rows: Sequence[TrialRow]) -> ReportTable:
    """Per level and metric: its mean and its lowest and highest value over models."""
    lines: list[list[Cell]] = []
    for name, group in variants(rows).items():
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


def placement(rows: Sequence[TrialRow]) -> ReportTable:
    """Per level: what executes the nodes, and nodes that the wanted provider has no kernel for."""
    lines: list[list[Cell]] = []
    for name, group in variants(rows).items():
        known = [p.optimized for row in group if (p := row.placements) and p.optimized]
        if not known:
            continue
        counts = Counter[str]()
        for each in known:
            counts.update(each.providers)
        total = sum(counts.values())
        shares = [f"{provider} {n / max(total, 1):.0%}" for provider, n in counts.most_common()]
        lines.append(
            [
                name,
                len(known),
                total,
                ", ".join(shares),
                sum(n for each in known for p, n in each.providers.items() if p != each.wanted),
            ]
        )
    return ReportTable(
        title="OTX: placement per level",
        note="Nodes as the runtime executes them, of models that were asked for it (structure = "
        "true). No kernel: nodes that are not on the provider that was asked for first.",
        columns=["level", "models", "executed nodes", "executed on", "no kernel"],
        rows=lines,
    )


def speed(rows: Sequence[TrialRow]) -> ReportTable:
    """Per level: how many models became slower or faster, and by how much."""
    lines: list[list[Cell]] = []
    for name, group in variants(rows).items():
        known = [row.timing for row in group if row.timing]
        counted = Counter(timing.verdict for timing in known)
        ratios = [timing.ratio for timing in known if timing.ratio is not None]
        if known:
            lines.append(
                [
                    name,
                    len(known),
                    counted["faster"],
                    counted["no-difference"],
                    counted["slower"],
                    counted["undecided"],
                    median(ratios) if ratios else None,
                    min(ratios, default=None),
                    max(ratios, default=None),
                ]
            )
    return ReportTable(
        title="OTX: speed per level",
        note="Of models that were timed (measure = true). Ratio: the time of one run over that of "
        "what the model was compared with, under the runtime's own defaults.",
        columns=[
            "level",
            "models",
            "faster",
            "no difference",
            "slower",
            "undecided",
            "ratio",
            "lowest",
            "highest",
        ],
        rows=lines,
    )


def _ratio(timing: Timing | None) -> str | None:
    if timing is None or timing.ratio is None:
        return None if timing is None else timing.verdict
    return f"{timing.ratio:.2f} ({timing.low:.2f}–{timing.high:.2f}), {timing.verdict}"


def each_level(rows: Sequence[TrialRow]) -> ReportTable:
    """Each model at each level: nodes, most frequent operators, what executes them, speed."""
    lines: list[list[Cell]] = []
    for name, group in variants(rows).items():
        for row in group:
            if row.structures is None:
                continue
            before, after = row.structures.original, row.structures.optimized
            placed = row.placements.optimized if row.placements else None
            lines.append(
                [
                    row.model,
                    name,
                    before.nodes,
                    after.nodes,
                    _most_frequent(after.operators),
                    _providers(placed) if placed else None,
                    _ratio(row.timing),
                ]
            )
    return ReportTable(
        title="OTX: each model at each level",
        note="The five most frequent operators, with their share of all nodes.",
        columns=["model", "level", "nodes", "optimized", "operators", "executed on", "ratio"],
        rows=sorted(lines, key=lambda line: str(line[0])),
    )


def _most_frequent(operators: Mapping[str, int]) -> str:
    total = max(sum(operators.values()), 1)
    ranked = Counter(operators).most_common(_MOST_FREQUENT)
    return ", ".join(f"{name} {count} ({count / total:.0%})" for name, count in ranked)


def _providers(placement: Placement) -> str:
    return ", ".join(f"{name} {placement.share_of(name):.0%}" for name in placement.providers)
