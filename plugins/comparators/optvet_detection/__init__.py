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
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

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
from optvet_detection.boxes import Detections, Proposals, everything, select
from optvet_detection.coco import (
    NAMES,
    GroundTruth,
    average_precision,
    count_true,
    is_available,
    truth_from_detections,
)
from optvet_detection.decoders import DECODERS, choose, image_size
from optvet_detection.heads import DecoderInput, Head, Outputs
from optvet_detection.matching import (
    THRESHOLDS,
    Counts,
    UnmatchedBoxes,
    count,
    detections_from_detail,
    difference,
    ratios,
)

DecoderName = Literal[
    "boxes-scores",
    "final",
    "retinanet",
    "rows",
    "yolo",
    "yolov2",
    "yolov3",
    "yolov3-grid",
    "yolov4-grid",
    "yolov5-grid",
    "yolov8",
    "yolox",
]

# Neither "text-detection", a map of pixels, nor "voice-activity detection" are boxes.
_TASK = re.compile(
    r"((object|face|person|people|pedestrian|vehicle|car|animal|hand|palm|head|plate|license-plate"
    r"|logo|product|fruit|box|bounding-box|2d)-)?detection|instance-segmentation"
)
_COCO_NUMBERS = tuple(n for n in range(1, 91) if n not in {12, 26, 29, 30, 45, 66, 68, 69, 71, 83})
_COCO_NAMES = (
    "person,bicycle,car,motorcycle,airplane,bus,train,truck,boat,traffic light,fire hydrant,"
    "stop sign,parking meter,bench,bird,cat,dog,horse,sheep,cow,elephant,bear,zebra,giraffe,"
    "backpack,umbrella,handbag,tie,suitcase,frisbee,skis,snowboard,sports ball,kite,baseball bat,"
    "baseball glove,skateboard,surfboard,tennis racket,bottle,wine glass,cup,fork,knife,spoon,bowl,"
    "banana,apple,sandwich,orange,broccoli,carrot,hot dog,pizza,donut,cake,chair,couch,"
    "potted plant,bed,dining table,toilet,tv,laptop,mouse,remote,keyboard,cell phone,microwave,"
    "oven,toaster,sink,refrigerator,book,clock,vase,scissors,teddy bear,hair drier,toothbrush"
).split(",")
"""Names of COCO's 80 categories, in the order of their ids (annotations of 2017)."""


class DetectionOptions(BaseModel):
    """Options of the comparator "detection"."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    decoder: DecoderName | None = None
    """How outputs are read; None to tell from their shapes, names and values."""
    score_threshold: float = Field(default=0.25, ge=0.0, le=1.0)
    """Least score of a box that a user sees."""
    iou_threshold: float = Field(default=0.45, ge=0.0, le=1.0)
    """Overlap beyond which suppression drops the lesser box (raw heads only)."""
    class_agnostic: bool = True
    """Whether suppression also drops boxes of other labels."""
    max_detections: int = Field(default=100, ge=1)
    """At most so many boxes per image; COCO's ``maxDets``."""
    same_iou: float = Field(default=0.9, gt=0.0, le=1.0)
    """Least overlap at which a box of the same label counts as the same box."""
    anchors: tuple[tuple[float, float], ...] | None = None
    """Widths and heights in pixels of a grid's anchors, from the finest level."""
    classes: Literal["coco"] | tuple[int | str, ...] | None = None
    """The annotations' label of each class number of the model; "coco" for COCO's category ids or
    names of a model with 80 classes; None where they are the same."""


@dataclass(frozen=True)
class Annotated:
    """Images with annotations, and all that both sides detect in them, however low it scores.

    ``shown`` compares the annotations with what a user sees of the reference and of the candidate.
    """

    truth: tuple[GroundTruth, ...] = ()
    reference: tuple[Detections, ...] = ()
    candidate: tuple[Detections, ...] = ()
    shown: tuple[Counts, Counts] = (Counts(), Counts())

    def __add__(self, other: Annotated) -> Annotated:
        return Annotated(
            self.truth + other.truth,
            self.reference + other.reference,
            self.candidate + other.candidate,
            (self.shown[0] + other.shown[0], self.shown[1] + other.shown[1]),
        )

    def scores(self, options: DetectionOptions) -> dict[str, float]:
        """Metrics of both sides against the annotations; without pycocotools not COCO's."""
        metrics: dict[str, float] = {}
        sides = (("reference", self.reference), ("candidate", self.candidate))
        for (side, found), counts in zip(sides, self.shown, strict=True):
            shown = ratios(counts)
            metrics |= {f"{side}_{name}": shown[name] for name in _OF_SHOWN}
            if is_available():
                scores = average_precision(self.truth, found, max_detections=options.max_detections)
                metrics |= {f"{side}_{name}": value for name, value in scores.items()}
        return metrics


_OF_SHOWN = ("iou", *(f"{m}@{t}" for m in ("precision", "recall", "f1") for t in THRESHOLDS))
"""What is told of the boxes that a user sees, against annotations too."""


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
        size = image_size([v.shape for v in sample.feeds.values()])
        head = choose(DecoderInput(reference, size, options.anchors), options.decoder)
        if head is None:
            raise InputError(_not_understood(reference, options))
        level = head.gain * max((noise.get(n, 0.0) for n in head.scores), default=0.0)
        ours = _detections(head, reference, options, level)
        theirs = _detections(head, candidate, options, level)
        truth = _truth(sample, options, len(ours))
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
            {**ratios(counts), **_coco_metrics(ours, theirs, options), **against},
            changed=changed,
            sensitive=not changed and any(d.sensitive for d in differences),
            detail={"decoder": head.decoder, "images": images, "nan_differs": lost},
            annotated=annotated,
        )

    def metrics(self, options: DetectionOptions) -> Sequence[str]:
        """Every metric of a summary."""
        own = (*_OF_SHOWN, *NAMES)
        truth = [f"{side}_{name}" for side in ("reference", "candidate") for name in own]
        return ("score_agreement", *own, *truth)

    def summarise(self, comparisons: Sequence[Comparison], options: DetectionOptions) -> Summary:
        """Metrics over the boxes of all images together, as COCO pools them."""
        images = [i for c in comparisons for i in c.detail["images"]]
        ours = [detections_from_detail(i["reference"]) for i in images]
        theirs = [detections_from_detail(i["candidate"]) for i in images]
        counts = sum((count(r, c) for r, c in zip(ours, theirs, strict=True)), Counts())
        metrics = {**ratios(counts), **_coco_metrics(ours, theirs, options)}
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


# Annotations


def _truth(sample: Sample, options: DetectionOptions, images: int) -> list[GroundTruth] | None:
    """Annotated boxes per image; None where the sample's label is something else.

    Raises:
        InputError: They are boxes, but not well formed.
    """
    labels = sample.label if isinstance(sample.label, list | tuple) else [sample.label]
    if not labels or not all(isinstance(x, Mapping) and "boxes" in x for x in labels):
        return None
    if len(labels) != images:
        raise InputError(
            f"comparator 'detection': sample {sample.id!r} has annotations for {len(labels)}"
            f" images, but outputs for {images}; give one mapping per image"
        )
    return [_truth_from_label(sample, x, options) for x in labels]


def _truth_from_label(
    sample: Sample, label: Mapping[str, Any], options: DetectionOptions
) -> GroundTruth:
    names = list(label.get("labels", ()))
    if options.classes is None:
        # What the dataset knows of the model's numbering; an option of ours knows better.
        names = list(label.get("numbers", names))
    try:
        boxes = np.asarray(label["boxes"], np.float64).reshape(-1, 4)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"comparator 'detection': the boxes of sample {sample.id!r} are no numbers: {error};"
            " expected rows of x, y, width, height"
        ) from error
    crowd = np.asarray(label.get("iscrowd", [0] * len(boxes)), bool)
    if not len(boxes) == len(names) == len(crowd):
        raise InputError(
            f"comparator 'detection': sample {sample.id!r} has {len(boxes)} boxes, {len(names)}"
            f" labels and {len(crowd)} crowd marks; give one of each per box"
        )
    numbers = np.array([_class_number(sample, n, options) for n in names], np.int64)
    return GroundTruth(np.hstack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]]), numbers, crowd)


def _class_number(sample: Sample, name: int | str, options: DetectionOptions) -> int:
    """The model's number of an annotated label.

    A label that the model does not know becomes a class of its own, which is never found.
    """
    classes = options.classes
    if classes == "coco":
        classes = _COCO_NUMBERS if isinstance(name, int) else tuple(_COCO_NAMES)
    if classes is not None:
        known = {label: number for number, label in enumerate(classes)}
        return known.get(name, -1)
    try:
        return int(name)
    except ValueError as error:
        raise InputError(
            f"comparator 'detection': sample {sample.id!r} is annotated with the name {name!r};"
            " give the names of the model's classes, in order, as option classes, or classes=coco"
        ) from error


@hookimpl
def optvet_comparators() -> Iterable[Comparator]:
    """The comparator "detection"."""
    return [DetectionComparator()]
