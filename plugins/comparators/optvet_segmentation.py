"""Masks: the class of every pixel, and how far the regions of each class overlap."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    Comparator,
    Comparison,
    Model,
    Sample,
    Suggestion,
    Summary,
    hookimpl,
    readable_outputs,
)

NO_CLASS = -1
"""Class of a pixel with a score that is not a number."""
_TASK = re.compile(
    r"segmentation|matting|\bmatte|text.detection|saliency|background.removal|parsing"
)
_OTHER_TASK = re.compile(r"(sentence|word|text|instance|panoptic|speech|audio).segmentation")
_NAME = re.compile(r"segm|mask|class|label|logit|matt(e|ing)|soft_?max|prob|parsing", re.IGNORECASE)
# Numbers of classes of the usual collections of segmented images, with and without background.
_USUAL_CLASSES = frozenset({11, 12, 19, 20, 21, 33, 34, 59, 60, 133, 150, 151, 171, 172, 182})


class SegmentationOptions(BaseModel):
    """Which output is the mask, and when it counts as changed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    output: str = ""
    """The output that has the mask; the first one with pixels where it is empty."""
    layout: Literal["auto", "NCHW", "NHWC"] = "auto"
    """Where the classes are: "NCHW" or "NHWC"; found from the shape where it is "auto"."""
    threshold: float | None = None
    """Where the foreground of a single channel begins; None for 0.5, or for 0 if the
    values are no probabilities.
    """
    min_agreement: float = Field(default=1.0, ge=0, le=1)
    """A sample counts as changed if a smaller share of its pixels keep their
    class, those aside on which the reference was undecided.
    """


class SegmentationComparator:
    """Mean intersection over union and pixel agreement, per class."""

    name = "segmentation"
    suggestions = (Suggestion("segmentation", ("min_agreement",)),)
    options: SegmentationOptions = SegmentationOptions()

    def matches(self, model: Model, outputs: Mapping[str, np.ndarray]) -> float:
        """0.95 for a declared task; less for maps of the input's size that are classes by evidence.

        Evidence is a name, shares that sum to one, a usual number of classes, small whole numbers,
        or a matte that has both sides. An image of the input's size has none.
        """
        task = (model.task or "").lower()
        if _TASK.search(task) and not _OTHER_TASK.search(task):
            return 0.95
        if len(outputs) != 1:
            return 0.0
        if _is_map_of_numbers(model, next(iter(outputs.values()))):
            return 0.5
        maps = [v for v in outputs.values() if v.ndim == 4 and v.dtype.kind == "f" and v.size]
        if not maps:
            return 0.0
        axis = class_axis(maps[0].shape, "auto", image_sides(i.shape for i in model.inputs))
        classes = maps[0].shape[axis]
        size = tuple(d for a, d in enumerate(maps[0].shape) if a not in (0, axis))
        if min(size) < 16 or not _same_size(model, size, classes):
            return 0.0
        values = maps[0].astype(np.float64)
        if not np.isfinite(values).all():
            return 0.0
        if classes == 1:
            return 0.5 if _is_matte(values) else 0.0
        if values.min() >= 0 and np.allclose(values.sum(axis=axis), 1, atol=1e-3):
            return 0.6
        named = _NAME.search(next(iter(outputs))) or _NAME.search(model.path.stem)
        return 0.5 if named or classes in _USUAL_CLASSES else 0.0

    def compare(
        self,
        model: Model,
        sample: Sample,
        reference: Mapping[str, np.ndarray],
        candidate: Mapping[str, np.ndarray],
        options: SegmentationOptions,
        *,
        noise: Mapping[str, float],
    ) -> Comparison:
        """Counts of pixels per class; see ``overlaps``."""
        name = mask_name(reference, options.output)
        images = image_sides(v.shape for v in sample.feeds.values())
        expected, actual, firm = masks_of(
            reference[name], candidate[name], options, noise.get(name, 0.0), images
        )
        wrong = expected != actual
        pixels = expected.size
        counts = overlaps(expected, actual)
        metrics = {
            "mean_iou": mean_iou(counts),
            "pixel_agreement": 1 - float(wrong.sum()) / pixels if pixels else 1.0,
            "pixels": float(pixels),
            "pixels_changed": float((wrong & firm).sum()),
            "pixels_undecided": float((wrong & ~firm).sum()),
        }
        lost = metrics["pixels_changed"] / pixels if pixels else 0.0
        changed = lost > 1 - options.min_agreement
        sensitive = not changed and metrics["pixels_undecided"] > 0
        classes = {
            str(k): {"intersection": i, "union": u, "iou": i / u} for k, (i, u) in counts.items()
        }
        return Comparison(sample.id, metrics, changed, sensitive, {"classes": classes})

    def metrics(self, options: SegmentationOptions) -> Sequence[str]:
        """Every metric of a summary."""
        pixels = ("pixels", "pixels_changed", "pixels_undecided", "pixel_agreement")
        return ("mean_iou", "worst_mean_iou", "iou_class_*", *pixels)

    def summarise(self, comparisons: Sequence[Comparison], options: SegmentationOptions) -> Summary:
        """Intersections and unions are added over all samples before they are divided."""
        counts: dict[int, tuple[int, int]] = {}
        for comparison in comparisons:
            for key, c in comparison.detail.get("classes", {}).items():
                i, u = counts.get(int(key), (0, 0))
                counts[int(key)] = (i + c["intersection"], u + c["union"])
        total = {
            k: sum(c.metrics[k] for c in comparisons)
            for k in ("pixels", "pixels_changed", "pixels_undecided")
        }
        agreed = sum(c.metrics["pixel_agreement"] * c.metrics["pixels"] for c in comparisons)
        metrics = {
            "mean_iou": mean_iou(counts),
            "worst_mean_iou": min(c.metrics["mean_iou"] for c in comparisons),
            "pixel_agreement": agreed / total["pixels"] if total["pixels"] else 1.0,
            **total,
            **{f"iou_class_{k}": i / u for k, (i, u) in sorted(counts.items())},
        }
        changed = sum(c.changed for c in comparisons)
        headline = (
            f"{changed} of {len(comparisons)} masks changed; mean IoU {metrics['mean_iou']:.6g}, "
            f"{int(total['pixels_changed'])} of {int(total['pixels'])} pixels"
        )
        return Summary(metrics, headline)


def mask_name(outputs: Mapping[str, np.ndarray], wanted: str) -> str:
    """The output that has the mask: the wanted one, else the first of the highest rank.

    Raises:
        InputError: There is none.
    """

    def fits(_: str, value: np.ndarray) -> bool:
        return 2 <= value.ndim <= 4 and value.dtype.kind in "fiub"

    fitting = readable_outputs("segmentation", outputs, wanted, fits, "with pixels")
    return max(fitting, key=lambda n: outputs[n].ndim)


def _is_matte(values: np.ndarray) -> bool:
    """Whether nearly all pixels are surely in or surely out, and some are each.

    A depth map is seldom sure, and a dark picture has but one side.
    """
    low, high = float(np.mean(values < 0.1)), float(np.mean(values > 0.9))
    bounded = float(values.min()) >= 0 and float(values.max()) <= 1
    return bounded and low + high > 0.8 and min(low, high) > 0.01


def _is_map_of_numbers(model: Model, value: np.ndarray) -> bool:
    """Whether there is a small whole number, as of a class, for each pixel of an input."""
    sizes = [d for d in value.shape[1:] if d != 1]
    if value.dtype.kind not in "iu" or value.dtype.itemsize == 1 or len(sizes) != 2:
        return False
    small = 0 <= int(value.min(initial=0)) and int(value.max(initial=0)) < 256
    return small and min(sizes) >= 16 and _same_size(model, (sizes[0], sizes[1]), 0)


Sides = tuple[int, int]


def class_axis(shape: Sequence[int], layout: str, images: Sequence[Sides] = ()) -> int:
    """Axis of the classes in a shape of four: 1 or 3.

    The other two have the proportions of one of ``images`` (height, width), or else of a square,
    where that decides; else the smaller one is that of the classes.
    """
    if layout != "auto":
        return layout.index("C")
    for height, width in (*images, (1, 1)):
        first, last = (shape[a] * width == shape[a + 1] * height for a in (2, 1))
        if first != last:
            return 1 if first else 3
    return 3 if shape[3] < shape[1] else 1


def image_sides(shapes: Iterable[Sequence[int | str | None] | None]) -> list[Sides]:
    """Height and width of those shapes that are images."""
    found = []
    for shape in shapes:
        if shape is None or len(shape) != 4:
            continue
        sides = shape[2:] if shape[1] in (1, 3, 4) else shape[1:3]
        height, width = (s if isinstance(s, int) else 0 for s in sides)
        if height > 0 and width > 0:
            found.append((height, width))
    return found


def _same_size(model: Model, size: tuple[int, ...], classes: int) -> bool:
    """Whether an input is an image of this size, with more than one channel than a lone class."""
    for info in model.inputs:
        shape = info.shape
        if shape is None or len(shape) != 4:
            continue
        for channels, sides in ((shape[1], shape[2:]), (shape[3], shape[1:3])):
            known = [isinstance(s, int) and s > 0 for s in sides]
            fits = all(not k or s == d for k, s, d in zip(known, sides, size, strict=True))
            if channels in (1, 3, 4) and channels != classes and fits:
                return True
    return False


def masks_of(
    reference: np.ndarray,
    candidate: np.ndarray,
    options: SegmentationOptions,
    noise: float,
    images: Sequence[Sides] = (),
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Class numbers of all pixels on both sides, and where the reference was sure.

    Four axes are scores per class, or a matte where there is but one; fewer axes are a matte.
    Integers without an axis of classes are class numbers. "Sure" means that the reference's score
    of its class is above that of the candidate's class by more than ``noise``.
    """
    axis = class_axis(reference.shape, options.layout, images) if reference.ndim == 4 else None
    if axis is not None and reference.shape[axis] != 1:
        return _argmax_masks(
            np.moveaxis(reference, axis, -1), np.moveaxis(candidate, axis, -1), noise
        )
    if reference.dtype.kind in "iub":
        first, second = (v.astype(np.int64).ravel() for v in (reference, candidate))
        return first, second, np.ones(first.shape, bool)
    scores = [v.astype(np.float64).ravel() for v in (reference, candidate)]
    cut = options.threshold
    if cut is None:
        finite = scores[0][np.isfinite(scores[0])]
        cut = 0.5 if not finite.size or (finite.min() >= 0 and finite.max() <= 1) else 0.0
    masks = [np.where(np.isnan(v), NO_CLASS, (v > cut).astype(np.int64)) for v in scores]
    lost = np.isnan(scores[0]) != np.isnan(scores[1])
    return masks[0], masks[1], lost | ~(np.abs(scores[0] - cut) <= noise)


def _argmax_masks(
    reference: np.ndarray, candidate: np.ndarray, noise: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    classes = reference.shape[-1]
    count = reference.size // classes if classes else 0
    first, second = (v.reshape(count, classes).astype(np.float64) for v in (reference, candidate))
    if not count:
        empty = np.zeros(0, np.int64)
        return empty, empty, np.zeros(0, bool)
    has_nan = [np.isnan(v).any(axis=1) for v in (first, second)]
    # Only NaN is set aside: a score may well be infinite.
    best = [np.where(np.isnan(v), -np.inf, v).argmax(axis=1) for v in (first, second)]
    rows = np.arange(count)
    with np.errstate(invalid="ignore", over="ignore"):
        margin = first[rows, best[0]] - first[rows, best[1]]
    masks = [np.where(o, NO_CLASS, b) for o, b in zip(has_nan, best, strict=True)]
    return masks[0], masks[1], (has_nan[0] != has_nan[1]) | ~(margin <= noise)


def overlaps(reference: np.ndarray, candidate: np.ndarray) -> dict[int, tuple[int, int]]:
    """Pixels in the intersection and in the union, for each class that either mask has."""
    classes = np.union1d(reference, candidate)
    found = {}
    for k in classes.tolist():
        a, b = reference == k, candidate == k
        found[int(k)] = (int((a & b).sum()), int((a | b).sum()))
    return found


def mean_iou(counts: Mapping[int, tuple[int, int]]) -> float:
    """Mean of intersection over union (Jaccard's index) over classes; 1 where there are none.

    Source: Long, Shelhamer, Darrell 2015, "Fully convolutional networks for semantic
    segmentation", section 5; over classes that either side has, as ``sklearn.metrics.
    jaccard_score(average="macro")``.
    """
    return float(np.mean([i / u for i, u in counts.values()])) if counts else 1.0


@hookimpl
def optvet_comparators() -> Iterable[Comparator]:
    """The comparator "segmentation"."""
    return [SegmentationComparator()]
