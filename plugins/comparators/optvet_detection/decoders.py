"""From a model's outputs to proposals: one decoder for each form of detection head.

A decoder looks at the reference's outputs once and answers with a ``Head``, or None if they are
not of its form. All that must be guessed from values (are these logits? are these boxes
normalised?) is guessed there, from the reference, and holds for both sides: a candidate that
leaves the range shall not be read by another rule.

``DECODERS`` is ordered from the particular to the general; the first that fits is taken. Boxes
come out in pixels of the model's input where its size is known, else in the head's own units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from optvet_detection.anchor_rows import yolo, yolov8, yolox
from optvet_detection.boxes import Array, Proposals
from optvet_detection.grids import (
    retinanet,
    yolov2,
    yolov3_grid,
    yolov4_grid,
    yolov5_grid,
)
from optvet_detection.heads import (
    LARGEST_BATCH,
    Decoder,
    DecoderInput,
    Head,
    Outputs,
    Size,
    are_logits,
    expit,
    float_outputs,
    softmax,
    unit_of,
    widen,
)


def _bare(name: str) -> str:
    """A name without scope and number, in lower case: ``a/detection_boxes:0`` → the last part."""
    return name.lower().split("/")[-1].split(":")[0]


def _named(names: Sequence[str], *words: str) -> str | None:
    """The only one of ``names`` that holds one of ``words``."""
    hits = [n for n in names if any(w in _bare(n) for w in words)]
    return hits[0] if len(hits) == 1 else None


# Heads that have chosen and suppressed already


def final(inputs: DecoderInput) -> Head | None:
    """Boxes, labels and scores with suppression inside.

    Boxes [k, 4] or [n, k, 4], labels and scores [k] or [n, k]: the SSD and Faster/Mask R-CNN of
    the ONNX model zoo, torchvision's detectors, and TensorFlow's ``detection_boxes`` (top, left,
    bottom, right), where ``num_detections`` [n] tells how many rows are meant.
    """
    roles = _final_roles(inputs.outputs)
    if roles is None:
        return None
    boxes, labels, scores, number = roles
    top_first = "detection_boxes" in _bare(boxes)
    unit = unit_of(inputs.outputs[boxes], inputs.size)

    def decode(outputs: Outputs) -> list[Proposals]:
        b = widen(outputs[boxes])
        b = b.reshape(1, *b.shape) if b.ndim == 2 else b
        b = b[..., [1, 0, 3, 2]] if top_first else b
        s = widen(outputs[scores]).reshape(b.shape[:2])
        c = _labels(outputs[labels]).reshape(b.shape[:2])
        rows = [b.shape[1]] * len(b)
        if number is not None:
            counts = np.nan_to_num(widen(outputs[number]).ravel(), nan=0.0, posinf=b.shape[1])
            rows = np.clip(counts, 0, b.shape[1]).astype(int).tolist()
        return [Proposals(b[i, :k] * unit, s[i, :k], c[i, :k]) for i, k in enumerate(rows)]

    sure = 0.85 if _named([boxes], "box", "bbox") and _named([scores], "score", "conf") else 0.5
    return Head("final", decode, False, (scores,), 1.0, sure)


def _labels(value: Array) -> Array:
    """Labels as integers; what is no number becomes -1."""
    if value.dtype.kind in "iu":
        return np.asarray(value, np.int64)
    known = np.where(np.abs(widen(value)) < 2**31, widen(value), -1.0)
    return np.asarray(np.rint(known), np.int64)


def _final_roles(outputs: Outputs) -> tuple[str, str, str, str | None] | None:
    """Which outputs are boxes, labels, scores and their number."""
    for boxes, value in float_outputs(outputs).items():
        if value.ndim not in (2, 3) or value.shape[-1] != 4:
            continue
        rows = {n: v for n, v in outputs.items() if v.shape == value.shape[:-1]}
        floats, whole = (
            list(float_outputs(rows)),
            [n for n, v in rows.items() if v.dtype.kind in "iu"],
        )
        scores = floats[0] if len(floats) == 1 else _named(floats, "score", "conf")
        kinds = [n for n in whole + floats if n != scores]
        labels = kinds[0] if len(kinds) == 1 else _named(kinds, "label", "class", "cls")
        if scores is None or labels is None or scores == labels:
            continue
        images = 1 if value.ndim == 2 else value.shape[0]
        number = _named(
            [n for n, v in outputs.items() if v.size == images and n not in rows], "num"
        )
        return boxes, labels, scores, number
    return None


def rows(inputs: DecoderInput) -> Head | None:
    """One row per box, with suppression inside.

    [n, k, 6] left, top, right, bottom, score, label (YOLOv10 and other end-to-end exports);
    [k, 7] image, left, top, right, bottom, label, score (YOLOv7's end-to-end export);
    [1, 1, k, 7] image, label, score, left, top, right, bottom (Caffe's and OpenVINO's
    DetectionOutput, normalised).
    """
    if len(inputs.outputs) != 1:
        return None
    ((name, value),) = inputs.outputs.items()
    columns = _row_columns(value)
    if columns is None:
        return None
    image, box, score, label = columns
    flat = widen(value).reshape(-1, value.shape[-1])
    unit = unit_of(flat[:, box], inputs.size)
    images = 1 if image is None else int(np.nan_to_num(flat[:, image]).max(initial=0)) + 1

    def decode(outputs: Outputs) -> list[Proposals]:
        table = widen(outputs[name])
        parts = list(table) if image is None else _by_image(table, image, images)
        return [Proposals(p[:, box] * unit, p[:, score], _labels(p[:, label])) for p in parts]

    return Head("rows", decode, False, (name,), 1.0, 0.6)


def _row_columns(value: Array) -> tuple[int | None, list[int], int, int] | None:
    """Columns of image, box, score and label; None if these are no such rows."""
    if value.dtype.kind != "f" or value.size == 0 or value.ndim < 2:
        return None
    flat = widen(value).reshape(-1, value.shape[-1])
    if value.ndim == 3 and value.shape[-1] == 6 and value.shape[1] <= 1000:
        columns: tuple[int | None, list[int], int, int] = (None, [0, 1, 2, 3], 4, 5)
    elif value.ndim == 2 and value.shape[-1] == 7:
        columns = (0, [1, 2, 3, 4], 6, 5)
    elif value.ndim == 4 and value.shape[:2] == (1, 1) and value.shape[-1] == 7:
        columns = (0, [3, 4, 5, 6], 2, 1)
    else:
        return None
    whole = flat[:, [c for c in (columns[0], columns[3]) if c is not None]]
    with np.errstate(invalid="ignore"):
        fits = np.isnan(whole) | (whole == np.rint(whole))
        numbered = columns[0] is None or not (flat[:, columns[0]] > LARGEST_BATCH).any()
    return None if not fits.all() or not numbered or are_logits(flat[:, columns[2]]) else columns


def _by_image(table: Array, image: int, images: int) -> list[Array]:
    """Rows per image; a negative image number ends the list, as DetectionOutput pads."""
    flat = table.reshape(-1, table.shape[-1])
    return [flat[flat[:, image] == i] for i in range(images)]


def yolov3(inputs: DecoderInput) -> Head | None:
    """YOLOv3 of the ONNX model zoo, tiny too: candidates and what suppression chose of them.

    Boxes [n, p, 4] (top, left, bottom, right, in pixels), scores [n, classes, p], and rows of
    image, class, box: [k, 3] or [1, k, 3], padded with -1.
    """
    whole = [n for n, v in inputs.outputs.items() if v.dtype.kind in "iu" and v.shape[-1:] == (3,)]
    boxes = [n for n, v in float_outputs(inputs.outputs, 3).items() if v.shape[-1] == 4]
    if len(whole) != 1 or len(boxes) != 1:
        return None
    chosen, box = whole[0], boxes[0]
    p = inputs.outputs[box].shape[1]
    rest = [n for n, v in float_outputs(inputs.outputs, 3).items() if n != box and v.shape[-1] == p]
    if len(rest) != 1:
        return None
    score = rest[0]
    unit = unit_of(inputs.outputs[box], inputs.size)

    def decode(outputs: Outputs) -> list[Proposals]:
        b, s = widen(outputs[box])[..., [1, 0, 3, 2]] * unit, widen(outputs[score])
        index = outputs[chosen].reshape(-1, 3).astype(np.int64)
        # A broken candidate may point anywhere.
        limits = np.array([b.shape[0], s.shape[1], b.shape[1]])
        index = index[((index >= 0) & (index < limits)).all(axis=1)]
        per_image = [index[index[:, 0] == i] for i in range(len(b))]
        return [
            Proposals(b[i, r[:, 2]], s[i, r[:, 1], r[:, 2]], r[:, 1])
            for i, r in enumerate(per_image)
        ]

    return Head("yolov3", decode, False, (score,), 1.0, 0.85)


# Heads with one row per anchor, boxes decoded


def boxes_scores(inputs: DecoderInput) -> Head | None:
    """Candidates without suppression: boxes [n, p, 4] and class scores [n, p, classes].

    UltraFace and SSD: corners, and a soft-max whose first column is the background. Boxes
    [n, p, 1, 4] beside [n, p, classes] are those of pytorch-YOLOv4, without a background. A
    background is assumed where every row of scores sums to 1. Offsets from priors, and DETR's
    centres (``pred_boxes``), are not of this form.
    """
    if len(inputs.outputs) != 2:
        return None
    four = [
        n for n, v in float_outputs(inputs.outputs).items() if v.ndim in (3, 4) and v.shape[-1] == 4
    ]
    boxes = _named(four, "box", "loc") if len(four) == 2 else four[0] if four else None
    if boxes is None:
        return None
    value = inputs.outputs[boxes]
    (scores,) = (n for n in inputs.outputs if n != boxes)
    table = inputs.outputs[scores]
    if table.dtype.kind != "f" or table.ndim != 3 or table.shape[:2] != value.shape[:2]:
        return None
    if value.ndim == 4 and value.shape[2] != 1:
        return None
    if not _look_like_corners(value) or "pred_boxes" in _bare(boxes):
        return None
    logits = are_logits(table)
    finite = widen(table)[np.isfinite(table).all(axis=-1)]
    sums = bool(np.allclose(finite.sum(axis=-1), 1.0, atol=1e-3)) if finite.size else True
    background = value.ndim == 3 and table.shape[-1] > 1 and (logits or sums)
    unit = unit_of(value, inputs.size)

    def decode(outputs: Outputs) -> list[Proposals]:
        b = widen(outputs[boxes]).reshape(value.shape[0], -1, 4) * unit
        s = widen(outputs[scores])
        if logits:
            with np.errstate(invalid="ignore"):
                s = np.asarray(softmax(s, axis=-1)) if background else np.asarray(expit(s))
        if background:
            # Labels stay the model's own: its first column is no object, whatever its score.
            s = np.concatenate([np.where(np.isfinite(s[..., :1]), -1.0, s[..., :1]), s[..., 1:]], 2)
        return [Proposals(x, y) for x, y in zip(b, s, strict=True)]

    named = _named([boxes], "box", "bbox", "loc") and _named([scores], "score", "conf", "cls")
    sure = 0.0 if value.shape[1] < 32 else 0.8 if named else 0.3 if inputs.size else 0.0
    return Head("boxes-scores", decode, True, (scores,), 1.0, sure)


def _look_like_corners(boxes: Array) -> bool:
    """Whether most boxes have their second corner right of and below the first."""
    flat = widen(boxes).reshape(-1, 4)
    flat = flat[np.isfinite(flat).all(axis=1)]
    return not len(flat) or bool(np.mean((flat[:, 2:] >= flat[:, :2]).all(axis=1)) > 0.5)


DECODERS: Mapping[str, Decoder] = {
    "yolov3": yolov3,
    "final": final,
    "rows": rows,
    "boxes-scores": boxes_scores,
    "yolox": yolox,
    "yolo": yolo,
    "yolov8": yolov8,
    "retinanet": retinanet,
    "yolov4-grid": yolov4_grid,
    "yolov5-grid": yolov5_grid,
    "yolov3-grid": yolov3_grid,
    "yolov2": yolov2,
}
"""By name, the particular before the general."""


def choose(inputs: DecoderInput, wanted: str | None = None) -> Head | None:
    """The head that reads these outputs: that of decoder ``wanted``, or the first that fits."""
    if not inputs.outputs or any(not isinstance(v, np.ndarray) for v in inputs.outputs.values()):
        return None
    tried = DECODERS.values() if wanted is None else [DECODERS[wanted]]
    heads: Any = (decoder(inputs) for decoder in tried)
    # What is guessed from sums of the largest numbers may be wrong, but must not warn.
    with np.errstate(over="ignore", invalid="ignore"):
        return next((head for head in heads if head is not None), None)


def image_size(shapes: Sequence[Sequence[Any] | None]) -> Size | None:
    """Height and width of the first shape that is that of images.

    [n, c, h, w], [n, h, w, c] or [c, h, w] with one, three or four channels; None if there is none
    or a side is unknown.
    """
    for shape in shapes:
        if shape is None or len(shape) not in (3, 4):
            continue
        tail = shape[-3:]
        for channel, sides in ((tail[0], tail[1:]), (tail[2], tail[:2])):
            if channel in (1, 3, 4) and all(isinstance(s, int) and s >= 8 for s in sides):
                return int(sides[0]), int(sides[1])
    return None
