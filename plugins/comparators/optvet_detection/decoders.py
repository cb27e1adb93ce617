"""From a model's outputs to proposals: one decoder for each form of detection head.

A decoder looks at the reference's outputs once and answers with a ``Head``, or None if they are
not of its form. All that must be guessed from values (are these logits? are these boxes
normalised?) is guessed there, from the reference, and holds for both sides: a candidate that
leaves the range shall not be read by another rule.

``DECODERS`` is ordered from the particular to the general; the first that fits is taken. Boxes
come out in pixels of the model's input where its size is known, else in the head's own units.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from optvet_detection.boxes import Array, Proposals

Outputs = Mapping[str, Array]
Size = tuple[int, int]
"""Height and width of the model's input."""

LARGEST_NORMALISED = 2.0
"""Boxes in units of the image may lie somewhat outside of it, but not by a whole image more."""
LARGEST_BATCH = 4096
"""Images in a batch; what has a larger number in its column of images is something else."""
LARGEST_EXPONENT = 80.0
"""Sides grow by at most e^80; beyond, the box is no box, and the exponential no number."""


def expit(value: Array) -> Array:
    """Logistic function; scipy is imported here, because every command loads every plugin."""
    from scipy import special

    return np.asarray(special.expit(value))


def softmax(value: Array, axis: int) -> Array:
    """Softmax along ``axis``."""
    from scipy import special

    return np.asarray(special.softmax(value, axis=axis))


@dataclass(frozen=True)
class DecoderInput:
    """What a decoder may look at.

    Attributes:
        outputs: The reference's, by name.
        size: Height and width of the input image, if known.
        anchors: Widths and heights in pixels in the head's order; None for the published ones.
    """

    outputs: Outputs
    size: Size | None = None
    anchors: Sequence[tuple[float, float]] | None = None


@dataclass(frozen=True)
class Head:
    """How to read outputs of one form.

    Attributes:
        decoder: Its name in ``DECODERS``.
        decode: Outputs to proposals, per image.
        raw: Whether suppression is left to the caller.
        scores: Outputs that the scores come from.
        gain: Largest error of a score per unit of error in those outputs.
        certainty: How sure it is, below 0.9, that these outputs are detections at all.
    """

    decoder: str
    decode: Callable[[Outputs], list[Proposals]]
    raw: bool
    scores: tuple[str, ...]
    gain: float
    certainty: float


Decoder = Callable[[DecoderInput], "Head | None"]


# What heads have in common


def corners(boxes: Array) -> Array:
    """Left, top, right, bottom of boxes [..., 4] given as centre x, centre y, width, height."""
    half = boxes[..., 2:] / 2
    return np.concatenate([boxes[..., :2] - half, boxes[..., :2] + half], axis=-1)


def _wide(value: Array) -> Array:
    return np.asarray(value, np.float64)


def _are_logits(value: Array) -> bool:
    """Whether these cannot be probabilities."""
    finite = value[np.isfinite(value)]
    return bool(finite.size and (finite.min() < -0.01 or finite.max() > 1.01))


def _probability(value: Array, logits: bool) -> Array:
    return np.asarray(expit(value)) if logits else value


def _growth(value: Array) -> Array:
    return np.asarray(np.exp(np.clip(value, -LARGEST_EXPONENT, LARGEST_EXPONENT)))


def _unit(boxes: Array, size: Size | None) -> Array:
    """What boxes are multiplied with to be in pixels: the image's sides, if they are normalised."""
    finite = np.abs(boxes[np.isfinite(boxes)])
    if size is None or not finite.size or finite.max() > LARGEST_NORMALISED:
        return np.ones(4)
    return np.array([size[1], size[0]] * 2, np.float64)


def _floats(outputs: Outputs, rank: int | None = None) -> dict[str, Array]:
    return {
        n: v for n, v in outputs.items() if v.dtype.kind == "f" and (rank is None or v.ndim == rank)
    }


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
    unit = _unit(inputs.outputs[boxes], inputs.size)

    def decode(outputs: Outputs) -> list[Proposals]:
        b = _wide(outputs[boxes])
        b = b.reshape(1, *b.shape) if b.ndim == 2 else b
        b = b[..., [1, 0, 3, 2]] if top_first else b
        s = _wide(outputs[scores]).reshape(b.shape[:2])
        c = _labels(outputs[labels]).reshape(b.shape[:2])
        rows = [b.shape[1]] * len(b)
        if number is not None:
            counts = np.nan_to_num(_wide(outputs[number]).ravel(), nan=0.0, posinf=b.shape[1])
            rows = np.clip(counts, 0, b.shape[1]).astype(int).tolist()
        return [Proposals(b[i, :k] * unit, s[i, :k], c[i, :k]) for i, k in enumerate(rows)]

    sure = 0.85 if _named([boxes], "box", "bbox") and _named([scores], "score", "conf") else 0.5
    return Head("final", decode, False, (scores,), 1.0, sure)


def _labels(value: Array) -> Array:
    """Labels as integers; what is no number becomes -1."""
    if value.dtype.kind in "iu":
        return np.asarray(value, np.int64)
    known = np.where(np.abs(_wide(value)) < 2**31, _wide(value), -1.0)
    return np.asarray(np.rint(known), np.int64)


def _final_roles(outputs: Outputs) -> tuple[str, str, str, str | None] | None:
    """Which outputs are boxes, labels, scores and their number."""
    for boxes, value in _floats(outputs).items():
        if value.ndim not in (2, 3) or value.shape[-1] != 4:
            continue
        rows = {n: v for n, v in outputs.items() if v.shape == value.shape[:-1]}
        floats, whole = list(_floats(rows)), [n for n, v in rows.items() if v.dtype.kind in "iu"]
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
    flat = _wide(value).reshape(-1, value.shape[-1])
    unit = _unit(flat[:, box], inputs.size)
    images = 1 if image is None else int(np.nan_to_num(flat[:, image]).max(initial=0)) + 1

    def decode(outputs: Outputs) -> list[Proposals]:
        table = _wide(outputs[name])
        parts = list(table) if image is None else _by_image(table, image, images)
        return [Proposals(p[:, box] * unit, p[:, score], _labels(p[:, label])) for p in parts]

    return Head("rows", decode, False, (name,), 1.0, 0.6)


def _row_columns(value: Array) -> tuple[int | None, list[int], int, int] | None:
    """Columns of image, box, score and label; None if these are no such rows."""
    if value.dtype.kind != "f" or value.size == 0 or value.ndim < 2:
        return None
    flat = _wide(value).reshape(-1, value.shape[-1])
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
    return None if not fits.all() or not numbered or _are_logits(flat[:, columns[2]]) else columns


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
    boxes = [n for n, v in _floats(inputs.outputs, 3).items() if v.shape[-1] == 4]
    if len(whole) != 1 or len(boxes) != 1:
        return None
    chosen, box = whole[0], boxes[0]
    p = inputs.outputs[box].shape[1]
    rest = [n for n, v in _floats(inputs.outputs, 3).items() if n != box and v.shape[-1] == p]
    if len(rest) != 1:
        return None
    score = rest[0]
    unit = _unit(inputs.outputs[box], inputs.size)

    def decode(outputs: Outputs) -> list[Proposals]:
        b, s = _wide(outputs[box])[..., [1, 0, 3, 2]] * unit, _wide(outputs[score])
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
    four = [n for n, v in _floats(inputs.outputs).items() if v.ndim in (3, 4) and v.shape[-1] == 4]
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
    logits = _are_logits(table)
    finite = _wide(table)[np.isfinite(table).all(axis=-1)]
    sums = bool(np.allclose(finite.sum(axis=-1), 1.0, atol=1e-3)) if finite.size else True
    background = value.ndim == 3 and table.shape[-1] > 1 and (logits or sums)
    unit = _unit(value, inputs.size)

    def decode(outputs: Outputs) -> list[Proposals]:
        b = _wide(outputs[boxes]).reshape(value.shape[0], -1, 4) * unit
        s = _wide(outputs[scores])
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
    flat = _wide(boxes).reshape(-1, 4)
    flat = flat[np.isfinite(flat).all(axis=1)]
    return not len(flat) or bool(np.mean((flat[:, 2:] >= flat[:, :2]).all(axis=1)) > 0.5)


def _cells(size: Size, strides: Sequence[int]) -> tuple[Array, Array]:
    """Column and row of every cell [p, 2], level by level, and its stride [p, 1]."""
    grids, steps = [], []
    for stride in strides:
        y, x = np.mgrid[: size[0] // stride, : size[1] // stride]
        grids.append(np.stack([x.ravel(), y.ravel()], axis=1))
        steps.append(np.full((x.size, 1), stride))
    return np.concatenate(grids).astype(np.float64), np.concatenate(steps).astype(np.float64)


def _grid_strides(size: Size | None, count: int) -> tuple[int, ...] | None:
    """Strides whose cells make ``count`` proposals, if there are such."""
    for strides in ((8, 16, 32), (8, 16, 32, 64), (16, 32)):
        if size and sum((size[0] // s) * (size[1] // s) for s in strides) == count:
            return strides
    return None


def yolox(inputs: DecoderInput) -> Head | None:
    """YOLOX: [n, p, 5 + classes], one row per cell: offset, log size, objectness, class scores.

    centre = (offset + cell) * stride, size = exp(log size) * stride, for strides 8, 16, 32
    (Ge et al. 2021, "YOLOX", and its ``demo_postprocess``). Exports that did this in the graph are
    told by centres that spread over the image.
    """
    single = _single(inputs)
    if single is None or single[1].shape[2] < 6:
        return None
    name, value = single
    strides = _grid_strides(inputs.size, value.shape[1])
    if strides is None or inputs.size is None:
        return None
    grid, step = _cells(inputs.size, strides)
    centres = value[..., :2][np.isfinite(value[..., :2])]
    encoded = not centres.size or float(np.median(np.abs(centres))) < min(inputs.size) / 8
    logits = _are_logits(value[..., 4:])

    def decode(outputs: Outputs) -> list[Proposals]:
        v = _wide(outputs[name])
        xy, wh = v[..., :2], v[..., 2:4]
        if encoded:
            xy, wh = (xy + grid) * step, _growth(wh) * step
        return _objects(np.concatenate([xy, wh], axis=-1), v[..., 4:], logits)

    return Head("yolox", decode, True, (name,), 2.0, 0.8)


def _single(inputs: DecoderInput) -> tuple[str, Array] | None:
    """The only output, or the one beside mask prototypes, if it is a table of floats."""
    tables = _floats(inputs.outputs, 3)
    others = [v for n, v in inputs.outputs.items() if n not in tables]
    if len(tables) != 1 or len(others) > 1 or any(v.ndim != 4 for v in others):
        return None
    return next(iter(tables.items()))


def _mask_columns(inputs: DecoderInput) -> int:
    """Coefficients per box of the mask prototypes [n, m, h, w] that segmenting YOLOs add."""
    prototypes = _floats(inputs.outputs, 4)
    return next(iter(prototypes.values())).shape[1] if prototypes else 0


def _objects(boxes: Array, rest: Array, logits: bool) -> list[Proposals]:
    """Proposals from centre boxes, and objectness followed by class scores."""
    p = _probability(rest, logits)
    return [Proposals(b, s) for b, s in zip(corners(boxes), p[..., :1] * p[..., 1:], strict=True)]


def yolo(inputs: DecoderInput) -> Head | None:
    """YOLOv5 and v7: [n, p, 5 + classes], centre, size, objectness and class scores, decoded."""
    single = _single(inputs)
    if single is None:
        return None
    name, value = single
    end = value.shape[2] - _mask_columns(inputs)
    if end < 6 or value.shape[1] <= value.shape[2]:
        return None
    unit, logits = _unit(value[..., :4], inputs.size), _are_logits(value[..., 4:end])

    def decode(outputs: Outputs) -> list[Proposals]:
        v = _wide(outputs[name])
        return _objects(v[..., :4] * unit, v[..., 4:end], logits)

    count = value.shape[1] // 3 if value.shape[1] % 3 == 0 else 0
    sure = 0.75 if _grid_strides(inputs.size, count) else 0.0
    return Head("yolo", decode, True, (name,), 2.0, sure)


def yolov8(inputs: DecoderInput) -> Head | None:
    """YOLOv8, v9 and v11: [n, 4 + classes, p], centre, size and class scores, decoded."""
    single = _single(inputs)
    if single is None:
        return None
    name, value = single
    end = value.shape[1] - _mask_columns(inputs)
    if end < 5 or value.shape[2] <= value.shape[1]:
        return None
    unit, logits = _unit(value[:, :4], inputs.size), _are_logits(value[:, 4:end])

    def decode(outputs: Outputs) -> list[Proposals]:
        v = _wide(outputs[name]).transpose(0, 2, 1)
        boxes, scores = corners(v[..., :4] * unit), _probability(v[..., 4:end], logits)
        return [Proposals(b, s) for b, s in zip(boxes, scores, strict=True)]

    sure = 0.75 if _grid_strides(inputs.size, value.shape[2]) else 0.0
    return Head("yolov8", decode, True, (name,), 1.0, sure)


# Heads that are grids with anchors

VOC_ANCHORS = ((1.08, 1.19), (3.42, 4.41), (6.63, 11.38), (9.42, 5.11), (16.62, 10.52))
"""YOLOv2-tiny on Pascal VOC, in cells (darknet's yolov2-tiny-voc.cfg)."""
COCO_ANCHORS = (
    (0.57273, 0.677385),
    (1.87446, 2.06253),
    (3.33843, 5.47434),
    (7.88282, 3.52778),
    (9.77052, 9.16828),
)
"""YOLOv2 on COCO, in cells (darknet's yolov2.cfg)."""
YOLOV3_ANCHORS = (
    *((10, 13), (16, 30), (33, 23)),
    *((30, 61), (62, 45), (59, 119)),
    *((116, 90), (156, 198), (373, 326)),
)
"""YOLOv3 and YOLOv5, in pixels, from the finest level."""
YOLOV3_TINY_ANCHORS = ((23, 27), (37, 58), (81, 82), (81, 82), (135, 169), (344, 319))
"""YOLOv3-tiny as darknet uses them: masks 1, 2, 3 and 3, 4, 5."""
YOLOV4_ANCHORS = (
    *((12, 16), (19, 36), (40, 28)),
    *((36, 75), (76, 55), (72, 146)),
    *((142, 110), (192, 243), (459, 401)),
)
"""YOLOv4, in pixels, from the finest level."""
YOLOV4_SCALES = {8: 1.2, 16: 1.1, 32: 1.05}
"""How far a YOLOv4 centre may leave its cell, by stride."""


def _places(height: int, width: int) -> Array:
    """Column and row of every cell: [height, width, 1, 2]."""
    y, x = np.mgrid[:height, :width]
    return np.asarray(np.stack([x, y], axis=-1)[:, :, None, :].astype(np.float64))


def yolov2(inputs: DecoderInput) -> Head | None:
    """YOLOv2: [n, anchors * (5 + classes), h, w] with five anchors, as the zoo's tiny YOLOv2.

    centre = (sigmoid(t) + cell) * stride, size = anchor * exp(t), score = sigmoid(objectness) *
    soft-max(classes) (Redmon and Farhadi 2017, "YOLO9000", section 2).
    """
    grids = _floats(inputs.outputs, 4)
    if len(inputs.outputs) != 1 or len(grids) != 1:
        return None
    name, value = next(iter(grids.items()))
    anchors_given = inputs.anchors and [(w, h) for w, h in inputs.anchors]
    count = len(anchors_given) if anchors_given else 5
    n, channels, height, width = value.shape
    if channels % count or channels // count < 6 or min(height, width) < 2:
        return None
    stride = inputs.size[0] / height if inputs.size else 32.0
    published = VOC_ANCHORS if channels // count == 25 else COCO_ANCHORS
    pixels = np.array(anchors_given or [(w * stride, h * stride) for w, h in published])

    def decode(outputs: Outputs) -> list[Proposals]:
        v = _wide(outputs[name]).reshape(n, count, -1, height, width).transpose(0, 3, 4, 1, 2)
        xy = (expit(v[..., :2]) + _places(height, width)) * stride
        boxes = corners(np.concatenate([xy, _growth(v[..., 2:4]) * pixels], axis=-1))
        with np.errstate(invalid="ignore"):
            scores = expit(v[..., 4:5]) * softmax(v[..., 5:], axis=-1)
        return _flat([boxes], [scores])

    sure = 0.7 if channels in (125, 425) and inputs.size == (height * 32, width * 32) else 0.0
    return Head("yolov2", decode, True, (name,), 1.0, sure)


def _flat(boxes: Sequence[Array], scores: Sequence[Array]) -> list[Proposals]:
    """Proposals per image from one array per level: [n, …, 4] and [n, …, classes]."""
    n = len(boxes[0])
    b = np.concatenate([x.reshape(n, -1, 4) for x in boxes], axis=1)
    s = np.concatenate([x.reshape(n, -1, x.shape[-1]) for x in scores], axis=1)
    return [Proposals(x, y) for x, y in zip(b, s, strict=True)]


@dataclass(frozen=True)
class _Level:
    """One grid of a YOLO with three anchors a cell, and how to bring it to [n, h, w, 3, 5 + c]."""

    name: str
    arrange: Callable[[Array], Array]
    height: int
    width: int
    columns: int


def _level(name: str, value: Array, anchor_axis: int) -> _Level | None:
    """One grid, whose anchors are an axis of their own (rank 5) or lie in the channels (rank 4)."""
    if value.ndim == 5:
        if value.shape[anchor_axis] != 3 or value.shape[4] < 6:
            return None
        if anchor_axis == 3:
            return _Level(name, lambda v: v, value.shape[1], value.shape[2], value.shape[4])
        return _Level(name, _anchors_last, value.shape[2], value.shape[3], value.shape[4])
    for axis, arrange in ((1, _channels_first), (3, _channels_last)):
        channels = value.shape[axis]
        if channels % 3 == 0 and channels // 3 >= 6:
            height, width = value.shape[2:] if axis == 1 else value.shape[1:3]
            return _Level(name, arrange, height, width, channels // 3)
    return None


def _anchors_last(value: Array) -> Array:
    return value.transpose(0, 2, 3, 1, 4)


def _channels_first(value: Array) -> Array:
    n, _, height, width = value.shape
    return value.reshape(n, 3, -1, height, width).transpose(0, 3, 4, 1, 2)


def _channels_last(value: Array) -> Array:
    n, height, width, _ = value.shape
    return value.reshape(n, height, width, 3, -1)


def _levels(inputs: DecoderInput, anchor_axis: int) -> list[_Level] | None:
    """Two or three grids, each half as fine as the one before; None if the outputs are not that."""
    floats = {n: v for n, v in _floats(inputs.outputs).items() if v.ndim in (4, 5)}
    found = [_level(n, v, anchor_axis) for n, v in floats.items()]
    levels = sorted((x for x in found if x is not None), key=lambda x: -x.height)
    if len(levels) != len(inputs.outputs) or len(levels) not in (2, 3):
        return None
    halves = all(a.height == 2 * b.height for a, b in itertools.pairwise(levels))
    return levels if halves and len({x.columns for x in levels}) == 1 else None


def _anchored(
    inputs: DecoderInput,
    name: str,
    published: Sequence[tuple[float, float]] | None,
    certainty: float,
) -> Head | None:
    """A head of two or three grids, decoded by the rule of the YOLO called ``name``."""
    # A coarse grid may be three cells wide: the axis of the anchors is the name's, not the shape's.
    levels = _levels(inputs, 1 if name == "yolov5-grid" else 3)
    if levels is None:
        return None
    tiny = len(levels) == 2
    anchors = inputs.anchors or (YOLOV3_TINY_ANCHORS if tiny else published)
    if anchors is None or len(anchors) != 3 * len(levels):
        return None
    pixels = np.array(anchors, np.float64).reshape(len(levels), 3, 2)
    default = (16.0, 32.0) if tiny else (8.0, 16.0, 32.0)
    first = {x.name: inputs.outputs[x.name] for x in levels}
    logits = any(_are_logits(x.arrange(first[x.name])[..., 4:]) for x in levels)

    def decode(outputs: Outputs) -> list[Proposals]:
        boxes, scores = [], []
        for number, level in enumerate(levels):
            stride = inputs.size[0] / level.height if inputs.size else default[number]
            v = level.arrange(_wide(outputs[level.name]))
            boxes.append(corners(_place(name, v[..., :4], level, stride, pixels[number])))
            p = _probability(v[..., 4:], logits)
            scores.append(p[..., :1] * p[..., 1:])
        return _flat(boxes, scores)

    names = tuple(x.name for x in levels)
    return Head(name, decode, True, names, 0.5 if logits else 2.0, certainty)


def _place(name: str, t: Array, level: _Level, stride: float, anchors: Array) -> Array:
    """Centre boxes in pixels from what a grid says: [n, h, w, 3, 4]."""
    cell, inside = _places(level.height, level.width), expit(t[..., :2])
    if name == "yolov5-grid":
        return np.concatenate(
            [(2 * inside - 0.5 + cell) * stride, (2 * expit(t[..., 2:])) ** 2 * anchors], axis=-1
        )
    if name == "yolov4-grid":
        scale = YOLOV4_SCALES.get(round(stride), 1.0)
        inside = inside * scale - 0.5 * (scale - 1)
    return np.concatenate([(inside + cell) * stride, _growth(t[..., 2:]) * anchors], axis=-1)


def yolov3_grid(inputs: DecoderInput) -> Head | None:
    """YOLOv3 before decoding: grids [n, 3 * (5 + classes), h, w] or [n, h, w, 3 * (5 + classes)].

    centre = (sigmoid(t) + cell) * stride, size = anchor * exp(t) (Redmon and Farhadi 2018).
    """
    if any(v.ndim != 4 for v in inputs.outputs.values()):
        return None
    return _anchored(inputs, "yolov3-grid", YOLOV3_ANCHORS, 0.6 if _is_published(inputs) else 0.0)


def yolov4_grid(inputs: DecoderInput) -> Head | None:
    """YOLOv4 of the ONNX model zoo: grids [n, h, w, 3, 5 + classes] for strides 8, 16 and 32.

    centre = (sigmoid(t) * s - (s - 1) / 2 + cell) * stride with s = 1.2, 1.1, 1.05, size = anchor *
    exp(t); scores are probabilities already (the zoo's post-processing).
    """
    if any(v.ndim != 5 or v.shape[3] != 3 for v in inputs.outputs.values()):
        return None
    return _anchored(inputs, "yolov4-grid", YOLOV4_ANCHORS, 0.8)


def yolov5_grid(inputs: DecoderInput) -> Head | None:
    """YOLOv5 and v7 before decoding: grids [n, 3, h, w, 5 + classes] for strides 8, 16 and 32.

    centre = (2 sigmoid(t) - 1/2 + cell) * stride, size = anchor * (2 sigmoid(t))^2 (ultralytics).
    """
    if any(v.ndim != 5 or v.shape[1] != 3 for v in inputs.outputs.values()):
        return None
    return _anchored(inputs, "yolov5-grid", YOLOV3_ANCHORS, 0.8)


def _is_published(inputs: DecoderInput) -> bool:
    """Whether there are 255 channels, 80 classes, at strides 8, 16 and 32."""
    heights = sorted({v.shape[2] for v in inputs.outputs.values() if v.shape[1:2] == (255,)})
    return bool(inputs.size) and len(heights) == len(inputs.outputs) and len(heights) in (2, 3)


def retinanet(inputs: DecoderInput) -> Head | None:
    """RetinaNet's heads: per level, classes [n, 9 * classes, h, w] and boxes [n, 36, h, w].

    Anchors have sides 4 * stride * 2^(0, 1/3, 2/3) and ratios 1, 2, 1/2; centre = t * side +
    anchor's centre, side = exp(t) * anchor's side (Lin et al. 2017, section 4; anchors and the
    border of one pixel as in NVIDIA's retinanet-examples, from which the zoo's model comes).
    """
    pairs = _head_pairs(_floats(inputs.outputs, 4))
    if pairs is None or len(inputs.outputs) != 2 * len(pairs):
        return None
    first = inputs.outputs
    logits = any(_are_logits(first[c]) for c, _ in pairs)
    finest = first[pairs[0][0]].shape[2]

    def decode(outputs: Outputs) -> list[Proposals]:
        boxes, scores = [], []
        for number, (classes, deltas) in enumerate(pairs):
            n, _, height, width = first[classes].shape
            stride = 8.0 * 2**number if inputs.size is None else _power(inputs.size[0] / height)
            t = _wide(outputs[deltas]).reshape(n, 9, 4, height, width).transpose(0, 3, 4, 1, 2)
            c = _wide(outputs[classes]).reshape(n, 9, -1, height, width).transpose(0, 3, 4, 1, 2)
            boxes.append(_from_deltas(t, stride))
            scores.append(_probability(c, logits))
        return _flat(boxes, scores)

    names = tuple(c for c, _ in pairs)
    return Head("retinanet", decode, True, names, 0.25 if logits else 1.0, 0.7 if finest else 0.0)


def _power(stride: float) -> float:
    """The power of two nearest to a stride: the coarse levels of an odd size round up."""
    return float(2.0 ** np.rint(np.log2(stride)))


def _head_pairs(grids: Mapping[str, Array]) -> list[tuple[str, str]] | None:
    """Class and box heads of each level, finest first; None if they do not pair up."""
    levels: dict[tuple[int, ...], list[str]] = {}
    for name, value in grids.items():
        levels.setdefault(value.shape[2:], []).append(name)
    pairs = []
    for size in sorted(levels, reverse=True):
        boxes = [n for n in levels[size] if grids[n].shape[1] == 36]
        # With four classes both heads have 36 channels; then the class head comes first.
        box = boxes[-1] if boxes else None
        classes = [n for n in levels[size] if n != box and grids[n].shape[1] % 9 == 0]
        if box is None or len(classes) != 1 or len(levels[size]) != 2:
            return None
        pairs.append((classes[0], box))
    return pairs if len(pairs) >= 2 else None


def _from_deltas(t: Array, stride: float) -> Array:
    """Corners [n, h, w, 9, 4] from RetinaNet's deltas."""
    sides = [
        (stride * scale * ratio**-0.5, stride * scale * ratio**0.5)
        for scale in (4 * 2 ** (i / 3) for i in range(3))
        for ratio in (1.0, 2.0, 0.5)
    ]
    anchors = np.array(sides) + 1
    # An anchor is centred in its stride's square, and its far border counts.
    centre = _places(t.shape[1], t.shape[2]) * stride + stride / 2 + 0.5
    xy, wh = t[..., :2] * anchors + centre, _growth(t[..., 2:]) * anchors
    return np.concatenate([xy - wh / 2, xy + wh / 2 - 1], axis=-1)


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
