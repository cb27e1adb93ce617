"""Outputs as plain tensors: how far apart they are, in the usual terms."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    APART,
    Comparator,
    Comparison,
    Model,
    OutputPart,
    Sample,
    Suggestion,
    Summary,
    hookimpl,
    parts_of_outputs,
)

_TASK = re.compile(
    r"regression|landmark|\bpose\b|voice.activity|\bvad\b|(speech|audio|voice).enhancement"
    r"|noise.suppression|quality|ranking|recommend|policy|control|avoidance|heat.?map|forecast"
    r"|time.series|depth.estimation|optical.flow"
)
_OTHER_TASK = re.compile(r"tabular|logistic|image.quality.enhanc")


class TensorOptions(BaseModel):
    """When a difference that noise explains is worth a line."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    visible: float = Field(default=0.01, ge=0)
    """Share of an output's largest value: a sample that moves by more within the noise is told."""
    parts: Mapping[str, tuple[OutputPart, ...]] = Field(default_factory=dict)
    """By output, parts whose ranges differ, as ``[{axis, start, stop, largest}]``; by default those
    that all samples of the original show."""


class TensorComparator:
    """Differences per output; understands every model, and fits none better than its own."""

    name = "tensor"
    suggestions = (Suggestion("tensor"),)
    preference = 100
    options: TensorOptions = TensorOptions()

    def matches(self, model: Model, outputs: Mapping[str, np.ndarray]) -> float:
        """0.9 for a task whose answer is plain numbers; else a little more than nothing."""
        task = (model.task or "").lower()
        return 0.9 if _TASK.search(task) and not _OTHER_TASK.search(task) else 0.01

    def compare(
        self,
        model: Model,
        sample: Sample,
        reference: Mapping[str, np.ndarray],
        candidate: Mapping[str, np.ndarray],
        options: TensorOptions,
        *,
        noise: Mapping[str, float],
    ) -> Comparison:
        """Every metric per output; the sample's own metrics are those of its worst output."""
        parts = {
            name: tensor_metrics(
                value, candidate[name], noise.get(name, 0.0), options.parts.get(name, ())
            )
            for name, value in reference.items()
        }
        worst: dict[str, float] = {}
        for metrics in parts.values():
            for key, value in metrics.items():
                pick = min if key == "cosine" else max
                worst[key] = pick(worst[key], value) if key in worst else value
        changed = worst.get("beyond_noise", 0.0) > 0
        moved = worst.get("max_change", 0.0) > options.visible
        return Comparison(sample.id, worst, changed, moved and not changed, {"outputs": parts})

    def calibrated(
        self,
        model: Model,
        references: Iterable[Mapping[str, np.ndarray]],
        options: TensorOptions,
    ) -> TensorOptions:
        """Parts of outputs whose ranges differ on all samples, where the user gave none."""
        if options.parts:
            return options
        return options.model_copy(update={"parts": parts_of_outputs(references)})

    def metrics(self, options: TensorOptions) -> Sequence[str]:
        """Every metric of a summary."""
        return (*"max_abs max_rel max_change rmse cosine beyond_noise nonfinite max_ulp".split(),)

    def summarise(self, comparisons: Sequence[Comparison], options: TensorOptions) -> Summary:
        """The worst of each metric, and how many samples hold elements beyond the noise."""
        keys = sorted({k for c in comparisons for k in c.metrics})
        metrics = {
            k: (min if k == "cosine" else max)(c.metrics[k] for c in comparisons if k in c.metrics)
            for k in keys
        }
        unjudged = sum(c.changed and bool(c.detail.get("not judged")) for c in comparisons)
        changed = sum(c.changed for c in comparisons) - unjudged
        headline = f"{changed} of {len(comparisons)} samples differ beyond noise"
        headline += f"; {unjudged} differ and were not judged" if unjudged else ""
        moved = [c.metrics["max_change"] for c in comparisons if c.sensitive]
        if moved:
            known = [value for value in moved if np.isfinite(value)]
            headline += f"; {len(moved)} moved by more than {options.visible:.2g} of their largest"
            headline += f" value within it{f', by up to {max(known):.2g}' if known else ''}"
        return Summary(metrics, headline)


def tensor_metrics(
    reference: np.ndarray,
    candidate: np.ndarray,
    noise: float = 0.0,
    parts: Sequence[OutputPart] = (),
) -> dict[str, float]:
    """Distances between two arrays of one shape and dtype.

    Args:
        reference: Output of the original; any dtype. Non-numeric ones count as equal or not.
        candidate: Output of the optimized model.
        noise: Absolute differences up to this are not counted in ``beyond_noise``.
        parts: Parts whose ranges differ: boxes and scores in one output, say.

    Returns:
        ``max_abs`` and ``rmse`` in units of the output; ``max_rel`` = max |c - r| / |r| over
        elements with r != 0; ``max_change`` = max |c - r| / max |r|; ``cosine`` of the flattened
        arrays (1 if both are zero), both of the worst part, relative to its own range; ``max_ulp``,
        the largest distance in representable numbers (floats only; Goldberg 1991, "What Every
        Computer Scientist Should Know About Floating-Point Arithmetic", section 1.2);
        ``beyond_noise``, the share of elements; ``nonfinite``, the share of elements that are NaN
        or infinite on one side only, or differently so.
    """
    if reference.dtype.kind in "OUSb" or candidate.dtype.kind in "OUSb":
        wrong = np.asarray(reference != candidate)
        return {"beyond_noise": float(wrong.mean()) if wrong.size else 0.0}
    exact = (reference == candidate).ravel()
    r, c = _parts(reference), _parts(candidate)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        same = (r == c) | (np.isnan(r) & np.isnan(c))
        finite = np.isfinite(r) & np.isfinite(c)
        d = np.where(same, 0.0, np.abs(c - r))
        if reference.dtype.kind in "iu":
            # Whole numbers beyond 2**53 may differ by less than float64 can tell.
            d = np.where(exact, 0.0, np.maximum(d, 1.0))
        d = d[finite]
        rel = d[r[finite] != 0] / np.abs(r[finite][r[finite] != 0])
    nonfinite = ~same & ~finite
    metrics = {
        "max_abs": float(d.max(initial=0.0)),
        "max_rel": float(rel.max(initial=0.0)),
        "max_change": _change(d, r[finite]),
        "rmse": _rms(d),
        "cosine": cosine(r[finite], c[finite]),
        "beyond_noise": float(np.mean(nonfinite) + np.sum(d > noise) / r.size) if r.size else 0.0,
        "nonfinite": float(np.mean(nonfinite)) if r.size else 0.0,
    }
    for part in parts:
        if part.axis < reference.ndim:
            ours, theirs = part.of(reference), part.of(candidate)
            known = np.isfinite(ours) & np.isfinite(theirs)
            r, c = ours[known].astype(np.float64), theirs[known].astype(np.float64)
            # Of a sample without an object all scores are small: what counts is the usual range.
            change = float(np.abs(c - r).max(initial=0.0)) / part.largest
            metrics["max_change"] = max(metrics["max_change"], change)
            if np.abs(r).max(initial=0.0) * APART >= part.largest:
                metrics["cosine"] = min(metrics["cosine"], cosine(r, c))
    # By name: a dtype of ml_dtypes may compare equal to one of numpy's.
    if reference.dtype == candidate.dtype and reference.dtype.name in _IEEE:
        metrics["max_ulp"] = max_ulp(reference, candidate)
    return metrics


_IEEE = ("float16", "float32", "float64")


def _parts(value: np.ndarray) -> np.ndarray:
    """Flat float64 values; of complex numbers real and imaginary parts."""
    if value.dtype.kind == "c":
        return np.stack([value.real, value.imag]).astype(np.float64).ravel()
    return value.astype(np.float64).ravel()


def _change(d: np.ndarray, r: np.ndarray) -> float:
    """The largest of ``d`` relative to the largest magnitude in ``r``; 0 where nothing differs."""
    top, largest = float(d.max(initial=0.0)), float(np.abs(r).max(initial=0.0))
    if top == 0:
        return 0.0
    return top / largest if largest else float("inf")


def _rms(d: np.ndarray) -> float:
    """Root of the mean square of finite numbers, or infinity where one of them is."""
    top = float(d.max(initial=0.0))
    if top == 0 or np.isinf(top):
        return top
    # Scaled first, so that squares neither overflow nor vanish.
    return float(top * np.sqrt(np.mean((d / top) ** 2)))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine of the angle between two flat float64 arrays; 1 if both are zero, 0 if one is."""
    # Scaled first, so that squares neither overflow nor vanish.
    top_a, top_b = np.max(np.abs(a), initial=0.0), np.max(np.abs(b), initial=0.0)
    if top_a == 0 or top_b == 0:
        return 1.0 if top_a == top_b else 0.0
    x, y = a / top_a, b / top_b
    value = float(np.dot(x, y) / (np.linalg.norm(x) * np.linalg.norm(y)))
    return min(1.0, max(-1.0, value))


def max_ulp(a: np.ndarray, b: np.ndarray) -> float:
    """Largest number of representable steps between finite elements of two IEEE arrays."""
    bits = np.dtype(f"i{a.dtype.itemsize}")
    finite = np.isfinite(a) & np.isfinite(b)
    steps = []
    for array in (a, b):
        raw = np.ascontiguousarray(array[finite]).view(bits).astype(np.int64)
        # Negative numbers count downwards from zero, so that -0 and +0 are one number.
        least = int(np.iinfo(bits).min)
        steps.append(np.where(raw < 0, least - raw, raw))
    # Unsigned: the difference may need 64 bits without a sign, and float64 would lose the last ten.
    high, low = np.maximum(*steps).view(np.uint64), np.minimum(*steps).view(np.uint64)
    return float((high - low).max(initial=0))


@hookimpl
def optvet_comparators() -> Iterable[Comparator]:
    """The comparators "tensor" and "stream"."""
    # Here, since it compares what it ran as tensors are compared.
    from optvet_tensor.stream import StreamComparator

    return [TensorComparator(), StreamComparator()]
