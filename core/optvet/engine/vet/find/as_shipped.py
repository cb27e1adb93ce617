"""The optimized model in a session as its users have it: who is to blame if only that is wrong.

::

                   clean room        as shipped
    original       the reference     wrong here too: the runtime
    optimized      sound by now      judged here; wrong here alone: pass and runtime together

A cell of the table is filled only if the answer depends on it: the lower right one always is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from optvet.engine.judge.flips import REACH
from optvet.engine.judge.thresholds import OTHER_KERNELS
from optvet.engine.models import large
from optvet.engine.vet.find.confirm import report_fault
from optvet.engine.vet.find.detect import Detected
from optvet.engine.vet.find.eliminate import clear
from optvet.engine.vet.find.excuses import excuse
from optvet.engine.vet.find.localize import Answer, minimal_set
from optvet.engine.vet.observe.examine import Examiner
from optvet.engine.vet.observe.observation import Examination
from optvet.engine.vet.properties import Fault
from optvet.engine.vet.require.metrics import RequirementMeter
from optvet.engine.vet.require.unmet import UnmetRequirement
from optvet.engine.vet.session import VetSession
from optvet.engine.work.sandbox import enter
from optvet.engine.work.trials.building import BuildSpec, build
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.trial_results import Trial
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.spec.types import Failure, Sample

CONTROL = "as shipped"
Again = Callable[[bytes | None], Sequence[str]]
"""Names the passes of the runtime's own optimizer that are wrong on a model in ONNX; the original
if it is None."""


def shipped_runner(session: VetSession) -> TrialRunner | None:
    """What runs optimized models under the runtime's defaults and the user's options.

    None if the clean room is such a session, or if the session's own optimizations are vetted:
    models that a runtime's own optimizer saves are not optimized again.
    """
    case = session.case
    own = case.optimizer.name == case.candidate.runtime.name
    shipped = case.shipped(session.request.runtime_options)
    if session.request.clean or own or case.lowers or case.optimizer.traits.optimizes_on_load:
        return None
    if shipped.candidate.options == case.candidate.options:
        return None
    return session.runner.on(shipped.under(full=False))


def judge_as_shipped(
    session: VetSession,
    runner: TrialRunner,
    detected: Detected,
    safe: tuple[str, ...],
    again: Again,
) -> tuple[str, ...]:
    """Report faults of ``safe`` that only ``runner`` shows; returns its safe part.

    The optimized model is compared with the original in the clean room: both under the defaults
    would be wrong alike wherever the runtime optimizes both.
    """
    case, ledger, samples = session.case, session.ledger, detected.samples
    runner.progress("judging as shipped", 0, None)
    examiner = Examiner(runner, samples, tolerance=case.passes.tolerance, thresholds=OTHER_KERNELS)
    # What is excused in the clean room is so in any session.
    excused_outputs = {o for f in ledger.findings if f.known_limit for o in f.outputs}
    examiner.ignored_outputs |= detected.examiner.ignored_outputs | excused_outputs
    examiner.learn_reference(runner.reference(samples))
    found = examiner.examine(runner.trial(safe, samples, "detect"), samples)
    share = detected.share(samples)
    if found.observation is not None:
        # An optimizer that spoils its own process is not what is asked here.
        found = examiner.examine(runner.fresh(safe, samples), samples)
    if found.observation is None:
        ledger.control(CONTROL, "passed", f"agrees{share}")
        return safe
    if ledger.is_unexplained(found.observation):
        return safe
    fault = Fault(examiner, found.observation)
    before, passes = len(ledger.findings), safe
    # Whose fault is it? The runtime's, where its defaults are wrong on the original too.
    original = session.runner.on(case.run_by(runner.case.candidate)).reference(samples)
    shipping = session.at(runner)
    if _is_wrong(examiner, original, samples):
        report_fault(shipping, fault, (), as_deployed=True)
        words, blob = f"the runtime is wrong on the original too{share}", None
        if further := _unexplained(found, examiner.examine(original, samples)):
            ledger.add_undecided_reason(f"{words}. {further}")
    else:
        safe = clear(shipping, examiner, samples, passes, found, as_deployed=True).passes
        words, blob = f"only the optimized model is wrong{share}", _made(runner, passes)
    # Weighed before passes are left out: where the standard has no answer, kernels may differ.
    excused = excuse(shipping, examiner, samples, before)
    guilty = {n for f in ledger.findings[before:] if f not in excused for n in f.culprit}
    back = {n for f in excused for n in f.culprit} - guilty
    safe = tuple(n for n in passes if n in safe or n in back)
    if all(f.severity == "note" for f in ledger.findings[before:]):
        ledger.control(CONTROL, "limited", words)
        return safe
    ledger.control(CONTROL, "failed", words)
    parts = _options_at_fault(session, runner, fault, None if blob is None else passes)
    if blob is None or blob:
        parts += again(blob)
    for i in range(before, len(ledger.findings)):
        ledger.amend(i, {"runtime_parts": parts})
    return safe


def require_as_shipped(session: VetSession, meter: RequirementMeter, safe: tuple[str, ...]) -> None:
    """Measure as shipped what is met in the clean room; ``session`` and ``meter`` run so."""
    ledger = session.ledger
    for i, (required, record) in enumerate(zip(meter.required, ledger.requirements, strict=True)):
        unmet = UnmetRequirement(meter, required)
        if not record.met or unmet.read(safe).met is not False:
            continue
        reading = unmet.read(safe, fresh=True)
        if reading.met is not False:
            continue
        found = unmet.describe(session.runner.trial(safe, unmet.samples, "confirm"), ())
        witness = session.witness(reading.witness)
        ledger.add(found.model_copy(update={"as_deployed": True, "witness": witness}))
        detail = f"{reading.words} as shipped; {record.detail} in the clean room"
        changes = {"met": False, "measured": found.measured, "detail": detail}
        ledger.requirements[i] = record.model_copy(update=changes)


def _unexplained(found: Examination, of_original: Examination) -> str:
    """What the optimized model is off by, in words, beyond what the runtime itself is off by."""
    for name, judged in found.judgements.items():
        own = of_original.judgements.get(name)
        error, explained = judged.error or 0.0, 0.0 if own is None else own.error or 0.0
        if judged.call == "fault" and explained and error > REACH * explained:
            size = f"off by {error:.2g} of its largest value, on the original by {explained:.2g}"
            return f"That explains no difference as large as that of {name!r}: {size}"
    return ""


def _is_wrong(examiner: Examiner, trial: Trial, samples: Sequence[Sample]) -> bool:
    failed = any(isinstance(r, Failure) for r in trial.runs.values())
    return failed or examiner.examine(trial, samples).observation is not None


def _made(runner: TrialRunner, passes: Sequence[str]) -> bytes:
    """The optimized model; empty if it is too large to be held, or cannot be made again."""
    if large.is_large(runner.model):
        return b""
    return runner.sandbox.call(_build, runner.build_spec(passes), fresh=True).value or b""


def _build(spec: BuildSpec) -> bytes:
    """Called in a worker."""
    enter("build")
    return build(spec).data


def _options_at_fault(
    session: VetSession, runner: TrialRunner, fault: Fault, passes: Sequence[str] | None
) -> list[str]:
    """The fewest options of the shipped session, as ``KEY=VALUE``, that show ``fault``.

    All others are as in the clean room. The model is that of ``passes``; None is the original.
    """
    clean, own = session.case.candidate, runner.case.candidate.options
    differs = [n for n in type(own).model_fields if getattr(own, n) != getattr(clean.options, n)]
    samples = fault.samples

    def shows(names: tuple[str, ...]) -> Answer:
        options = clean.options.model_copy(update={n: getattr(own, n) for n in names})
        config = RuntimeConfig(clean.runtime, options)
        if passes is None:
            trial = session.runner.on(session.case.run_by(config)).reference(samples)
        else:
            case = replace(runner.case, candidate=config)
            trial = session.runner.on(case).trial(passes, samples, "localize")
        return "fails" if _is_wrong(fault.examiner, trial, samples) else "passes"

    shown = own.model_dump(mode="json")
    return [f"{n}={shown[n]}" for n in minimal_set(differs, shows)]
