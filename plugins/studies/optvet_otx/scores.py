"""How well models do: against labels where there are some, and against the original."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from optvet.plugin import ReportTable, TrialRow
from optvet_otx.figures import ITS_DETECTOR, Cell, by_level, percent, published, study_name_of


class _Score(NamedTuple):
    """A score of the study, by the metrics of a comparator.

    ``agreement`` is of the optimized model with the original, the others with labels.
    """

    name: str
    agreement: str
    original: str
    optimized: str


_SCORES: Mapping[str, Sequence[_Score]] = {
    "classification": (
        _Score("top-1", "top1_agreement", "accuracy_top1_reference", "accuracy_top1_candidate"),
        _Score("top-5", "top5_agreement", "accuracy_top5_reference", "accuracy_top5_candidate"),
    ),
    "detection": (
        _Score("F1", "f1@0.5", "reference_f1@0.5", "candidate_f1@0.5"),
        _Score("IoU", "iou", "reference_iou", "candidate_iou"),
        _Score("precision", "precision@0.5", "reference_precision@0.5", "candidate_precision@0.5"),
    ),
    "text": (
        _Score("BLEU", "bleu", "bleu_reference", "bleu_candidate"),
        _Score("exact match", "exact_match", "exact_match_reference", "exact_match_candidate"),
        _Score("F1", "f1", "f1_reference", "f1_candidate"),
    ),
    "token": (_Score("accuracy", "token_agreement", "accuracy_reference", "accuracy_candidate"),),
}


class Values(NamedTuple):
    """What a score is, from 0 to 1: of either model against labels, and of one to the other."""

    original: float | None
    optimized: float | None
    agreement: float | None


def scores_of(row: TrialRow) -> Iterator[tuple[str, Values]]:
    """The study's scores of a trial, by name, as far as they are known."""
    if row.impact is None:
        return
    known = row.impact.metrics
    for score in _SCORES.get(row.impact.comparator, ()):
        parts = (score.original, score.optimized, score.agreement)
        values = Values(*(known.get(part) for part in parts))
        if any(value is not None for value in values):
            yield score.name, values


def scores(rows: Sequence[TrialRow]) -> ReportTable:
    """Each model at each level: its scores against labels, before and after."""
    lines: list[list[Cell]] = []
    figures: Sequence[float] = published()["faster_rcnn"]["precision"]
    theirs: list[Cell] = [100 * figure for figure in figures]
    complete = False
    for level, group in by_level(rows).items():
        for row in group:
            for name, values in scores_of(row):
                same = name == "precision" and row.parts.pipeline == "all"
                same = same and study_name_of(row.source) == ITS_DETECTOR
                complete = complete or same
                ours = (row.impact.samples if row.impact else None, *map(percent, values))
                lines.append([row.model, level, name, *ours, *(theirs if same else (None, None))])
    lines.sort(key=lambda line: str(line[0]))
    if not complete:
        lines.append([ITS_DETECTOR, "all", "precision", *[None] * 4, *theirs])
    return ReportTable(
        title="OTX: scores per model and level",
        note="In %; boxes overlap by at least 0.5. Original and optimized are against labels, "
        "where the data have some (dataset_options = { labels = FILE }). Agreement: of the "
        "optimized model with the original. The study prints one of its scores, and found no "
        "difference in any.",
        columns=[
            *("model", "level", "score", "samples", "original", "optimized", "agreement"),
            *("OTX original", "OTX optimized"),
        ],
        rows=lines,
    )


def scores_per_level(rows: Sequence[TrialRow]) -> ReportTable:
    """Per level: each score against labels, averaged over models."""
    lines: list[list[Cell]] = []
    for level, group in by_level(rows).items():
        found: dict[str, list[Values]] = {}
        for row in group:
            for name, values in scores_of(row):
                found.setdefault(name, []).append(values)
        for name, each in found.items():
            pairs = [
                (v.original, v.optimized)
                for v in each
                if v.original is not None and v.optimized is not None
            ]
            before, after = _mean(a for a, _ in pairs), _mean(b for _, b in pairs)
            agreement = _mean(v.agreement for v in each if v.agreement is not None)
            moved = None if before is None or after is None else after - before
            lines.append([level, name, len(each), len(pairs), before, after, moved, agreement])
    return ReportTable(
        title="OTX: scores per level",
        note="Means over models, in %. Labelled: models whose data have labels, which original "
        "and optimized are measured against; change in points. The study found no difference.",
        columns=[
            *("level", "score", "models", "labelled", "original", "optimized", "change"),
            "agreement",
        ],
        rows=lines,
    )


def _mean(shares: Iterable[float]) -> float | None:
    known = list(shares)
    return 100 * fmean(known) if known else None
