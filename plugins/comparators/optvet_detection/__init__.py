"""Detections: which boxes and labels a user would see, and how they differ.

Outputs of either side are decoded to boxes, scores and labels (``decoders``), thresholded and,
where the head is raw, suppressed (``boxes``); the two sets are then matched one-to-one within each
label (``matching``) and scored as COCO scores detections, the reference being the ground truth
(``coco``). Where a sample has annotations, ``{"boxes": [[x, y, width, height], …], "labels": […]}``
in pixels of the model's input, both sides are scored against these too, over all that they detect
without a least score, as COCO does; ``numbers`` beside them
are the model's class numbers, where the dataset knows these.

Every metric against the reference is exactly 1 for equal detections, and for none on both sides.
What a head says that is not a number, or has no area, is not a detection: it is counted as
``invalid``, and a candidate whose outputs are all NaN has lost every box. NaN on one side alone is
a change where nobody sees a box, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from optvet.plugin import (
    Comparator,
    Comparison,
    InputError,
    Model,
    Sample,
    Suggestion,
    Summary,
    hookimpl,
)
from optvet_detection.annotations import METRICS_OF_SHOWN, Annotated, truth_of
from optvet_detection.boxes import Detections, Proposals, everything, select
from optvet_detection.decoders import DECODERS, choose, image_size
from optvet_detection.heads import DecoderInput, Head, Outputs
from optvet_detection.matching import (
    RANKED,
    Counts,
    UnmatchedBoxes,
    count,
    detections_from_detail,
    difference,
    label_order,
    ratios,
)
from optvet_detection.options import DetectionOptions

if TYPE_CHECKING:
    from optvet_detection.coco import GroundTruth

# Neither "text-detection", a map of pixels, nor "voice-activity detection" are boxes.
_TASK = re.compile(
    r"((object|face|person|people|pedestrian|vehicle|car|animal|hand|palm|head|plate|license-plate"
    r"|logo|product|fruit|box|bounding-box|2d)-)?detection|instance-segmentation"
)


@dataclass(frozen=True)
class DetectionComparison(Comparison):
    """A comparison with what COCO's metrics of all images are made of; no report keeps it."""

    annotated: Annotated = field(default=Annotated(), compare=False)


class DetectionComparator:
    """Boxes and labels that appear, vanish or move."""

    name = "detection"
    suggestions = (Suggestion("detection"),)
    wants = ("pycocotools",)
    options: DetectionOptions = DetectionOptions()
    # How many boxes there are is the model's answer, so outputs differ in shape.
    ragged = True

    def matches(self, model: Model, outputs: Mapping[str, np.ndarray]) -> float:
        """1 for a task of boxes; without a task, what the decoder of these outputs is sure of."""
        if model.task is not None:
            return 1.0 if is_detection(model.task) else 0.0
        size = image_size([i.shape for i in model.inputs])
        head = choose(DecoderInput(outputs, size))
        return 0.0 if head is None else head.certainty

    def compare(
        self,
        model: Model,
        sample: Sample,
        reference: Mapping[str, np.ndarray],
        candidate: Mapping[str, np.ndarray],
        options: DetectionOptions,
        *,
        noise: Mapping[str, float],
    ) -> Comparison:
        """Match the boxes of both sides, image by image.

        ``changed``: a box of one side has no partner of its label on the other with an overlap of
        ``same_iou``, or NaN stands on one side only; ``sensitive``: only boxes are concerned whose
        score, or that of what hides them, crosses the line by less than the noise.
        """
        from optvet_detection.coco import count_true

        size = image_size([v.shape for v in sample.feeds.values()])
        head = choose(DecoderInput(reference, size, options.anchors), options.decoder)
        if head is None:
            raise InputError(_not_understood(reference, options))
        level = head.gain * max((noise.get(n, 0.0) for n in head.scores), default=0.0)
        ours = _detections(head, reference, options, level)
        theirs = _detections(head, candidate, options, level)
        truth = truth_of(sample, options, len(ours))
        sides = (reference, candidate)
        every = tuple(_everything(head, s, options) for s in sides) if truth else ((), ())
        known: Sequence[GroundTruth | None] = truth or [None] * len(ours)
        pairs = list(zip(ours, theirs, strict=True))
        counts = sum((count(r, c) for r, c in pairs), Counts())
        differences = [difference(r, c, options.same_iou) for r, c in pairs]
        lost = sorted(n for n, v in reference.items() if _lost(v, candidate[n]))
        changed = bool(lost) or any(d.changed for d in differences)
        images = [
            _image_detail(r, c, d, t)
            for (r, c), d, t in zip(pairs, differences, known, strict=True)
        ]
        shown = [
            sum((count_true(t, d) for t, d in zip(truth or (), side, strict=False)), Counts())
            for side in (ours, theirs)
        ]
        before, after = every
        annotated = Annotated(tuple(truth or ()), before, after, (shown[0], shown[1]))
        against = annotated.scores(options) if truth is not None else {}
        return DetectionComparison(
            sample.id,
            {
                **ratios(counts),
                **_coco_metrics(ours, theirs, options),
                **label_order(ours, theirs),
                **against,
            },
            changed=changed,
            sensitive=not changed and any(d.sensitive for d in differences),
            detail={"decoder": head.decoder, "images": images, "nan_differs": lost},
            annotated=annotated,
        )

    def metrics(self, options: DetectionOptions) -> Sequence[str]:
        """Every metric of a summary."""
        from optvet_detection.coco import NAMES

        own = (*METRICS_OF_SHOWN, *NAMES)
        truth = [f"{side}_{name}" for side in ("reference", "candidate") for name in own]
        order = [f"label_order_top{k}" for k in RANKED]
        return ("score_agreement", *own, *order, *truth)

    def summarise(self, comparisons: Sequence[Comparison], options: DetectionOptions) -> Summary:
        """Metrics over the boxes of all images together, as COCO pools them."""
        images = [i for c in comparisons for i in c.detail["images"]]
        ours = [detections_from_detail(i["reference"]) for i in images]
        theirs = [detections_from_detail(i["candidate"]) for i in images]
        counts = sum((count(r, c) for r, c in zip(ours, theirs, strict=True)), Counts())
        metrics = {**ratios(counts), **_coco_metrics(ours, theirs, options)}
        metrics |= label_order(ours, theirs)
        parts = [c.annotated for c in comparisons if isinstance(c, DetectionComparison)]
        annotated = sum(parts, Annotated())
        if annotated.truth:
            metrics.update(annotated.scores(options))
        changed = sum(c.changed for c in comparisons)
        undecided = sum(c.sensitive for c in comparisons)
        return Summary(metrics, _headline(changed, undecided, len(comparisons), counts, metrics))


def is_detection(task: str) -> bool:
    """Whether a task is to find boxes.

    >>> is_detection("object-detection (COCO 80)"), is_detection("text-detection")
    (True, False)
    """
    words = re.sub(r"[\s_]+", "-", task.split("(")[0].split(",")[0].strip().lower())
    return _TASK.fullmatch(words) is not None


def _not_understood(outputs: Outputs, options: DetectionOptions) -> str:
    shapes = ", ".join(f"{n} {list(v.shape)}" for n, v in outputs.items())
    wanted = f"decoder {options.decoder!r}" if options.decoder else f"one of {', '.join(DECODERS)}"
    return (
        f"comparator 'detection': the outputs are {shapes}; expected {wanted}; choose another"
        " comparator or the option decoder"
    )


def _detections(
    head: Head, outputs: Outputs, options: DetectionOptions, noise: float
) -> list[Detections]:
    """What a user sees in each image of one side."""

    def shown(proposals: Proposals) -> Detections:
        return select(
            proposals,
            score_threshold=options.score_threshold,
            max_detections=options.max_detections,
            iou_threshold=options.iou_threshold if head.raw else None,
            class_agnostic=options.class_agnostic,
            noise=noise,
        )

    with np.errstate(over="ignore", invalid="ignore"):
        return [shown(p) for p in head.decode(outputs)]


def _lost(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether NaN stands on one side only; of different shapes, whether one side has it at all."""
    if ours.dtype.kind != "f" or theirs.dtype.kind != "f":
        return False
    first, second = np.isnan(ours), np.isnan(theirs)
    if ours.shape != theirs.shape:
        return bool(first.any() != second.any())
    return not np.array_equal(first, second)


def _everything(head: Head, outputs: Outputs, options: DetectionOptions) -> tuple[Detections, ...]:
    """All detections of each image, which COCO ranks by score without a least one."""
    with np.errstate(over="ignore", invalid="ignore"):
        return tuple(
            everything(
                proposals,
                max_detections=options.max_detections,
                iou_threshold=options.iou_threshold if head.raw else None,
                class_agnostic=options.class_agnostic,
            )
            for proposals in head.decode(outputs)
        )


def _coco_metrics(
    ours: Sequence[Detections], theirs: Sequence[Detections], options: DetectionOptions
) -> dict[str, float]:
    """COCO's metrics of the candidate, the reference being true; none without pycocotools."""
    from optvet_detection.coco import average_precision, is_available, truth_from_detections

    if not is_available():
        return {}
    expected = [truth_from_detections(d) for d in ours]
    return average_precision(expected, theirs, max_detections=options.max_detections)


def _headline(
    changed: int, undecided: int, samples: int, counts: Counts, metrics: Mapping[str, float]
) -> str:
    """Such as "2 of 50 images changed (mAP 0.98)"."""
    parts = []
    if not counts.reference and not counts.candidate:
        parts.append("no detections")
    elif "mAP" in metrics:
        parts.append(f"mAP {_rounded(metrics['mAP'])}")
    else:
        parts.append(f"F1 {_rounded(metrics['f1@0.5'])}; mAP needs optvet[detection]")
    if "candidate_mAP" in metrics:
        parts.append(
            f"against annotations {_rounded(metrics['candidate_mAP'])},"
            f" was {_rounded(metrics['reference_mAP'])}"
        )
    if undecided:
        parts.append(f"{undecided} undecided")
    return f"{changed} of {samples} images changed ({'; '.join(parts)})"


def _rounded(value: float) -> str:
    """Two digits or more: what is not 1 must not read 1."""
    for digits in (2, 3, 4, 6):
        text = f"{value:.{digits}f}"
        if value == 1.0 or float(text) != 1.0:
            return text
    return "0.999999"


# What a report keeps


def _image_detail(
    reference: Detections, candidate: Detections, gap: UnmatchedBoxes, truth: GroundTruth | None
) -> dict[str, Any]:
    """Both sides' boxes, and the indices of those that have no partner."""
    detail: dict[str, Any] = {
        "reference": _side_detail(reference),
        "candidate": _side_detail(candidate),
        "missing": list(gap.missing),
        "extra": list(gap.extra),
        "undecided": gap.undecided,
    }
    if truth is not None:
        detail["truth"] = {
            "boxes": truth.boxes.tolist(),
            "labels": truth.labels.tolist(),
            "crowd": truth.crowd.tolist(),
        }
    return detail


def _side_detail(side: Detections) -> dict[str, Any]:
    return {
        "boxes": side.boxes.tolist(),
        "scores": side.scores.tolist(),
        "labels": side.labels.tolist(),
        "invalid": side.invalid,
    }


@hookimpl
def optvet_comparators() -> Iterable[Comparator]:
    """The comparator "detection"."""
    return [DetectionComparator()]
