"""What the pipeline's differences mean on the model's task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from optvet.engine.discovery import Plugins
from optvet.engine.options import parse_options
from optvet.engine.trust import options_from
from optvet.engine.vet.decoding import Decoder
from optvet.engine.vet.examine import Examiner
from optvet.engine.vet.impact import Answers, Assessment, choose, fallback
from optvet.engine.vet.ledger import FindingsLedger
from optvet.engine.work.lab import Lab
from optvet.engine.work.trial import Outputs
from optvet.spec.errors import ContractError, InputError
from optvet.spec.protocols import Comparator, Decodes
from optvet.spec.records import Impact
from optvet.spec.request import VetRequest
from optvet.spec.types import Failure, Model, Sample, Symptom


class Assessor:
    """Adds up what a comparator says, a chunk of samples at a time."""

    def __init__(self, request: VetRequest, plugins: Plugins, ledger: FindingsLedger) -> None:
        self._request, self._plugins, self._ledger = request, plugins, ledger
        self._assessment: Assessment | None = None

    def add(self, examiner: Examiner, samples: Sequence[Sample]) -> None:
        """Take in what original and candidate computed on ``samples``."""
        lab = examiner.lab
        trial = lab.trial(lab.case.passes.pipeline, samples, "detect")
        runs = {i: r for i, r in trial.runs.items() if not isinstance(r, Failure)}
        first = next((s for s in samples if s.id in runs and s.id in examiner.reference), None)
        if first is None:
            return
        if self._assessment is None:
            self._assessment = self._begun(lab.model, examiner.reference[first.id])
        try:
            _add(self._assessment, examiner, samples, runs)
        except (InputError, ContractError) as error:
            if self._request.comparator is not None:
                raise
            # A comparator that takes a model for its own and then does not understand it.
            self._ledger.control("comparator", "limited", str(error))
            plain = fallback(self._plugins)
            if self._assessment.begun or plain is None:
                return
            self._assessment = Assessment(plain, plain.comparator.options, lab.model)
            _add(self._assessment, examiner, samples, runs)

    def impact(self) -> Impact | None:
        """What the differences mean, if anything changed; the finding at fault tells it too."""
        if self._assessment is None:
            return None
        try:
            impact = self._assessment.impact()
        except (InputError, ContractError) as error:
            if self._request.comparator is not None:
                raise
            self._ledger.control("comparator", "limited", str(error))
            return None
        # It belongs to a finding only if there is but one wrong output.
        findings = self._ledger.findings
        wrong = [i for i, f in enumerate(findings) if f.symptom == Symptom.WRONG_OUTPUT]
        if len(wrong) == 1 and impact.changed:
            self._ledger.amend(wrong[0], {"consequence": impact.headline})
        return impact

    def _begun(self, model: Model, outputs: Outputs) -> Assessment:
        choice = choose(self._plugins, model, outputs, self._request.comparator)
        comparator = choice.comparator
        given = comparator_options(comparator, model, self._request)
        options = parse_options(f"comparator {comparator.name}", comparator.options, given)
        return Assessment(choice, options, model)


def comparator_options(comparator: Comparator, model: Model, request: VetRequest) -> dict[str, Any]:
    """What was asked for, and what the model's record says where nothing was."""
    config, given = model.config, dict(request.comparator_options)
    if comparator.name != config.comparator:
        return given
    more = {k: v for k, v in config.comparator_options.items() if k not in given}
    return given | options_from(
        config.origin,
        "comparator_options",
        comparator.options,
        more,
        folder=Path(config.origin).parent,
        trust=request.trust,
    )


def _add(
    assessment: Assessment,
    examiner: Examiner,
    samples: Sequence[Sample],
    runs: Mapping[str, Outputs],
) -> None:
    reference, comparator = examiner.reference, assessment.choice.comparator
    usable = [s for s in samples if s.id in reference and s.id in runs]
    answers = _answers(examiner.lab, usable, comparator, assessment.options)
    assessment.add(samples, reference, runs, examiner.levels(runs), answers)


def _answers(
    lab: Lab, samples: Sequence[Sample], comparator: Comparator, options: BaseModel
) -> Answers | None:
    """What a comparator that decodes makes of the original and of the optimized model."""
    if not isinstance(comparator, Decodes):
        return None
    lab.progress("decoding", 0, None)
    pipelines = (None, lab.case.passes.pipeline)
    original, optimized = Decoder(lab, comparator, options).answers(pipelines, samples)
    return original, optimized
