"""Images out of images (super-resolution, style transfer, enhancement): PSNR and SSIM."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import Comparator, Comparison, Model, Sample, Suggestion, Summary, hookimpl
from optvet_image.declared_range import RangeFrom, range_of, read_graph
from optvet_image.find_images import channel_axis, image_name, is_enlarged, planes_of
from optvet_image.value_range import bounds_of, data_range, is_whole

_TASK = re.compile(
    r"super.?resolution|style.transfer|enhanc|denois|deblur|derain|dehaz|inpaint|coloriz"
    r"|image.to.image|image.restoration|image.generation|upscal|low.light"
)
_OTHER_TASK = re.compile(r"speech|audio|voice|sound|music|text")
_WORDS: Mapping[RangeFrom, str] = {
    "given": "the options",
    "graph": "the model's last operators",
    "metadata": "the model's metadata",
    "dtype": "the type of the output",
    "outputs": "the original's outputs",
    "sample": "each sample alone",
}
"""Where a range is from, in words."""


class ImageOptions(BaseModel):
    """Which output is the image, and when it counts as changed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    output: str = ""
    """The output that has the images; the largest one of rank 4 or 3 where it is empty."""
    layout: Literal["auto", "NCHW", "NHWC"] = "auto"
    """Where the channels are: "NCHW" or "NHWC"; found from the shape where it is "auto"."""
    data_range: float | None = Field(default=None, gt=0)
    """Distance of black and white in units of the output. Where it is None, it is what the model
    declares (its last operators, its metadata, the type of the output), or is found once over all
    that the original makes.
    """
    range_from: RangeFrom = "given"
    """Where ``data_range`` is from; set with it where that was None."""
    min_psnr_db: float = 60.0
    """An image with a lower PSNR counts as changed; at 60 dB the error is a quarter
    of one of 256 levels.
    """
    max_levels: float = Field(default=1.0, ge=0)
    """So does one with a pixel that moved by more than this many of 256 levels."""


class ImageComparator:
    """Peak signal-to-noise ratio and structural similarity."""

    name = "image"
    suggestions = (Suggestion("image", ("min_psnr_db",)),)
    options: ImageOptions = ImageOptions()

    def matches(self, model: Model, outputs: Mapping[str, np.ndarray]) -> float:
        """0.95 for a declared task; less where an image of as many channels comes out."""
        task = (model.task or "").lower()
        if _TASK.search(task) and not _OTHER_TASK.search(task):
            return 0.95
        if len(outputs) != 1:
            return 0.0
        value = next(iter(outputs.values()))
        if value.ndim != 4 or value.dtype.kind not in "fu" or min(value.shape) < 1:
            return 0.0
        axis = channel_axis(value.shape, "auto")
        size = [d for a, d in enumerate(value.shape) if a not in (0, axis)]
        if min(size) < 16 or not any(
            is_enlarged(i.shape, value.shape[axis], size) for i in model.inputs
        ):
            return 0.0
        wide = value.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            shares = value.shape[axis] > 1 and np.allclose(wide.sum(axis=axis), 1, atol=1e-3)
        return 0.0 if shares else 0.5

    def calibrated(
        self,
        model: Model,
        references: Iterable[Mapping[str, np.ndarray]],
        options: ImageOptions,
    ) -> ImageOptions:
        """One range for all images: a dark one has the same white as the others."""
        if options.data_range is not None:
            return options
        bounds, whole, kind, name = [], True, None, ""
        for outputs in references:
            name = image_name(outputs, options.output)
            value = outputs[name]
            bounds.append(bounds_of(value))
            whole, kind = whole and is_whole(value), value.dtype
        if kind is None:
            return options
        span, source = range_of(read_graph(model), name, kind, bounds, whole=whole)
        return options.model_copy(update={"data_range": span or None, "range_from": source})

    def compare(
        self,
        model: Model,
        sample: Sample,
        reference: Mapping[str, np.ndarray],
        candidate: Mapping[str, np.ndarray],
        options: ImageOptions,
        *,
        noise: Mapping[str, float],
    ) -> Comparison:
        """Each image of the batch; the sample's metrics are those of its worst image."""
        from optvet_image.similarity import image_metrics

        name = image_name(reference, options.output)
        expected, actual = (planes_of(v[name], options.layout) for v in (reference, candidate))
        span, source = _span_of(reference[name], options)
        parts = [image_metrics(a, b, span) for a, b in zip(expected, actual, strict=True)]
        metrics = {
            key: (min if key in ("psnr_db", "ssim") else max)(p[key] for p in parts)
            for key in (parts[0] if parts else ())
        }
        seen = bool(parts) and (
            metrics["psnr_db"] < options.min_psnr_db or metrics["max_levels"] > options.max_levels
        )
        # Half of the image may be within noise and the rest not: the largest difference decides.
        firm = seen and metrics["max_levels"] * span / 255 > noise.get(name, 0.0)
        detail = {"data_range": span, "range_from": source, "images": len(parts)}
        return Comparison(sample.id, metrics, firm, seen and not firm, detail)

    def metrics(self, options: ImageOptions) -> Sequence[str]:
        """Every metric of a summary."""
        return ("psnr_db", "ssim", "mean_ssim", "rmse", "max_levels", "nonfinite", "data_range")

    def summarise(self, comparisons: Sequence[Comparison], options: ImageOptions) -> Summary:
        """The worst image, and the means."""
        having = [c for c in comparisons if c.metrics]
        changed = sum(c.changed for c in comparisons)
        headline = f"{changed} of {len(comparisons)} images changed visibly"
        if not having:
            return Summary({}, headline)
        psnr = [c.metrics["psnr_db"] for c in having]
        ssims = [c.metrics["ssim"] for c in having]
        metrics = {
            "psnr_db": min(psnr),
            "ssim": min(ssims),
            "mean_ssim": float(np.mean(ssims)),
            **{k: max(c.metrics[k] for c in having) for k in ("rmse", "max_levels", "nonfinite")},
            "data_range": options.data_range or max(c.detail["data_range"] for c in having),
        }
        words = f"{min(psnr):.1f} dB" if math.isfinite(min(psnr)) else f"{min(psnr)}"
        if min(psnr) == math.inf:
            return Summary(metrics, f"{headline}; all equal")
        source = _WORDS["sample" if options.data_range is None else options.range_from]
        span = f"range {metrics['data_range']:.6g}, from {source}"
        return Summary(metrics, f"{headline}; lowest PSNR {words}, SSIM {min(ssims):.6g} ({span})")


def _span_of(reference: np.ndarray, options: ImageOptions) -> tuple[float, RangeFrom]:
    """Range for one sample: the one of all, unless this sample is an outlier of found ones."""
    if options.data_range is None:
        return data_range(reference), "sample"
    if options.range_from == "outputs":
        low, high = bounds_of(reference)
        if high - low > 1.2 * options.data_range:
            return data_range(reference), "sample"
    return options.data_range, options.range_from


@hookimpl
def optvet_comparators() -> Iterable[Comparator]:
    """The comparator "image"."""
    return [ImageComparator()]
