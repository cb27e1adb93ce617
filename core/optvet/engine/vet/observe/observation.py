"""The result of examining a trial: its first fault, and a judgement per output."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from optvet.engine.judge.judgement import Judgement
from optvet.engine.judge.sample import SampleVerdict
from optvet.engine.judge.value_notes import ValueNote
from optvet.engine.work.trials.raised_errors import normalized_message
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Sample

LARGEST = 1e300
"""Ratios beyond this stand for infinity."""


@dataclass(frozen=True)
class Observation(SampleVerdict):
    """The first fault of a trial, in the order of its stages, and a sample that shows it.

    ``lost`` are lost optional inputs that no sample feeds, so outputs were compared. An
    ``unexplained`` observation is never a finding, and never equal to another.
    """

    symptom: Symptom
    sample: Sample | None = None
    lost: tuple[str, ...] = ()

    @property
    def signature(self) -> tuple[str, str]:
        """Symptom and, for a failure, its words without names, numbers and paths."""
        return self.symptom, "" if self.stage == "compare" else normalized_message(self.message)

    @property
    def rank(self) -> tuple[bool, float]:
        """Larger is worse: a failure, then the size of what is wrong."""
        return self.stage != "compare", self.exceeds


def observation_of(
    verdict: SampleVerdict, sample: Sample | None, lost: tuple[str, ...] = ()
) -> Observation:
    """A verdict that something is wrong, as an observation."""
    known = {f.name: getattr(verdict, f.name) for f in fields(SampleVerdict)}
    return Observation(**known, sample=sample, lost=lost)


def same_symptom(a: Observation, b: Observation) -> bool:
    """Whether symptoms are equal and, for wrong outputs, at least one output; not the messages."""
    if a.symptom != b.symptom or a.unexplained or b.unexplained:
        return False
    return not a.symptom.info.of_values or not set(a.outputs).isdisjoint(b.outputs)


def same_fault(a: Observation, b: Observation) -> bool:
    """Whether two observations are the same fault: symptom, words, and some output in common."""
    return a.signature == b.signature and same_symptom(a, b)


@dataclass
class Examination:
    """What examining one trial gave: at most one observation, notes, and a verdict per output."""

    observation: Observation | None = None
    notes: list[tuple[Sample, ValueNote]] = field(default_factory=list)
    judgements: dict[str, Judgement] = field(default_factory=dict)

    def add(self, other: Examination) -> None:
        """Merge the examination of the same passes on more samples, keeping the worst results.

        Of notes, the first one of its kind for each output is kept.
        """
        for judgement in other.judgements.values():
            keep_worst(self.judgements, judgement)
        self.notes = first_notes([*self.notes, *other.notes])
        if other.observation is not None and (
            self.observation is None or other.observation.rank > self.observation.rank
        ):
            self.observation = other.observation


def first_notes(notes: Iterable[tuple[Sample, ValueNote]]) -> list[tuple[Sample, ValueNote]]:
    """The first note of each kind for each output, in their order."""
    found: dict[tuple[Symptom, str], tuple[Sample, ValueNote]] = {}
    for sample, note in notes:
        found.setdefault((note.symptom, note.output), (sample, note))
    return list(found.values())


def finite(value: float | None) -> float | None:
    """``value``; None if it is NaN, infinite or beyond ``LARGEST``."""
    return value if value is not None and abs(value) < LARGEST else None


def keep_worst(judgements: dict[str, Judgement], j: Judgement) -> None:
    """Replace the stored judgement of an output if ``j`` is worse."""
    order = ("same", "drift", "sensitivity", "unsure", "fault")
    old = judgements.get(j.output)
    size = (order.index(j.call), j.exceeds if j.call == "fault" else j.error or 0.0)
    if old is None or size > (
        order.index(old.call),
        old.exceeds if old.call == "fault" else old.error or 0.0,
    ):
        judgements[j.output] = j
