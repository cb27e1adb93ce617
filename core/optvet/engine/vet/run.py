"""Runs the stages of one vet."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.runtime_target import RuntimeTarget
from optvet.engine.vet.assemble import assemble
from optvet.engine.vet.budget import run_within_budget
from optvet.engine.vet.deliver import check_saving, with_saved
from optvet.engine.vet.explain.composition import with_structure
from optvet.engine.vet.explain.crosscheck import cross_check
from optvet.engine.vet.explain.fingerprints import fingerprint_in_place
from optvet.engine.vet.explain.locate import AT_LEAST, explain
from optvet.engine.vet.explain.notes import take_notes
from optvet.engine.vet.find.as_shipped import judge_as_shipped, shipped_runner
from optvet.engine.vet.find.detect import Detected, detect, wrong_in_rest
from optvet.engine.vet.find.eliminate import Rest, clear
from optvet.engine.vet.find.excuses import excuse, excuse_exact, excused_passes
from optvet.engine.vet.find.model_files import note_changes, states_of
from optvet.engine.vet.find.study import Studied, is_wanted, study
from optvet.engine.vet.impact.assess import Assessor
from optvet.engine.vet.observe.layers import Layers
from optvet.engine.vet.observe.observation import Examination
from optvet.engine.vet.require.as_shipped import require_as_shipped
from optvet.engine.vet.require.demand import demand
from optvet.engine.vet.require.metrics import RequirementMeter
from optvet.engine.vet.session import VetSession, open_session
from optvet.engine.vet.speed.verdict import judge_speed, time_passes
from optvet.engine.work.cache import whole_answers
from optvet.engine.work.cache.environment_fingerprint import modules_of
from optvet.engine.work.sandbox import Sandbox
from optvet.engine.work.trials.inputs import Inputs
from optvet.engine.work.trials.participants import level_of, pinned_options
from optvet.engine.work.trials.trial_results import FINDING
from optvet.engine.work.trials.trial_runner import Progress
from optvet.spec.errors import CannotLoad, OptvetError, Unsupported, UsageError
from optvet.spec.records import Control, Finding, VetResult
from optvet.spec.request import VetRequest
from optvet.spec.types import Model, Sample

_REASON_CHARS = 300


@dataclass(frozen=True)
class Vetted:
    """An answer, and the session that gave it, which is open as long as the answer is held."""

    result: VetResult
    session: VetSession


def vet_model(
    model: Model,
    request: VetRequest,
    plugins: Plugins,
    *,
    progress: Progress = lambda text, done, total: None,
    sandbox: Sandbox | None = None,
    keep: bool = False,
) -> VetResult:
    """Vet one model; see ``vetted_model``."""
    about = (model, request, plugins)
    with vetted_model(*about, progress=progress, sandbox=sandbox, keep=keep) as vetted:
        return vetted.result


@contextmanager
def vetted_model(
    model: Model,
    request: VetRequest,
    plugins: Plugins,
    *,
    progress: Progress = lambda text, done, total: None,
    sandbox: Sandbox | None = None,
    keep: bool = False,
) -> Iterator[Vetted]:
    """One model vetted, with its session for what follows, such as bundles.

    Args:
        model: The model.
        request: What is asked.
        plugins: What is installed.
        progress: Called with what is being done.
        sandbox: Where processes are started; by default one of its own.
        keep: Whether the answer may be kept as a whole (``whole_answers.recall``).

    Raises:
        OptvetError: The request cannot be answered: wrong options, inputs on which the original
            fails, a broken plugin. Faults of the optimizer are findings of the result.
    """
    with ExitStack() as stack:
        try:
            vetted = _vet_model(stack, model, request, plugins, progress, sandbox, keep)
        except (CannotLoad, Unsupported) as error:
            if request.runtime is not None or not _is_of_runtime(error, request, plugins):
                raise
            for other in plugins.evaluators():
                named = request.model_copy(update={"runtime": other.name})
                try:
                    vetted = _vet_model(stack, model, named, plugins, progress, sandbox, keep)
                except UsageError:  # a runtime of the optimizer's own, or a model no better here
                    continue
                why = f"judged by {other.name}: {str(error)[:_REASON_CHARS]}"
                limited = Control(name="runtime", state="limited", detail=why)
                controls = [*vetted.result.controls, limited]
                result = vetted.result.model_copy(update={"controls": controls})
                vetted = Vetted(result, vetted.session)
                break
            else:
                raise
        yield vetted


def _is_of_runtime(error: CannotLoad | Unsupported, request: VetRequest, plugins: Plugins) -> bool:
    """Whether a runtime, which may be replaced, does not take the original."""
    if isinstance(error, CannotLoad):
        return True
    if not error.of_runtime:
        return False
    optimizer = plugins.optimizer_without_passes(request.optimizer or plugins.default("optimizer"))
    own = optimizer.traits.consumes != optimizer.traits.produces
    return not (own or isinstance(optimizer, RuntimeTarget))


def _vet_model(
    exit_stack: ExitStack,
    model: Model,
    request: VetRequest,
    plugins: Plugins,
    progress: Progress,
    sandbox: Sandbox | None,
    keep: bool,
) -> Vetted:
    """The answer; ``exit_stack`` then has its session, which is closed if there is no answer."""
    started = time.perf_counter()
    with ExitStack() as stack:
        about = (model, request, plugins)
        session = stack.enter_context(open_session(*about, progress=progress, sandbox=sandbox))
        try:
            result = run_within_budget(session, started, _run)
        except Unsupported as error:
            words = f"{model.source}: {error}; nothing was tested"
            raise Unsupported(words, of_runtime=error.of_runtime) from None
        sandbox = session.runner.sandbox
        if keep and not (sandbox.used or sandbox.budget_spent):
            modules = _modules(session)
            whole_answers.keep(
                request, result, model, plugins, session.runner.cache, modules=modules
            )
        exit_stack.enter_context(stack.pop_all())
    return Vetted(result, session)


def _modules(session: VetSession) -> set[str]:
    """The modules of all libraries that took part."""
    case = session.case
    others = map(session.plugins.runtime, session.request.cross_check)
    runtimes = (case.candidate.runtime, case.reference.runtime, *others)
    return set(modules_of(case.optimizer)).union(*map(modules_of, runtimes))


def _run(session: VetSession, started: float) -> VetResult:
    if session.request.save is not None:
        check_saving(session)
    ledger, inputs = session.ledger, session.inputs()
    files = states_of(session.case.model)
    assessor = Assessor(session, inputs)
    detected = detect(session, inputs, assessor)
    session = session.at(detected.runner)
    samples = detected.samples

    def rest(now: VetSession, remaining: tuple[str, ...]) -> Examination:
        return wrong_in_rest(now, inputs, detected, remaining)

    # If import or lowering is faulty, no pass can be judged.
    sound = not ledger.findings
    safe: tuple[str, ...] = ()
    studied = Studied()
    remaining = None
    if sound:
        further = rest if inputs.several else None
        session, safe, remaining = _clear(session, detected, session.case.passes.pipeline, further)
        session, safe, remaining = _weigh(session, detected, safe, remaining, further)
    weighed = len(ledger.findings)
    meter = RequirementMeter(session, detected, inputs)

    def cleared_of_faults(passes: tuple[str, ...]) -> tuple[str, ...]:
        found = detected.examiner.examine(session.runner.trial(passes, samples, "verify"), samples)
        if found.observation is None and inputs.several:
            found = rest(session, passes)
        return clear(session, detected.examiner, samples, passes, found).passes

    if meter.required:
        safe = demand(session, meter, safe, cleared_of_faults)
    blamed = tuple(ledger.findings)
    if sound and is_wanted(session):
        timer = partial(time_passes, session, detected) if session.request.measure else None
        studied = study(session, detected, inputs, assessor, safe, timer)
    if sound and safe:
        safe = _judge_shipped(session, detected, inputs, safe)
    if session.request.measure:
        safe = judge_speed(session, detected, safe, cleared_of_faults)
    _describe(session, detected, weighed if sound else 0)
    note_changes(ledger, files)
    result = assemble(
        session,
        detected,
        inputs,
        started=started,
        safe=safe,
        blamed=blamed,
        remaining=remaining,
        studied=studied,
        impact=assessor.impact(),
        fixed=assessor.fixed.records(),
    )
    if session.request.save is not None:
        result = with_saved(session, detected, inputs, result)
    return with_structure(session, result, samples) if session.request.structure else result


def _judge_shipped(
    session: VetSession, detected: Detected, inputs: Inputs, safe: tuple[str, ...]
) -> tuple[str, ...]:
    """The passes of ``safe`` that are right as shipped too; see ``judge_as_shipped``."""
    runner = shipped_runner(session)
    if runner is None:
        return safe
    passes_of = partial(passes_of_runtime, session)
    safe = judge_as_shipped(session, runner, detected, safe, passes_of)
    shipping = session.at(runner)
    meter = RequirementMeter(shipping, detected, inputs)
    if meter.required:
        require_as_shipped(shipping, meter, safe)
    return safe


def passes_of_runtime(session: VetSession, blob: bytes | None) -> list[str]:
    """The culprits among the passes that the runtime applies to a model as it loads it.

    Found by a vet of its own; empty where no optimizer is named as the runtime, or where it finds
    none.

    Args:
        session: The vet that found the runtime wrong on the model.
        blob: The model in ONNX; None is the original.
    """
    name, model = session.case.candidate.runtime.name, session.case.model
    if name not in session.plugins.names("optimizer"):
        return []
    optimizer = session.plugins.optimizer(name)
    if not optimizer.traits.optimizes_on_load:
        return []
    kept = {"dataset", "dataset_options", "start", "limit", "seed", "timeout", "memory", "budget"}
    kept |= {"runtime_options", "trust", "user_model", "jobs", "cache", "cache_dir"}
    given = {field: getattr(session.request, field) for field in kept}
    options = session.request.runtime_options
    pinned = {n: options[n] for n in pinned_options(session.case.candidate.runtime, options)}
    if (level := level_of(optimizer, pinned)) is not None:
        given["runtime_options"] = {n: v for n, v in options.items() if v != level}
        given["pipeline"] = level
    request = VetRequest(model=session.request.model, optimizer=name, clean=True, **given)
    with TemporaryDirectory() as folder:
        if blob is not None:
            path = Path(folder) / "optimized.onnx"
            path.write_bytes(blob)
            model = replace(open_model(path, model.source, path.parent), config=model.config)
        try:
            result = vet_model(model, request, session.plugins, progress=session.runner.progress)
        except OptvetError:  # it has more to ask of a model than a runtime: no name is no answer
            return []
    faults = [f for f in result.findings if f.severity == "fault"]
    return list(dict.fromkeys(name for f in faults for name in f.culprit))


def _clear(
    session: VetSession,
    detected: Detected,
    pipeline: tuple[str, ...],
    rest: Rest | None,
    found: Examination | None = None,
) -> tuple[VetSession, tuple[str, ...], Examination | None]:
    """Blame passes of ``pipeline`` until those that are left are verified.

    Returns:
        The session that runs what is left, the passes that are left, and how they were found; None
        if none are left but those that the optimizer requires.
    """
    passes = session.case.passes
    cleared = clear(
        session,
        detected.examiner,
        detected.samples,
        pipeline,
        found or detected.found,
        rest=rest,
    )
    left = cleared.found if set(cleared.passes) - passes.required else None
    return session.at(cleared.runner), cleared.passes, left


def _weigh(
    session: VetSession,
    detected: Detected,
    safe: tuple[str, ...],
    remaining: Examination | None,
    rest: Rest | None,
) -> tuple[VetSession, tuple[str, ...], Examination | None]:
    """Ask what excuses each fault; put passes back whose fault only the original explains.

    They were taken out by then, so their other faults did not show: they are tried again with the
    others, on all outputs but those that are excused.
    """
    ledger, examiner, table = session.ledger, detected.examiner, session.case.passes
    excused = _account_for(session, detected, 0)
    back = excused_passes(ledger, excused) - {*safe}
    if not back or session.request.strategy == "none":
        return session, safe, remaining
    runner, samples = session.runner, detected.samples
    pipeline = tuple(n for n in table.pipeline if n in back or n in safe)
    ignored, count = set(examiner.ignored_outputs), len(ledger.findings)
    examiner.ignored_outputs |= {output for f in excused for output in f.outputs}
    found = examiner.examine(runner.trial(pipeline, samples, "verify"), samples)
    if found.observation is None and rest is not None:
        found = rest(session, pipeline)
    session, safe, remaining = _clear(session, detected, pipeline, rest, found)
    examiner.ignored_outputs = ignored
    _account_for(session, detected, count)
    return session, safe, remaining


def _account_for(session: VetSession, detected: Detected, first: int) -> list[Finding]:
    """Say of faults where in the graph they are, and ask what excuses them; see ``excuse``."""
    if session.request.strategy != "none":
        _explain(session, detected.samples, detected.judged, detected.examiner.layers, first)
    return excuse(session, detected.examiner, detected.samples, first)


def _describe(session: VetSession, detected: Detected, weighed: int) -> None:
    """Say more of the findings: where they are in the graph, on other runtimes; and take notes.

    The first ``weighed`` of them are accounted for already.
    """
    ledger, samples = session.ledger, detected.samples
    searched = session.request.strategy != "none"
    _account_for(session, detected, weighed)
    take_notes(session, detected)
    if not searched:
        _mark_whole_pipeline_culprits(session)
    cross_check(session, samples)
    excuse_exact(session, detected.examiner, samples)
    for i, finding in enumerate(ledger.findings):
        place = fingerprint_in_place(session.runner_of(finding), finding)
        ledger.amend(i, {"fingerprint": place})


def _mark_whole_pipeline_culprits(session: VetSession) -> None:
    """Mark the findings whose culprit is the whole pipeline because nothing less was tried."""
    ledger, required = session.ledger, session.case.passes.required
    for i, finding in enumerate(ledger.findings):
        if len(set(finding.culprit) - required) > 1:
            ledger.amend(i, {"localized": False})
    if not all(f.localized for f in ledger.findings):
        ledger.control("culprits", "limited", "not searched: --strategy is none")


def _explain(
    session: VetSession, samples: Sequence[Sample], judged: int, layers: Layers, first: int
) -> None:
    """Add to each fault where in the graph it is, with no more inferences than finding it took.

    If trials were cached, the budget is the least that finding takes without a cache: ``judged``
    samples on both models, and the confirmation of each finding. ``--reduce`` lifts the limit.
    """
    by_id = {s.id: s for s in samples}
    ledger, passes = session.ledger, session.case.passes
    wanted = [
        (i, finding, sample)
        for i, finding in enumerate(ledger.findings[first:], first)
        if (sample := by_id.get(finding.witness.sample) if finding.witness else samples[0])
        and finding.severity == "fault"
        and not finding.as_deployed
    ]
    spent = session.runner.ledger.inferences(FINDING)
    least = 2 * max(judged - 1, 0) + AT_LEAST * len(wanted)
    share = None if session.request.reduce else max(spent, least) // max(len(wanted), 1)
    for i, finding, sample in wanted:
        session.runner.progress(f"explaining {finding.symptom}", i + 1, len(ledger.findings))
        applied = passes.complete(finding.culprit) if finding.culprit else passes.base
        layer = finding.layer
        found = None if layer is None else layers.place(applied, layer.name)
        found = found or explain(
            session.runner_of(finding), finding.symptom, finding.outputs, applied, sample, share
        )
        ledger.amend(i, {"divergence": found})
