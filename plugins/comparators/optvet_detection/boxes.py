"""Boxes, and which of them count: threshold, suppression, and how firm each choice is.

A head proposes many boxes; a user sees those that pass the score threshold and survive
non-maximum suppression. Beside these ``select`` keeps how nearly each choice went the other way:
a box that is shown only by a hair is *weak*, one that is hidden only by a hair is *spare*. Where
two sides differ in a box that is weak on one and spare on the other, nobody decided anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

Array = np.ndarray

LARGEST = 1e9
"""Coordinates beyond this are no pixels; their areas would drown in rounding."""
THINNEST = 1e-9
"""Least side of a box, absolute and relative to its coordinates, for the same reason."""
SNAP = 1e-12
"""Overlaps closer to 1 than this are 1: what is missing is the rounding of the formula."""
OVERLAP_SLACK = 1e-4
"""An overlap this close to the suppression's threshold decides nothing."""


def _no_boxes() -> Array:
    return np.zeros((0, 4))


def _no_labels() -> Array:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Proposals:
    """What a head says of one image, before any choice.

    Attributes:
        boxes: float64 [n, 4]: left, top, right, bottom.
        scores: float64 [n, classes], or [n] with one label each.
        labels: int64 [n], or None if the label is the column of ``scores``.
    """

    boxes: Array
    scores: Array
    labels: Array | None = None


@dataclass(frozen=True)
class Detections:
    """What a user sees in one image, best score first.

    Attributes:
        boxes: float64 [n, 4]: left, top, right, bottom; every box has an area.
        scores: float64 [n].
        labels: int64 [n].
        weak: bool [n]: shown only by a hair.
        spare_boxes: float64 [m, 4]: hidden only by a hair.
        spare_labels: int64 [m].
        invalid: Number of proposals left out because they are not numbers, or not boxes although
            their score would do.
    """

    boxes: Array = field(default_factory=_no_boxes)
    scores: Array = field(default_factory=lambda: np.zeros(0))
    labels: Array = field(default_factory=_no_labels)
    weak: Array = field(default_factory=lambda: np.zeros(0, bool))
    spare_boxes: Array = field(default_factory=_no_boxes)
    spare_labels: Array = field(default_factory=_no_labels)
    invalid: int = 0

    def __len__(self) -> int:
        return len(self.scores)


def is_box(boxes: Array) -> Array:
    """Which rows of ``boxes`` [n, 4] are boxes: finite, with an area that can be computed."""
    with np.errstate(invalid="ignore", over="ignore"):
        top = np.max(np.abs(boxes), axis=1, initial=0.0)
        sides = np.minimum(boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1])
        # A comparison with NaN is false, so NaN is no box.
        return np.asarray((top <= LARGEST) & (sides > THINNEST * np.maximum(top, 1.0)))


def box_iou(a: Array, b: Array) -> Array:
    """Intersection over union of every box of ``a`` [n, 4] with every one of ``b`` [m, 4].

    Returns:
        float64 [n, m] in 0..1, exactly 1 for equal boxes.

    Source: Jaccard 1912; for boxes Everingham et al. 2010, "The Pascal VOC Challenge", eq. 3.
    """
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = np.prod(np.clip(high - low, 0.0, None), axis=2)
    total = _area(a)[:, None] + _area(b)[None, :] - shared
    ratio = np.divide(shared, total, out=np.zeros_like(shared), where=total > 0)
    return np.asarray(np.where(ratio > 1 - SNAP, 1.0, ratio))


def _area(boxes: Array) -> Array:
    return np.asarray(np.prod(boxes[:, 2:] - boxes[:, :2], axis=1))


def suppress(boxes: Array, limit: float, most: int) -> Array:
    """Indices of the boxes that stay in greedy non-maximum suppression, in their order.

    Args:
        boxes: float64 [n, 4], best first.
        limit: A box that overlaps a better one by more than this goes.
        most: Stop after so many.
    """
    kept: list[int] = []
    open_ = np.ones(len(boxes), bool)
    while len(kept) < most and open_.any():
        best = int(np.argmax(open_))
        kept.append(best)
        # A row at a time: all pairs of 25,200 proposals would fill the memory.
        open_ &= box_iou(boxes[best : best + 1], boxes)[0] <= limit
        open_[best] = False
    return np.array(kept, np.int64)


@dataclass(frozen=True)
class _Rows:
    """Proposals as one label each, best score first; ``second`` lost its box to another label."""

    boxes: Array
    scores: Array
    labels: Array
    second: Array
    contested: Array

    def take(self, rows: Array) -> _Rows:
        parts = (self.boxes, self.scores, self.labels, self.second, self.contested)
        return _Rows(*(part[rows] for part in parts))


def _rows(proposals: Proposals, floor: float, noise: float) -> tuple[_Rows, int]:
    """All labelled boxes that score above ``floor``, and how many proposals are no boxes."""
    table = proposals.scores if proposals.labels is None else proposals.scores[:, None]
    finite = np.isfinite(table).all(axis=1) if table.size else np.zeros(len(table), bool)
    valid = is_box(proposals.boxes)
    best = np.max(np.where(finite[:, None], table, -np.inf), axis=1, initial=-np.inf)
    good = finite & valid & (best > floor)
    index = np.flatnonzero(good)
    close = table[index] > np.maximum(best[index, None] - noise, floor)
    winner = np.argmax(table[index], axis=1)
    close[np.arange(len(index)), winner] = True
    row, column = np.nonzero(close)
    scores = table[index[row], column]
    labels = column if proposals.labels is None else proposals.labels[index[row]]
    second = column != winner[row]
    rows = _Rows(proposals.boxes[index[row]], scores, labels, second, close.sum(axis=1)[row] > 1)
    invalid = int(np.sum(~finite) + np.sum(finite & ~valid & (best > floor)))
    return rows.take(np.argsort(-scores, kind="stable")), invalid


def select(
    proposals: Proposals,
    *,
    score_threshold: float,
    max_detections: int,
    iou_threshold: float | None = None,
    class_agnostic: bool = True,
    noise: float = 0.0,
) -> Detections:
    """What a user sees of ``proposals``.

    Args:
        proposals: One image.
        score_threshold: Least score.
        max_detections: At most so many, best first, as COCO's ``maxDets``.
        iou_threshold: For suppression; None where the model has suppressed already.
        class_agnostic: Whether a box also suppresses boxes of other labels.
        noise: Scores closer than this are no choice.
    """
    rows, invalid = _rows(proposals, min(score_threshold - noise, score_threshold), noise)
    shown = np.flatnonzero((rows.scores >= score_threshold) & ~rows.second)
    if iou_threshold is not None:
        apart = _apart(rows.boxes, rows.labels, class_agnostic)
        shown = shown[suppress(apart[shown], iou_threshold, max_detections + 1)]
    cutoff = score_threshold
    if len(shown) > max_detections:
        cutoff = max(cutoff, float(rows.scores[shown[max_detections]]))
        shown = shown[:max_detections]
    weak = (rows.scores[shown] - cutoff < noise) | rows.contested[shown]
    rest = np.setdiff1d(np.arange(len(rows.scores)), shown)
    spare = np.abs(rows.scores[rest] - cutoff) < noise
    if iou_threshold is None:
        spare |= rows.second[rest]
    else:
        overlap = box_iou(apart[shown], apart[rest])
        gap = rows.scores[shown][:, None] - rows.scores[rest][None, :]
        # A second label shares its box with the first, which must not hide it.
        twin = (overlap == 1.0) & rows.second[rest][None, :]
        near = (overlap > iou_threshold - OVERLAP_SLACK) & (np.abs(gap) < noise)
        margin = np.abs(overlap - iou_threshold) < OVERLAP_SLACK * (noise > 0)
        weak = weak | ((near | margin) & ~twin).any(axis=1)
        among = np.tril(np.abs(box_iou(apart[shown], apart[shown]) - iou_threshold), -1)
        weak |= (np.tril(among < OVERLAP_SLACK, -1) & (noise > 0)).any(axis=1)
        hides = (overlap > iou_threshold) & ~margin & ~near & ~weak[:, None] & ~twin
        touched = (overlap > iou_threshold - OVERLAP_SLACK).any(axis=0) | rows.second[rest]
        in_reach = rows.scores[rest] > cutoff - noise
        spare = (spare | touched & in_reach) & ~hides.any(axis=0)
    return Detections(
        boxes=rows.boxes[shown],
        scores=rows.scores[shown],
        labels=rows.labels[shown].astype(np.int64),
        weak=weak,
        spare_boxes=rows.boxes[rest][spare],
        spare_labels=rows.labels[rest][spare].astype(np.int64),
        invalid=invalid,
    )


def everything(
    proposals: Proposals,
    *,
    max_detections: int,
    iou_threshold: float | None = None,
    class_agnostic: bool = True,
) -> Detections:
    """The best of ``proposals`` however low they score, as COCO evaluates them."""
    rows, invalid = _rows(proposals, 0.0, 0.0)
    kept = np.flatnonzero(~rows.second)
    if iou_threshold is not None:
        apart = _apart(rows.boxes, rows.labels, class_agnostic)
        kept = kept[suppress(apart[kept], iou_threshold, max_detections)]
    kept = kept[:max_detections]
    labels = rows.labels[kept].astype(np.int64)
    return Detections(rows.boxes[kept], rows.scores[kept], labels, invalid=invalid)


def _apart(boxes: Array, labels: Array, class_agnostic: bool) -> Array:
    """Boxes moved so that those of different labels do not meet, unless they should."""
    if class_agnostic or not len(boxes):
        return boxes
    width = float(boxes.max() - boxes.min()) + 1.0
    _, rank = np.unique(labels, return_inverse=True)
    return np.asarray(boxes + (rank * 2.0 * width)[:, None])
