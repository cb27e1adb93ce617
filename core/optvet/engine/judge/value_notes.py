"""Notes on values: what a user may want to know of an output's values that is no fault.

A further note is a function in ``VALUE_NOTES``, and its symptom; finding its culprit, reducing it
and showing it follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from optvet.engine.judge.sample import SampleVerdict
from optvet.spec.symptoms import Symptom


@dataclass(frozen=True)
class ValueNote:
    """A note on one output of one sample.

    ``detail`` says in words what is the matter. ``error`` is the largest difference, relative to
    the reference's largest magnitude, and ``noise`` the same for the reference's own spread.
    """

    symptom: Symptom
    output: str
    detail: str
    error: float | None = None
    noise: float | None = None


Arrays = Mapping[str, np.ndarray]
Notes = Callable[[SampleVerdict, Arrays, Arrays], Iterator[ValueNote]]
"""From the verdict on a sample, its expected and its candidate's outputs: one note per output."""


def value_notes(verdict: SampleVerdict, expected: Arrays, came: Arrays) -> Iterator[ValueNote]:
    """All notes on the outputs of one sample."""
    for notes in VALUE_NOTES:
        yield from notes(verdict, expected, came)


def _sensitivity(verdict: SampleVerdict, expected: Arrays, came: Arrays) -> Iterator[ValueNote]:
    """Outputs that differ no more than the original's do if its inputs are perturbed by rounding.

    Such are a discrete decision of the model, an argmax for instance.
    """
    for j in verdict.judgements:
        if j.call == "sensitivity":
            yield ValueNote(Symptom.SENSITIVITY, j.output, j.detail, j.error, j.noise)


VALUE_NOTES: tuple[Notes, ...] = (_sensitivity,)
