"""The tables of OTX (Narsipur: the optimizer of ONNX Runtime on a GPU) for a stored campaign.

Each level is a variant: a pipeline, or a value of an option of the optimizer. The study's figures
(``published.toml``) stand beside ours where a level has the study's name for it, and of single
models where the catalogue's name is that of the study's model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median

from optvet.plugin import (
    BenchResult,
    Placement,
    ReportTable,
    Study,
    StudyData,
    Timing,
    TrialRow,
    hookimpl,
)
from optvet_otx.figures import (
    BASE,
    ITS_DETECTOR,
    LEVELS,
    Cell,
    by_level,
    level_of,
    percent,
    published,
    study_name_of,
)
from optvet_otx.gpu import devices, kernel_counts, kernels, utilization
from optvet_otx.scores import Values, scores, scores_of, scores_per_level

_OPERATORS = 5
"""Of each level, the most frequent operators that are listed, as in the study."""
_METRICS = 3
_MOST_FREQUENT = 5
_AGREES = re.compile("agreement|accuracy")
"""Metrics that say how many answers stay come first."""
_MEGABYTE = 1e6


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
        of_benches = [table(data.benches) for table in (kernels, kernel_counts, devices)]
        return [*tables, detectors(data.rows, data.benches), *of_benches]


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


def structure(rows: Sequence[TrialRow]) -> ReportTable:
    """Per level: the number of nodes of the models before and after."""
    lines: list[list[Cell]] = []
    for name, group in by_level(rows).items():
        pairs = [(r.structures.original, r.structures.optimized) for r in group if r.structures]
        changes = [100 * (b.nodes / a.nodes - 1) for a, b in pairs if a.nodes]
        lines.append(
            [
                name,
                len(pairs),
                sum(a.nodes for a, _ in pairs) if pairs else None,
                sum(b.nodes for _, b in pairs) if pairs else None,
                fmean(changes) if changes else None,
                published()["nodes"].get(level_of(group)),
                _megabytes(sum(a.size_bytes for a, _ in pairs)) if pairs else None,
                _megabytes(sum(b.size_bytes for _, b in pairs)) if pairs else None,
            ]
        )
    return ReportTable(
        title="OTX: nodes per level",
        note="Sums over the models whose optimized form is an ONNX graph, or can be shown as one; "
        "a compiled artifact hides its nodes. Change: the mean over models.",
        columns=[
            "level",
            "models",
            "nodes",
            "optimized",
            "change %",
            "OTX %",
            "MB",
            "optimized MB",
        ],
        rows=lines,
    )


def operators(rows: Sequence[TrialRow]) -> ReportTable:
    """Per level: which share of the nodes each operator has, averaged over models."""
    before: dict[str, Mapping[str, int]] = {}
    after: dict[str, dict[str, Mapping[str, int]]] = {}
    for name, group in by_level(rows).items():
        for row in group:
            if row.structures is not None:
                before[row.digest] = row.structures.original.operators
                after.setdefault(name, {})[row.digest] = row.structures.optimized.operators
    columns = {name: _shares(found.values()) for name, found in after.items()}
    original = _shares(before.values())
    figures: Mapping[str, Sequence[float]] = published()["operators"]
    first = [n for c in (original, *columns.values()) for n, _ in c.most_common(_OPERATORS)]
    lines: list[list[Cell]] = [
        [name, original[name], *(found[name] for found in columns.values())]
        + [figures[name][at] if name in figures else None for at in (0, 1)]
        for name in dict.fromkeys([*first, *(figures if before else ())])
    ]
    return ReportTable(
        title="OTX: operators per level",
        note="Share of all nodes in %, averaged over models; the five most frequent operators of "
        "each level. Fused forms and other domains count as the operator that they stand for.",
        columns=["operator", "original", *columns, "OTX original", "OTX all"],
        rows=lines,
    )


def _shares(models: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Mean share of each operator, in %; models that have none of it count as 0."""
    listed = [found for found in models if found]
    summed: Counter[str] = Counter()
    for found in listed:
        whole = sum(found.values())
        for name, count in found.items():
            summed[_plain(name)] += 100 * count / whole / len(listed)  # type: ignore[assignment]
    return summed


def _plain(operator: str) -> str:
    """The operator that a fused form, or one of another domain, stands for."""
    return operator.rpartition("::")[2].removeprefix("Fused")


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


def placement(rows: Sequence[TrialRow]) -> ReportTable:
    """Per level: what executes the nodes, and nodes that the wanted provider has no kernel for."""
    lines: list[list[Cell]] = []
    for name, group in by_level(rows).items():
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
    """Per level: how many models became slower or faster, and by how much; and the study's."""
    lines: list[list[Cell]] = []
    theirs: Mapping[str, str] = published()["speed_per_level"]
    for name, group in by_level(rows).items():
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
                    theirs.get(group[0].parts.pipeline),
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
            "OTX",
        ],
        rows=lines,
    )


def times(rows: Sequence[TrialRow]) -> ReportTable:
    """Each model at each level: the time of one run, its interval, memory, and the study's."""
    lines: list[list[Cell]] = []
    still: Sequence[str] = published()["speed"]["no_difference"]
    faster: Mapping[str, float] = published()["speedup"]
    for name, group in by_level(rows).items():
        for row in group:
            if (timing := row.timing) is None:
                continue
            was, now, studied = timing.reference, timing.candidate, study_name_of(row.source)
            memory = [_megabytes(s.memory_bytes) if s else None for s in (was, now)]
            busy = [percent(s.cpu_utilization) if s else None for s in (was, now)]
            known = studied in faster and row.parts.pipeline == "all"
            theirs = f"{faster[studied]:.2f} times as fast" if known else None
            lines.append(
                [
                    row.model,
                    name,
                    1000 * was.latency_s if was else None,
                    1000 * now.latency_s if now else None,
                    _ratio(timing),
                    now.throughput if now else None,
                    *memory,
                    *busy,
                    sum(s.warm_ups for s in (was, now) if s),
                    timing.repeats,
                    timing.redone,
                    "no difference" if studied in still else theirs,
                ]
            )
    return ReportTable(
        title="OTX: time per model and level",
        note="Time of one run, of models that were timed (measure = true), and the ratio with its "
        "interval. Redone: rounds beyond three standard deviations, which were measured again. "
        "Each process first runs both models without counting. Processors: 100 % is one of them, "
        "all of the time. Last, the study's models that are not in this campaign.",
        columns=[
            "model",
            "level",
            "original ms",
            "optimized ms",
            "ratio",
            "runs per s",
            "original MB",
            "optimized MB",
            "original processors %",
            "optimized processors %",
            "warm-up runs",
            "processes",
            "redone",
            "OTX",
        ],
        rows=[*sorted(lines, key=lambda line: str(line[0])), *_unasked_times(rows)],
    )


def _unasked_times(rows: Sequence[TrialRow]) -> list[list[Cell]]:
    """What the study says of the time of models that are not among ``rows``, at its level all."""
    asked_names = {study_name_of(row.source) for row in rows}
    published_words = dict.fromkeys(published()["speed"]["no_difference"], "no difference")
    published_words |= {
        n: f"{ratio:.2f} times as fast" for n, ratio in published()["speedup"].items()
    }
    return [
        [name, "all", *[None] * 11, words]
        for name, words in published_words.items()
        if name not in asked_names
    ]


def _megabytes(size: int | None) -> float | None:
    return None if size is None else size / _MEGABYTE


def placed_models(rows: Sequence[TrialRow]) -> ReportTable:
    """Per model and level: the share of nodes on the provider that was asked for first."""
    shares: dict[str, dict[str, float]] = {}
    names: dict[str, str] = {}
    for name, group in by_level(rows).items():
        for row in group:
            if (known := row.placements) is None:
                continue
            for level, placed in ((BASE, known.reference), (name, known.optimized)):
                if placed is not None:
                    found = shares.setdefault(row.model, {})
                    found[level] = 100 * placed.share_of(placed.wanted)
                    names[row.model] = study_name_of(row.source)
    columns = list(dict.fromkeys(level for found in shares.values() for level in found))
    figures: Mapping[str, Mapping[str, float]] = published()["placement"]
    lines: list[list[Cell]] = [
        [model, *(found.get(level) for level in columns)]
        + [figures.get(names[model], {}).get(level) for level in (BASE, *LEVELS)]
        for model, found in shares.items()
    ]
    lines += [
        [name, *[None] * len(columns), *(found.get(level) for level in (BASE, *LEVELS))]
        for name, found in figures.items()
        if name not in names.values()
    ]
    return ReportTable(
        title="OTX: nodes on the wanted provider",
        note="Share in % of the nodes as the runtime executes them; base is the original. The "
        "study's provider was CUDA; on a CPU every node is on the wanted one. Last, the study's "
        "models that are not in this campaign.",
        columns=["model", *columns, *(f"OTX {level}" for level in (BASE, *LEVELS))],
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
        note="Level all. The utilization of a device needs a GPU: `optvet bench MODEL --optimizer "
        "onnxruntime --pipeline all --provider CUDAExecutionProvider --json FILE`, in a folder "
        "that --answers names. Precision is against labels, where the data have some; agreement is "
        "the precision of the optimized model's boxes, the original's being right.",
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
        "device utilization, %": utilization(benches, row.source),
        "processor utilization, %": _pair(percent(s.cpu_utilization) if s else None for s in sides),
        "peak memory, GB": _pair(None if m is None else m / 1e9 for m in memory),
        "precision": (precision.original, precision.optimized),
        "agreement": (None, precision.agreement),
    }


def _pair(values: Iterable[float | None]) -> tuple[Cell, Cell]:
    first, second = values
    return first, second


def _ratio(timing: Timing | None) -> str | None:
    if timing is None or timing.ratio is None:
        return None if timing is None else timing.verdict
    return f"{timing.ratio:.2f} ({timing.low:.2f}–{timing.high:.2f}), {timing.verdict}"


def each_level(rows: Sequence[TrialRow]) -> ReportTable:
    """Each model at each level: nodes, most frequent operators, what executes them, speed."""
    lines: list[list[Cell]] = []
    for name, group in by_level(rows).items():
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
