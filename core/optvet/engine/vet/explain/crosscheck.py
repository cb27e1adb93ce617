"""Testing findings on other runtimes, and with exact kernels: is a fault in the model, or there?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from optvet.engine.judge.second_opinion import explains_no
from optvet.engine.judge.thresholds import OTHER_KERNELS
from optvet.engine.runtime_target import RuntimeTarget, lacks_kernel
from optvet.engine.vet.find.as_shipped import CONTROL as AS_SHIPPED
from optvet.engine.vet.ledger import FindingsLedger
from optvet.engine.vet.observe.examine import Examiner
from optvet.engine.vet.session import VetSession
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.trial_results import Trial
from optvet.engine.work.trials.undefined_values import refusable
from optvet.graph import structure
from optvet.spec.errors import Unsupported
from optvet.spec.extras import extras, given
from optvet.spec.records import CrossCheck, Finding
from optvet.spec.runtime_protocols import Runtime, RuntimeExtras
from optvet.spec.symptoms import ScriptCheck, Symptom
from optvet.spec.types import Failure, Sample


def cross_check(session: VetSession, samples: Sequence[Sample]) -> None:
    """Test findings on the runtimes of the request, and quantized layers with exact kernels.

    A runtime under test is accused only as far as no third one contradicts the one that judges it.
    """
    _check_kernels(session, samples)
    tested = session.case.optimizer
    names = session.request.cross_check
    if isinstance(tested, RuntimeTarget):
        names = names or _third_runtimes(session, tested)
    elif not names:
        return
    by_id = {s.id: s for s in samples}
    for i, finding in enumerate(session.ledger.findings):
        foreign = finding.symptom == Symptom.PORTABILITY
        sample = by_id.get(finding.witness.sample) if finding.witness else None
        if foreign and samples:
            sample = samples[0]
        elif finding.severity != "fault" or finding.stage == "build":
            continue
        if sample is None:
            continue
        if isinstance(tested, RuntimeTarget):
            if words := _why_refused(session, finding, sample):
                session.ledger.amend(i, {"severity": "note", "known_limit": words})
                session.ledger.add_undecided_reason(f"{finding.message}; {words}")
                continue
            heard = list(_until_decided(session, tested, names, finding, sample))
            _withdraw_contested(session.ledger, i, tested, heard)
            continue
        answers = [_answer(session, name, finding, sample) for name in names]
        if foreign:
            # For a portability note only, wrong results of the runtime do not matter.
            session.ledger.amend(i, {"cross_check": [_as_portability(a) for a in answers]})
        else:
            where = _location(session.case.candidate.runtime.name, answers)
            where = "; ".join(words for words in (finding.location, where) if words)
            session.ledger.amend(i, {"cross_check": answers, "location": where})


def _third_runtimes(session: VetSession, tested: RuntimeTarget) -> tuple[str, ...]:
    """Runtimes at hand that take the model, other than the judge, each under its default options.

    The one under test is the last of them if it is tested under others, such as on a GPU.
    """
    runtimes = map(session.plugins.runtime, session.plugins.names("runtime"))
    own = (tested.runtime.name, tested.judge.name)
    fitting = (r.name for r in runtimes if tested.traits.consumes in r.accepts)
    others = tuple(name for name in fitting if name not in own)
    by_default = session.case.candidate.options == tested.runtime.options
    return others if by_default else (*others, tested.runtime.name)


def _why_refused(session: VetSession, finding: Finding, sample: Sample) -> str:
    """Why a runtime may refuse the model, in words; empty if it may not, or does something else.

    It may refuse what the standard has no answer for, but not die of it.
    """
    if finding.symptom.info.check is not ScriptCheck.ERROR:
        return ""
    return session.runner.ask(refusable, dict(sample.feeds), session.case.reference) or ""


def _until_decided(
    session: VetSession,
    tested: RuntimeTarget,
    names: Sequence[str],
    finding: Finding,
    sample: Sample,
) -> Iterator[CrossCheck]:
    """Answers of third runtimes, up to the first that agrees with the one that judges.

    Where operands are refused, those that check operands are asked first, and one that refuses them
    too ends it: that others run the model does not say that they looked.
    """
    refused = _refuses_operands(tested.runtime, finding.message)
    if refused:
        runtime = session.plugins.runtime
        names = sorted(
            names, key=lambda name: not given(runtime(name), RuntimeExtras.refuses_operands)
        )
    for name in names:
        answer = _answer(session, name, finding, sample)
        yield answer
        if answer.same_original or (refused and answer.refuses_operands):
            return


def _refuses_operands(runtime: Runtime, message: str) -> bool:
    """Whether a runtime says that operands of the original are not as they must be."""
    checks = extras(runtime, RuntimeExtras).refuses_operands(message)
    return checks and not lacks_kernel("", message)


def _withdraw_contested(
    ledger: FindingsLedger, index: int, tested: RuntimeTarget, answers: Sequence[CrossCheck]
) -> None:
    """Leave open who is wrong where no third runtime agrees with the one that judges.

    The runtime under test may do the same under its default options: that says nothing.
    """
    finding, judge, own = ledger.findings[index], tested.judge.name, tested.runtime.name
    judged = [
        a for a in answers if a.outcome != "not-judged" and (a.same_original or a.runtime != own)
    ]
    changes: dict[str, Any] = {"cross_check": list(answers)}
    refused = _refuses_operands(tested.runtime, finding.message)
    refusing = [a.runtime for a in answers if refused and a.refuses_operands]
    fellows = ", ".join(
        f"{own} with its default options" if a.runtime == own else a.runtime
        for a in judged
        if a.same_original
    )
    why, alone = "", ""
    if refusing:
        why = f"{judge} may overlook what is wrong with the model: {refusing[0]} refuses it too"
    elif fellows:
        changes["location"] = f"in {tested.runtime.name}: {fellows} and {judge} agree"
    elif judged:
        others = ", ".join(a.runtime for a in judged)
        why = f"{judge} may be wrong itself: {others} gives something else than it does"
    elif finding.symptom.info.check is ScriptCheck.ERROR:
        why = f"{judge} alone runs the model, and may overlook what is wrong with it"
        alone = ": no other runtime could judge it"
    else:
        changes["location"] = f"{judge} alone says so: no other runtime could judge it"
    if why:
        changes |= {"severity": "note", "known_limit": why}
        ledger.add_undecided_reason(f"{finding.message}; {why}{alone}")
    ledger.amend(index, changes)


def _check_kernels(session: VetSession, samples: Sequence[Sample]) -> None:
    """Say of a wrong quantized layer whether it is right with the runtime's exact kernels.

    Then the pass made a right graph, of operators that this processor computes wrongly.
    """
    by_id = {s.id: s for s in samples}
    for i, finding in enumerate(session.ledger.findings):
        config = session.runner_of(finding).case.candidate
        exact = extras(config.runtime, RuntimeExtras).exact_options(config.options)
        if exact == config.options:
            return
        sample = by_id.get(finding.witness.sample) if finding.witness else None
        if finding.layer is None or finding.severity != "fault" or sample is None:
            continue
        answer = _ask_of(session, RuntimeConfig(config.runtime, exact), finding, sample)
        if answer.outcome == "no-fault" and answer.same_original:
            changed = exact.model_dump().items() - config.options.model_dump().items()
            how = " ".join(f"--runtime-option {k}={json.dumps(v)}" for k, v in sorted(changed))
            words = f"in {config.runtime.name}'s kernels on this processor: right with {how}"
            changes: dict[str, Any] = {"location": words}
            if finding.as_deployed and not finding.culprit:
                # Whatever the optimizer does, this processor gives other steps as shipped.
                changes = {"severity": "note", "known_limit": words}
                session.ledger.control(AS_SHIPPED, "limited", f"the runtime is off, {words}")
            session.ledger.amend(i, changes)


def _answer(session: VetSession, name: str, finding: Finding, sample: Sample) -> CrossCheck:
    """The verdict of another runtime; one that refuses such a model gives none."""
    try:
        return _ask(session, name, finding, sample)
    except Unsupported as error:
        return _unable(name, f"takes no such model: {error}")


def _ask(session: VetSession, name: str, finding: Finding, sample: Sample) -> CrossCheck:
    """The result of a finding on another runtime."""
    runtime, produces = session.plugins.runtime(name), session.case.optimizer.traits.produces
    if produces not in runtime.accepts or "onnx" not in runtime.accepts:
        return _unable(name, f"cannot run {produces}")
    return _ask_of(session, RuntimeConfig(runtime, runtime.options), finding, sample)


def _ask_of(
    session: VetSession, config: RuntimeConfig, finding: Finding, sample: Sample
) -> CrossCheck:
    """The result of a finding where another runtime, or one with other options, runs the models."""
    case, name = session.case, config.runtime.name
    mends = tuple(finding.mended)
    other = case.run_by(config).under(full=False, ignored_complaint="", mends=mends)
    runner = session.runner.on(other)
    reference = runner.reference([sample])
    run = reference.runs.get(sample.id)
    if run is None or isinstance(run, Failure):
        why = run or reference.build.failure
        words = describe(why) if why else "no answer"
        unable = _unable(name, f"cannot run the original: {words}")
        refuses = _refuses_operands(config.runtime, words)
        return unable.model_copy(update={"refuses_operands": refuses})
    same = _agrees(session, reference, finding, sample)
    examiner = Examiner(runner, [sample], tolerance=case.passes.tolerance)
    examiner.learn_reference(reference)
    culprit = finding.culprit
    passes = case.passes.complete(culprit) if culprit else case.passes.base
    trial = runner.trial(passes, [sample], "confirm")
    failed = trial.runs.get(sample.id)
    if isinstance(failed, Failure) and _has_foreign(reference, trial):
        # The runtime lacks operators; this is not evidence about the fault.
        return _unable(name, f"cannot run the optimized model: {describe(failed)}")
    seen = examiner.examine(trial, [sample]).observation
    return CrossCheck(
        runtime=name,
        outcome="no-fault" if seen is None else "fault",
        symptom=None if seen is None else seen.symptom,
        same_original=same,
    )


def _agrees(session: VetSession, reference: Trial, finding: Finding, sample: Sample) -> bool:
    """Whether another runtime gives of the original what the vet's own reference does.

    Or strays from it in other outputs than the finding, or by less than half of its error: that
    does not explain the finding.
    """
    case = session.case
    gate = Examiner(
        session.runner.on(case.run_by(case.reference).under(ignored_complaint="")),
        [sample],
        thresholds=OTHER_KERNELS,
    )
    gate.learn_reference(gate.runner.reference([sample]))
    seen = gate.examine(reference, [sample]).observation
    if seen is None:
        return True
    if not (seen.symptom.info.of_values and finding.symptom.info.of_values):
        return False
    if finding.outputs and not {*seen.outputs} & {*finding.outputs}:
        return True
    return explains_no(seen.error, finding.error)


def _unable(name: str, why: str) -> CrossCheck:
    return CrossCheck(runtime=name, outcome="not-judged", detail=why)


def _has_foreign(reference: Trial, trial: Trial) -> bool:
    """Whether ``trial`` brought operators that ONNX does not define."""
    before, after = reference.build.facts, trial.build.facts
    return (
        before is not None and after is not None and bool(structure.gained_operators(before, after))
    )


def _as_portability(answer: CrossCheck) -> CrossCheck:
    """The answer to whether a runtime has the operators of the optimized model."""
    if answer.outcome == "not-judged":
        return answer.model_copy(update={"outcome": "does-not-run"})
    return CrossCheck(runtime=answer.runtime, outcome="runs")


def _location(runtime: str, answers: Sequence[CrossCheck]) -> str:
    """The location of a fault, in words, as far as other runtimes show it.

    A runtime whose outputs differ for the original too is used only if there is no other one.
    """
    judgements = {a.runtime: a for a in answers if a.outcome != "not-judged"}
    if not judgements:
        return "no other runtime could judge it"
    fellows = sorted(n for n, a in judgements.items() if a.same_original)
    faultless = [n for n in fellows if judgements[n].outcome == "no-fault"]
    if not fellows:
        others = ", ".join(sorted(judgements))
        if all(a.outcome == "no-fault" for a in judgements.values()):
            return (
                f"only in {runtime}'s reading, unless {others} misread the original: no fault there"
            )
        compute = "computes" if len(judgements) == 1 else "compute"
        return f"unclear where: {others} {compute} the original differently"
    if not faultless:
        return f"in the model: {', '.join(fellows)} agree{'' if len(fellows) > 1 else 's'}"
    if faultless == fellows:
        return f"only in {runtime}'s reading: no fault on {', '.join(faultless)}"
    return f"depends on the runtime: no fault on {', '.join(faultless)}"
