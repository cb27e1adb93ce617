"""Summaries of samples: means weighted by rows, deviations over all rows, and counts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from optvet.plugin import Comparison, Summary
from optvet_classification.rank_metrics import CERTAINTY

SIDES = ("reference", "candidate", "delta")
COUNTS = frozenset({"rows", "labelled", "labels_changed", "labels_undecided"})


def summarise(comparisons: Sequence[Comparison]) -> Summary:
    """Means over rows, the largest change of confidence, the number of changed labels."""
    metrics = {
        key: max(c.metrics[key] for c in comparisons if key in c.metrics)
        if key == "confidence_change"
        else _mean(comparisons, key, _weight(key))
        for key in sorted({k for c in comparisons for k in c.metrics} - COUNTS)
    }
    for key in [k for k in metrics if k.startswith(CERTAINTY) and k.endswith("_sd")]:
        metrics[key] = _pooled(comparisons, key, metrics[key.removesuffix("_sd")])
    for key in sorted(COUNTS):
        metrics[key] = sum(c.metrics.get(key, 0.0) for c in comparisons)
    total = int(metrics["rows"])
    headline = f"{int(metrics['labels_changed'])} of {total} labels changed"
    if metrics["labels_undecided"]:
        headline += f", {int(metrics['labels_undecided'])} undecided"
    if "accuracy_top1_reference" in metrics:
        before, after = (metrics[f"accuracy_top1_{s}"] for s in ("reference", "candidate"))
        headline += f"; top-1 accuracy {before:.4g} → {after:.4g}"
    return Summary(metrics, headline)


def _weight(key: str) -> str:
    return "labelled" if key.startswith("accuracy") else "rows"


def _mean(comparisons: Sequence[Comparison], key: str, weight: str) -> float:
    """Mean of a metric over rows, of which a sample may have many."""
    having = [c for c in comparisons if key in c.metrics]
    total = sum(c.metrics[weight] for c in having)
    if any(c.metrics[weight] and not np.isfinite(c.metrics[key]) for c in having):
        return float("nan")
    return sum(c.metrics[key] * c.metrics[weight] for c in having) / total if total else 0.0


def _pooled(comparisons: Sequence[Comparison], key: str, mean: float) -> float:
    """Standard deviation over all rows, from those of the samples: E[x²] - E[x]²."""
    having = [c for c in comparisons if key in c.metrics]
    total = sum(c.metrics["rows"] for c in having)
    if not total:
        return 0.0
    squares = [
        (c.metrics[key] ** 2 + c.metrics[key.removesuffix("_sd")] ** 2) * c.metrics["rows"]
        for c in having
    ]
    value = sum(squares) / total - mean**2
    # Rounding may make a little less than nothing of rows that are all alike.
    return math.sqrt(max(value, 0.0)) if math.isfinite(value) else math.inf
