"""Images out of images (super-resolution, style transfer, enhancement): PSNR and SSIM."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import numpy as np
import onnx
from onnx import numpy_helper
from pydantic import BaseModel, ConfigDict, Field

from optvet.graph import is_onnx
from optvet.plugin import (
    Comparator,
    Comparison,
    InputError,
    Model,
    Sample,
    Suggestion,
    Summary,
    hookimpl,
    load_model,
)

SIGMA = 1.5
RADIUS = 5
K1, K2 = 0.01, 0.03
"""Constants of SSIM: a Gaussian window of 11 by 11 pixels, and the two stabilizers."""
_TASK = re.compile(
    r"super.?resolution|style.transfer|enhanc|denois|deblur|derain|dehaz|inpaint|coloriz"
    r"|image.to.image|image.restoration|image.generation|upscal|low.light"
)
_OTHER_TASK = re.compile(r"speech|audio|voice|sound|music|text")
_USUAL = ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0))
"""Black and white of most images. Resampling overshoots, so a tenth beyond still is the range."""
_OUTLIER = 16.0
"""An image whose largest value is so many times that of the median image says nothing of white."""
_NOMINAL = {"Normalized_0_1": 0, "Normalized_1_1": 1, "NominalRange_0_255": 2}
"""Values of ``Image.NominalPixelRange``, a property of ONNX models, as indices of ``_USUAL``."""
_BOUNDED = {"Sigmoid": (0.0, 1.0), "HardSigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0)}
_LAYOUT = frozenset(
    "Identity Dropout Reshape Flatten Transpose Squeeze Unsqueeze Slice Crop DepthToSpace "
    "SpaceToDepth Cast".split()
)

Constant = Callable[[str], np.ndarray | None]
RangeFrom = Literal["given", "graph", "metadata", "dtype", "outputs", "sample"]
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
            _is_enlarged(i.shape, value.shape[axis], size) for i in model.inputs
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
            whole, kind = whole and _is_whole(value), value.dtype
        if kind is None:
            return options
        span, source = _range_of(_graph_of(model), name, kind, bounds, whole=whole)
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
        name = image_name(reference, options.output)
        ours, theirs = (planes_of(v[name], options.layout) for v in (reference, candidate))
        span, source = _span_of(reference[name], options)
        parts = [image_metrics(a, b, span) for a, b in zip(ours, theirs, strict=True)]
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


def image_name(outputs: Mapping[str, np.ndarray], wanted: str) -> str:
    """The output that has the images.

    Raises:
        InputError: There is none.
    """
    fitting = [n for n, v in outputs.items() if 2 <= v.ndim <= 4 and v.dtype.kind in "fiu"]
    if wanted in outputs and wanted in fitting:
        return wanted
    if wanted or not fitting:
        raise InputError(
            f"comparator 'image': no output {wanted or 'with pixels'!r} of rank 2 to 4 among "
            f"{', '.join(map(repr, outputs))}; choose one with the option 'output'"
        )
    return max(fitting, key=lambda n: (outputs[n].ndim, outputs[n].size))


def channel_axis(shape: Sequence[int], layout: str) -> int:
    """Axis of the channels in a shape of four: the smaller one of the second and the last."""
    if layout != "auto":
        return layout.index("C")
    return 3 if shape[3] < shape[1] else 1


def _is_enlarged(
    shape: tuple[int | str | None, ...] | None, channels: int, size: Sequence[int]
) -> bool:
    """Whether an input of this shape has as many channels, and sides that divide ``size``."""
    if shape is None or len(shape) != 4 or channels not in (1, 3, 4):
        return False
    for depth, sides in ((shape[1], shape[2:]), (shape[3], shape[1:3])):
        factors = {d / s for s, d in zip(sides, size, strict=True) if isinstance(s, int) and s > 0}
        if depth == channels and len(factors) < 2 and all(f == int(f) for f in factors):
            return True
    return False


def planes_of(images: np.ndarray, layout: str) -> list[np.ndarray]:
    """Each image of a batch as float64 [channels, height, width]."""
    if images.ndim == 4:
        axis = channel_axis(images.shape, layout)
        images = np.moveaxis(images, axis, 1)
    elif images.ndim == 3:
        # [H, W, C] or [C, H, W]: channels are few.
        last = images.shape[2] < images.shape[0] and images.shape[2] in (1, 3, 4)
        images = np.moveaxis(images, -1, 0)[None] if last else images[None]
    else:
        images = images[None, None]
    return [image.astype(np.float64) for image in images] if images.size else []


def bounds_of(image: np.ndarray) -> tuple[float, float]:
    """The least and the greatest finite number in it, and 0 beside them."""
    wide = image.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    return float(finite.min(initial=0.0)), float(finite.max(initial=0.0))


def _is_whole(image: np.ndarray) -> bool:
    """Whether all finite values are integers: levels of eight bits, in a float."""
    finite = image[np.isfinite(image)] if image.dtype.kind == "f" else image
    return bool(np.all(finite == np.rint(finite)))


def _span_of(reference: np.ndarray, options: ImageOptions) -> tuple[float, RangeFrom]:
    """Range for one sample: the one of all, unless this sample is an outlier of found ones."""
    if options.data_range is None:
        return data_range(reference), "sample"
    if options.range_from == "outputs":
        low, high = bounds_of(reference)
        if high - low > 1.2 * options.data_range:
            return data_range(reference), "sample"
    return options.data_range, options.range_from


def data_range(reference: np.ndarray) -> float:
    """Distance of black and white, as far as one image tells it; see ``usual_range``."""
    low, high = bounds_of(reference)
    return usual_range(low, high, reference.dtype, whole=_is_whole(reference))


def usual_range(low: float, high: float, dtype: np.dtype, *, whole: bool = False) -> float:
    """Distance of black and white: of integers all there are; of floats the usual range they fit.

    Only values that reach its upper half, or that are integers above 1 (``whole``), tell of 0..255:
    0..1 with some overshoot fits it too, and a range that is too wide hides errors by up to 48 dB.
    What fits none is its own range.
    """
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return float(int(limits.max) - int(limits.min))
    for bottom, top in _USUAL:
        certain = top < 255 or high >= top / 2 or (whole and high > 1)
        if certain and _fits(low, high, bottom, top):
            return top - bottom
    # Python's own numbers do not warn where a difference is too large for them.
    return min(high - low, float(np.finfo(np.float64).max))


def _fits(low: float, high: float, bottom: float, top: float, share: float = 0.1) -> bool:
    margin = share * (top - bottom)
    return low >= bottom - margin and high <= top + margin


# --- what a model declares --------------------------------------------------------------------


@dataclass(frozen=True)
class _Affine:
    """``factor * x + term``."""

    factor: float = 1.0
    term: float = 0.0


def _graph_of(model: Model) -> onnx.ModelProto | None:
    """The graph without large weights; None where there is no file."""
    if not model.path.is_file():
        return None
    return load_model(model.path, weights=False)


def _range_of(
    graph: onnx.ModelProto | None,
    name: str,
    dtype: np.dtype,
    bounds: Sequence[tuple[float, float]],
    *,
    whole: bool,
) -> tuple[float, RangeFrom]:
    """The range of an output, and where it is from.

    Args:
        graph: The model.
        name: The output.
        dtype: Its type.
        bounds: Least and greatest value of each image; see ``bounds_of``.
        whole: Whether all values are integers.
    """
    if dtype.kind in "iu":
        return usual_range(0.0, 0.0, dtype), "dtype"
    tops = [max(-low, high) for low, high in bounds]
    usual = _OUTLIER * median([t for t in tops if t] or [0.0])
    kept = [b for b, top in zip(bounds, tops, strict=True) if top <= usual]
    low, high = min((b[0] for b in kept), default=0.0), max((b[1] for b in kept), default=0.0)
    if graph is not None and (limits := limits_of(graph.graph, name)) is not None:
        return _declared(*limits), "graph"
    if graph is not None and (nominal := _nominal(graph, name)) is not None:
        # The property may be that of the input alone: what contradicts it counts more.
        found = usual_range(low, high, dtype, whole=whole)
        if _fits(low, high, *nominal) and not (nominal[1] == 255 and found < 3):
            return nominal[1] - nominal[0], "metadata"
    return usual_range(low, high, dtype, whole=whole), "outputs"


def _declared(low: float, high: float) -> float:
    """The usual range that an interval is meant as: 150 tanh(x) + 115 leaves some room for it."""
    for bottom, top in _USUAL:
        share = 0.15
        if _fits(low, high, bottom, top, share) and _fits(bottom, top, low, high, share):
            return top - bottom
    return high - low


def _nominal(model: onnx.ModelProto, name: str) -> tuple[float, float] | None:
    """The range that the properties of images declare; see ONNX's MetadataProps.md."""
    properties = {p.key: p.value for p in model.metadata_props}
    eight_bits = properties.get("Image.BitmapPixelFormat", "").endswith("8")
    default = "NominalRange_0_255" if eight_bits else ""
    declared = properties.get("Image.NominalPixelRange", default)
    images = [v for v in (*model.graph.input, *model.graph.output) if v.type.denotation]
    ours = [v for v in images if v.name == name and v.type.denotation == "IMAGE"]
    if declared not in _NOMINAL or (images and not ours):
        return None
    return _USUAL[_NOMINAL[declared]]


def limits_of(graph: onnx.GraphProto, name: str) -> tuple[float, float] | None:
    """The interval that the last operators confine an output to; None if they do not.

    ::

        Clip(x, 0, 255) → 0..255        Mul(Sigmoid(x), 255) → 0..255        Tanh(x) → -1..1
    """
    makers = {o: n for n in graph.node for o in n.output}
    tensors = {t.name: t for t in graph.initializer}
    tensors |= {
        n.output[0]: a.t
        for n in graph.node
        for a in n.attribute
        if n.op_type == "Constant" and a.name == "value"
    }

    def constant(value: str) -> np.ndarray | None:
        if value not in tensors or tensors[value].data_location == onnx.TensorProto.EXTERNAL:
            return None
        array = numpy_helper.to_array(tensors[value]).astype(np.float64)
        return array if array.size <= 4 else None

    steps: list[_Affine] = []
    while (node := makers.get(name)) is not None and is_onnx(node) and node.input:
        bounded = _interval(node, constant)
        if bounded is not None:
            ends = np.array(bounded)
            for step in reversed(steps):
                ends = ends * step.factor + step.term
            return float(ends.min()), float(ends.max())
        if node.op_type not in _LAYOUT:
            found = _affine(node, constant)
            if found is None:
                return None
            step, name = found
            steps.append(step)
        else:
            name = node.input[0]
    return None


def _interval(node: onnx.NodeProto, constant: Constant) -> tuple[float, float] | None:
    if node.op_type != "Clip":
        return _BOUNDED.get(node.op_type)
    attributes = {a.name: float(a.f) for a in node.attribute}
    ends = [attributes.get("min"), attributes.get("max")]
    for i, value in enumerate(node.input[1:3]):
        array = constant(value) if value else None
        ends[i] = float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None
    low, high = ends
    if low is None or high is None or not -1e6 < low < high < 1e6:
        return None
    return low, high


def _affine(node: onnx.NodeProto, constant: Constant) -> tuple[_Affine, str] | None:
    """What ``node`` does as one factor and one term, and what it reads; None for others."""
    if node.op_type == "Affine":
        attributes = {"alpha": 1.0, "beta": 0.0} | {a.name: float(a.f) for a in node.attribute}
        return _Affine(attributes["alpha"], attributes["beta"]), node.input[0]
    if node.op_type not in ("Add", "Sub", "Mul", "Div") or len(node.input) != 2:
        return None
    values = [constant(n) for n in node.input]
    at = next((i for i, v in enumerate(values) if v is not None), None)
    if at is None or (at == 0 and node.op_type in ("Sub", "Div")):
        return None
    value = values[at]
    assert value is not None
    by, read = float(np.mean(value)), node.input[1 - at]  # of channels, their mean
    if node.op_type in ("Add", "Sub"):
        return _Affine(1.0, by if node.op_type == "Add" else -by), read
    if not by:
        return None
    return _Affine(by if node.op_type == "Mul" else 1 / by), read


def image_metrics(ours: np.ndarray, theirs: np.ndarray, span: float) -> dict[str, float]:
    """Metrics of two images [channels, height, width] whose black and white are ``span`` apart.

    Returns:
        ``psnr_db`` (infinite for equal images), ``ssim``, ``rmse`` in units of the output,
        ``max_levels``, the largest difference in 256ths of the range, and ``nonfinite``, the share
        of values that are NaN or infinite on one side only or differently so; where there is one,
        PSNR is minus infinity and SSIM 0.
    """
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    odd = ~same & ~(np.isfinite(ours) & np.isfinite(theirs))
    if odd.any():
        share = float(odd.mean())
        worst = {"rmse": math.inf, "max_levels": math.inf, "nonfinite": share}
        return {"psnr_db": -math.inf, "ssim": 0.0, **worst}
    known = np.isfinite(ours)
    a, b = np.where(known, ours, 0.0), np.where(known, theirs, 0.0)
    with np.errstate(over="ignore"):
        # Quarters, since the difference of two finite numbers need not be one.
        shares = np.abs(a / 4 - b / 4) / (span / 4)
        error = float(np.sqrt(np.mean(shares**2)))
    return {
        "psnr_db": psnr_db(error, 1.0),
        "ssim": float(np.mean([ssim(x, y, span) for x, y in zip(a, b, strict=True)])),
        "rmse": error * span,
        "max_levels": float(shares.max(initial=0.0)) * 255,
        "nonfinite": 0.0,
    }


def psnr_db(rmse: float, span: float) -> float:
    """Peak signal-to-noise ratio, 20 log10(span / rmse), in decibels; minus infinity is possible.

    Source: Huynh-Thu, Ghanbari 2008, "Scope of validity of PSNR in image/video quality
    assessment", Electronics Letters 44 (13), equation 1.
    """
    if rmse == 0 or math.isinf(rmse):
        return -math.inf if rmse else math.inf
    return 20 * (math.log10(span) - math.log10(rmse))


def ssim(x: np.ndarray, y: np.ndarray, span: float) -> float:
    """Mean structural similarity of two planes [height, width]; from -1 to 1, 1 if they are equal.

    (2 mx my + C1) (2 sxy + C2) / ((mx² + my² + C1) (sx² + sy² + C2)), with means and (co)variances
    weighted by a Gaussian of 11 by 11 pixels with sigma 1.5, C1 = (0.01 span)², C2 = (0.03 span)².
    Averaged over the windows that lie inside the image; where none does, over all, mirrored at
    the border.

    Source: Wang, Bovik, Sheikh, Simoncelli 2004, "Image quality assessment: from error visibility
    to structural similarity", IEEE Transactions on Image Processing 13 (4), equation 13; as
    scikit-image's ``structural_similarity(gaussian_weights=True, sigma=1.5,
    use_sample_covariance=False)``.
    """
    if np.array_equal(x, y):
        return 1.0
    # In units of the range: squares of large values must not overflow.
    with np.errstate(over="ignore", invalid="ignore"):
        value = _mean_ssim(x / span, y / span)
    # Beyond all numbers there is no structure left.
    return value if math.isfinite(value) else 0.0


def _mean_ssim(x: np.ndarray, y: np.ndarray) -> float:
    """``ssim`` of planes whose black and white are 1 apart."""
    from scipy.ndimage import gaussian_filter

    def blurred(plane: np.ndarray) -> np.ndarray:
        return np.asarray(gaussian_filter(plane, SIGMA, radius=RADIUS, mode="reflect"))

    mx, my = blurred(x), blurred(y)
    sxx, syy = blurred(x * x) - mx * mx, blurred(y * y) - my * my
    sxy = blurred(x * y) - mx * my
    c1, c2 = K1**2, K2**2
    values = (2 * mx * my + c1) * (2 * sxy + c2) / ((mx**2 + my**2 + c1) * (sxx + syy + c2))
    if min(values.shape) > 2 * RADIUS:
        values = values[RADIUS:-RADIUS, RADIUS:-RADIUS]
    return float(values.mean())


@hookimpl
def optvet_comparators() -> Iterable[Comparator]:
    """The comparator "image"."""
    return [ImageComparator()]
