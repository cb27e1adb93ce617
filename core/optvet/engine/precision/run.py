"""From a request to the parts of a model that must keep their precision."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from optvet.engine.discovery import Plugins
from optvet.engine.models.sources import resolve_model
from optvet.engine.options import parse_options
from optvet.engine.precision.calibration import write_inputs
from optvet.engine.precision.emulation import rounds
from optvet.engine.precision.measure import Measure, TrialsSpent
from optvet.engine.precision.mixed_model import write_answer
from optvet.engine.precision.search import FoundList, search
from optvet.engine.precision.suspects import suspects
from optvet.engine.vet.assemble import model_record, optimizer_record, runtime_record
from optvet.engine.vet.find.detect import detect
from optvet.engine.vet.impact.assess import Assessor
from optvet.engine.vet.impact.requirements import required_of
from optvet.engine.vet.require.gauges import RequirementReading
from optvet.engine.vet.require.metrics import RequirementMeter
from optvet.engine.vet.session import VetSession, open_session
from optvet.engine.work.cache.disk import cache_root
from optvet.engine.work.trials.case import Case
from optvet.engine.work.trials.participants import configure, fit_to_model
from optvet.engine.work.trials.trial_runner import Progress
from optvet.graph.walk import name_nodes
from optvet.spec.errors import InputError, UnknownName, UsageError
from optvet.spec.foreign import load_model, read_file
from optvet.spec.optimizer_protocols import LowersPrecision, Optimizer
from optvet.spec.precision import PrecisionRequest
from optvet.spec.protocols import Preferred
from optvet.spec.records.precision import (
    CurvePoint,
    KeptPart,
    PrecisionReading,
    PrecisionResult,
    PrecisionRisk,
    PrecisionVerdict,
    RankedPart,
)
from optvet.spec.request import VetRequest
from optvet.spec.requirement import Requirement, parse_requirement
from optvet.spec.types import Artifact, Model, Sample

OBSERVED = 8
"""Samples on which inner values are observed."""
_REASON_CHARS = 160
_CURVE = 12
"""Points of the curve, at most."""


def find_precision(
    request: PrecisionRequest,
    plugins: Plugins,
    *,
    progress: Progress = lambda text, done, total: None,
) -> PrecisionResult:
    """The smallest list found of parts to keep, for the requirements to be met.

    Raises:
        UsageError: A name, an option or a requirement is wrong.
        InputError: No part of the model can be converted.
        NothingTested: The original runs on no sample.
    """
    started = time.perf_counter()
    optimizer = choose_optimizer(plugins, request.to, request.optimizer)
    model = _open(request, plugins)
    _refuse_unconvertible(optimizer, request, model)
    asked, by_default = _with_requirements(request.as_vet(optimizer.name), optimizer, model)
    with open_session(model, asked, plugins, progress=progress) as session:
        setting = _set_up(session, asked, progress)
        answer = _answer(setting, request, progress)
        result = _document(setting, request, answer, by_default=by_default)
        result = write_answer(setting.plain, setting.plain_meter, request, result)
        cost = session.runner.ledger.cost(time.perf_counter() - started)
        return result.model_copy(update={"inferences": cost.inferences, "wall_s": cost.wall_s})


def _with_requirements(
    asked: VetRequest, optimizer: Optimizer, model: Model
) -> tuple[VetRequest, bool]:
    """``asked`` with the optimizer's own requirements, and whether it had none."""
    assert isinstance(optimizer, LowersPrecision)
    known = required_of(asked, model)
    more = [] if known else [optimizer.requirement]
    metrics = {r.metric for r in known if isinstance(r, Requirement)}
    always = [r for r in optimizer.always if parse_requirement(r).metric not in metrics]
    update = {"require": (*asked.require, *more, *always)}
    return asked.model_copy(update=update), not known


def choose_optimizer(plugins: Plugins, precision: str, name: str | None) -> Optimizer:
    """The optimizer of that name, else the first by name that converts to ``precision``.

    Raises:
        UnknownName: None converts to it.
        UsageError: The named one does not.
    """
    if name is not None:
        chosen = plugins.optimizer_without_passes(name)
        if not isinstance(chosen, LowersPrecision) or chosen.precision != precision:
            what = chosen.precision if isinstance(chosen, LowersPrecision) else "no other precision"
            raise UsageError(
                f"optimizer {name!r} converts to {what}; choose another --optimizer, or leave it "
                f"out to use the one for --to {precision}"
            )
        return chosen
    known: dict[str, list[Optimizer]] = {}
    for each in plugins.names("optimizer"):
        able = plugins.optimizer_without_passes(each)
        if isinstance(able, LowersPrecision):
            known.setdefault(able.precision, []).append(able)
    if precision not in known:
        raise UnknownName("precision for --to", precision, known)
    return min(known[precision], key=lambda each: (-_preference(each), each.name))


def _preference(optimizer: Optimizer) -> float:
    return optimizer.preference if isinstance(optimizer, Preferred) else 0


def _open(request: PrecisionRequest, plugins: Plugins) -> Model:
    models = resolve_model(request.model, plugins, request.cache_dir or cache_root())
    if len(models) != 1:
        raise UsageError(f"{request.model}: {len(models)} models; give one at a time")
    return models[0]


def _refuse_unconvertible(optimizer: Optimizer, request: PrecisionRequest, model: Model) -> None:
    """Refuse a model without parts to convert, and names in ``keep`` that are no parts."""
    options = parse_options(optimizer.name, optimizer.options, request.optimizer_options)
    parts = [p.name for p in fit_to_model(configure(optimizer, options), options, model).passes()]
    if not parts:
        raise InputError(
            f"{model.source}: {optimizer.name} can convert no node of it to {request.to}; give a "
            "model that computes in float32"
        )
    for name in request.keep:
        if name not in parts:
            raise UnknownName(f"part for --keep of {optimizer.name}", name, parts)


# --- what is measured -----------------------------------------------------------------------------


@dataclass(frozen=True)
class PrecisionSetting:
    """What a search is about.

    Attributes:
        session: Makes trials; of a model that rounds as the type does.
        plain: The same with the optimizer's own result.
        plain_meter: Measures the requirements on that.
        measure: Measures the requirements.
        samples: The samples that are kept in memory.
        judged: Number of all samples.
        emulated: Whether the type is emulated.
    """

    session: VetSession
    plain: VetSession
    plain_meter: RequirementMeter
    measure: Measure
    samples: Sequence[Sample]
    judged: int
    emulated: bool

    @property
    def case(self) -> Case:
        """The case that is searched."""
        return self.session.case


def _set_up(session: VetSession, asked: VetRequest, progress: Progress) -> PrecisionSetting:
    case = session.case
    optimizer, options = case.optimizer, case.options
    assert isinstance(optimizer, LowersPrecision)
    inputs = session.inputs()
    ranged = _on_inputs(session, optimizer, options)
    plain = session if ranged is None else _with_options(session, ranged)
    options = plain.case.options
    emulated = optimizer.emulated(options)
    emulates = emulated is not None and not rounds(
        session.runner.sandbox, case.candidate, optimizer.precision
    )
    session = _with_options(plain, emulated) if emulates else plain
    detected = detect(session, inputs, Assessor(session, inputs))
    session = session.at(detected.runner)
    meter = RequirementMeter(session, detected, inputs)
    measure = Measure(
        session.case.passes.pipeline,
        meter,
        most=1,
        progress=lambda tried: progress("trying lists", tried, None),
    )
    checks = session.case.checks
    plain = plain.at(plain.runner.on(replace(plain.case, checks=checks)))
    examiner = copy.copy(detected.examiner)
    examiner.runner = plain.runner
    own = RequirementMeter(plain, replace(detected, examiner=examiner), inputs)
    return PrecisionSetting(
        session, plain, own, measure, detected.samples, detected.judged, emulates
    )


def _on_inputs(session: VetSession, optimizer: LowersPrecision[Any], options: Any) -> Any:
    """Options with which ranges are measured on the samples; None if none are measured."""
    folder = (session.request.cache_dir or cache_root()) / "scratch"
    if optimizer.on_inputs(options, folder) is None:
        return None
    samples = next(iter(session.inputs().chunks()), [])
    return optimizer.on_inputs(options, write_inputs(folder, [s.feeds for s in samples]))


def _with_options(session: VetSession, options: Any) -> VetSession:
    case = session.case
    optimizer = fit_to_model(configure(case.optimizer, options), options, case.model)
    return session.at(session.runner.on(replace(case, optimizer=optimizer, options=options)))


# --- the answer -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FoundPrecision:
    """The verdict, with what it rests on."""

    verdict: PrecisionVerdict
    found: FoundList
    suspicions: Mapping[str, Sequence[PrecisionRisk]]
    reason: str = ""
    chosen: Sequence[RequirementReading] = ()
    without: Mapping[str, Sequence[RequirementReading]] | None = None
    minimal: bool = False


def _answer(
    setting: PrecisionSetting, request: PrecisionRequest, progress: Progress
) -> FoundPrecision:
    measure = setting.measure
    measure.most = request.max_trials
    parts = measure.parts
    nothing = FoundList((), False)
    suspicions = _suspicions(setting) if not request.keep else {}
    if request.keep:
        kept = tuple(name for name in parts if name in request.keep)
        return _confirm(setting, FoundList(kept, False), suspicions)
    if (why := _unsteady(measure)) is not None:
        return FoundPrecision("undecided", nothing, suspicions, why)
    if measure.met(()) is True:
        found = _ranked(setting, request, suspicions) if request.rank else nothing
        return _confirm(setting, replace(found, kept=(), minimal=True), suspicions)
    if (met := measure.met(parts)) is not True:
        readings = measure.read(parts)
        words = next(r.words for r in readings if r.met is not True)
        verdict: PrecisionVerdict = "unmet" if met is False else "undecided"
        words = f"not with every node kept either: {words}"
        return FoundPrecision(verdict, nothing, suspicions, words)
    found = search(measure, setting.session.runner, setting.samples, suspicions, rank=request.rank)
    return _confirm(setting, found, suspicions)


def _ranked(
    setting: PrecisionSetting,
    request: PrecisionRequest,
    suspicions: Mapping[str, Sequence[PrecisionRisk]],
) -> FoundList:
    """The loss of each part alone, where no part has to be kept."""
    runner = setting.session.runner
    return search(setting.measure, runner, setting.samples, suspicions, rank=True)


def _unsteady(measure: Measure) -> str | None:
    """Why the requirements cannot be judged: a second run of the original breaks them."""
    for required in measure.meter.required:
        reading = measure.meter.read(required, None, fresh=True)
        if reading.met is not True:
            return f"{required} is not met by a second run of the original: {reading.words}"
    return None


def _confirm(
    setting: PrecisionSetting,
    found: FoundList,
    suspicions: Mapping[str, Sequence[PrecisionRisk]],
) -> FoundPrecision:
    """The list, and each list with one part less, measured again in new processes."""
    measure, nothing = setting.measure, FoundList((), False)
    chosen = measure.read(found.kept, fresh=True)
    if measure.met(found.kept, fresh=True) is not True:
        words = next(r.words for r in chosen if r.met is not True)
        given = not found.minimal and frozenset(found.kept) not in measure.tried
        verdict: PrecisionVerdict = "unmet" if given else "undecided"
        words = words if given else f"new processes do not repeat it: {words}"
        return FoundPrecision(verdict, found, suspicions, words, chosen)
    without = {
        name: measure.read([n for n in found.kept if n != name], fresh=True) for name in found.kept
    }
    minimal = all(
        measure.met([n for n in found.kept if n != name], fresh=True) is not True
        for name in found.kept
    )
    if len(found.kept) == len(measure.parts):
        if not found.minimal and not minimal:
            words = f"after {len(measure.tried)} lists no shorter one was found; try more with "
            words += "--max-trials"
            return FoundPrecision("undecided", nothing, suspicions, words, chosen)
        words = "only with every node kept, so that nothing is converted"
        return FoundPrecision("unmet", found, suspicions, words, chosen, without, minimal)
    verdict = "found" if found.kept else "nothing-to-keep"
    return FoundPrecision(verdict, found, suspicions, "", chosen, without, minimal)


def _suspicions(setting: PrecisionSetting) -> dict[str, list[PrecisionRisk]]:
    """Suspicions by part, as far as the values of the original can be observed."""
    case, sandbox = setting.case, setting.session.runner.sandbox
    optimizer = case.optimizer
    assert isinstance(optimizer, LowersPrecision)
    feeds = [sample.feeds for sample in setting.samples[:OBSERVED]]
    data = read_file(case.model.blob)
    outcome = sandbox.call(suspects, data, feeds, case.reference, optimizer.precision)
    by_node = outcome.value
    if by_node is None:  # values cannot be recorded: what the graph alone says is left
        outcome = sandbox.call(suspects, data, [], case.reference, optimizer.precision)
        by_node = outcome.value or {}
    found: dict[str, list[PrecisionRisk]] = {}
    for part, nodes in optimizer.parts.items():
        known = [suspicion for node in nodes for suspicion in by_node.get(node, [])]
        if known:
            found[part] = sorted(known, key=lambda s: -s.severity)
    return found


# --- the document ---------------------------------------------------------------------------------


def _document(
    setting: PrecisionSetting,
    request: PrecisionRequest,
    answer: FoundPrecision,
    *,
    by_default: bool,
) -> PrecisionResult:
    case, measure = setting.case, setting.measure
    optimizer = case.optimizer
    assert isinstance(optimizer, LowersPrecision)
    graph = load_model(case.model.path, weights=False)
    unnamed = len(name_nodes(graph))
    operators = {node.name: node.op_type for node in graph.graph.node}
    kept = _kept_parts(setting, answer, operators)
    source = Artifact("onnx", read_file(case.model.blob))
    names = [part.name for part in kept]
    plain = setting.plain.case
    return PrecisionResult(
        schema="optvet.precision/1",
        verdict=answer.verdict,
        model=model_record(case.model),
        precision=optimizer.precision,
        optimizer=optimizer_record(replace(plain, passes=replace(plain.passes, pipeline=()))),
        runtime=runtime_record(case.candidate),
        emulated=setting.emulated,
        requirements=[str(required) for required in measure.meter.required],
        default_requirement=by_default,
        samples=setting.judged,
        parts=len(measure.parts),
        kept=kept,
        chosen=measure.records(answer.chosen) if answer.chosen else [],
        minimal=answer.minimal,
        ranking=_ranking(setting, answer.found, operators),
        curve=_curve(setting, answer, names),
        recipes=dict(optimizer.recipes(source, names, plain.options)) if kept else {},
        unnamed=unnamed,
        trials=len(measure.tried),
        reason=answer.reason,
        whole=_read(measure, ()),
        none=_read(measure, measure.parts),
    )


def _read(measure: Measure, kept: Sequence[str]) -> list[PrecisionReading]:
    """Readings with ``kept`` kept; none if no further list may be tried."""
    with suppress(TrialsSpent):
        return measure.records(measure.read(kept))
    return []


def _operators(part: str, setting: PrecisionSetting, operators: Mapping[str, str]) -> list[str]:
    optimizer = setting.case.optimizer
    assert isinstance(optimizer, LowersPrecision)
    nodes = optimizer.parts[part]
    return list(dict.fromkeys(operators[node] for node in nodes if node in operators))


def _kept_parts(
    setting: PrecisionSetting, answer: FoundPrecision, operators: Mapping[str, str]
) -> list[KeptPart]:
    """The parts that are kept, those first without which the requirement is missed by most."""
    if answer.verdict not in ("found", "unmet"):
        return []
    optimizer = setting.case.optimizer
    assert isinstance(optimizer, LowersPrecision)
    measure, without = setting.measure, answer.without or {}
    found = []
    for name in answer.found.kept:
        readings = without.get(name, ())
        suspicions = list(answer.suspicions.get(name, []))
        found.append(
            KeptPart(
                name=name,
                operators=_operators(name, setting, operators),
                nodes=len(optimizer.parts[name]),
                reason=_reason(suspicions, readings),
                suspicions=suspicions[:4],
                without=measure.records(readings) if readings else [],
            )
        )
    return sorted(found, key=lambda part: -measure.shortfall(without.get(part.name, ())))


def _reason(suspicions: Sequence[PrecisionRisk], without: Sequence[RequirementReading]) -> str:
    """The gravest suspicion that values bear out, else what is measured without the part."""
    strong = [s for s in suspicions if s.kind not in ("operator", "long-sum")]
    if strong:
        return strong[0].words
    missed = next((r for r in without if r.met is not True), None)
    if missed is None:
        return "as asked for"
    return f"converted too: {' '.join(missed.words.split())[:_REASON_CHARS]}"


def _ranking(
    setting: PrecisionSetting, found: FoundList, operators: Mapping[str, str]
) -> list[RankedPart]:
    def key(name: str) -> float:
        loss = found.losses[name]
        return -(float("inf") if loss is None else loss)

    return [
        RankedPart(
            name=name,
            operators=_operators(name, setting, operators),
            loss=found.losses[name],
            met=found.alone.get(name),
        )
        for name in sorted(found.losses, key=key)
    ]


def _curve(
    setting: PrecisionSetting, answer: FoundPrecision, kept: Sequence[str]
) -> list[CurvePoint]:
    """Readings with more and more of the list kept, and with everything kept."""
    measure = setting.measure
    if answer.verdict != "found":
        return []
    step = max(1, -(-len(kept) // (_CURVE - 2)))
    lengths = sorted({*range(0, len(kept), step), len(kept)})
    lists = [tuple(kept[:length]) for length in lengths]
    points = []
    for each in [*lists, *([measure.parts] if len(kept) < len(measure.parts) else [])]:
        if readings := _read(measure, each):
            points.append(CurvePoint(kept=len(each), readings=readings))
    return points
