"""Decoders of YOLO's heads that are one table: a row for each anchor or cell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from optvet_detection.boxes import Array, Proposals
from optvet_detection.heads import (
    DecoderInput,
    Head,
    Outputs,
    Size,
    are_logits,
    corners,
    float_outputs,
    growth,
    probability,
    unit_of,
    widen,
)


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
    logits = are_logits(value[..., 4:])

    def decode(outputs: Outputs) -> list[Proposals]:
        v = widen(outputs[name])
        xy, wh = v[..., :2], v[..., 2:4]
        if encoded:
            xy, wh = (xy + grid) * step, growth(wh) * step
        return _objects(np.concatenate([xy, wh], axis=-1), v[..., 4:], logits)

    return Head("yolox", decode, True, (name,), 2.0, 0.8)


def _single(inputs: DecoderInput) -> tuple[str, Array] | None:
    """The only output, or the one beside mask prototypes, if it is a table of floats."""
    tables = float_outputs(inputs.outputs, 3)
    others = [v for n, v in inputs.outputs.items() if n not in tables]
    if len(tables) != 1 or len(others) > 1 or any(v.ndim != 4 for v in others):
        return None
    return next(iter(tables.items()))


def _mask_columns(inputs: DecoderInput) -> int:
    """Coefficients per box of the mask prototypes [n, m, h, w] that segmenting YOLOs add."""
    prototypes = float_outputs(inputs.outputs, 4)
    return next(iter(prototypes.values())).shape[1] if prototypes else 0


def _objects(boxes: Array, rest: Array, logits: bool) -> list[Proposals]:
    """Proposals from centre boxes, and objectness followed by class scores."""
    p = probability(rest, logits)
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
    unit, logits = unit_of(value[..., :4], inputs.size), are_logits(value[..., 4:end])

    def decode(outputs: Outputs) -> list[Proposals]:
        v = widen(outputs[name])
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
    unit, logits = unit_of(value[:, :4], inputs.size), are_logits(value[:, 4:end])

    def decode(outputs: Outputs) -> list[Proposals]:
        v = widen(outputs[name]).transpose(0, 2, 1)
        boxes, scores = corners(v[..., :4] * unit), probability(v[..., 4:end], logits)
        return [Proposals(b, s) for b, s in zip(boxes, scores, strict=True)]

    sure = 0.75 if _grid_strides(inputs.size, value.shape[2]) else 0.0
    return Head("yolov8", decode, True, (name,), 1.0, sure)
