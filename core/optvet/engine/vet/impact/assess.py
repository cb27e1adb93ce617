"""The effect of the pipeline's differences on the model's task."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from optvet.engine.discovery import Plugins
from optvet.engine.options import parse_options
from optvet.engine.vet.impact.comparator_options import (
    calibrate_options,
    comparator_options,
    reference_outputs,
)
from optvet.engine.vet.impact.decoding import Decoder
from optvet.engine.vet.impact.fixed_tolerances import FixedTolerances
from optvet.engine.vet.impact.impact import Answers, Assessment, choose, fallback
from optvet.engine.vet.impact.requirements import candidates, fitting, is_of_layers, required_of
from optvet.engine.vet.observe.examine import Examiner
from optvet.engine.vet.session import VetSession
from optvet.engine.work.trials.inference import Outputs
from optvet.engine.work.trials.inputs import Inputs
from optvet.engine.work.trials.trial_results import Trial
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.spec.errors import ContractError, InputError, UsageError
from optvet.spec.protocols import Decodes
from optvet.spec.records import Impact
from optvet.spec.request import VetRequest
from optvet.spec.requirement import Requirement
from optvet.spec.types import Failure, Model, Sample


class Assessor:
    """Adds up what a comparator says, a chunk of samples at a time.

    Attributes:
        fixed: What fixed tolerances would say.
    """

    def __init__(self, session: VetSession, inputs: Inputs) -> None:
        self._session, self._inputs = session, inputs
        self._request, self._plugins = session.request, session.plugins
        self._ledger = session.ledger
        self._assessment: Assessment | None = None
        self.fixed = FixedTolerances()

    def add(self, examiner: Examiner, samples: Sequence[Sample]) -> None:
        """Compare the outputs of original and candidate on ``samples``."""
        runner = examiner.runner
        trial = runner.trial(runner.case.passes.pipeline, samples, "detect")
        unsteady = examiner.random | examiner.flaky
        runs, reference = (_steady(r, unsteady) for r in (trial.runs, examiner.reference))
        self.fixed.add(_steady(runner.reference(samples).runs, unsteady), runs)
        if unsteady:
            names = ", ".join(sorted(unsteady))
            words = f"not compared, since two runs of the original may differ: {names}"
            self._ledger.control("comparator", "limited", words)
        asked = self._request.comparator is not None and not unsteady
        self._assessment, reason = self._added(
            examiner, trial, samples, self._assessment, reference, runs, asked=asked
        )
        if reason:
            self._ledger.control("comparator", "limited", reason)

    def compare(
        self,
        examiner: Examiner,
        trial: Trial,
        samples: Sequence[Sample],
        onto: Assessment | None,
    ) -> Assessment | None:
        """Compare the outputs of another trial as those of the pipeline are compared.

        Args:
            examiner: Has the reference.
            trial: The trial, which the examiner has examined.
            samples: The samples to compare.
            onto: The comparisons of the same passes on other samples, to which these are added.

        Returns:
            The comparisons so far; None if there is nothing to compare.
        """
        unsteady = examiner.random | examiner.flaky
        runs, reference = (_steady(r, unsteady) for r in (trial.runs, examiner.reference))
        known = self._assessment
        if onto is None and known is not None and known.begun:
            onto = Assessment(known.choice, known.options, known.model, calibrated=True)
        return self._added(examiner, trial, samples, onto, reference, runs, asked=False)[0]

    def _added(
        self,
        examiner: Examiner,
        trial: Trial,
        samples: Sequence[Sample],
        onto: Assessment | None,
        reference: Mapping[str, Outputs],
        runs: Mapping[str, Outputs],
        *,
        asked: bool,
    ) -> tuple[Assessment | None, str]:
        """``onto``, or a new assessment, with ``samples``; and why it is by another comparator."""
        runner = examiner.runner
        first = next((s for s in samples if s.id in reference and s.id in runs), None)
        if first is None:
            return onto, ""
        if onto is None:
            onto = begin(self._request, self._plugins, runner.model, reference[first.id])
        unsteady = examiner.random | examiner.flaky
        if unsteady and isinstance(onto.choice.comparator, Decodes):
            return onto, ""

        def add(to: Assessment) -> None:
            if not (to.begun or to.calibrated):
                self._calibrate(to, runner, samples)
            _add(to, examiner, samples, reference, runs, trial)

        return add_by(onto, self._plugins, add, asked=asked)

    def _calibrate(self, to: Assessment, runner: TrialRunner, samples: Sequence[Sample]) -> None:
        """Settle what is one for all samples, which are made twice where they are many."""
        several = self._inputs.several
        chunks = self._session.inputs().chunks() if several else iter([samples])
        outputs = reference_outputs(runner, chunks, judged=samples)
        to.options = calibrate_options(to.choice.comparator, to.options, runner.model, outputs)
        to.calibrated = True

    def impact(self) -> Impact | None:
        """The impact, if anything differs; it also becomes the finding's ``consequence``."""
        if self._assessment is None:
            return None
        try:
            impact = self._assessment.impact()
        except (InputError, ContractError) as error:
            if self._request.comparator is not None:
                raise
            self._ledger.control("comparator", "limited", str(error))
            return None
        # The impact can be attributed to a finding only if there is one finding of wrong output.
        findings = self._ledger.findings
        wrong = [i for i, f in enumerate(findings) if f.symptom.info.of_values]
        passes = self._session.case.passes
        allowed = passes.tolerance(passes.pipeline)
        if impact.changed and allowed is not None and not wrong:
            words = f"{impact.headline}; within the tolerance that the passes declare, {allowed:g}"
            return impact.model_copy(update={"headline": words})
        if len(wrong) == 1 and impact.changed:
            self._ledger.amend(wrong[0], {"consequence": impact.headline})
        return impact


def begin(request: VetRequest, plugins: Plugins, model: Model, outputs: Outputs) -> Assessment:
    """An assessment by the comparator that is chosen for ``outputs``, the reference's.

    Raises:
        UsageError: An option does not fit the comparator, or a metric is required that it lacks.
    """
    choice = choose(plugins, model, outputs, request.comparator)
    comparator = choice.comparator
    chosen = comparator_options(comparator, model, request)
    options = parse_options(f"comparator {comparator.name}", comparator.options, chosen)
    begun = Assessment(choice, options, model)
    for required in required_of(request, model):
        if isinstance(required, Requirement) and not is_of_layers(required):
            fitting(required, candidates(begun, request, plugins, model))
    return begun


def add_by(
    assessment: Assessment, plugins: Plugins, add: Callable[[Assessment], None], *, asked: bool
) -> tuple[Assessment, str]:
    """Add a chunk of samples, by the default comparator if the chosen one cannot compare them.

    A comparator claims a model by its score, and may not be able to compare its outputs.

    Args:
        assessment: The comparisons so far.
        plugins: What is installed.
        add: Adds the chunk to an assessment.
        asked: Whether the user named the comparator, so that no other one may take its place.

    Returns:
        The assessment that has the chunk, and what the first comparator said if it failed.

    Raises:
        InputError: The comparator that the user named rejects the outputs.
        ContractError: It raised something else.
    """
    try:
        add(assessment)
    except (InputError, ContractError) as error:
        if asked:
            raise
        plain = fallback(plugins)
        if assessment.begun or plain is None:
            return assessment, str(error)
        instead = Assessment(plain, plain.comparator.options, assessment.model)
        add(instead)
        return instead, str(error)
    return assessment, ""


def assessment_of(
    request: VetRequest, plugins: Plugins, model: Model, outputs: Outputs
) -> Assessment:
    """What says whether two answers are alike; ``outputs`` are the first model's.

    Raises:
        UsageError: The comparator compares what models write in many runs.
    """
    begun = begin(request, plugins, model, outputs)
    if isinstance(begun.choice.comparator, Decodes):
        raise UsageError(
            f"{begun.choice.comparator.name} compares what models write, not what they compute at "
            "once; choose another --comparator"
        )
    return begun


def _steady(runs: Mapping[str, Outputs | Failure], unsteady: Collection[str]) -> dict[str, Outputs]:
    """Outputs without those that differ between runs of one model; no failures, nothing empty."""
    found = {}
    for sample, run in runs.items():
        if not isinstance(run, Failure):
            found[sample] = {n: v for n, v in run.items() if n not in unsteady}
    return {sample: outputs for sample, outputs in found.items() if outputs}


def _add(
    assessment: Assessment,
    examiner: Examiner,
    samples: Sequence[Sample],
    reference: Mapping[str, Outputs],
    runs: Mapping[str, Outputs],
    trial: Trial,
) -> None:
    runner = examiner.runner
    usable = [s for s in samples if s.id in reference and s.id in runs]
    answers = decode_answers(runner, trial.passes, usable, assessment)
    unjudged = examiner.judge_rest(trial, usable)
    levels = examiner.levels(runs, trial.passes)
    assessment.add(samples, reference, runs, levels, answers, unjudged)


def decode_answers(
    runner: TrialRunner,
    passes: Sequence[str] | None,
    samples: Sequence[Sample],
    assessment: Assessment,
) -> Answers | None:
    """Decode the outputs of the original, and of the model after ``passes``."""
    comparator = assessment.choice.comparator
    if not isinstance(comparator, Decodes):
        return None
    runner.progress("decoding", 0, None)
    decoder = Decoder(runner, comparator, assessment.options)
    original, optimized = decoder.answers((None, passes), samples)
    return original, optimized
