"""How many samples exceed the fixed tolerances that papers and other tools use.

They know nothing of the model: on one they call rounding a fault, on another a fault rounding. So
no verdict rests on them; they stand beside it for readers who compare numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from optvet.engine.numerics.tolerance import excess
from optvet.engine.work.trials.inference import Outputs
from optvet.spec.records import FixedTolerance
from optvet.spec.types import Failure

TOLERANCES: Mapping[str, tuple[float, float]] = {
    "1e-7": (1e-7, 1e-7),
    "1e-3": (1e-3, 1e-3),
    "Polygraphy": (1e-5, 1e-5),
    "ONNX backend tests": (1e-3, 1e-7),
}
"""Relative and absolute tolerance by name, added as ``numpy.isclose`` does."""


@dataclass
class FixedTolerances:
    """Counts samples, a chunk at a time."""

    _samples: int = 0
    _beyond: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOLERANCES, 0))
    _outputs: dict[str, dict[str, int]] = field(
        default_factory=lambda: {name: {} for name in TOLERANCES}
    )

    def add(
        self, reference: Mapping[str, Outputs | Failure], candidate: Mapping[str, Outputs | Failure]
    ) -> None:
        """Take in what both models computed; a sample that one fails on is not counted."""
        for sample, expected in reference.items():
            actual = candidate.get(sample)
            if isinstance(expected, Failure) or actual is None or isinstance(actual, Failure):
                continue
            self._samples += 1
            for tolerance in TOLERANCES:
                self._count(tolerance, expected, actual)

    def _count(self, tolerance: str, reference: Outputs, candidate: Outputs) -> None:
        rtol, atol = TOLERANCES[tolerance]
        counts, exceeded = self._outputs[tolerance], False
        for name, value in reference.items():
            beyond = name not in candidate or _is_beyond(value, candidate[name], rtol, atol)
            counts[name] = counts.get(name, 0) + beyond
            exceeded |= beyond
        self._beyond[tolerance] += exceeded

    def records(self) -> list[FixedTolerance]:
        """One per tolerance; none where no sample was compared."""
        if not self._samples:
            return []
        return [
            FixedTolerance(
                name=name,
                rtol=rtol,
                atol=atol,
                samples=self._samples,
                beyond=self._beyond[name],
                outputs=self._outputs[name],
            )
            for name, (rtol, atol) in TOLERANCES.items()
        ]


def _is_beyond(reference: np.ndarray, candidate: np.ndarray, rtol: float, atol: float) -> bool:
    return excess(reference, candidate, rtol=rtol, atol=atol).beyond > 0
