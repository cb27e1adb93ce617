"""Detection: compares reference and candidate on all samples, chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from optvet.engine.judge.thresholds import OTHER_KERNELS
from optvet.engine.vet.find.confirm import explain_no_repeat, report_fault
from optvet.engine.vet.find.probing import cannot_load, no_answer
from optvet.engine.vet.find.refusal import refuse_what_it_does_not_take
from optvet.engine.vet.impact.assess import Assessor
from optvet.engine.vet.observe.examine import Examiner
from optvet.engine.vet.observe.observation import Examination, Observation
from optvet.engine.vet.properties import Fault
from optvet.engine.vet.session import VetSession
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.inputs import Inputs
from optvet.engine.work.trials.trial_results import Trial, is_late
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.spec.errors import InfrastructureError, InputError, NothingTested
from optvet.spec.extras import extras
from optvet.spec.runtime_protocols import RuntimeExtras
from optvet.spec.types import Failure, Sample

_COMPLAINT_CHARS = 200


@dataclass(frozen=True)
class Detected:
    """The result of the detection.

    Attributes:
        runner: The trial runner, with checks that the original passes.
        examiner: Has the first chunk of samples and the failing samples; others are not kept.
        found: What is wrong with the whole pipeline.
        judged: Number of samples.
        complete: Whether all samples were tried.
        refused: Why the original does not run on a sample, by the sample's name.
    """

    runner: TrialRunner
    examiner: Examiner
    found: Examination
    judged: int
    complete: bool
    refused: Mapping[str, str]

    @property
    def samples(self) -> list[Sample]:
        """The samples for the following stages."""
        return self.examiner.samples

    def share(self, samples: Sequence[Sample]) -> str:
        """The share of all samples that ``samples`` are, in words; empty if all."""
        total = self.judged
        return f" (on {len(samples)} of {total} samples)" if len(samples) < total else ""


@dataclass
class _Count:
    """Counters of the detection."""

    judged: int = 0
    complete: bool = True
    stopped: bool = False
    refused: dict[str, str] = field(default_factory=dict)


def detect(session: VetSession, inputs: Inputs, assessor: Assessor) -> Detected:
    """Compare original and candidate on all samples.

    Later stages need only the first chunk and the failing samples, so others are not kept.
    """
    runner, count, found = session.runner, _Count(), Examination()
    runner.progress("making inputs", 0, None)
    examiner, gate = _examiners(runner)
    chunks = inputs.chunks()
    for chunk in chunks:
        runner.progress("comparing", count.judged, None)
        # The original first: what it does not pass itself cannot be asked of the optimized model.
        runner, reference = _run_both(session.at(runner), chunk)
        # Other checks, other trials: what the examiner knows belongs to the former ones.
        if runner is not examiner.runner:
            examiner, gate = _examiners(runner)
        samples = _usable(session.at(runner), reference, chunk, count, several=inputs.several)
        if not samples:
            break
        sound, here = _examine_chunk(session.at(runner), examiner, gate, samples)
        count.judged += len(samples)
        # A fault of the lowering is no observation of the passes.
        if sound:
            found.add(here)
        assessor.add(examiner, samples)
        let_go(examiner, samples, here)
        if not sound or (here.observation and here.observation.stage != "compare"):
            # Each further chunk would end in the same failure.
            count.complete = next(chunks, None) is None
            break
        # The original itself reached the time limit: further chunks would wait for it again.
        if count.stopped:
            break
    return Detected(runner, examiner, found, count.judged, count.complete, count.refused)


def _examiners(runner: TrialRunner) -> tuple[Examiner, Examiner]:
    """An examiner for passes, and a more tolerant one for import and lowering: other kernels."""
    tolerance = runner.case.passes.tolerance
    examiner = Examiner(runner, (), tolerance=tolerance)
    gate = Examiner(runner, (), thresholds=OTHER_KERNELS)
    # Layers are checked once for both; they depend on the model and not on the thresholds.
    gate.layers = examiner.layers
    return examiner, gate


def _run_both(session: VetSession, samples: Sequence[Sample]) -> tuple[TrialRunner, Trial]:
    """The reference's trial, and a trial runner with checks that the original passes.

    The candidate's trial is made in parallel, and cached.
    """
    runner, case = session.runner, session.case
    reference, _ = runner.both(case.passes.pipeline, samples, "detect")
    if _is_death(reference.build.failure):
        # A death may come from the machine, so it is asked once more before the run is given up.
        runner.forget_original()
        reference, _ = runner.both(case.passes.pipeline, samples, "detect")
    if _is_death(reference.build.failure):
        assert reference.build.failure is not None
        raise InfrastructureError(
            f"{case.model.source}: onnx.checker did not end on the original model, twice: "
            f"{describe(reference.build.failure)}; give it more with --timeout or --memory"
        )
    # Each check is dropped only because the original fails it, the strictest one first. Whatever it
    # passes is still required of the optimized model.
    if reference.build.failure is not None and case.checks.full:
        # If the original fails strict shape inference, the optimized model need not pass it.
        session.ledger.control(
            "checker",
            "limited",
            "the original passes onnx.checker but not strict shape inference, "
            "so candidates are checked without it",
        )
        # Kept, so that an optimizer with the same complaint is seen to refuse an invalid model.
        complaint = reference.build.failure.message
        return _run_both(session.at(runner.under(full=False, complaint=complaint)), samples)
    if reference.build.failure is not None and case.checks.plain:
        return _run_unchecked(session, samples, reference.build.failure)
    return runner, reference


def _run_unchecked(
    session: VetSession, samples: Sequence[Sample], refusal: Failure
) -> tuple[TrialRunner, Trial]:
    """The same for an original that the checker refuses but a runtime runs."""
    words = " ".join(refusal.message.partition("==> Context")[0].split())
    unchecked = session.runner.under(plain=False, complaint=words)
    runner, reference = _run_both(session.at(unchecked), samples)
    failure = reference.build.failure
    loaded = next(iter(reference.runs.values()), None)
    if failure is None and isinstance(loaded, Failure) and loaded.stage == "load":
        failure = loaded
    runtime = session.case.reference.runtime
    invalid = f"{session.case.model.source}: not a valid ONNX model: {words}"
    if failure is not None:
        raise InputError(f"{invalid}; nor does {runtime.name} load it: {describe(failure)}")
    # An evaluator in Python runs what no other runtime accepts, so it is no witness of validity.
    if extras(runtime, RuntimeExtras).evaluates:
        raise InputError(
            f"{invalid}; that {runtime.name} evaluates it does not make it valid: choose another "
            "runtime, or repair the model"
        )
    session.ledger.control(
        "checker",
        "limited",
        "invalid-model cannot be found: onnx.checker refuses the original, which "
        f"{session.case.reference.runtime.name} runs: {words[:_COMPLAINT_CHARS]}",
    )
    return runner, reference


def _is_death(failure: Failure | None) -> bool:
    """Whether a process died or was killed, so that it is not an error of the checker."""
    return failure is not None and failure.kind != "error"


def _examine_chunk(
    session: VetSession, examiner: Examiner, gate: Examiner, samples: Sequence[Sample]
) -> tuple[bool, Examination]:
    """What is wrong with the pipeline on ``samples``; False where the lowering already is."""
    runner = session.runner
    if not examiner.samples:
        examiner.samples = gate.samples = list(samples)
    examiner.learn_reference(runner.reference(samples))
    # The lowering before the passes: they are compared with it, so it must be right by itself.
    if session.case.lowers:
        fault = _fault_of_lowering(session, examiner, gate, samples)
        if fault is not None:
            return False, Examination(fault)
    trial = runner.trial(session.case.passes.pipeline, samples, "detect")
    return True, examiner.examine(trial, samples)


def _fault_of_lowering(
    session: VetSession, examiner: Examiner, gate: Examiner, samples: Sequence[Sample]
) -> Observation | None:
    """Compare the fixed lowering of another format with the original: rule 3.

    Its kernels differ from the reference's, so more rounding is allowed. From here on the lowering
    is the reference: no pass caused the difference between the two.
    """
    runner, ledger = session.runner, session.ledger
    base = runner.trial(session.case.passes.base, samples, "control")
    gate.learn_reference(runner.reference(samples))
    examination = gate.examine(base, samples)
    observation = examination.observation
    if observation is not None:
        # A model that the program rejects is no fault. Asked before anything is reported.
        refuse_what_it_does_not_take(session, base)
        if ledger.is_unexplained(observation):
            return observation
        words = f"{session.case.optimizer.name}'s import and lowering"
        ledger.control("empty pipeline", "failed", f"{words} show {observation.symptom}")
        finding = report_fault(session, Fault(gate, observation), (), undecided=False)
        if not finding.confirmed:
            return replace(observation, message=explain_no_repeat(finding), unexplained=True)
        return observation
    gate.forget(samples)
    judged = examination.judgements
    ledger.control_exact(judged)
    open_ = [j for j in judged.values() if j.call == "unsure"]
    for j in open_:
        words = f"import and lowering give another output {j.output!r}, which could not be judged"
        ledger.control("empty pipeline", "limited", words)
        ledger.add_undecided_reason(f"{words}: {j.detail}")
    if not open_ and "empty pipeline" not in ledger.controls:
        words = "import and lowering agree with the original"
        ledger.control("empty pipeline", "passed", words)
    examiner.learn_reference(base)
    return None


def _usable(
    session: VetSession,
    reference: Trial,
    samples: Sequence[Sample],
    count: _Count,
    *,
    several: bool,
) -> list[Sample]:
    """Samples that the reference runs on; records why it refuses the others.

    Stops at a sample that times out, since each other one might take as long.
    """
    usable = list(samples)
    while True:
        # A timeout ends the list: each sample after it could cost the limit again.
        if is_late(reference):
            return _those_that_end(session, reference, usable, count)
        failed = {i: r for i, r in reference.runs.items() if isinstance(r, Failure)}
        if not failed:
            return usable
        name, failure = next(iter(failed.items()))
        if failure.stage == "load":
            raise cannot_load(session.case, failure)
        count.refused[name] = describe(failure)
        usable = [s for s in usable if s.id != name]
        if not usable and not count.judged:
            raise NothingTested(
                f"{session.case.model.source}: the original model runs on none of the "
                f"{'first ' if several else ''}{len(samples)} samples; "
                f"the last error was: {describe(failure)}"
            )
        reference = session.runner.reference(usable)


def _those_that_end(
    session: VetSession, reference: Trial, samples: Sequence[Sample], count: _Count
) -> list[Sample]:
    """The samples before the first timeout; the others are refused."""
    count.stopped = True
    limit = f"{session.request.timeout:g} s"
    usable = []
    for sample in samples:
        run = reference.runs.get(sample.id)
        if run is None:
            count.refused[sample.id] = f"not tried: the original did not end within {limit}"
        elif isinstance(run, Failure):
            count.refused[sample.id] = describe(run)
        else:
            usable.append(sample)
    if not usable and not count.judged:
        raise no_answer(session.case, session.request.timeout)
    return usable


def let_go(examiner: Examiner, samples: Sequence[Sample], found: Examination) -> None:
    """Drop ``samples`` from memory, except for the first chunk and the failing samples."""
    seen = found.observation
    witnesses = {s.id for s, _ in found.notes}
    if seen is not None and seen.sample is not None:
        witnesses.add(seen.sample.id)
    known = {s.id for s in examiner.samples}
    examiner.samples += [s for s in samples if s.id in witnesses - known]
    gone = [s for s in samples if s.id not in witnesses | known]
    examiner.runner.forget(gone)
    examiner.forget(gone)


def wrong_in_rest(
    session: VetSession, inputs: Inputs, detected: Detected, pipeline: Sequence[str]
) -> Examination:
    """The first fault of ``pipeline`` on the samples that are not kept in memory."""
    runner, examiner = session.runner, detected.examiner
    first_ids = {s.id for s in examiner.samples}
    for chunk in inputs.chunks():
        samples = [s for s in chunk if s.id not in first_ids and s.id not in detected.refused]
        if not samples:
            continue
        base = examiner.base
        examiner.learn_reference(
            runner.reference(samples) if base is None else runner.trial(base, samples, "control")
        )
        found = examiner.examine(runner.trial(pipeline, samples, "verify"), samples)
        let_go(examiner, samples, Examination(found.observation))
        if found.observation is not None:
            return found
    return Examination()
