"""Searches a small list of parts to keep with which the requirements are met.

::

    suspects, most severe first ─→ the shortest beginning that is enough ─→ 1-minimal
             └ all of them are not enough ─→ each part alone ─→ the same by measured loss
                                                                   └ shorter lists of these

The sets that the localizer calls failing are here the lists that are enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice

from optvet.engine.precision.measure import Measure, TrialsSpent, loss_of
from optvet.engine.vet.find.localize import first_bad_prefix, minimal_set
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.spec.records.precision import PrecisionRisk
from optvet.spec.types import Sample

_SURE = 2
"""Up to so many parts a list is not searched again in another order."""


@dataclass
class FoundList:
    """What a search found.

    Attributes:
        kept: The list, in the order of importance as the search saw it.
        minimal: Whether the search tried to leave out each single part.
        losses: Loss of each part alone, if that was measured.
        alone: Whether the requirements are met with that part alone converted.
        order: All parts that the search considered, the most important first.
    """

    kept: tuple[str, ...]
    minimal: bool
    losses: dict[str, float | None] = field(default_factory=dict)
    alone: dict[str, bool | None] = field(default_factory=dict)
    order: tuple[str, ...] = ()


def search(
    measure: Measure,
    runner: TrialRunner,
    samples: Sequence[Sample],
    suspicions: Mapping[str, Sequence[PrecisionRisk]],
    *,
    rank: bool,
) -> FoundList:
    """A list of parts that is enough; keeping all of them is, and keeping none is not.

    Args:
        measure: Says whether a list is enough.
        runner: Makes the trials.
        samples: Samples on which the loss of each part is measured.
        suspicions: By part, the most severe first.
        rank: Whether each part is converted alone in any case.
    """
    found = FoundList(measure.parts, False)
    try:
        if rank:
            _measure_alone(measure, runner, samples, found)
        order = _by_severity(suspicions)
        enough = _beginning(order, measure) if order else None
        if enough is None:
            if not found.losses:
                _measure_alone(measure, runner, samples, found)
            order = _by_loss(measure.parts, found, suspicions)
            enough = _beginning(order, measure)
        found.order = order
        if enough is None:
            return found  # every list that was tried lacks something that only all of them give
        found.kept = enough
        found.kept = minimal_set(enough, measure.test)
        found.minimal = True
        if len(found.kept) > _SURE:
            # Minimal lists differ in length; this one gives up the least important parts first.
            other = minimal_set(enough[::-1], measure.test)
            found.kept = min(found.kept, other[::-1], key=len)
        if found.losses:
            found.kept = _shorter(measure, found)
    except TrialsSpent:
        known = [kept for kept, met in measure.tried.items() if met]
        best = min(known, key=len, default=frozenset(measure.parts))
        found.kept = tuple(n for n in (found.order or measure.parts) if n in best)
    return found


def _shorter(measure: Measure, found: FoundList) -> tuple[str, ...]:
    """A list of fewer parts that is enough, else the one found.

    A minimal list need not be the shortest. As many lists are tried as there are parts, which is
    what the losses took: the shortest first, of the parts that matter most.
    """
    lists = (few for size in range(1, len(found.kept)) for few in combinations(found.order, size))
    for few in islice(lists, len(measure.parts)):
        if measure.test(few) == "fails":
            return few
    return found.kept


def _by_severity(suspicions: Mapping[str, Sequence[PrecisionRisk]]) -> tuple[str, ...]:
    """Suspects, the most severe first; the order of the model decides among equal ones."""
    return tuple(sorted(suspicions, key=lambda name: -suspicions[name][0].severity))


def _by_loss(
    parts: Sequence[str], found: FoundList, suspicions: Mapping[str, Sequence[PrecisionRisk]]
) -> tuple[str, ...]:
    """All parts: first those that alone break a requirement, then by their loss."""

    def key(name: str) -> tuple[bool, float, float]:
        loss = found.losses.get(name)
        severity = suspicions[name][0].severity if suspicions.get(name) else 0.0
        return (
            found.alone.get(name) is True,
            -(float("inf") if loss is None else loss),
            -severity,
        )

    return tuple(sorted(parts, key=key))


def _beginning(order: Sequence[str], measure: Measure) -> tuple[str, ...] | None:
    """A short beginning of ``order`` that is enough; None if none of those tried is."""
    length = 1
    while length < len(order) and measure.test(order[:length]) != "fails":
        length *= 2
    length = min(length, len(order))
    if measure.test(order[:length]) != "fails":
        return None
    return tuple(order[: first_bad_prefix(order[:length], measure.test)])


def _measure_alone(
    measure: Measure, runner: TrialRunner, samples: Sequence[Sample], found: FoundList
) -> None:
    """Convert each part alone."""
    alone = [(name,) for name in measure.parts]
    for trial in runner.trials(alone, samples, "each"):  # by several processes at a time
        name = trial.passes[0]
        found.losses[name] = loss_of(runner, trial, samples)
        found.alone[name] = measure.met([other for other in measure.parts if other != name])
