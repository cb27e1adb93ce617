"""Compares the rows of a sample: by their scores, or by labels where a model ends in an arg-max."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from optvet.plugin import Comparison, InputError, Sample
from optvet_classification.labels import label_accuracy, labels_of
from optvet_classification.rank_metrics import CERTAINTY, is_firm_flip, ranking, row_metrics

MAX_ROWS = 10
"""Rows of one sample that a report shows; changed ones first."""
_LABEL = re.compile(r"label|class|pred|target", re.IGNORECASE)


def compare_scores(
    sample: Sample,
    reference: np.ndarray,
    candidate: np.ndarray,
    topk: Sequence[int],
    noise: float,
    keys: Sequence[str] | None,
) -> Comparison:
    """Per row of the batch; accuracy where the sample has labels, which ``keys`` may name."""
    rows = len(reference)
    parts = [row_metrics(reference[i], candidate[i], topk) for i in range(rows)]
    flips = [is_firm_flip(reference[i], candidate[i], noise) for i in range(rows)]
    names = list(parts[0]) if parts else []
    metrics = {
        n: max(p[n] for p in parts)
        if n == "confidence_change"
        else float(np.mean([p[n] for p in parts]))
        for n in names
    }
    certain = [n for n in names if n.startswith(CERTAINTY)]
    metrics |= {f"{n}_sd": _deviation([p[n] for p in parts]) for n in certain}
    metrics |= {
        "rows": float(rows),
        "labels_changed": float(sum(f is True for f in flips)),
        "labels_undecided": float(sum(f is False for f in flips)),
    }
    truth = labels_of(sample.label, rows, keys)
    if truth is not None:
        metrics |= label_accuracy(reference, candidate, truth)
    order = sorted(range(rows), key=lambda i: flips[i] is None)[:MAX_ROWS]
    shown = [
        {
            "row": i,
            "reference": _best_labels(reference[i], keys),
            "candidate": _best_labels(candidate[i], keys),
            **({"label": sorted(truth[i], key=str)} if truth is not None else {}),
        }
        for i in order
    ]
    changed = True in flips
    return Comparison(sample.id, metrics, changed, not changed and False in flips, {"rows": shown})


def _deviation(values: Sequence[float]) -> float:
    """Standard deviation of all values; infinite where one of them is."""
    return float(np.std(values)) if np.isfinite(values).all() else float("inf")


def _best_labels(scores: np.ndarray, keys: Sequence[str] | None) -> list[list[Any]]:
    """The five best labels with their scores."""
    return [
        [
            keys[i] if keys else int(i),
            float(scores[i]) if np.isfinite(scores[i]) else str(scores[i]),
        ]
        for i in ranking(scores)[:5]
    ]


def compare_labels(
    sample: Sample, reference: Mapping[str, np.ndarray], candidate: Mapping[str, np.ndarray]
) -> Comparison:
    """Models that end in an arg-max: labels are equal or not."""
    discrete = [n for n, v in reference.items() if v.dtype.kind in "iuOUSb"]
    named = [n for n in discrete if _LABEL.search(n)]
    if not discrete:
        raise InputError(
            "comparator 'classification': there is neither an output with scores nor one with "
            f"labels among {', '.join(map(repr, reference))}; choose another with --comparator"
        )
    name = (named or discrete)[0]
    expected, actual = reference[name].ravel(), candidate[name].ravel()
    wrong = np.flatnonzero(np.asarray(expected != actual, dtype=bool))
    metrics = {
        "top1_agreement": 1 - len(wrong) / len(expected) if len(expected) else 1.0,
        "rows": float(len(expected)),
        "labels_changed": float(len(wrong)),
        "labels_undecided": 0.0,
    }
    truth = labels_of(sample.label, len(expected), None) if expected.dtype.kind in "iu" else None
    if truth is not None:
        before, after = (
            float(np.mean([int(v) in t for v, t in zip(side, truth, strict=True)]))
            if truth
            else 0.0
            for side in (expected, actual)
        )
        metrics |= {
            "labelled": float(len(truth)),
            "accuracy_top1_reference": before,
            "accuracy_top1_candidate": after,
            "accuracy_top1_delta": after - before,
        }
    shown = [
        {"row": int(i), "reference": str(expected[i]), "candidate": str(actual[i])}
        for i in wrong[:MAX_ROWS]
    ]
    return Comparison(sample.id, metrics, bool(len(wrong)), detail={"rows": shown})
