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
from pathlib import Path

from optvet.engine.judge.flips import REACH
from optvet.engine.judge.thresholds import OTHER_KERNELS
from optvet.engine.models import large
from optvet.engine.vet.find.confirm import report_fault
from optvet.engine.vet.find.detect import Detected
from optvet.engine.vet.find.eliminate import clear
from optvet.engine.vet.find.excuses import excuse, excused_passes
from optvet.engine.vet.find.localize import Answer, minimal_set
from optvet.engine.vet.ledger import FindingsLedger
from optvet.engine.vet.observe.examine import Examiner, drawing_by
from optvet.engine.vet.observe.observation import Examination
from optvet.engine.vet.properties import Fault
from optvet.engine.vet.session import VetSession
from optvet.engine.work.trials import from_file
from optvet.engine.work.trials.building import make_onnx
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.spec.extras import extras
from optvet.spec.runtime_protocols import RuntimeExtras

CONTROL = "as shipped"
RuntimePasses = Callable[[bytes | None], Sequence[str]]
"""Names the passes of the runtime's own optimizer that are wrong on a model in ONNX; the original
if it is None."""


def shipped_runner(session: VetSession) -> TrialRunner | None:
    """What runs optimized models under the runtime's defaults and the user's options.

    None if the clean room is such a session, or if the session's own optimizations are vetted.
    """
    case = session.case
    shipped = case.shipped(session.request.runtime_options)
    if session.request.clean or case.optimizer.traits.one_session:
        return None
    # The defaults are the clean room: the question has been answered already.
    if shipped.candidate.options == case.candidate.options:
        return None
    return session.runner.on(shipped.under(full=False))


def shipped_examiner(runner: TrialRunner, detected: Detected, ledger: FindingsLedger) -> Examiner:
    """Compares what ``runner`` runs with the original in the clean room.

    What is excused in the clean room is so in any session. What the session is documented to lose
    is no fault of it, nor of a pass.
    """
    lost = extras(runner.case.candidate.runtime, RuntimeExtras).declared_loss(
        runner.case.candidate.options
    )

    def tolerance(passes: Sequence[str]) -> float | None:
        declared = runner.case.passes.tolerance(passes), lost
        return max((each for each in declared if each is not None), default=None)

    examiner = Examiner(runner, detected.samples, tolerance=tolerance, thresholds=OTHER_KERNELS)
    excused = {output for f in ledger.findings if f.known_limit for output in f.outputs}
    # An output that was excused once would only be excused again, at the cost of every trial.
    examiner.ignored_outputs |= detected.examiner.ignored_outputs | excused
    examiner.learn_reference(runner.reference(detected.samples))
    return examiner


def judge_as_shipped(
    session: VetSession,
    runner: TrialRunner,
    detected: Detected,
    safe: tuple[str, ...],
    runtime_passes: RuntimePasses,
) -> tuple[str, ...]:
    """Report faults of ``safe`` that only ``runner`` shows; returns its safe part.

    The optimized model is compared with the original in the clean room: both under the defaults
    would be wrong alike wherever the runtime optimizes both.
    """
    case, ledger, samples = session.case, session.ledger, detected.samples
    runner.progress("judging as shipped", 0, None)
    examiner = shipped_examiner(runner, detected, ledger)
    examiner.ignored_outputs |= detected.examiner.of_base
    if {o.name for o in case.model.outputs} <= examiner.ignored_outputs:
        ledger.control(CONTROL, "limited", "not judged: all outputs are at fault without a pass")
        return safe
    found = examiner.examine(runner.trial(safe, samples, "detect"), samples)
    share = detected.share(samples)
    if found.observation is not None:
        # An optimizer that spoils its own process is not what is asked here.
        found = examiner.examine(runner.fresh(safe, samples), samples)
    if found.observation is None:
        config = runner.case.candidate
        lost = extras(config.runtime, RuntimeExtras).declared_loss(config.options)
        within = (
            f", within the {lost:g} that {config.runtime.name}'s defaults may lose" if lost else ""
        )
        ledger.control(CONTROL, "passed", f"agrees{share}{within}")
        return safe
    if ledger.is_unexplained(found.observation):
        return safe
    fault = Fault(examiner, found.observation)
    before, passes = len(ledger.findings), safe
    # Whose fault is it? The runtime's, where its defaults are wrong on the original too.
    original = session.runner.on(case.run_by(runner.case.candidate)).reference(samples)
    of_original = examiner.examine(original, samples)
    shipping = session.at(runner)
    model_of: tuple[str, ...] | None
    # The same session is wrong without any pass, so no pass is searched.
    if of_original.observation is not None:
        report_fault(shipping, fault, (), as_deployed=True)
        words, model_of = f"the runtime is wrong on the original too{share}", None
        # The optimized model may be off much further than the original. Then the runtime explains
        # only a part, and the rest is left open rather than blamed on a pass.
        if further := _unexplained(found, of_original):
            ledger.add_undecided_reason(f"{words}. {further}")
    else:
        safe = clear(shipping, examiner, samples, passes, found, as_deployed=True).passes
        words, model_of = f"only the optimized model is wrong{share}", passes
    # Weighed before passes are left out: where the standard has no answer, kernels may differ.
    back = excused_passes(ledger, excuse(shipping, examiner, samples, before), before)
    safe = tuple(n for n in passes if n in safe or n in back)
    if all(f.severity == "note" for f in ledger.findings[before:]):
        ledger.control(CONTROL, "limited", words)
        return safe
    ledger.control(CONTROL, "failed", words)
    # Options before the runtime's own passes: a user can set an option at once.
    parts = _options_at_fault(session, runner, fault, model_of)
    if not case.optimizer.traits.shipped_options:  # else the session optimizes nothing
        parts += _passes_at_fault(runner, model_of, runtime_passes)
    for i in range(before, len(ledger.findings)):
        ledger.amend(i, {"runtime_parts": parts})
    return safe


def _unexplained(found: Examination, of_original: Examination) -> str:
    """What the optimized model is off by, in words, beyond what the runtime itself is off by."""
    for name, judged in found.judgements.items():
        own = of_original.judgements.get(name)
        error, explained = judged.error or 0.0, 0.0 if own is None else own.error or 0.0
        if judged.call == "fault" and explained and error > REACH * explained:
            size = f"off by {error:.2g} of its largest value, on the original by {explained:.2g}"
            return f"That explains no difference as large as that of {name!r}: {size}"
    return ""


def _passes_at_fault(
    runner: TrialRunner, model_of: Sequence[str] | None, runtime_passes: RuntimePasses
) -> Sequence[str]:
    """Those of the runtime's own optimizer; none of a model that is too large to be held."""
    if model_of is None:
        return runtime_passes(None)
    if large.is_large(runner.model):
        return ()
    made = runner.sandbox.call(make_onnx, runner.build_spec(model_of), fresh=True).value
    if isinstance(made, Path):
        made = from_file.whole(made)
    return runtime_passes(made) if made is not None else ()


def _options_at_fault(
    session: VetSession, runner: TrialRunner, fault: Fault, model_of: Sequence[str] | None
) -> list[str]:
    """The fewest options of the shipped session, as ``KEY=VALUE``, that show ``fault``.

    All others are as in the clean room. The model is that of the passes ``model_of``;
    None is the original.
    """
    clean, own = session.case.candidate, runner.case.candidate.options
    differs = [n for n in type(own).model_fields if getattr(own, n) != getattr(clean.options, n)]
    samples = fault.samples

    def shows(names: tuple[str, ...]) -> Answer:
        options = clean.options.model_copy(update={n: getattr(own, n) for n in names})
        config = RuntimeConfig(clean.runtime, options)
        under = session.runner.on(replace(runner.case, candidate=config))
        if model_of is None:
            trial = session.runner.on(session.case.run_by(config)).reference(samples)
        else:
            trial = under.trial(model_of, samples, "localize")
        seen = drawing_by(fault.examiner, under).examine(trial, samples).observation
        # Any fault counts, not just this one: which symptom shows may depend on the options left
        # on.
        return "passes" if seen is None else "fails"

    shown = own.model_dump(mode="json")
    return [f"{n}={shown[n]}" for n in minimal_set(differs, shows)]
