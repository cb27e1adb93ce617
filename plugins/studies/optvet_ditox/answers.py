"""What models answered before and after: labels, boxes and texts, beside the study's scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from optvet.plugin import ReportTable, Symptom, TrialRow
from optvet_ditox.figures import Cell, find_figures, kind_of, left_out, opsets_of

_SCORES = ("f1@0.5", "precision@0.5", "recall@0.5", "mAP", "iou")


def _issue(row: TrialRow) -> str:
    """The study's letters: FV, the format version was raised silently; MG, a graph that grew.

    The study calls the second one a malformed graph, and means a pass that adds nodes.
    """
    if any("ir_version" in note.changed for note in row.notes if not note.culprit):
        return "FV"
    grew = any(note.symptom == Symptom.BLOAT and note.culprit for note in row.notes)
    return "MG" if grew else "other" if row.faults else ""


def reordered(metrics: Mapping[str, float | None], k: int) -> float | None:
    """The share of inputs whose first ``k`` labels, of a class or of boxes, changed their order."""
    kept = metrics.get(f"label_order_top{k}")
    return metrics.get(f"reordered_top{k}") if kept is None else 1 - kept


def labels(rows: Sequence[TrialRow]) -> ReportTable:
    """Each classifier and detector: the share of inputs whose first labels changed their order."""
    lines: list[list[Cell]] = []
    seen: list[str] = []
    for row in rows:
        if row.impact is None or not row.judged:
            continue
        known = [reordered(row.impact.metrics, k) for k in (1, 5, 10)]
        if all(share is None for share in known):
            continue
        key, paper = find_figures("labels", row)
        seen.append(key)
        ours: list[Cell] = [None if share is None else 100 * share for share in known]
        place: list[Cell] = [row.model, _LETTERS[kind_of(row)], row.opset, chunk_of(row)]
        lines.append([*place, row.impact.samples, *ours, _issue(row), *_of_labels(paper)])
    lines += [
        [paper["name"], paper.get("type", "CL"), opsets_of(paper), *[None] * 6, *_of_labels(paper)]
        for paper in left_out("labels", seen)
    ]
    columns = [
        "model",
        "type",
        "opset",
        "data",
        "inputs",
        "top 1 %",
        "top 5 %",
        "top 10 %",
        "issue",
    ]
    return ReportTable(
        title="DiTOX: labels in another order",
        note="Share of inputs whose first k labels are ranked otherwise (Kendall's tau below 0.99; "
        "for k of 1, another label). FV: import and export raise the format version; MG: a pass "
        "adds nodes; other: another fault. Last, the study's models that are not in this campaign.",
        columns=[*columns, "DiTOX 1", "DiTOX 5", "DiTOX 10", "DiTOX issue"],
        rows=lines,
    )


_LETTERS = {
    "classification": "CL",
    "detection": "OD",
    "segmentation": "SE",
    "text": "TX",
    "other": "",
}


def _of_labels(entry: Mapping[str, Any]) -> list[Cell]:
    return [*entry.get("top", (None, None, None)), entry.get("issue")]


def chunk_of(row: TrialRow) -> str:
    """The data of a job, without the folder that it is in."""
    source, _, place = (row.parts.dataset or "random").partition(":")
    return f"{source}:{PurePath(place).name}" if place else source


def detection(rows: Sequence[TrialRow]) -> ReportTable:
    """Each detector: how far its boxes agree before and after."""
    lines: list[list[Cell]] = []
    seen: list[str] = []
    for row in rows:
        if kind_of(row) != "detection" or row.impact is None or not row.judged:
            continue
        key, paper = find_figures("detection", row)
        seen.append(key)
        found = [row.impact.metrics.get(name) for name in _SCORES]
        ours: list[Cell] = [None if score is None else 100 * score for score in found]
        place: list[Cell] = [row.model, row.opset, chunk_of(row), row.impact.samples]
        lines.append([*place, *ours, *paper.get("scores", (None,) * len(_SCORES))])
    lines += [
        [paper["name"], opsets_of(paper), *[None] * (2 + len(_SCORES)), *paper["scores"]]
        for paper in left_out("detection", seen)
    ]
    names = ("F1", "precision", "recall", "mAP", "IoU")
    return ReportTable(
        title="DiTOX: detectors",
        note="Of the optimized model's boxes against the original's, in %; overlap at least 0.5. "
        "Last, the study's models that are not in this campaign.",
        columns=["model", "opset", "data", "inputs", *names, *(f"DiTOX {n}" for n in names)],
        rows=lines,
    )


def text(rows: Sequence[TrialRow]) -> ReportTable:
    """Each model of texts: BLEU and exact match of the optimized model's texts or spans."""
    lines: list[list[Cell]] = []
    for row in rows:
        if kind_of(row) != "text" or row.impact is None or not row.judged:
            continue
        scores = [row.impact.metrics.get(name) for name in ("bleu", "exact_match")]
        ours: list[Cell] = [None if score is None else 100 * score for score in scores]
        place: list[Cell] = [row.model, row.opset, chunk_of(row), row.impact.samples]
        lines.append([*place, *ours, row.impact.changed])
    return ReportTable(
        title="DiTOX: texts",
        note="Of the optimized model's texts, or spans of a text, against the original's, in %. "
        "The study prints no table of them.",
        columns=["model", "opset", "data", "inputs", "BLEU", "exact match", "changed"],
        rows=lines,
    )
