"""Measures a model of which some parts are kept, and tells how much converting one part loses."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from optvet.engine.vet.find.localize import Answer
from optvet.engine.vet.observe.observation import finite
from optvet.engine.vet.require.gauges import RequirementReading
from optvet.engine.vet.require.metrics import RequirementMeter, runs_of
from optvet.engine.work.trials.inference import Outputs
from optvet.engine.work.trials.trial_results import Trial
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.spec.parts import parts_of
from optvet.spec.records.precision import PrecisionReading
from optvet.spec.requirement import Required
from optvet.spec.types import Sample


class TrialsSpent(Exception):
    """The search may try no further list."""


@dataclass
class Measure:
    """Readings of the requirements by the parts that are kept.

    Attributes:
        parts: All parts that can be converted, in the order of the model.
        meter: Measures the requirements after the conversion of some parts.
        most: Maximum number of lists.
        tried: Lists measured so far, by what was kept, with whether all requirements were met.
        progress: Called with the number of lists.
    """

    parts: tuple[str, ...]
    meter: RequirementMeter
    most: int
    progress: Callable[[int], None] = lambda tried: None
    tried: dict[frozenset[str], bool | None] = field(default_factory=dict)

    def read(self, kept: Collection[str], *, fresh: bool = False) -> list[RequirementReading]:
        """Each requirement with ``kept`` left as it is.

        Raises:
            TrialsSpent: The list is a new one, beyond the maximum.
        """
        key = frozenset(kept)
        if not fresh and key not in self.tried and len(self.tried) >= self.most:
            raise TrialsSpent
        passes = tuple(name for name in self.parts if name not in key)
        readings = [self.meter.read(r, passes, fresh=fresh) for r in self.meter.required]
        if not fresh:
            self.tried[key] = _all_met(readings)
            self.progress(len(self.tried))
        return readings

    def met(self, kept: Collection[str], *, fresh: bool = False) -> bool | None:
        """Whether all requirements are met; None if one cannot be measured and none is unmet."""
        return _all_met(self.read(kept, fresh=fresh))

    def test(self, kept: Sequence[str]) -> Answer:
        """``met`` in the terms of the localizer: a list that it can do with *fails*."""
        met = self.met(kept)
        return "unresolved" if met is None else "fails" if met else "passes"

    def records(self, readings: Sequence[RequirementReading]) -> list[PrecisionReading]:
        """Readings as the document has them."""
        return [recorded(*each) for each in zip(self.meter.required, readings, strict=True)]

    def shortfall(self, readings: Sequence[RequirementReading]) -> float:
        """How far the readings are from the requirements, the worst of them; infinite if unknown.

        Only the order of these numbers means anything.
        """
        return max((_shortfall(r) for r in readings), default=0.0)


def _all_met(readings: Sequence[RequirementReading]) -> bool | None:
    if any(r.met is False for r in readings):
        return False
    return None if any(r.met is None for r in readings) else True


def _shortfall(reading: RequirementReading) -> float:
    if reading.met is None or reading.value is None or math.isnan(reading.value):
        return math.inf
    if reading.shortfalls:
        return max(reading.shortfalls.values())
    return reading.value if not reading.met else 0.0


def loss_of(runner: TrialRunner, trial: Trial, samples: Sequence[Sample]) -> float | None:
    """Root mean square of the outputs' change in ``trial``, relative to the outputs' own.

    Of the worst output, or part of one, over all samples; None if a value is not finite or there
    are no outputs.
    """
    reference, runs = runs_of(runner.reference(samples)), runs_of(trial)
    pairs = [(reference[i], runs[i]) for i in reference if i in runs]
    if not pairs or len(pairs) < len(reference):
        return None
    losses = [_relative_change(name, pairs) for name in pairs[0][0]]
    known = [loss for loss in losses if loss is not None]
    if any(not math.isfinite(loss) for loss in known):
        return None
    return max(known, default=0.0)


def _relative_change(name: str, pairs: Sequence[tuple[Outputs, Outputs]]) -> float | None:
    """The change of an output of floats; None of another, infinite where it is not finite."""
    arrays = []
    for reference, candidate in pairs:
        if name not in candidate or candidate[name].shape != reference[name].shape:
            return math.inf
        if reference[name].dtype.kind != "f":
            return None
        arrays.append((reference[name], candidate[name]))
    changes = [_rms_change(arrays)]
    for part in parts_of(before for before, _ in arrays):
        changes.append(_rms_change([(part.of(a), part.of(b)) for a, b in arrays]))
    return max(changes)


def _rms_change(arrays: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    change = total = 0.0
    for one, other in arrays:
        before, after = one.astype(np.float64), other.astype(np.float64)
        where = np.isfinite(before)
        with np.errstate(invalid="ignore", over="ignore"):
            change += float(np.sum((after - before)[where] ** 2))
            total += float(np.sum(before[where] ** 2))
    if not math.isfinite(change):
        return math.inf
    return math.sqrt(change / total) if total else (math.inf if change else 0.0)


def recorded(required: Required, reading: RequirementReading) -> PrecisionReading:
    """A reading as the document has it."""
    return PrecisionReading(
        requirement=str(required),
        met=reading.met,
        measured=finite(reading.value),
        detail=reading.words,
    )
