"""Finds passes that leave the model as it is, many at a time."""

from __future__ import annotations

from collections.abc import Sequence

from optvet.engine.vet.session import VetSession
from optvet.engine.work.trials.trial_results import Trial
from optvet.spec.types import Pass

_GROUP = 2
"""A single pass is tried with the samples, once."""


def idle_passes(session: VetSession, names: Sequence[str], empty: Trial) -> frozenset[str]:
    """Passes among ``names`` that alone leave the model as the empty pipeline, ``empty``, does.

    If ``traits.one_way``, none of a group of passes that together leave it so changes it alone; the
    group needs one application. A group that changes it is halved; one that fails, as by a time
    limit, is not. Whatever no such group shows is not in the answer.
    """
    table = session.case.passes
    if not session.case.optimizer.traits.one_way or empty.build.canonical is None:
        return frozenset()
    idle: set[str] = set()
    groups = [[n for n in names if not _changes_by_intent(table.passes[n])]]
    while groups := [group for group in groups if len(group) >= _GROUP]:
        sequences = [table.complete(group) for group in groups]
        halves = []
        trials = session.runner.trials(sequences, (), "each")
        for group, trial in zip(groups, trials, strict=True):
            if trial.build.canonical == empty.build.canonical:
                idle.update(group)
            elif trial.build.failure is None:
                middle = len(group) // 2
                halves += [group[:middle], group[middle:]]
        groups = halves
    return frozenset(idle)


def _changes_by_intent(described: Pass) -> bool:
    """Whether a pass says of itself that it changes most models."""
    return bool(described.known_limits or described.interface or described.lossy)
