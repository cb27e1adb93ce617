"""Assembling the result document from the findings and measurements."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from optvet.engine.judge.judgement import Judgement
from optvet.engine.models import large
from optvet.engine.pipelines import format_pipeline
from optvet.engine.runtime_target import RuntimeTarget
from optvet.engine.vet.explain.exercise import exercise
from optvet.engine.vet.explain.new_warnings import warnings_of, with_warnings
from optvet.engine.vet.find.detect import Detected
from optvet.engine.vet.find.pass_records import pass_records
from optvet.engine.vet.find.study import Studied
from optvet.engine.vet.observe.examine import Examiner
from optvet.engine.vet.observe.observation import Examination
from optvet.engine.vet.session import VetSession
from optvet.engine.work.trials.case import Case
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inputs import Inputs
from optvet.graph.structure import Facts
from optvet.spec.extras import given
from optvet.spec.optimizer_protocols import LowersPrecision, OptimizerExtras
from optvet.spec.records import (
    Finding,
    FixedTolerance,
    Impact,
    ModelRecord,
    OptimizerRecord,
    OutputRecord,
    PassRecord,
    Quantized,
    RuntimeRecord,
    Skipped,
    Structure,
    Structures,
    Verdict,
    VetResult,
)
from optvet.spec.types import Model


def assemble(
    session: VetSession,
    detected: Detected,
    inputs: Inputs,
    *,
    started: float,
    safe: tuple[str, ...],
    blamed: Sequence[Finding],
    remaining: Examination | None,
    studied: Studied,
    impact: Impact | None,
    fixed: list[FixedTolerance],
) -> VetResult:
    """The whole answer.

    Args:
        session: What was asked, and the findings.
        detected: The first look.
        inputs: The samples.
        started: When the clock, ``time.perf_counter``, began.
        safe: What remains of the pipeline.
        blamed: Findings on the pipeline as a whole.
        remaining: What the passes that remain do to the outputs; None if none remains.
        studied: What every pass did alone; without records if that was not studied.
        impact: What differences mean on the model's task.
        fixed: What fixed tolerances would say.
    """
    request, ledger, examiner = session.request, session.ledger, detected.examiner
    _control_reference(session, examiner)
    _control_samples(session, detected, inputs)
    judged = _collect_judgements(session, detected.found, remaining)
    outputs = _with_faults(examiner.outputs(judged), blamed)
    if session.runner.cache.degraded is not None:
        ledger.control("cache", "limited", session.runner.cache.degraded)
    ledger.control_exact(judged)
    verdict, reason = _verdict(session, examiner, judged)
    return VetResult(
        schema="optvet.vet/3",
        model=model_record(session.case.model),
        optimizer=optimizer_record(session.case),
        runtime=runtime_record(session.case.candidate),
        judge=_judge(session.case),
        verdict=verdict,
        reason=reason,
        findings=ledger.findings,
        outputs=outputs,
        passes=_passes(session, detected, studied),
        round_trip=studied.round_trip,
        orders=studied.orders,
        changing_passes=_changing_passes(session, studied.records),
        impact=impact,
        requirements=ledger.requirements,
        quantized=_summarize_layers(session, detected),
        structures=_structures(session, detected),
        fixed_tolerances=fixed,
        warnings=warnings_of(detected.runner, examiner.base, detected.samples),
        timing=ledger.timing,
        safe_pipeline=list(safe),
        safe_option=format_pipeline(safe, request.pipeline, session.case.optimizer),
        safe_code=_safe_code(session, safe),
        exercise=exercise(session, safe, detected.samples),
        controls=list(ledger.controls.values()),
        complete=detected.complete,
        samples=detected.judged,
        skipped=_skipped(detected, inputs),
        datasets=inputs.records(),
        seed=request.seed,
        strategy=request.strategy,
        cost=session.runner.ledger.cost(time.perf_counter() - started),
    )


def _passes(session: VetSession, detected: Detected, studied: Studied) -> list[PassRecord]:
    return pass_records(
        session.case.passes.pipeline,
        session.ledger.findings,
        alone=with_warnings(session.runner, studied.records, detected.samples),
        changing=_reported_changes(session),
    )


def _skipped(detected: Detected, inputs: Inputs) -> list[Skipped]:
    reasons = inputs.skipped | dict(detected.refused)
    return [Skipped(sample=name, reason=reason) for name, reason in reasons.items()]


def runtime_record(config: RuntimeConfig) -> RuntimeRecord:
    """A runtime with its options, as documents name it."""
    return RuntimeRecord(
        name=config.runtime.name,
        version=config.runtime.version(),
        options=config.options.model_dump(mode="json"),
    )


def _judge(case: Case) -> RuntimeRecord | None:
    """What runs the original where the runtime itself is under test; None otherwise."""
    return runtime_record(case.reference) if isinstance(case.optimizer, RuntimeTarget) else None


def _structures(session: VetSession, detected: Detected) -> Structures | None:
    """The graph before and after the whole pipeline, both of which were made before."""
    runner, samples = session.runner, detected.samples
    before = runner.reference(samples).build.facts
    after = runner.trial(session.case.passes.pipeline, samples, "detect").build.facts
    if before is None or after is None:
        return None
    return Structures(original=_structure(before), optimized=_structure(after))


def _structure(facts: Facts) -> Structure:
    operators = dict(sorted(facts.operators.items()))
    return Structure(nodes=facts.nodes, size_bytes=facts.size_bytes, operators=operators)


def _summarize_layers(session: VetSession, detected: Detected) -> Quantized | None:
    """How the layers of the whole pipeline's model were judged, if it is a quantized one."""
    examiner, pipeline = detected.examiner, session.case.passes.pipeline
    if not examiner.layers.applies():
        return None
    trial = detected.runner.trial(pipeline, detected.samples, "detect")
    runs = [
        (sample, reference, run)
        for sample in detected.samples
        if (reference := examiner.reference.get(sample.id)) is not None
        and isinstance(run := trial.runs.get(sample.id), dict)
    ]
    return examiner.layers.record(pipeline, runs)


def model_record(model: Model) -> ModelRecord:
    """A model as documents name it."""
    return ModelRecord(
        source=model.source,
        digest=model.digest,
        ir_version=model.ir_version,
        opsets=dict(model.opsets),
        nodes=model.nodes,
        size_bytes=model.size_bytes,
        task=model.task,
    )


def optimizer_record(case: Case) -> OptimizerRecord:
    """The optimizer of a case, with its options and the pipeline."""
    return OptimizerRecord(
        name=case.optimizer.name,
        version=case.optimizer.version(),
        options=case.options.model_dump(mode="json"),
        pipeline=list(case.passes.pipeline),
        precision=case.optimizer.precision if isinstance(case.optimizer, LowersPrecision) else "",
    )


def _safe_code(session: VetSession, safe: tuple[str, ...]) -> str:
    """The optimizer's own call of the safe pipeline, where the optimizer can write it down.

    It is given the model as one message, which a larger one is not.
    """
    case = session.case
    if case.model.size_bytes > large.PROTOBUF_LIMIT:
        return ""
    snippet = given(case.optimizer, OptimizerExtras.snippet)
    if not safe or snippet is None:
        return ""
    return snippet(case.passes.complete(safe), case.options)


def _changing_passes(session: VetSession, records: Sequence[PassRecord]) -> list[str] | None:
    """Passes that changed the model, as the optimizer reports or as observed one by one."""
    reported = _reported_changes(session)
    if reported is not None:
        return reported
    passes = session.case.passes
    untried = set(passes.pipeline) - passes.required - {r.name for r in records}
    # None for a study that ended early: what it did not try may have changed the model.
    if not records or untried or any(r.effect == "unknown" for r in records):
        return None
    return [r.name for r in records if r.effect != "none"]


def _reported_changes(session: VetSession) -> list[str] | None:
    """Passes that changed the model by the optimizer's log; None if it keeps none."""
    runner, pipeline = session.runner, session.case.passes.pipeline
    if runner.knows_changing_passes(pipeline):
        return runner.changing_passes(pipeline)
    reported = runner.trial(pipeline, (), "detect").build.changing_passes
    return None if reported is None else list(reported)


def _control_reference(session: VetSession, examiner: Examiner) -> None:
    ledger, name = session.ledger, "reference against itself"
    if limits := session.case.model.config.limits:
        ledger.control("model", "limited", limits)
    if examiner.random:
        names = ", ".join(sorted(examiner.random))
        words = f"random outputs compared over many draws: {names}"
        ledger.control(name, "limited", words)
    elif examiner.flaky:
        words = f"differs between two runs: {', '.join(sorted(examiner.flaky))}"
        ledger.control(name, "failed", words)
    elif examiner.self_checked:
        ledger.control(name, "passed", "agrees")
    else:
        ledger.control(name, "not-needed")
    if "empty pipeline" not in ledger.controls:
        ledger.control("empty pipeline", "not-needed")


def _control_samples(session: VetSession, detected: Detected, inputs: Inputs) -> None:
    words = f"{detected.judged} judged"
    if not detected.complete:
        words += "; it fails on these, so the others were not tried"
    if inputs.skipped:
        words += f"; {len(inputs.skipped)} skipped as bad data"
    if detected.refused:
        words += f"; {len(detected.refused)} on which the original does not run"
    whole = detected.complete and not inputs.skipped and not detected.refused
    session.ledger.control("samples", "passed" if whole else "limited", words)


def _collect_judgements(
    session: VetSession, found: Examination, remaining: Examination | None
) -> Mapping[str, Judgement]:
    """A judgement per output: of the pipeline, else of what remains where a limit is documented.

    What a documented limit leaves is no model that could be compared; nor is what import and export
    alone break, until that is set aside.
    """
    if not found.judgements and remaining is not None:
        if any(f.set_aside for f in session.ledger.findings):
            return remaining.judgements
    limited = [f for f in session.ledger.findings if f.known_limit is not None and f.culprit]
    faults = [f for f in session.ledger.findings if f.severity == "fault"]
    if found.judgements or faults or not limited or remaining is None:
        return found.judgements
    names = ", ".join(dict.fromkeys(name for f in limited for name in f.culprit))
    words = f"outputs were judged without passes of documented limits: {names}"
    session.ledger.control("documented limits", "limited", words)
    return remaining.judgements


def _verdict(
    session: VetSession, examiner: Examiner, judged: Mapping[str, Judgement]
) -> tuple[Verdict, str]:
    faults = [f for f in session.ledger.findings if f.severity == "fault"]
    if any(f.confirmed for f in faults):
        return "faulty", ""
    if faults:
        again = "a fault was seen but did not show again in a fresh process"
        return "undecided", "; ".join(session.ledger.reasons) or again
    if session.ledger.reasons:
        return "undecided", "; ".join(session.ledger.reasons)
    if words := examiner.why_open(judged):
        return "undecided", words
    calls = {j.call for j in judged.values()}
    if not calls:
        notes = [f.known_limit or f.message for f in session.ledger.findings if f.culprit]
        why = f": {notes[0]}" if notes else ""
        return "undecided", f"no output was judged{why}"
    return ("clean" if calls <= {"same"} else "drift"), ""


def _with_faults(records: Sequence[OutputRecord], blamed: Sequence[Finding]) -> list[OutputRecord]:
    """``records`` with the outputs of confirmed faults that a later round found."""
    worst: dict[str, Finding] = {}
    for finding in blamed:
        if finding.confirmed and finding.severity == "fault":
            for name in finding.outputs:
                worst.setdefault(name, finding)
    return [
        OutputRecord(name=r.name, verdict="fault", error=f.error, noise_floor=f.noise_floor)
        if (f := worst.get(r.name)) is not None and r.verdict not in ("fault", "flaky")
        else r
        for r in records
    ]
