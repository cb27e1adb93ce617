"""Charts of a campaign's variants: what models are made of, where they are executed, how fast."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from optvet.spec.records.charts import BarChart, Chart, IntervalChart, PointChart
from optvet.spec.studies import TrialRow, variants


def charts(rows: Sequence[TrialRow]) -> list[Chart]:
    """Speed, operators, placement, and speed against error, of the trials of one campaign."""
    operators_of: dict[str, Counter[str]] = {}
    providers_of: dict[str, Counter[str]] = {}
    originals: dict[str, Mapping[str, int]] = {}
    for name, group in variants(rows).items():
        for row in group:
            if row.structures is not None:
                originals[row.digest] = row.structures.original.operators
                optimized = row.structures.optimized.operators
                operators_of.setdefault(name, Counter()).update(optimized)
            if row.placements and row.placements.optimized:
                providers = row.placements.optimized.providers
                providers_of.setdefault(name, Counter()).update(providers)
    before = Counter[str]()
    for operators in originals.values():
        before.update(operators)
    counts = {"original": before, **operators_of} if operators_of else {}
    timings = {
        f"{row.model}, {name}": row.timing
        for name, group in variants(rows).items()
        for row in group
        if row.timing is not None
    }
    drawn = (
        IntervalChart.of(timings),
        BarChart.of(counts, "Operators", "nodes", note="Over all models of known structure."),
        BarChart.of(providers_of, "Placement", "nodes as they are executed"),
        PointChart.of(timings),
    )
    return [chart for chart in drawn if chart is not None]
