"""What became of a model that a worker of a hunt made and judged."""

from __future__ import annotations

from dataclasses import dataclass

from optvet.engine.hunt.make_candidates import MadeCandidate
from optvet.engine.hunt.quick_oracle import Examined
from optvet.engine.hunt.suspicions import Complaint, Place, Rewrite


@dataclass(frozen=True)
class Seed:
    """A model that is worth editing, and what fires on it.

    ``way`` is the mutator that prepared it, or else its operators: one of each way is enough.
    ``invented`` are names that passes gave to values that they made of it; ``shown`` is what looks
    wrong on it.
    """

    candidate: MadeCandidate
    rewrites: tuple[Rewrite, ...]
    way: str
    invented: tuple[str, ...] = ()
    shown: frozenset[Place] = frozenset()


@dataclass(frozen=True)
class CandidateOutcome:
    """What became of the candidate of a number.

    ``candidate`` is kept only where something is suspected. ``complaint`` is about a mutator, a
    fragment or a part of the optimizer's plugin that caused an exception. ``spent`` are entry and
    mutator of an edit of which there is no such variant. ``tried`` are digests of the edit.
    ``reached`` are lines of the passes' code that no model had reached.
    """

    number: int
    kind: str
    mutators: tuple[str, ...] = ()
    examined: Examined | None = None
    candidate: MadeCandidate | None = None
    complaint: Complaint | None = None
    seeds: tuple[Seed, ...] = ()
    spent: tuple[int, int] | None = None
    tried: tuple[int, ...] = ()
    reached: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether it could be judged."""
        return self.examined is not None and self.examined.valid
