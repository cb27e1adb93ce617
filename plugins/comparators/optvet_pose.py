"""Keypoints of bodies, hands and faces, and angles of heads: how far they move, seen from the task.

Keypoints are compared as benchmarks of poses do: the share within a fraction of the pose's size
(PCK), and object keypoint similarity (OKS), with the original's keypoints as the truth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    Comparator,
    Comparison,
    InputError,
    Model,
    Sample,
    Suggestion,
    Summary,
    hookimpl,
)

_TASK = re.compile(r"\bpose\b|key.?point|landmark|body.recognition")
_HEAT_MAPS = re.compile(r"heat.?map")
# Per-keypoint constants of COCO's 17 body keypoints: nose, eyes, ears, shoulders, elbows, wrists,
# hips, knees, ankles (cocodataset.org, "Keypoint Evaluation", section 1.3).
_COCO_SIGMAS = np.repeat(
    [0.026, 0.025, 0.035, 0.079, 0.072, 0.062, 0.107, 0.087, 0.089], [1, *[2] * 8]
)
_OTHER_SIGMA = 0.05
_COORDINATES, _ANGLES = 2, 3
_SHOWN = 10


class PoseOptions(BaseModel):
    """Which output has the keypoints or angles, what they look like, and when they moved."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    output: str = ""
    """The output that has them; found by its shape where it is empty."""
    kind: Literal["auto", "keypoints", "angles"] = "auto"
    """"angles" are rotations of a head in degrees, such as yaw, pitch and roll."""
    values: int = Field(default=0, ge=0)
    """Numbers per keypoint, the first two of which are coordinates; 0: 3, or 2 where 3 do not
    divide the output. A third one from 0 to 1 is taken for a confidence."""
    min_confidence: float = Field(default=0.3, ge=0, le=1)
    """Keypoints of which the original is less sure are left out."""
    threshold: float = Field(default=0.05, gt=0)
    """A keypoint moved if by more than this fraction of the pose's diagonal (PCK)."""
    degrees: float = Field(default=1.0, gt=0)
    """An angle moved if by more than this."""


class PoseComparator:
    """PCK, OKS and mean distance of keypoints; mean and largest difference of angles."""

    name = "pose"
    suggestions = (Suggestion("pose"),)
    options: PoseOptions = PoseOptions()

    def matches(self, model: Model, outputs: Mapping[str, np.ndarray]) -> float:
        """0.95 for a declared task with readable outputs; less for the shape of COCO's poses."""
        task = (model.task or "").lower()
        if _HEAT_MAPS.search(task):
            return 0.0
        try:
            value = outputs[_output(outputs, "")]
        except InputError:
            return 0.0
        if _TASK.search(task):
            return 0.95
        return 0.7 if value.ndim >= 2 and value.shape[-2:] == (len(_COCO_SIGMAS), 3) else 0.0

    def compare(
        self,
        model: Model,
        sample: Sample,
        reference: Mapping[str, np.ndarray],
        candidate: Mapping[str, np.ndarray],
        options: PoseOptions,
        *,
        noise: Mapping[str, float],
    ) -> Comparison:
        """Compare the poses of one sample.

        Raises:
            InputError: No output has keypoints or angles.
        """
        name = _output(reference, options.output)
        expected, actual = (side[name].astype(np.float64) for side in (reference, candidate))
        allowed = noise.get(name, 0.0)
        compare = _compare_angles if _has_angles(model, expected, options) else _compare_keypoints
        with np.errstate(over="ignore", invalid="ignore"):
            return compare(sample, expected, actual, options, allowed)

    def metrics(self, options: PoseOptions) -> Sequence[str]:
        """Every metric of a summary."""
        return ("pck", "oks", "mean_distance", "keypoints", "max_degrees", "mean_degrees")

    def summarise(self, comparisons: Sequence[Comparison], options: PoseOptions) -> Summary:
        """Means over keypoints (PCK, distance) and over poses (OKS); the largest angle."""
        changed = sum(c.changed for c in comparisons)
        headline = f"{changed} of {len(comparisons)} poses moved"
        found: dict[str, float] = {}
        posed = [c.metrics for c in comparisons if c.metrics.get("keypoints")]
        if posed:
            total = sum(m["keypoints"] for m in posed)
            found = {
                "pck": sum(m["pck"] * m["keypoints"] for m in posed) / total,
                "oks": float(np.mean([m["oks"] for m in posed])),
                "mean_distance": sum(m["mean_distance"] * m["keypoints"] for m in posed) / total,
                "keypoints": total,
            }
        angled = [c.metrics for c in comparisons if "max_degrees" in c.metrics]
        if angled:
            found["max_degrees"] = max(m["max_degrees"] for m in angled)
            found["mean_degrees"] = float(np.mean([m["mean_degrees"] for m in angled]))
        return Summary(found, headline)


def _output(outputs: Mapping[str, np.ndarray], wanted: str) -> str:
    """The output that has keypoints or angles: the largest float one with several numbers."""
    if wanted and wanted not in outputs:
        raise InputError(f"comparator 'pose': there is no output {wanted!r}, but {[*outputs]}")
    fitting = {
        n: v
        for n, v in outputs.items()
        if v.dtype.kind == "f" and v.size >= _ANGLES and v.ndim and v.shape[-1] > 1
    }
    if wanted or fitting:
        return wanted or max(fitting, key=lambda n: fitting[n].size)
    raise InputError("comparator 'pose': no output has keypoints or angles; name it by output=")


def _has_angles(model: Model, value: np.ndarray, options: PoseOptions) -> bool:
    if options.kind != "auto":
        return options.kind == "angles"
    return value.shape[-1] == _ANGLES and (value.ndim < _ANGLES or "head" in (model.task or ""))


def _compare_angles(
    sample: Sample,
    reference: np.ndarray,
    candidate: np.ndarray,
    options: PoseOptions,
    allowed: float,
) -> Comparison:
    # The shorter way around: 179 and -179 degrees are 2 degrees apart.
    differences = np.abs((candidate - reference + 180) % 360 - 180)
    differences = np.where(
        np.isnan(reference) & np.isnan(candidate), 0.0, np.nan_to_num(differences, nan=180.0)
    )
    largest = float(differences.max(initial=0.0))
    changed = largest > options.degrees + allowed
    metrics = {
        "max_degrees": largest,
        "mean_degrees": float(differences.mean()) if differences.size else 0.0,
    }
    shown = {"degrees": [round(float(v), 6) for v in differences.ravel()[:_SHOWN]]}
    return Comparison(sample.id, metrics, changed, not changed and largest > options.degrees, shown)


def _compare_keypoints(
    sample: Sample,
    reference: np.ndarray,
    candidate: np.ndarray,
    options: PoseOptions,
    allowed: float,
) -> Comparison:
    """Compare every pose of a sample, [..., keypoints, values] or [..., keypoints * values]."""
    poses, moved = (_poses(value, options) for value in (reference, candidate))
    shares, similar, distances, firm = [], [], [], False
    for one, other in zip(poses, moved, strict=True):
        places = (pose[:, :_COORDINATES] for pose in (one, other))
        firm |= bool(np.not_equal(*map(np.isfinite, places)).any())
        seen = _seen(one, options)
        here = one[seen, :_COORDINATES]
        if not len(here):
            continue
        gap = other[seen, :_COORDINATES] - here
        gaps = np.nan_to_num(np.linalg.norm(gap, axis=1), nan=np.inf)
        size = float(np.linalg.norm(np.ptp(here, axis=0))) or 1.0
        relative = gaps / size
        shares += list(relative <= options.threshold)
        distances += list(np.minimum(relative, 1e6))
        similar.append(_oks(relative, seen))
        # Both coordinates may be off by the noise.
        firm |= bool((gaps > options.threshold * size + np.sqrt(2) * allowed).any())
    metrics = {"keypoints": float(len(shares))}
    if shares:
        metrics |= {
            "pck": float(np.mean(shares)),
            "oks": float(np.mean(similar)),
            "mean_distance": float(np.mean(distances)),
        }
    detail = {"distances": [round(float(v), 6) for v in distances[:_SHOWN]]}
    return Comparison(sample.id, metrics, firm, not firm and not all(shares), detail)


def _poses(value: np.ndarray, options: PoseOptions) -> np.ndarray:
    """float64 [poses, keypoints, values].

    Raises:
        InputError: The numbers cannot be divided into keypoints.
    """
    each = options.values
    if not each:
        each = _ANGLES if value.shape[-1] % _ANGLES == 0 else _COORDINATES
    if each < _COORDINATES or value.shape[-1] % each:
        raise InputError(
            f"comparator 'pose': an output of shape {list(value.shape)} has no keypoints of "
            f"{each} numbers; say values= and output="
        )
    if value.shape[-1] == each and value.ndim > 1:
        return value.reshape(-1, value.shape[-2], each)
    return value.reshape(-1, value.shape[-1] // each, each)


def _seen(pose: np.ndarray, options: PoseOptions) -> np.ndarray:
    """Numbers of the keypoints of which the original is sure."""
    known = np.isfinite(pose).all(axis=1)
    if pose.shape[1] == _ANGLES:
        sure = pose[:, 2]
        # A third coordinate goes below 0 or beyond 1; what has one confidence for all, has none.
        if known.any() and 0 <= sure[known].min() and sure[known].max() <= 1:
            known &= sure >= options.min_confidence
    return np.flatnonzero(known)


def _oks(relative: np.ndarray, seen: np.ndarray) -> float:
    """Object keypoint similarity, with the area of the pose's own diagonal squared, halved.

    Source: Lin et al. 2014, "Microsoft COCO: Common Objects in Context", keypoint evaluation.
    """
    known = len(seen) and seen.max() < len(_COCO_SIGMAS)
    sigmas = _COCO_SIGMAS[seen] if known else np.full(len(relative), _OTHER_SIGMA)
    # exp(-d² / (2 s² k²)) with k = 2 sigma and s² = diagonal² / 2.
    return float(np.mean(np.exp(-(relative**2) / (2 * 0.5 * (2 * sigmas) ** 2))))


@hookimpl
def optvet_comparators() -> Iterable[Comparator]:
    """The comparator ``pose``."""
    return [PoseComparator()]
