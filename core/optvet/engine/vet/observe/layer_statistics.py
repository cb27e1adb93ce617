"""Statistics of values in two models: per value, and per operator or type."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from optvet.engine.numerics.floats import is_float
from optvet.engine.vet.observe.observation import finite
from optvet.spec.parts import parts_of
from optvet.spec.records import Activation, Layer, LayerSummary


def summaries(layers: Sequence[Layer], key: Callable[[Layer], str]) -> list[LayerSummary]:
    """The layers of each key, in the order of the first ones; those with an empty key left out."""
    grouped: dict[str, list[Layer]] = {}
    for layer in layers:
        if key(layer):
            grouped.setdefault(key(layer), []).append(layer)
    return [_summary(name, members) for name, members in grouped.items()]


def _summary(key: str, layers: Sequence[Layer]) -> LayerSummary:
    gaps = [la.activation.rms_difference for la in layers if la.activation is not None]
    known = [value for value in gaps if value is not None]
    return LayerSummary(
        key=key,
        layers=len(layers),
        differing=sum(la.call == "fault" for la in layers),
        error=max((la.error for la in layers if la.error is not None), default=None),
        noise=max((la.noise for la in layers if la.noise is not None), default=None),
        rms_difference=finite(float(np.mean(known))) if known else None,
    )


def rms_of(values: np.ndarray) -> float:
    """Root mean square; 0 of no values."""
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0


def _distances(one: np.ndarray, other: np.ndarray) -> tuple[float | None, float | None]:
    """The relative RMS difference and the cosine of two arrays of one shape; None if undefined."""
    x, y = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    both = np.isfinite(x) & np.isfinite(y)
    x, y = x[both], y[both]
    # Scaled first: squares of large numbers overflow.
    scale = float(max(np.abs(x).max(initial=0.0), np.abs(y).max(initial=0.0))) or 1.0
    x, y = x / scale, y / scale
    rms = finite(rms_of(x - y) / rms_of(x)) if rms_of(x) else None
    lengths = float(np.linalg.norm(x) * np.linalg.norm(y))
    return rms, min(1.0, float(x @ y) / lengths) if lengths else None


def activation_of(one: np.ndarray, other: np.ndarray) -> Activation | None:
    """Statistics of a value in both models; None if it holds no finite numbers."""
    if not all(is_float(v.dtype) or v.dtype.kind in "iu" for v in (one, other)):
        return None
    x, y = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    u, v = x[np.isfinite(x)], y[np.isfinite(y)]
    if not u.size or not v.size:
        return None
    apart: list[float | None] = [None]
    alike: list[float | None] = [None]
    if one.shape == other.shape:
        parts = parts_of([one]) if is_float(one.dtype) else ()
        pairs = [(one, other), *((p.of(one), p.of(other)) for p in parts)]
        apart, alike = map(list, zip(*(_distances(*pair) for pair in pairs), strict=True))
    # Of the worst part: where boxes and scores are one tensor, the scores are a thousandth of it.
    rms = max((value for value in apart if value is not None), default=None)
    cosine = min((value for value in alike if value is not None), default=None)
    with np.errstate(over="ignore"):
        return Activation(
            mean=(float(u.mean()), float(v.mean())),
            std=(float(u.std()), float(v.std())),
            minimum=(float(u.min()), float(v.min())),
            maximum=(float(u.max()), float(v.max())),
            rms_difference=rms,
            cosine=cosine,
        )
