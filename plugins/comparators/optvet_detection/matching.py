"""Which boxes of two sets are the same: one-to-one, within a label, by overlap.

The number of pairs that overlap by at least a threshold is that of a largest matching, found by
the Hungarian method. Matching greedily by score, as COCO's own evaluation does, finds fewer where
objects crowd, depends on which side is called the reference, and breaks ties by position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optvet_detection.boxes import Array, Detections, box_iou

THRESHOLDS = (0.5, 0.75, 0.9)
"""Overlaps at which precision, recall and F1 are told."""


@dataclass(frozen=True)
class Counts:
    """What the metrics of one image, or of many, are made of; counts of many add up.

    Attributes:
        reference: Number of the reference's boxes.
        candidate: Number of the candidate's boxes.
        paired: Largest number of pairs per overlap in ``THRESHOLDS``.
        overlap: Sum of the overlaps of the best one-to-one assignment.
        slots: Sum over labels of the number of boxes on the side that has more.
        drift: Largest difference in score between boxes that are the same.
    """

    reference: int = 0
    candidate: int = 0
    paired: tuple[int, ...] = (0,) * len(THRESHOLDS)
    overlap: float = 0.0
    slots: int = 0
    drift: float = 0.0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.reference + other.reference,
            self.candidate + other.candidate,
            tuple(a + b for a, b in zip(self.paired, other.paired, strict=True)),
            self.overlap + other.overlap,
            self.slots + other.slots,
            max(self.drift, other.drift),
        )


def count(reference: Detections, candidate: Detections) -> Counts:
    """Compare the boxes of one image."""
    total = Counts()
    for ours, theirs in _by_label(reference.labels, candidate.labels):
        iou = box_iou(reference.boxes[ours], candidate.boxes[theirs])
        pairs = tuple(len(assign(iou, t)[0]) for t in THRESHOLDS)
        rows, columns = assign(iou, 0.0)
        total += Counts(
            len(ours),
            len(theirs),
            pairs,
            float(iou[rows, columns].sum()),
            max(len(ours), len(theirs)),
            _drift(iou, reference.scores[ours], candidate.scores[theirs]),
        )
    return total


def _drift(iou: Array, ours: Array, theirs: Array) -> float:
    """Largest difference in score between boxes of one label that are the same at 0.5."""
    if np.array_equal(ours, theirs) and (np.diagonal(iou) == 1.0).all():
        return 0.0
    gap = np.abs(ours[:, None] - theirs[None, :])
    # Boxes in one place are paired by score, or a set with such boxes would differ from itself.
    rows, columns = assign(np.where(iou >= THRESHOLDS[0], iou - 1e-6 * gap, 0.0), THRESHOLDS[0] / 2)
    return float(gap[rows, columns].max(initial=0.0))


def _by_label(ours: Array, theirs: Array) -> Iterator[tuple[Array, Array]]:
    """Indices on both sides, per label that occurs on either."""
    for label in np.union1d(ours, theirs):
        yield np.flatnonzero(ours == label), np.flatnonzero(theirs == label)


def assign(iou: Array, least: float) -> tuple[Array, Array]:
    """Rows and columns of a largest one-to-one matching of overlaps that reach ``least``.

    Among the largest it has the greatest total overlap; for ``least`` 0 the total alone counts.
    """
    allowed = iou >= least if least > 0 else iou > 0
    # min(shape) outweighs every total of overlaps: first many pairs, then good ones.
    bonus = float(min(iou.shape)) if least > 0 else 0.0
    # Here, because every command loads every plugin, and scipy takes longer than all of optvet.
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(np.where(allowed, iou + bonus, 0.0), maximize=True)
    real = allowed[rows, columns]
    return rows[real], columns[real]


def ratios(counts: Counts) -> dict[str, float]:
    """Metrics in 0..1, each exactly 1 for equal detections and for none on both sides.

    Returns:
        ``iou``: mean over the best one-to-one assignment, where a box without a partner counts 0;
        ``precision@t`` = pairs / candidate's boxes, ``recall@t`` = pairs / reference's boxes and
        ``f1@t`` = 2 pairs / (boxes of both) at an overlap of ``t`` (van Rijsbergen 1979, chapter
        7); 0 where one side alone is empty; ``score_agreement`` = 1 - the largest difference in
        score between boxes that are the same at 0.5, and 0 where no two are.
    """
    metrics = {"iou": _share(counts.overlap, counts.slots, counts.slots)}
    boxes = counts.reference + counts.candidate
    for threshold, pairs in zip(THRESHOLDS, counts.paired, strict=True):
        metrics[f"precision@{threshold}"] = _share(pairs, counts.candidate, boxes)
        metrics[f"recall@{threshold}"] = _share(pairs, counts.reference, boxes)
        metrics[f"f1@{threshold}"] = _share(2 * pairs, boxes, boxes)
    compared = counts.paired[0] > 0 or not boxes
    metrics["score_agreement"] = max(0.0, 1.0 - counts.drift) if compared else 0.0
    return metrics


def _share(part: float, whole: float, boxes: float) -> float:
    """``part / whole``; 1 if there are no ``boxes`` at all, 0 if there are none in ``whole``."""
    if not boxes:
        return 1.0
    return part / whole if whole else 0.0


@dataclass(frozen=True)
class UnmatchedBoxes:
    """Boxes that only one side shows, as indices; ``undecided`` of them are no choice."""

    missing: tuple[int, ...]
    extra: tuple[int, ...]
    undecided: int

    @property
    def changed(self) -> bool:
        """Whether a user would see other boxes for a reason."""
        return len(self.missing) + len(self.extra) > self.undecided

    @property
    def sensitive(self) -> bool:
        """Whether all that differs is what nobody decided."""
        return self.undecided > 0 and not self.changed


def difference(reference: Detections, candidate: Detections, least: float) -> UnmatchedBoxes:
    """Which boxes have no partner of their label with an overlap of at least ``least``.

    A box is undecided if it is weak on its own side and spare on the other: then its score, or
    that of what hides it, crosses the line by less than the noise.
    """
    missing, extra = set(range(len(reference))), set(range(len(candidate)))
    for ours, theirs in _by_label(reference.labels, candidate.labels):
        iou = box_iou(reference.boxes[ours], candidate.boxes[theirs])
        rows, columns = assign(iou, least)
        missing -= set(ours[rows].tolist())
        extra -= set(theirs[columns].tolist())
    undecided = sum(_undecided(reference, i, candidate, least) for i in missing)
    undecided += sum(_undecided(candidate, i, reference, least) for i in extra)
    return UnmatchedBoxes(tuple(sorted(missing)), tuple(sorted(extra)), undecided)


def _undecided(side: Detections, index: int, other: Detections, least: float) -> bool:
    if not side.weak[index]:
        return False
    spare = other.spare_boxes[other.spare_labels == side.labels[index]]
    return bool((box_iou(side.boxes[index : index + 1], spare) >= least).any())


RANKED = (1, 5, 10)


def label_order(ours: Sequence[Detections], theirs: Sequence[Detections]) -> dict[str, float]:
    """The share of images whose first ``k`` labels, by score, are the same in this order."""
    if not ours:
        return {}
    pairs = [(_ranked(r), _ranked(c)) for r, c in zip(ours, theirs, strict=True)]
    same = {k: sum(r[:k] == c[:k] for r, c in pairs) for k in RANKED}
    return {f"label_order_top{k}": same[k] / len(pairs) for k in RANKED}


def _ranked(found: Detections) -> list[int]:
    # Stable, since a detector lists boxes of one score in an order of its own.
    order = np.argsort(-found.scores, kind="stable")
    return [int(label) for label in found.labels[order]]


def detections_from_detail(detail: Mapping[str, list[float]]) -> Detections:
    """Read back what a report keeps of one side of one image."""
    boxes = np.asarray(detail["boxes"], np.float64).reshape(-1, 4)
    labels = np.asarray(detail["labels"], np.int64)
    return Detections(boxes, np.asarray(detail["scores"], np.float64), labels)
