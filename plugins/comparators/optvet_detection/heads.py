"""What decoders take and give, and what heads of detectors have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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


def corners(boxes: Array) -> Array:
    """Left, top, right, bottom of boxes [..., 4] given as centre x, centre y, width, height."""
    half = boxes[..., 2:] / 2
    return np.concatenate([boxes[..., :2] - half, boxes[..., :2] + half], axis=-1)


def widen(value: Array) -> Array:
    """The numbers as float64."""
    return np.asarray(value, np.float64)


def are_logits(value: Array) -> bool:
    """Whether these cannot be probabilities."""
    finite = value[np.isfinite(value)]
    return bool(finite.size and (finite.min() < -0.01 or finite.max() > 1.01))


def probability(value: Array, logits: bool) -> Array:
    """Probabilities, from logits or as they are."""
    return np.asarray(expit(value)) if logits else value


def growth(value: Array) -> Array:
    """exp(value), without overflow."""
    return np.asarray(np.exp(np.clip(value, -LARGEST_EXPONENT, LARGEST_EXPONENT)))


def unit_of(boxes: Array, size: Size | None) -> Array:
    """What boxes are multiplied with to be in pixels: the image's sides, if they are normalised."""
    finite = np.abs(boxes[np.isfinite(boxes)])
    if size is None or not finite.size or finite.max() > LARGEST_NORMALISED:
        return np.ones(4)
    return np.array([size[1], size[0]] * 2, np.float64)


def float_outputs(outputs: Outputs, rank: int | None = None) -> dict[str, Array]:
    """The outputs of floats, by name; those of ``rank`` axes if it is given."""
    return {
        n: v for n, v in outputs.items() if v.dtype.kind == "f" and (rank is None or v.ndim == rank)
    }
