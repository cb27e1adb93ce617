"""Decoders of heads that are grids with anchors, not yet decoded: YOLOv2 to v7, RetinaNet."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optvet_detection.boxes import Array, Proposals
from optvet_detection.heads import (
    DecoderInput,
    Head,
    Outputs,
    are_logits,
    corners,
    expit,
    float_outputs,
    growth,
    probability,
    softmax,
    widen,
)

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
    grids = float_outputs(inputs.outputs, 4)
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
        v = widen(outputs[name]).reshape(n, count, -1, height, width).transpose(0, 3, 4, 1, 2)
        xy = (expit(v[..., :2]) + _places(height, width)) * stride
        boxes = corners(np.concatenate([xy, growth(v[..., 2:4]) * pixels], axis=-1))
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
    floats = {n: v for n, v in float_outputs(inputs.outputs).items() if v.ndim in (4, 5)}
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
    logits = any(are_logits(x.arrange(first[x.name])[..., 4:]) for x in levels)

    def decode(outputs: Outputs) -> list[Proposals]:
        boxes, scores = [], []
        for number, level in enumerate(levels):
            stride = inputs.size[0] / level.height if inputs.size else default[number]
            v = level.arrange(widen(outputs[level.name]))
            boxes.append(corners(_place(name, v[..., :4], level, stride, pixels[number])))
            p = probability(v[..., 4:], logits)
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
    return np.concatenate([(inside + cell) * stride, growth(t[..., 2:]) * anchors], axis=-1)


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
    pairs = _head_pairs(float_outputs(inputs.outputs, 4))
    if pairs is None or len(inputs.outputs) != 2 * len(pairs):
        return None
    first = inputs.outputs
    logits = any(are_logits(first[c]) for c, _ in pairs)
    finest = first[pairs[0][0]].shape[2]

    def decode(outputs: Outputs) -> list[Proposals]:
        boxes, scores = [], []
        for number, (classes, deltas) in enumerate(pairs):
            n, _, height, width = first[classes].shape
            stride = 8.0 * 2**number if inputs.size is None else _power(inputs.size[0] / height)
            t = widen(outputs[deltas]).reshape(n, 9, 4, height, width).transpose(0, 3, 4, 1, 2)
            c = widen(outputs[classes]).reshape(n, 9, -1, height, width).transpose(0, 3, 4, 1, 2)
            boxes.append(_from_deltas(t, stride))
            scores.append(probability(c, logits))
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
    xy, wh = t[..., :2] * anchors + centre, growth(t[..., 2:]) * anchors
    return np.concatenate([xy - wh / 2, xy + wh / 2 - 1], axis=-1)
