"""Finds passes that leave the model as it is, many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from optvet.engine.vet.session import VetSession
from optvet.engine.work.trials.trial_results import Trial
from optvet.spec.types import Pass

_GROUP = 2
"""A single pass is tried with the samples, once."""


class _PassGroup(NamedTuple):
    passes: list[str]
    changes: bool
    """Whether they are known to change the model together."""

    def parted(self) -> tuple[list[str], list[str]]:
        """The passes to try next, and those that are left: the halves, where the whole is known."""
        middle = (len(self.passes) + 1) // 2 if self.changes else len(self.passes)
        return self.passes[:middle], self.passes[middle:]


def idle_passes(session: VetSession, names: Sequence[str], empty: Trial) -> frozenset[str]:
    """Passes among ``names`` that alone leave the model as the empty pipeline, ``empty``, does.

    If ``traits.one_way``, none of a group of passes that together leave it so changes it alone; the
    group needs one application. A group that changes it is halved: if the first half does not
    change it, the second does. One that fails, as by a time limit, is not halved. Passes that
    change the model without its weights are likely to change it too, and in no group. Whatever no
    group shows is not in the answer.
    """
    table = session.case.passes
    if not session.case.optimizer.traits.one_way or not empty.build.contents.computation:
        return frozenset()
    idle: set[str] = set()
    quiet = [n for n in names if not _changes_by_intent(table.passes[n])]
    # A pass that changes the model spoils its group for all others, so likely ones are kept out.
    likely = session.runner.guess_changing(quiet)
    groups = [_PassGroup([n for n in quiet if n not in likely], False)]
    while groups := [group for group in groups if len(group.passes) >= _GROUP + group.changes]:
        parted = [group.parted() for group in groups]
        trials = session.runner.trials([table.complete(tried) for tried, _ in parted], (), "each")
        groups = []
        for (tried, left), trial in zip(parted, trials, strict=True):
            is_idle = trial.build.contents == empty.build.contents
            if is_idle:
                idle.update(tried)
            # A failure has no known part: halves of the group could fail, or hang, one by one.
            elif trial.build.failure is None:
                groups.append(_PassGroup(tried, True))
            groups.append(_PassGroup(left, is_idle))
    return frozenset(idle)


def _changes_by_intent(described: Pass) -> bool:
    """Whether a pass says of itself that it changes most models."""
    return bool(described.known_limits or described.interface or described.lossy)
