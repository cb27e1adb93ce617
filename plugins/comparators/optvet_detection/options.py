"""Options of the comparator "detection"."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

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
