"""How fast the converted model is beside its source (``--measure``), measured as ``vet`` does."""

from __future__ import annotations

from optvet.engine.convert.answer import ConversionEvidence
from optvet.engine.convert.as_shipped import shipped_config
from optvet.engine.convert.guilty_stage import first_without
from optvet.engine.convert.match_interface import fed_to
from optvet.engine.convert.session import Conversion
from optvet.engine.vet.speed import verdict
from optvet.engine.vet.speed.timings import failure_record, pair_record
from optvet.engine.vet.speed.verdict import CONTROL, STATES, bound_words, slower_words
from optvet.engine.work.timing.paired_runs import TimedModel
from optvet.engine.work.timing.stopwatch import PairTimer, Timed
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.trial_runner import Progress
from optvet.spec.errors import NothingTested
from optvet.spec.records.convert import ConversionFinding, ConversionResult
from optvet.spec.records.vet import Control, ControlState
from optvet.spec.symptoms import Symptom


def with_timing(
    result: ConversionResult,
    answer: ConversionEvidence,
    conversion: Conversion,
    progress: Progress,
) -> ConversionResult:
    """``result`` with the time of the converted model beside the source's, on the example.

    Both are run under their runtimes' own defaults. A slower one is a finding of the first stage
    from which on it is slower. A timing that is undecided is a control that says so.
    """
    more: dict[str, object] = {}
    state, words = _time(more, result, answer, conversion, progress)
    control = Control(name=CONTROL, state=state, detail=words)
    return result.model_copy(update={**more, "controls": [*result.controls, control]})


def _time(
    more: dict[str, object],
    result: ConversionResult,
    answer: ConversionEvidence,
    conversion: Conversion,
    progress: Progress,
) -> tuple[ControlState, str]:
    """The control of the timing; adds the timing and a finding to ``more``."""
    request = conversion.request
    last = answer.last
    if last < 0 or answer.configs[last] is None or result.verdict in ("faulty", "refused"):
        return "limited", "not timed: there is no converted model that is right and runs"
    source = _deployed(conversion.reference)
    sandbox = conversion.sandbox_of(source.runtime)
    samples = (answer.inputs[0].sample,)
    about = (request.slower_than, verdict.REPEATS, request.timeout, progress)
    timer = PairTimer(sandbox, samples, *about)
    sides = TimedModel(conversion.source.artifact, source), _side(answer, last)
    if conversion.sandbox_of(sides[1].config.runtime) is not sandbox:
        return "limited", "not timed: source and converted model run in two environments"
    try:
        alone = timer.footprint(sides[0])
        if alone.failure is not None:
            raise NothingTested(f"the source cannot be timed: {alone.failure.message}")
        timed = timer.time(*sides)
    except NothingTested as error:
        return "limited", str(error)
    if (failure := failure_record(timed)) is not None:
        return "limited", f"{failure.symptom} under the runtime's own defaults: {failure.message}"
    uses = alone.value, timer.footprint(sides[1]).value
    record = pair_record(timed, samples, request.slower_than, "source", lambda i: uses[i])
    more["timing"] = record
    if record.verdict != "slower":
        return STATES[record.verdict], record.detail or record.verdict

    def keeps_pace(index: int) -> bool | None:
        """Whether the artifact of a stage is known to be slower, or not to be."""
        if index == last:
            return False
        try:
            known: Timed | None = timer.time(sides[0], _side(answer, index), sequential=True)
        except NothingTested:
            known = None
        return None if known is None or known.failure else known.call != "slower"

    progress("searching the stage that is slower", 0, None)
    first, to = first_without(answer.runnable, keeps_pace)
    names = [stage.name for stage in answer.stage_results[first : to + 1]]
    finding = ConversionFinding(
        symptom=Symptom.SLOWDOWN,
        severity="requirement",
        stages=names,
        kind=answer.stage_results[first].stage.kind,
        culprit=" or ".join(names),
        confirmed=True,
        message=slower_words(record),
        requirement=bound_words(request.slower_than),
        measured=record.ratio,
    )
    more["findings"] = [*result.findings, finding]
    return STATES["slower"], record.verdict


def _side(answer: ConversionEvidence, index: int) -> TimedModel:
    config, artifact = answer.configs[index], answer.artifacts[index]
    assert config is not None
    assert artifact is not None
    feeds = fed_to(artifact, answer.inputs[0].sample.feeds)
    return TimedModel(artifact, _deployed(config), feeds=(feeds,))


def _deployed(config: RuntimeConfig) -> RuntimeConfig:
    return shipped_config(config) or config
