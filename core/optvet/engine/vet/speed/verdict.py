"""Whether the pipeline that is safe makes the model slower, and which passes do (``--measure``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optvet.engine.vet.find.detect import Detected
from optvet.engine.vet.require.demand import Clear
from optvet.engine.vet.session import VetSession
from optvet.engine.vet.speed.slowdown import Blamed, inquire
from optvet.engine.vet.speed.timings import (
    failure_record,
    stopwatch,
    timing_record,
)
from optvet.engine.work.timing.device_readings import ask_meter, find_use
from optvet.engine.work.timing.stopwatch import Passes, Stopwatch
from optvet.spec.devices import Meter
from optvet.spec.errors import NothingTested
from optvet.spec.records.devices import DeviceUse
from optvet.spec.records.timing import Timing
from optvet.spec.records.vet import ControlState, Finding
from optvet.spec.symptoms import Symptom

REPEATS, REPEATS_ALONE = 10, 5
CONTROL = "timing"
STATES: Mapping[str, ControlState] = {
    "faster": "passed",
    "no-difference": "passed",
    "undecided": "limited",
    "slower": "failed",
}


def judge_speed(session: VetSession, detected: Detected, safe: Passes, clear: Clear) -> Passes:
    """Time the ``safe`` pipeline, and report passes that make it slower.

    A timing that is undecided is a control that says so; no verdict depends on it.

    Args:
        session: What was asked; the timing and findings are added to its ledger.
        detected: The first look, with the samples.
        safe: The passes that show no fault.
        clear: Vets a shorter pipeline, since removing a pass may cause a fault.

    Returns:
        The passes of ``safe`` without those that make it slower.
    """
    ledger, request = session.ledger, session.request
    if not set(safe) - session.case.passes.required:
        ledger.control(CONTROL, "limited", "not timed: no pass is left without a fault")
        return safe
    case = session.case.both_shipped(request.runtime_options)
    samples = tuple(detected.samples[:1])
    with stopwatch(
        session,
        case,
        samples,
        threshold=request.slower_than,
        repeats=REPEATS,
        progress=session.runner.progress,
    ) as watch:
        try:
            timed = watch.time(safe)
        except NothingTested as error:
            ledger.control(CONTROL, "limited", str(error))
            return safe
        failure = failure_record(timed)
        if failure is not None:
            words = f"{failure.symptom} under the runtime's own defaults: {failure.message}"
            ledger.control(CONTROL, "limited", words)
            return safe
        record = ledger.timing = _with_devices(session, watch, timing_record(watch, timed), safe)
        state, words = STATES[record.verdict], record.detail or record.verdict
        if record.verdict != "slower":
            ledger.control(CONTROL, state, words)
            return safe
        session.runner.progress("localizing the slowdown", 0, None)
        found = inquire(session.runner, watch, safe, request.strategy)
        for blamed in found.blamed:
            finding = _finding(blamed, request.slower_than)
            ledger.add(finding.model_copy(update={"witness": session.witness(samples[0])}))
        if not found.blamed:
            # It is slower all the same; only whose fault that is remains open.
            why = f"which of the passes is to blame is undecided: {found.undecided}"
            ledger.add(_slower(record, safe, request.slower_than, why))
        ledger.control(CONTROL, state, found.undecided or words)
    left = found.safe
    shorter = left is not None and any(b.culprit for b in found.blamed)
    return clear(left) if shorter and left is not None else safe


def time_passes(session: VetSession, detected: Detected, names: Sequence[str]) -> dict[str, Timing]:
    """Time the model after each of the passes ``names`` alone, where it runs, beside the original.

    A pass whose effect is clear early takes fewer than ``REPEATS_ALONE`` processes.
    """
    case = session.case.both_shipped(session.request.runtime_options)
    found: dict[str, Timing] = {}
    with stopwatch(
        session,
        case,
        tuple(detected.samples[:1]),
        threshold=session.request.slower_than,
        repeats=REPEATS_ALONE,
        progress=session.runner.progress,
    ) as watch:
        for name in names:
            try:
                timed = watch.time(session.case.passes.complete((name,)), sequential=True)
            except NothingTested:  # the original does not run under the runtime's own defaults
                return found
            if failure_record(timed) is None:
                found[name] = timing_record(watch, timed, memory=False)
    return found


def _with_devices(session: VetSession, watch: Stopwatch, record: Timing, safe: Passes) -> Timing:
    """``record`` with what the device does while each of both models runs, if there is one."""
    runner = session.runner.on(watch.case)
    outcome = runner.sandbox.call(ask_meter, watch.case.candidate)
    meter = outcome.value
    if not isinstance(meter, Meter) or record.reference is None or record.candidate is None:
        if isinstance(meter, str) and meter:
            session.ledger.control("device", "limited", meter)
        return record
    runner.progress("reading the device", 0, None)
    uses = [find_use(runner, passes, watch.samples, meter) for passes in (watch.base, safe)]
    for why in {use for use in uses if isinstance(use, str)}:
        session.ledger.control("device", "limited", why)
    reference, candidate = (
        side.model_copy(update={"device": use if isinstance(use, DeviceUse) else None})
        for side, use in zip((record.reference, record.candidate), uses, strict=True)
    )
    return record.model_copy(update={"reference": reference, "candidate": candidate})


def _finding(blamed: Blamed, threshold: float) -> Finding:
    record = timing_record(blamed.watch, blamed.timed, memory=False)
    return _slower(record, blamed.culprit, threshold, "; ".join(blamed.reasons))


def slower_words(record: Timing, why: str = "") -> str:
    """How much slower, in words, and ``why``."""
    assert record.reference is not None
    assert record.candidate is not None
    took = [f"{side.latency_s * 1e3:.3g}" for side in (record.reference, record.candidate)]
    message = (
        f"{record.ratio:.2f} times the time of the {record.baseline} (99 %: {record.low:.2f} to "
        f"{record.high:.2f}), {took[1]} ms where it took {took[0]} ms"
    )
    return "; ".join([message, *[why] * bool(why)])


def bound_words(threshold: float) -> str:
    """The requirement that a slowdown breaks."""
    return f"latency ratio <= {1 + threshold:g}"


def _slower(record: Timing, culprit: Passes, threshold: float, why: str) -> Finding:
    return Finding(
        symptom=Symptom.SLOWDOWN,
        severity="requirement",
        stage="run",
        culprit=list(culprit),
        confirmed=True,
        message=slower_words(record, why),
        requirement=bound_words(threshold),
        measured=record.ratio,
    )
