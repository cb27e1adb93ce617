"""A requirement with what measures it, so that it can be measured on other models and samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optvet.engine.vet.impact.comparator_options import (
    calibrate_options,
    options_for,
    reference_outputs,
)
from optvet.engine.vet.impact.requirements import Candidate, is_of_layers, required_of
from optvet.engine.vet.observe.examine import Examiner
from optvet.engine.vet.require.gauges import Chunk, RequirementReading, chunk_of, gauge_of
from optvet.engine.vet.require.metrics import explain_missing_outputs, runs_of
from optvet.engine.vet.session import VetSession
from optvet.engine.work.trials.trial_results import Trial
from optvet.spec.errors import UsageError
from optvet.spec.protocols import Decodes
from optvet.spec.records import Finding, RequirementRecord
from optvet.spec.requirement import Required
from optvet.spec.types import Model, Sample

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class PortableRequirement:
    """Measures ``required``.

    Attributes:
        required: The requirement.
        by: The comparator that has its metric, and options with the scale that all samples share;
            None for a tolerance.
    """

    required: Required
    by: Candidate | None = None

    def read(
        self, examiner: Examiner, trial: Trial, samples: Sequence[Sample]
    ) -> RequirementReading:
        """The requirement on ``samples``, after the passes of ``trial``."""
        if (failed := explain_missing_outputs(trial, samples)) is not None:
            return failed
        known, runs = examiner.reference, runs_of(trial)
        chunk = chunk_of(examiner, [self.required], trial.passes, samples, known, runs)
        return self._of(chunk)

    def compare(
        self,
        model: Model,
        feeds: Sequence[Arrays],
        expected: Sequence[Arrays],
        actual: Sequence[Arrays],
        noise: Sequence[Mapping[str, float]],
    ) -> RequirementReading:
        """The requirement on samples with known outputs.

        Args:
            model: The original.
            feeds: The samples.
            expected: Outputs of the original.
            actual: Outputs of the optimized model.
            noise: Absolute noise of outputs, where known.
        """
        samples = [Sample(f"witness {i}", each) for i, each in enumerate(feeds)]
        ids = [sample.id for sample in samples]
        sides = [
            {i: dict(outputs) for i, outputs in zip(ids, each, strict=True)}
            for each in (expected, actual)
        ]
        levels = dict(zip(ids, noise, strict=True))
        return self._of(Chunk(model, samples, sides[0], sides[1], levels=levels))

    def _of(self, chunk: Chunk) -> RequirementReading:
        gauge = gauge_of(self.required, [] if self.by is None else [self.by])
        gauge.add(chunk)
        try:
            return gauge.reading()
        except UsageError as error:  # a comparator that does not tell its metrics lacks this one
            return RequirementReading(None, words=str(error))


def portable_of(
    session: VetSession, finding: Finding, records: Sequence[RequirementRecord]
) -> PortableRequirement:
    """The requirement of ``finding``, with the comparator that measured it.

    Raises:
        UsageError: It cannot be measured on one sample.
    """
    every = required_of(session.request, session.case.model)
    required = next(r for r in every if str(r) == finding.requirement)
    if is_of_layers(required):
        raise UsageError("it is about values inside of the model, which a reduced one may not have")
    name = next(r.comparator for r in records if r.requirement == finding.requirement)
    if name is None:
        return PortableRequirement(required)
    comparator = session.plugins.comparator(name)
    if isinstance(comparator, Decodes):
        raise UsageError(f"{name} compares what the models write, not what they compute at once")
    options = options_for(comparator, session.case.model, session.request)
    outputs = reference_outputs(session.runner, session.inputs().chunks())
    about = (comparator, options, session.case.model)
    scaled = calibrate_options(*about, outputs, required.output)
    return PortableRequirement(required, (comparator, scaled))


def fewest_samples(
    session: VetSession, portable: PortableRequirement, finding: Finding, witness: Sample
) -> list[Sample]:
    """The fewest samples that together do not meet the requirement, the worst of them first.

    ``witness`` alone, where that is enough, or where no number of the worst samples is.

    Raises:
        UsageError: The samples are too many to be held at once.
    """
    if _fails(session, portable, finding, [witness]) is not None:
        return [witness]
    inputs = session.inputs()
    every = next(inputs.chunks())
    if inputs.several:
        raise UsageError("it takes several samples, of more than are held at once")
    reading = _fails(session, portable, finding, every)
    if reading is None:
        return [witness]
    # Samples of which nothing is known alone come last, lest the others be too few.
    worst = sorted(every, key=lambda s: -reading.shortfalls.get(s.id, -math.inf))
    few, many = 1, len(worst)
    while many - few > 1:
        middle = (few + many) // 2
        met = _fails(session, portable, finding, worst[:middle]) is None
        few, many = (middle, many) if met else (few, middle)
    return worst[:many]


def _fails(
    session: VetSession, portable: PortableRequirement, finding: Finding, samples: Sequence[Sample]
) -> RequirementReading | None:
    """The reading on ``samples`` after the culprit of ``finding``; None unless it is not met."""
    runner, table = session.runner, session.case.passes
    examiner = Examiner(runner, samples, tolerance=table.tolerance)
    examiner.learn_reference(runner.reference(samples))
    trial = runner.trial(table.complete(finding.culprit), samples, "verify")
    examiner.examine(trial, samples)
    reading = portable.read(examiner, trial, samples)
    return reading if reading.met is False else None
