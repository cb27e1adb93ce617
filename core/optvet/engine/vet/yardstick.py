"""A requirement with what measures it, so that it can be measured on other models and samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optvet.engine.vet.comparators import calibrated, options_for
from optvet.engine.vet.examine import Examiner
from optvet.engine.vet.meter import Chunk, Reading, chunk_of, gauge_of, runs_of, unmeasured
from optvet.engine.vet.requirements import Candidate, required_of
from optvet.engine.vet.session import Session
from optvet.engine.work.facts import Trial
from optvet.spec.errors import UsageError
from optvet.spec.protocols import Decodes
from optvet.spec.records import Finding, RequirementRecord
from optvet.spec.requirement import Required
from optvet.spec.types import Model, Sample


@dataclass(frozen=True)
class Yardstick:
    """Measures ``required``.

    Attributes:
        required: The requirement.
        by: The comparator that has its metric, and options with the scale that all samples share;
            None for a tolerance.
    """

    required: Required
    by: Candidate | None = None

    def read(self, examiner: Examiner, trial: Trial, samples: Sequence[Sample]) -> Reading:
        """The requirement on ``samples``, after the passes of ``trial``."""
        if (failed := unmeasured(trial, samples)) is not None:
            return failed
        known, runs = examiner.reference, runs_of(trial)
        chunk = chunk_of(examiner, [self.required], trial.passes, samples, known, runs)
        return self._of(chunk)

    def compare(
        self,
        model: Model,
        feeds: Mapping[str, np.ndarray],
        expected: Mapping[str, np.ndarray],
        actual: Mapping[str, np.ndarray],
        noise: Mapping[str, float],
    ) -> Reading:
        """The requirement on one sample, of outputs that are known.

        Args:
            model: The original.
            feeds: The sample.
            expected: Outputs of the original.
            actual: Outputs of the optimized model.
            noise: Absolute noise of outputs, where known.
        """
        sample = Sample("witness", feeds)
        sides = ({sample.id: dict(expected)}, {sample.id: dict(actual)})
        return self._of(Chunk(model, [sample], *sides, levels={sample.id: noise}))

    def _of(self, chunk: Chunk) -> Reading:
        gauge = gauge_of(self.required, [] if self.by is None else [self.by])
        gauge.add(chunk)
        try:
            return gauge.reading()
        except UsageError as error:  # a comparator that does not tell its metrics lacks this one
            return Reading(None, words=str(error))


def yardstick_of(
    session: Session, finding: Finding, records: Sequence[RequirementRecord]
) -> Yardstick:
    """What measured the requirement of ``finding``, an answer of ``session`` with ``records``.

    Raises:
        UsageError: It cannot be measured on one sample.
    """
    every = required_of(session.request, session.case.model)
    required = next(r for r in every if str(r) == finding.requirement)
    name = next(r.comparator for r in records if r.requirement == finding.requirement)
    if name is None:
        return Yardstick(required)
    comparator = session.plugins.comparator(name)
    if isinstance(comparator, Decodes):
        raise UsageError(f"{name} compares what the models write, not what they compute at once")
    options = options_for(comparator, session.case.model, session.request)
    chunks = session.inputs().chunks()
    scaled = calibrated(session.lab, chunks, comparator, options, required.output)
    return Yardstick(required, (comparator, scaled))
