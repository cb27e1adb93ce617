"""Depth maps: how far the distances of the optimized model are from those of the original.

The metrics are those by which depth estimation is judged, with the original in place of the truth.
Source: Eigen, Puhrsch, Fergus 2014, "Depth map prediction from a single image using a multi-scale
deep network", section 4.3; averaged over the pixels in which both sides see a distance.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from optvet.plugin import Comparator, Comparison, InputError, Model, Sample, Summary, hookimpl
from pydantic import BaseModel, ConfigDict, Field

FACTOR = 1.25
WORST = ("abs_rel", "rmse", "rmse_log", "delta_1", "delta_2", "delta_3")
TOTALS = ("pixels", "pixels_changed", "pixels_lost")
_TASK = re.compile(r"\bdepth\b", re.IGNORECASE)


class DepthOptions(BaseModel):
    """Which output is the map, and when it counts as changed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    output: str = ""
    """The output that has the distances; the largest one where it is empty."""
    max_error: float = Field(default=0.01, ge=0)
    """A pixel whose distance moved by a larger share than this, and by more than the noise,
    counts as changed.
    """


class DepthComparator:
    """Relative errors of distances, and the share of pixels that keep theirs."""

    name = "depth"
    options: DepthOptions = DepthOptions()

    def matches(self, model: Model, outputs: Mapping[str, np.ndarray]) -> float:
        """1 for a declared task of depth; a map of numbers alone may be anything."""
        return 1.0 if _TASK.search(model.task or "") else 0.0

    def metrics(self, options: DepthOptions) -> Sequence[str]:
        """Names of the metrics of a summary, for ``--require``."""
        return [*WORST, *TOTALS]

    def compare(
        self,
        model: Model,
        sample: Sample,
        reference: Mapping[str, np.ndarray],
        candidate: Mapping[str, np.ndarray],
        options: DepthOptions,
        *,
        noise: Mapping[str, float],
    ) -> Comparison:
        """All pixels of the sample's maps together; see ``depth_metrics``."""
        name = map_name(reference, options.output)
        ours, theirs = (side[name].astype(np.float64).ravel() for side in (reference, candidate))
        metrics = depth_metrics(ours, theirs)
        far = changed_pixels(ours, theirs, options.max_error, 0.0)
        firm = changed_pixels(ours, theirs, options.max_error, noise.get(name, 0.0))
        metrics["pixels_changed"] = float(firm.sum())
        changed = bool(firm.any())
        return Comparison(sample.id, metrics, changed, bool(far.any()) and not changed)

    def summarise(self, comparisons: Sequence[Comparison], options: DepthOptions) -> Summary:
        """The worst sample, and the pixels that changed in all of them."""
        worst = {
            key: (min if key.startswith("delta") else max)(c.metrics[key] for c in comparisons)
            for key in WORST
        }
        totals = {key: sum(c.metrics[key] for c in comparisons) for key in TOTALS}
        changed = sum(c.changed for c in comparisons)
        headline = f"{changed} of {len(comparisons)} depth maps changed"
        if changed:
            headline += f"; relative error {worst['abs_rel']:.3g}"
        return Summary({**worst, **totals}, headline)


def map_name(outputs: Mapping[str, np.ndarray], wanted: str) -> str:
    """The output that has the distances.

    Raises:
        InputError: There is none.
    """
    fitting = [n for n, v in outputs.items() if v.ndim >= 2 and v.dtype.kind == "f"]
    if wanted in fitting:
        return wanted
    if wanted or not fitting:
        raise InputError(
            f"comparator 'depth': no output {wanted or 'with a map'!r} of distances among "
            f"{', '.join(map(repr, outputs))}; choose one with the option 'output'"
        )
    return max(fitting, key=lambda n: outputs[n].size)


def has_depth(distances: np.ndarray) -> np.ndarray:
    """Where there is a distance: a finite number above 0."""
    return np.asarray(np.isfinite(distances) & (distances > 0))


def depth_metrics(ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
    """Metrics of two maps.

    Args:
        ours: The original's distances r, float64 [pixels]; any unit.
        theirs: The optimized model's distances c, likewise.

    Returns:
        ``abs_rel``, the mean of |c - r| / r; ``rmse`` in the unit of the maps; ``rmse_log``, of
        natural logarithms; ``delta_1``, ``delta_2``, ``delta_3``, the share of pixels with
        max(c / r, r / c) < 1.25, 1.25², 1.25³; ``pixels`` that have a distance on both sides, and
        ``pixels_lost``, those that have one on one side only: all averages are over the former.
    """
    known = has_depth(ours) & has_depth(theirs)
    r, c = ours[known], theirs[known]
    lost = has_depth(ours) != has_depth(theirs)
    with np.errstate(over="ignore"):
        logs = np.abs(np.log(c) - np.log(r))
        relative = np.abs(c - r) / r
    return {
        "abs_rel": _mean(relative, 0.0),
        "rmse": _rms(np.abs(c - r)),
        "rmse_log": _rms(logs),
        **{f"delta_{k}": _mean(logs < k * np.log(FACTOR), 1.0) for k in (1, 2, 3)},
        "pixels": float(known.sum()),
        "pixels_lost": float(lost.sum()),
    }


def changed_pixels(
    ours: np.ndarray, theirs: np.ndarray, max_error: float, noise: float
) -> np.ndarray:
    """Where the distance moved by more than ``noise`` and more than ``max_error`` of itself.

    A number in place of what is none, or the other way round, is never noise.
    """
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    numbers = np.isfinite(ours) & np.isfinite(theirs)
    with np.errstate(invalid="ignore", over="ignore"):
        close = np.abs(theirs - ours) <= np.maximum(noise, max_error * np.abs(ours))
    return np.asarray(~same & ~(numbers & close))


def _mean(values: np.ndarray, otherwise: float) -> float:
    return float(np.mean(values)) if values.size else otherwise


def _rms(distances: np.ndarray) -> float:
    top = float(distances.max(initial=0.0))
    # Scaled first, so that squares neither overflow nor vanish.
    return top * float(np.sqrt(np.mean((distances / top) ** 2))) if top else 0.0


@hookimpl
def optvet_comparators() -> Iterable[Comparator]:
    """The comparator "depth"."""
    return [DepthComparator()]
