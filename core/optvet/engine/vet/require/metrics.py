"""Measures requirements on all samples, after any pass sequence.

The optimized model is compared with the original as the user gave it, not with the result of the
empty pipeline: a requirement includes the effects of import and lowering.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pydantic import BaseModel

from optvet.engine.vet.find.detect import Detected
from optvet.engine.vet.impact.assess import begin
from optvet.engine.vet.impact.comparator_options import calibrate_options, reference_outputs
from optvet.engine.vet.impact.requirements import (
    Candidate,
    candidates,
    required_of,
)
from optvet.engine.vet.require.gauges import (
    Gauge,
    Passes,
    RequirementReading,
    Runs,
    chunk_of,
    gauges_of,
)
from optvet.engine.vet.session import VetSession
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.inference import Outputs
from optvet.engine.work.trials.inputs import Inputs
from optvet.engine.work.trials.trial_results import Trial
from optvet.spec.requirement import Required
from optvet.spec.types import Failure, Sample


class RequirementMeter:
    """Measures requirements after pass sequences; each sequence is measured once.

    Attributes:
        required: The requirements.
        samples: All samples if they are in memory; else empty, and samples are loaded again.
    """

    def __init__(self, session: VetSession, detected: Detected, inputs: Inputs) -> None:
        self.required = required_of(session.request, session.case.model)
        self.samples: Sequence[Sample] = () if inputs.several else detected.samples
        self._session, self._detected, self._inputs = session, detected, inputs
        self._known: dict[tuple[Passes, bool], Mapping[Required, RequirementReading]] = {}
        self._among: list[Candidate] = []
        self._scales: dict[tuple[str, str | None], BaseModel] = {}

    def at(self, session: VetSession) -> RequirementMeter:
        """A meter of the same requirements that measures what ``session`` makes."""
        examiner = copy.copy(self._detected.examiner)
        examiner.runner = session.runner
        detected = replace(self._detected, runner=session.runner, examiner=examiner)
        return RequirementMeter(session, detected, self._inputs)

    def read(
        self, required: Required, passes: Passes, *, fresh: bool = False
    ) -> RequirementReading:
        """``required`` after ``passes``; ``fresh`` repeats all runs in new processes."""
        key = (passes, fresh)
        if key not in self._known:
            self._known[key] = self._measure(passes, fresh)
        return self._known[key][required]

    def _measure(self, passes: Passes, fresh: bool) -> Mapping[Required, RequirementReading]:
        runner = self._session.runner
        gauges: list[Gauge] = []
        for samples in self._chunks():
            reference = runs_of(runner.reference(samples))
            usable = [s for s in samples if s.id in reference]
            if not usable:
                continue
            if not gauges:
                gauges = self._gauges(reference[usable[0].id])
            verified = runner.trial(passes, usable, "verify") if passes is not None else None
            # Decoding needs a build that exists, so the plain trial comes first.
            trial = runner.fresh(passes, usable) if fresh or verified is None else verified
            if (failed := explain_missing_outputs(trial, usable)) is not None:
                return dict.fromkeys(self.required, failed)
            examiner, runs = self._detected.examiner, runs_of(trial)
            chunk = chunk_of(examiner, self.required, passes, usable, reference, runs)
            for gauge in gauges:
                gauge.add(chunk)
            if not self.samples:
                judged_ids = {s.id for s in self._detected.samples}
                runner.forget([s for s in usable if s.id not in judged_ids])
        return {gauge.required: gauge.reading() for gauge in gauges}

    def _chunks(self, *, again: bool = False) -> Iterator[Sequence[Sample]]:
        """All samples, in chunks; ``again`` if an iteration over them is running already."""
        if self.samples:
            yield self.samples
            return
        refused = self._detected.refused
        inputs = self._session.inputs() if again else self._inputs
        for chunk in inputs.chunks():
            yield [s for s in chunk if s.id not in refused]

    def _gauges(self, outputs: Outputs) -> list[Gauge]:
        if not self._among:
            session = self._session
            about = (session.request, session.plugins, session.case.model)
            self._among = candidates(begin(*about, outputs), *about)
        return gauges_of(self.required, self._among, self._calibrate)

    def _calibrate(self, by: Candidate, output: str | None) -> Candidate:
        """The comparator with calibrated options; see ``calibrate_options``."""
        key = (by[0].name, output)
        if key not in self._scales:
            runner = self._session.runner
            outputs = reference_outputs(runner, self._chunks(again=True))
            self._scales[key] = calibrate_options(*by, runner.model, outputs, output)
        return by[0], self._scales[key]


def runs_of(trial: Trial) -> Runs:
    """Outputs by sample id, of the samples that ran."""
    return {i: run for i, run in trial.runs.items() if not isinstance(run, Failure)}


def explain_missing_outputs(trial: Trial, samples: Sequence[Sample]) -> RequirementReading | None:
    """A reading that says why outputs of ``samples`` are missing; None if none are."""
    failure = _failure(trial, samples)
    if failure is None:
        return None
    return RequirementReading(
        None, words=f"the optimized model cannot be measured: {describe(failure)}"
    )


def _failure(trial: Trial, samples: Sequence[Sample]) -> Failure | None:
    """The failure because of which outputs of ``samples`` are missing; None if none are."""
    if trial.build.failure is not None:
        return trial.build.failure
    failed = next((r for r in trial.runs.values() if isinstance(r, Failure)), None)
    if failed is None and not all(s.id in trial.runs for s in samples):
        words = trial.alignment.problem if trial.alignment is not None else ""
        return Failure("error", "run", words or "it was not run on all samples")
    return failed
