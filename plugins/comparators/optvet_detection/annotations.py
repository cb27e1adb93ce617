"""Boxes that a sample is annotated with, and how both sides score against them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from optvet.plugin import InputError, Sample
from optvet_detection.boxes import Detections
from optvet_detection.coco import GroundTruth, average_precision, is_available
from optvet_detection.matching import THRESHOLDS, Counts, ratios
from optvet_detection.options import DetectionOptions

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
            metrics |= {f"{side}_{name}": shown[name] for name in METRICS_OF_SHOWN}
            if is_available():
                scores = average_precision(self.truth, found, max_detections=options.max_detections)
                metrics |= {f"{side}_{name}": value for name, value in scores.items()}
        return metrics


METRICS_OF_SHOWN = ("iou", *(f"{m}@{t}" for m in ("precision", "recall", "f1") for t in THRESHOLDS))
"""What is told of the boxes that a user sees, against annotations too."""


def truth_of(sample: Sample, options: DetectionOptions, images: int) -> list[GroundTruth] | None:
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
