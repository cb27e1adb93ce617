"""Tries every pass alone, ordered pairs of passes, and the safe pipeline twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from optvet.engine.judge.outputs import judge
from optvet.engine.pipelines import names_passes
from optvet.engine.vet.find.blame import search
from optvet.engine.vet.find.confirm import explain_no_repeat, report_fault
from optvet.engine.vet.find.detect import Detected, let_go
from optvet.engine.vet.find.idle_passes import idle_passes
from optvet.engine.vet.find.orders import orders_words, try_orders
from optvet.engine.vet.find.pass_numbers import PassMeter
from optvet.engine.vet.impact.assess import Assessor
from optvet.engine.vet.observe.examine import Examiner
from optvet.engine.vet.observe.observation import Examination, Observation, same_fault
from optvet.engine.vet.properties import GROWN, Fault
from optvet.engine.vet.session import VetSession
from optvet.engine.work.trials.inputs import Inputs
from optvet.engine.work.trials.trial_results import Trial
from optvet.engine.work.trials.trial_runner import isolate
from optvet.spec.records import Finding, OrdersRecord, PassNumbers, PassRecord
from optvet.spec.records.timing import Timing
from optvet.spec.records.vet import ControlState, Effect
from optvet.spec.types import Failure, Sample

PAIR_BYTES = 64 << 20
PAIR_NODES = 200_000
"""Without ``--pairs``, pairs are tried if trials x model size, and trials x nodes, are below."""
STOPPED = "too many run into the time limit"


Timer = Callable[[Sequence[str]], Mapping[str, Timing]]
"""Times the model after each of some passes alone, where it runs."""


@dataclass(frozen=True)
class Studied:
    """One record per pass that was tried alone, and the numbers of import and export alone."""

    records: list[PassRecord] = field(default_factory=list)
    round_trip: PassNumbers | None = None
    orders: OrdersRecord | None = None


@dataclass
class _Alone:
    """The results of every pass alone; ``changed`` lists passes that change it soundly, or may.

    ``runs`` are those whose model runs, right or wrong, and is another one, or may be.
    """

    records: list[PassRecord] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    seen: dict[str, Observation | None] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    stopped: bool = False


def is_wanted(session: VetSession) -> bool:
    """Whether every pass is to be tried alone."""
    request = session.request
    every = request.strategy == "auto" and request.pipeline == "all"
    asked = request.strategy == "each" or request.orders is not None
    return asked or (every and session.case.optimizer.traits.single)


def study(
    session: VetSession,
    detected: Detected,
    inputs: Inputs,
    assessor: Assessor,
    safe: tuple[str, ...],
    timer: Timer | None,
) -> Studied:
    """Try every pass alone, and pairs if there are not too many; one record per pass."""
    examiner, samples, ledger = detected.examiner, list(detected.samples), session.ledger
    empty = session.runner.trial(session.case.passes.base, samples, "control")
    examined = examiner.examine(empty, samples)
    inherited = examined.observation
    # Every pass alone would wait for the limit as well, and show nothing of its own.
    if inherited is not None and inherited.symptom.info.limit == "time":
        words = "import and export alone run into the time limit, so no pass was tried"
        ledger.control("every pass alone", "limited", words)
        return Studied()
    meter = PassMeter(session, detected, assessor)
    meter.add(_ROUND_TRIP, empty, samples, examined)
    alone = _each(session, detected, meter, empty, inherited)
    if alone.stopped:
        return _with_numbers(meter, alone, timer)
    share = detected.share(samples)
    if share and session.request.each_on == "all":
        total = _on_further_chunks(session, detected, inputs, meter, alone, inherited)
        ledger.control("every pass alone", "passed", f"tried on {total} samples")
    elif share:
        ledger.control("every pass alone", "limited", f"tried{share}")
    # Pairs need a sound base: with a fault in it, each pair would show that one.
    if inherited is None and _study_pairs(session, detected, alone):
        _study_twice(session, detected, safe)
    studied = _with_numbers(meter, alone, timer)
    if session.request.orders is None:
        return studied
    return replace(studied, orders=_study_orders(session, detected, alone, inherited))


def _study_orders(
    session: VetSession, detected: Detected, alone: _Alone, inherited: Observation | None
) -> OrdersRecord | None:
    """Try orders of the passes that change the model, alone or after those that do."""
    ledger, traits = session.ledger, session.case.optimizer.traits
    if not traits.ordered:
        ledger.control(
            "orders", "not-needed", "the optimizer applies passes in an order of its own"
        )
        return None
    if inherited is not None:
        ledger.control("orders", "limited", "not tried: import and export alone are wrong")
        return None
    sound = [n for n, seen in alone.seen.items() if seen is None and _counts(session, n)]
    changed = [n for n in alone.changed if n in sound]
    names = [*changed, *_enabled(session, detected, changed, sound)]
    found = try_orders(session, detected, names)
    state: ControlState = "failed" if found.failing else "passed"
    ledger.control("orders", state, orders_words(found))
    return found


def _enabled(
    session: VetSession, detected: Detected, changed: Sequence[str], sound: Sequence[str]
) -> list[str]:
    """Passes that change the model only after those that change it alone."""
    if session.case.optimizer.traits.optimizes_on_load:
        return []  # what they change is not seen in what is made
    table, runner = session.case.passes, session.runner
    # Without samples: whether the model changes is seen in what is made, so nothing needs to run.
    before = runner.trial(table.complete(changed), (), "each")
    others = [n for n in sound if n not in changed and n not in table.required]
    trials = runner.trials([table.complete((*changed, n)) for n in others], (), "each")
    pairs = zip(others, trials, strict=True)
    return [n for n, t in pairs if t.build.failure is None and not runner.are_equal(t, before)]


_ROUND_TRIP = ""
"""Stands for import and export alone among the names of passes."""


def _with_numbers(meter: PassMeter, alone: _Alone, timer: Timer | None) -> Studied:
    """The records with the numbers of each pass that changed the model, or may have."""
    sound = [name for name in alone.changed if alone.seen[name] is None]
    timings = timer(sound) if timer is not None else {}
    records, round_trip = [], meter.numbers(_ROUND_TRIP)
    for record in alone.records:
        if record.effect != "none":
            # What failed without a symptom, or not again in a fresh process, proves nothing.
            inherits = round_trip is not None and round_trip.verdict == "faulty"
            proven = record.symptom is not None if record.effect == "failed" else inherits
            numbers = meter.numbers(record.name, proven=proven, timings=timings)
            record = record.model_copy(update={"numbers": numbers})
        records.append(record)
    return Studied(records, round_trip)


def _on_further_chunks(
    session: VetSession,
    detected: Detected,
    inputs: Inputs,
    meter: PassMeter,
    alone: _Alone,
    inherited: Observation | None,
) -> int:
    """Try each pass whose model runs on the samples after the first chunk, and report faults.

    Returns:
        The number of samples on which each was tried.
    """
    examiner, runner, table = detected.examiner, session.runner, session.case.passes
    known = {s.id for s in detected.samples}
    names = [_ROUND_TRIP, *alone.runs]
    sequences = [table.base, *(table.complete((name,)) for name in alone.runs)]
    total = len(known)
    for chunk in inputs.chunks():
        samples = [s for s in chunk if s.id not in known and s.id not in detected.refused]
        examiner.learn_reference(
            runner.reference(samples)
            if examiner.base is None
            else runner.trial(examiner.base, samples, "control")
        )
        samples = [s for s in samples if s.id in examiner.reference]
        if not samples:
            continue
        total += len(samples)
        # Several passes may fail, each on a sample of its own, which its report needs again.
        witnesses = []
        for name, trial in zip(names, runner.trials(sequences, samples, "each"), strict=True):
            examined = examiner.examine(trial, samples)
            meter.add(name, trial, samples, examined)
            seen = examined.observation
            if seen is None or name == _ROUND_TRIP or alone.seen[name] is not None:
                continue
            # Import and export show it too, so it says nothing of the pass.
            if inherited is not None and same_fault(seen, inherited):
                continue
            _learn_fault(session, detected, alone, name, seen)
            if seen.sample is not None:
                witnesses.append(seen.sample)
        kept = {s.id for s in examiner.samples}
        examiner.samples += [s for s in witnesses if s.id not in kept]
        let_go(examiner, samples, Examination())
    return total


def _learn_fault(
    session: VetSession, detected: Detected, alone: _Alone, name: str, seen: Observation
) -> None:
    """Report what a pass that was sound on the first chunk shows on a later one."""
    if session.ledger.is_unexplained(seen):
        return
    index = next(i for i, record in enumerate(alone.records) if record.name == name)
    symptom = seen.symptom
    if _counts(session, name):
        samples = [seen.sample] if seen.sample is not None else detected.samples
        finding = _report_fault(session, detected.examiner, seen, name, samples)
        if not finding.confirmed:
            return
        symptom = finding.symptom
    alone.seen[name] = seen
    changed = {"effect": "failed", "symptom": symptom, "message": seen.message}
    alone.records[index] = alone.records[index].model_copy(update=changed)


def _each(
    session: VetSession,
    detected: Detected,
    meter: PassMeter,
    empty: Trial,
    inherited: Observation | None,
) -> _Alone:
    examiner, samples, ledger = detected.examiner, detected.samples, session.ledger
    table = session.case.passes
    original = session.runner.reference(samples).build.facts
    names = [n for n in table.passes if n not in table.required]
    # A pass that leaves the model as it is needs no run: its trial is that of the empty pipeline.
    idle = idle_passes(session, names, empty)
    sequences = [table.complete((n,)) for n in names if n not in idle]
    # If import and export alone fail, the effect of a pass is unknown.
    judgeable = inherited is None or bool(inherited.outputs or inherited.lost)
    alone = _Alone()
    tried = session.runner.trials(sequences, samples, "each")
    for name in names:
        trial = empty if name in idle else next(tried)
        examined = examiner.examine(trial, samples)
        observation = examined.observation
        if observation is not None and inherited is not None and same_fault(observation, inherited):
            observation = None
        # A hang that is already reported for this pass does not count as one more.
        known = any(f.culprit == [name] for f in ledger.findings)
        if observation is not None and not known and ledger.ends_search(observation):
            words = f"stopped after {len(alone.records)} of {len(names)}: {STOPPED}"
            ledger.control("every pass alone", "limited", words)
            alone.stopped = True
            break
        alone.seen[name] = observation
        # Equal models have equal numbers, so only changed ones are measured and run further.
        if name not in idle and not session.runner.are_equal(trial, empty):
            meter.add(name, trial, samples, examined)
            if observation is None or observation.stage == "compare":
                alone.runs.append(name)
        explained = observation is not None and not ledger.is_unexplained(observation)
        effect = "failed" if observation else _effect(session, detected, trial, empty)
        alone.records.append(_record(session, name, effect, observation, explained=explained))
        if effect in ("changed", "unknown"):
            alone.changed.append(name)
        if observation is not None and explained and judgeable and _counts(session, name):
            finding = _report_fault(session, examiner, observation, name, samples)
            if finding.confirmed:
                symptom = {"symptom": finding.symptom}  # another one, where it was isolated
                alone.records[-1] = alone.records[-1].model_copy(update=symptom)
            else:
                # Not confirmed, so nothing is held against the pass: it may stand in pairs and
                # orders.
                alone.seen[name] = None
                effect = _effect(session, detected, trial, empty)
                alone.records[-1] = _record(session, name, effect, None, explained=False)
        if original is not None:
            described = (of(original).describe(trial, (name,)) for of in GROWN)
            for grown in filter(None, described):
                ledger.add(grown)
    return alone


def _effect(session: VetSession, detected: Detected, trial: Trial, empty: Trial) -> Effect:
    """What a faultless pass did to the model, if that is visible.

    If the runtime optimizes while it loads, artifacts differ only by the instruction. Then other
    output bits or the optimizer's own report show a change; else it is unknown.
    """
    if session.runner.are_equal(trial, empty):
        return "none"
    case = session.case
    if not case.optimizer.traits.optimizes_on_load or _moves(detected, trial, empty):
        return "changed"
    reported = session.runner.changing_passes(trial.passes)
    if reported is None:
        return "unknown"
    return "changed" if set(reported) - set(case.passes.base) else "none"


def _moves(detected: Detected, trial: Trial, empty: Trial) -> bool:
    """Whether output bits differ that do not vary between two runs of one model."""
    examiner = detected.examiner
    skipped = examiner.random | examiner.flaky
    for sample, before in empty.runs.items():
        after = trial.runs.get(sample)
        if isinstance(before, Failure) or after is None or isinstance(after, Failure):
            continue
        kept = {name: value for name, value in before.items() if name not in skipped}
        if any(j.call != "same" for j in judge(kept, after)):
            return True
    return False


def _report_fault(
    session: VetSession,
    examiner: Examiner,
    observation: Observation,
    name: str,
    samples: Sequence[Sample],
) -> Finding:
    """Report the fault of one pass; if it is not confirmed, search again in isolation.

    An earlier pass may have corrupted the process in which it showed, and hidden another fault.
    """
    fault = Fault(examiner, observation)
    finding = report_fault(session, fault, (name,), undecided=session.runner.isolated)
    if finding.confirmed or session.runner.isolated:
        return finding
    session.ledger.control("isolation", "limited", "unconfirmed suspicions tried in own processes")
    alone = session.at(isolate(session.runner))
    trial = alone.runner.trial(session.case.passes.complete((name,)), samples, "verify")
    # What it shows alone may be another fault than the one of the shared process, so that is
    # described.
    again = examiner.examine(trial, samples).observation
    if again is None:
        session.ledger.add_undecided_reason(explain_no_repeat(finding))
        return finding
    return report_fault(alone, Fault(examiner, again), (name,))


def _record(
    session: VetSession,
    name: str,
    effect: Effect,
    observation: Observation | None,
    *,
    explained: bool,
) -> PassRecord:
    limits = session.case.passes.limits(name)
    return PassRecord(
        name=name,
        effect=effect,
        symptom=observation.symptom if observation and explained else None,
        message=observation.message if observation and explained else "",
        known_limit=limits[0].reason if limits else None,
    )


def _counts(session: VetSession, name: str) -> bool:
    """Whether a fault of pass ``name`` is reported.

    If the pass is documented not to make a standard model, only when the request names it.
    """
    table = session.case.passes
    if not table.limits(name):
        return True
    return names_passes(session.request.pipeline, session.case.optimizer) and (
        name in table.pipeline
    )


def _study_pairs(session: VetSession, detected: Detected, alone: _Alone) -> bool:
    """Try pairs whose first pass changes the model; False if not all pairs were tried."""
    examiner, samples, ledger = detected.examiner, detected.samples, session.ledger
    table, model = session.case.passes, session.case.model
    pairs = _pairs(session, alone.changed, alone.seen)
    # Trials grow with the square of the passes: what users did not ask for must stay cheap.
    small = len(pairs) * model.size_bytes <= PAIR_BYTES
    small = small and len(pairs) * model.nodes <= PAIR_NODES
    if not (session.request.pairs if session.request.pairs is not None else small):
        if pairs:
            words = f"{len(pairs)} ordered pairs not tried; add --pairs"
            ledger.control("pairs", "limited", words)
        return False
    ledger.control("pairs", "passed", f"{len(pairs)} ordered pairs tried")
    blamed: dict[tuple[str, tuple[str, str]], int] = {}
    sequences = [table.complete(pair) for pair in pairs]
    for pair, trial in zip(pairs, session.runner.trials(sequences, samples, "each"), strict=True):
        observation = examiner.examine(trial, samples).observation
        if observation is None or ledger.is_unexplained(observation):
            continue
        if ledger.ends_search(observation):
            ledger.control("pairs", "limited", f"stopped: {STOPPED}")
            return False
        # A pass that fails in the same way with many partners is one defect.
        defect = (pair[0], observation.signature)
        mirrored = (pair[1], observation.signature)
        if defect in blamed or mirrored in blamed:
            _add_partner(session, blamed.get(defect, blamed.get(mirrored, 0)), pair)
            continue
        if report_fault(session, Fault(examiner, observation), pair).confirmed:
            found = enumerate(ledger.findings)
            blamed[defect] = next(i for i, f in found if f.culprit == list(pair))
    return True


def _pairs(
    session: VetSession, changed: Sequence[str], alone: Mapping[str, Observation | None]
) -> list[tuple[str, str]]:
    """Ordered pairs of passes that are sound alone; those whose second is a default pass first."""
    traits = session.case.optimizer.traits
    sound = [n for n, o in alone.items() if o is None and _counts(session, n)]
    pairs = [
        (a, b)
        for a in changed
        for b in sound
        if a in sound and (a != b or traits.repeatable) and traits.ordered
    ]
    return sorted(pairs, key=lambda pair: not session.case.passes.passes[pair[1]].default)


def _add_partner(session: VetSession, index: int, pair: tuple[str, str]) -> None:
    finding = session.ledger.findings[index]
    if finding.culprit != list(pair):
        session.ledger.amend(index, {"partners": [*finding.partners, list(pair)]})


def _study_twice(session: VetSession, detected: Detected, safe: tuple[str, ...]) -> None:
    """Try the safe pipeline twice in a row, since users run optimizers on optimized models."""
    twice, samples = (*safe, *safe), detected.samples
    if not session.case.optimizer.traits.repeatable or not twice:
        return
    found = detected.examiner.examine(session.runner.trial(twice, samples, "each"), samples)
    if found.observation is None or session.ledger.is_unexplained(found.observation):
        return
    fault = Fault(detected.examiner, found.observation)
    # Searched in both runs together: the culprit may be a pass of the first and one of the second.
    culprit = search(session.runner, twice, fault, session.request.strategy)
    report_fault(session, fault, culprit)
