"""Each pass alone on each model, which is the study's unit of result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from optvet.plugin import PassNumbers, PassRecord, ReportTable, TrialRow
from optvet_ditox.answers import chunk_of, reordered
from optvet_ditox.figures import Cell

SCORES = {
    "tau": "kendall_tau",
    "F1": "f1@0.5",
    "precision": "precision@0.5",
    "recall": "recall@0.5",
    "mAP": "mAP",
    "AP .75": "AP@0.75",
    "IoU": "iou",
    "BLEU": "bleu",
    "exact match": "exact_match",
}
"""The columns of the study's tables, and the metrics that they are; in % but for tau."""


def each_pass(rows: Iterable[TrialRow]) -> ReportTable:
    """A row for each model, chunk of data and pass that changes the model or fails on it."""
    lines = [line for row in rows if row.round_trip is not None for line in _lines(row)]
    kept = [
        i for i in range(len(_COLUMNS)) if i < _ALWAYS or any(line[i] is not None for line in lines)
    ]
    return ReportTable(
        title="DiTOX: each pass on each model",
        note="The model after one pass alone beside the original; scores in %, but for Kendall's "
        "tau. Time is the ratio to the original's. First the import and export that all passes "
        "share. Passes that leave the model as these do are left out.",
        columns=[_COLUMNS[i] for i in kept],
        rows=[[line[i] for i in kept] for line in lines],
    )


_COLUMNS = (
    "model", "opset", "data", "inputs", "pass", "verdict", "symptom", "error", "nodes", "bytes",
    "warnings", "time", "top 1 %", "top 5 %", "top 10 %", *SCORES
)  # fmt: skip
_ALWAYS = 11
"""Columns that stand in the table without a value, too."""


def _lines(row: TrialRow) -> Iterator[list[Cell]]:
    about: list[Cell] = [row.model, row.opset, chunk_of(row)]
    assert row.round_trip is not None
    yield [*about, row.round_trip.samples, "import and export", *_cells(row.round_trip, None)]
    for record in row.passes:
        if record.effect != "none" or record.warnings:
            inputs = record.numbers.samples if record.numbers else None
            yield [*about, inputs, record.name, *_cells(record.numbers, record)]


def _cells(numbers: PassNumbers | None, record: PassRecord | None) -> Sequence[Cell]:
    symptom = str(record.symptom or "") if record is not None else ""
    warned = len(record.warnings) if record is not None else 0
    if numbers is None:
        return ["", symptom, None, None, None, warned, None, *[None] * (3 + len(SCORES))]
    worst, built, timing = numbers.worst, numbers.structure, numbers.timing
    metrics = numbers.impact.metrics if numbers.impact else {}
    ranks = [reordered(metrics, k) for k in (1, 5, 10)]
    scores: list[Cell] = [None if share is None else 100 * share for share in ranks]
    scores += [_score(name, metrics.get(metric)) for name, metric in SCORES.items()]
    return [
        numbers.verdict,
        symptom,
        worst.error if worst else None,
        built.nodes if built else None,
        built.size_bytes if built else None,
        warned,
        timing.ratio if timing else None,
        *scores,
    ]


def _score(name: str, value: float | None) -> float | None:
    return value if value is None or name == "tau" else 100 * value
