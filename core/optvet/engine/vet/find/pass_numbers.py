"""Measures the model after one pass alone: its verdict, errors, metrics, size and time.

A study of an optimizer counts models per pass, not per pipeline. Each pass alone therefore gets the
numbers that the whole pipeline gets, from the same judge and the same comparator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from optvet.engine.vet.find.detect import Detected
from optvet.engine.vet.impact.assess import Assessor
from optvet.engine.vet.impact.impact import Assessment
from optvet.engine.vet.observe.observation import Examination
from optvet.engine.vet.session import VetSession
from optvet.engine.work.trials.trial_results import Build, Trial
from optvet.spec.errors import ContractError, InputError
from optvet.spec.records import Impact, PassNumbers, Structure
from optvet.spec.records.timing import Timing
from optvet.spec.records.vet import Verdict
from optvet.spec.types import Sample


@dataclass
class _Tally:
    """The results of one pass sequence, added up over chunks of samples."""

    build: Build
    found: Examination = field(default_factory=Examination)
    samples: int = 0
    assessment: Assessment | None = None


class PassMeter:
    """Adds up the results of passes alone, a chunk of samples at a time."""

    def __init__(self, session: VetSession, detected: Detected, assessor: Assessor) -> None:
        self._session, self._detected, self._assessor = session, detected, assessor
        self._tallies: dict[str, _Tally] = {}

    def add(self, name: str, trial: Trial, samples: Sequence[Sample], found: Examination) -> None:
        """Add the examination of a pass on ``samples``; import and export alone have no name."""
        tally = self._tallies.setdefault(name, _Tally(trial.build))
        tally.found.add(found)
        tally.samples += sum(s.id in trial.runs for s in samples)
        tally.assessment = self._assessor.compare(
            self._detected.examiner, trial, samples, tally.assessment
        )

    def numbers(
        self,
        name: str,
        *,
        proven: bool = True,
        timings: Mapping[str, Timing] | None = None,
    ) -> PassNumbers | None:
        """The numbers of a pass; None if it was not tried.

        Args:
            name: The pass; empty for import and export alone.
            proven: Whether a fault, if one was seen, counts; not if it did not show again.
            timings: What was timed, by the name of the pass.
        """
        tally = self._tallies.get(name)
        if tally is None:
            return None
        examiner = self._detected.examiner
        facts = tally.build.facts
        return PassNumbers(
            verdict=self._verdict(tally.found, proven=proven),
            samples=tally.samples,
            outputs=examiner.outputs(tally.found.judgements),
            impact=_impact(tally.assessment),
            structure=None
            if facts is None
            else Structure(
                nodes=facts.nodes,
                size_bytes=facts.size_bytes,
                operators=dict(sorted(facts.operators.items())),
            ),
            timing=(timings or {}).get(name),
        )

    def _verdict(self, found: Examination, *, proven: bool) -> Verdict:
        if found.observation is not None:
            return "faulty" if proven and not found.observation.unexplained else "undecided"
        judged = found.judgements
        if not judged or self._detected.examiner.why_open(judged):
            return "undecided"
        return "clean" if all(j.call == "same" for j in judged.values()) else "drift"


def _impact(assessment: Assessment | None) -> Impact | None:
    """The metrics over all samples, without single samples: there is one for each pass."""
    if assessment is None:
        return None
    try:
        impact = assessment.impact()
    except (InputError, ContractError):  # no sample ran, or the comparator rejects the outputs
        return None
    return impact.model_copy(update={"details": []})
