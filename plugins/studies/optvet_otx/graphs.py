"""The optimized graphs: nodes, operators, and what executes them, per level and per model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from optvet.plugin import (
    Placement,
    ReportTable,
    TrialRow,
)
from optvet_otx.figures import (
    BASE,
    LEVELS,
    Cell,
    by_level,
    level_of,
    megabytes,
    published,
    study_name_of,
)
from optvet_otx.speeds import ratio_words

_OPERATORS = 5
"""Of each level, the most frequent operators that are listed, as in the study."""
_MOST_FREQUENT = 5


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
                megabytes(sum(a.size_bytes for a, _ in pairs)) if pairs else None,
                megabytes(sum(b.size_bytes for _, b in pairs)) if pairs else None,
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
                    ratio_words(row.timing),
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
