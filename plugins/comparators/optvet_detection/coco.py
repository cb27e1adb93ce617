"""Average precision and recall in COCO's definition, computed by pycocotools.

Source: Lin et al. 2014, "Microsoft COCO", and https://cocodataset.org/#detection-eval: precision
is interpolated at 101 recalls, averaged over the overlaps 0.50, 0.55, … 0.95 and over the classes
that the ground truth has. A class that only the candidate shows is thus not in the average; the
precision and F1 of ``matching`` count it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from optvet_detection.boxes import Array, Detections, box_iou
from optvet_detection.matching import Counts, count

NAMES = ("mAP", "AP@0.5", "AP@0.75", "AP@0.9", "AR")
_ROUNDING = 1e-12


@dataclass(frozen=True)
class GroundTruth:
    """Annotated boxes of one image: float64 [n, 4] corners, int64 [n] labels, bool [n] crowds."""

    boxes: Array
    labels: Array
    crowd: Array


def is_available() -> bool:
    """Whether pycocotools is installed."""
    return importlib.util.find_spec("pycocotools") is not None


def truth_from_detections(detections: Detections) -> GroundTruth:
    """What one side shows, taken for true."""
    crowd = np.zeros(len(detections), bool)
    return GroundTruth(detections.boxes, detections.labels, crowd)


def count_true(truth: GroundTruth, found: Detections) -> Counts:
    """Compare the annotated boxes of one image with what a user sees.

    As in COCO, a crowd need not be found, and a box that is half or more in a crowd of its label
    is no mistake, unless it is one of an annotated object.
    """
    single = ~truth.crowd
    objects = Detections(truth.boxes[single], np.zeros(int(single.sum())), truth.labels[single])
    inside = _share_inside(found.boxes, truth.boxes[truth.crowd])
    same = found.labels[:, None] == truth.labels[truth.crowd][None, :]
    own = found.labels[:, None] == objects.labels[None, :]
    an_object = ((box_iou(found.boxes, objects.boxes) >= _TRUE) & own).any(axis=1)
    kept = an_object | ~((inside >= _TRUE) & same).any(axis=1)
    return count(objects, Detections(found.boxes[kept], found.scores[kept], found.labels[kept]))


_TRUE = 0.5


def _share_inside(boxes: Array, others: Array) -> Array:
    """Which part of the area of each of ``boxes`` [n, 4] is in each of ``others`` [m, 4]."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    shared = np.prod(np.clip(high - low, 0.0, None), axis=2)
    area = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)[:, None]
    return np.asarray(np.divide(shared, area, out=np.zeros_like(shared), where=area > 0))


def average_precision(
    truth: Sequence[GroundTruth], found: Sequence[Detections], *, max_detections: int
) -> dict[str, float]:
    """COCO's metrics of ``found`` over all images.

    Args:
        truth: Per image.
        found: Per image, as many.
        max_detections: At most so many per image and class are looked at; COCO has 100.

    Returns:
        ``mAP`` and ``AR`` over overlaps 0.50 to 0.95, ``AP@0.5``, ``AP@0.75``, ``AP@0.9``. Where
        COCO has no value because nothing is true: 1 if nothing was found either, else 0.
    """
    counted = sum(int(np.sum(~t.crowd)) for t in truth)
    if not counted:
        value = 0.0 if any(len(f) for f in found) else 1.0
        return dict.fromkeys(NAMES, value)
    evaluation = _evaluate(truth, found, max_detections)
    precision, recall = evaluation["precision"][..., 0, 0], evaluation["recall"][..., 0, 0]
    # pycocotools adds one epsilon to a denominator: a single right box of a class has a
    # precision of 1 - 2e-16, and a model would differ from itself.
    precision = np.where(precision > 1 - _ROUNDING, 1.0, precision)
    seen = precision[0, 0] > -1
    per_overlap = precision[:, :, seen].mean(axis=(1, 2))
    return {
        "mAP": float(per_overlap.mean()),
        "AP@0.5": float(per_overlap[0]),
        "AP@0.75": float(per_overlap[5]),
        "AP@0.9": float(per_overlap[8]),
        "AR": float(recall[:, seen].mean()),
    }


def _evaluate(
    truth: Sequence[GroundTruth], found: Sequence[Detections], max_detections: int
) -> dict[str, Any]:
    """``COCOeval.eval`` with one area range, which holds every area, and one ``maxDets``."""
    from pycocotools.cocoeval import COCOeval

    labels = np.unique(np.concatenate([t.labels for t in truth] + [f.labels for f in found]))
    category = {int(label): number for number, label in enumerate(labels, start=1)}
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(
            _dataset(category, [(t.boxes, t.labels, None, t.crowd) for t in truth]),
            _dataset(category, [(f.boxes, f.labels, f.scores, None) for f in found]),
            "bbox",
        )
        # COCO ignores areas beyond 1e5 squared; an untrained model's boxes may be larger.
        evaluation.params.areaRng = [[0.0, float("inf")]]
        evaluation.params.areaRngLbl = ["all"]
        evaluation.params.maxDets = [max_detections]
        evaluation.evaluate()
        evaluation.accumulate()
    values: dict[str, Any] = evaluation.eval
    return values


def _dataset(
    category: dict[int, int], images: Sequence[tuple[Array, Array, Array | None, Array | None]]
) -> Any:
    """A ``COCO`` object of boxes in memory."""
    from pycocotools.coco import COCO

    annotations: list[dict[str, Any]] = []
    for number, (boxes, labels, scores, crowd) in enumerate(images, start=1):
        for row, (left, top, right, bottom) in enumerate(boxes.tolist()):
            width, height = right - left, bottom - top
            annotation = {
                # From 1: COCOeval takes the id 0 for "not matched".
                "id": len(annotations) + 1,
                "image_id": number,
                "category_id": category[int(labels[row])],
                "bbox": [left, top, width, height],
                "area": width * height,
                "iscrowd": int(crowd[row]) if crowd is not None else 0,
            }
            if scores is not None:
                annotation["score"] = float(scores[row])
            annotations.append(annotation)
    coco = COCO()
    coco.dataset = {
        "images": [{"id": number} for number in range(1, len(images) + 1)],
        "annotations": annotations,
        "categories": [{"id": number} for number in category.values()],
    }
    coco.createIndex()
    return coco
