"""Finds the passes because of which requirements are not met, and a pipeline that meets them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from optvet.engine.vet.find.blame import blame
from optvet.engine.vet.require.gauges import record_of
from optvet.engine.vet.require.metrics import RequirementMeter
from optvet.engine.vet.require.unmet import UnmetRequirement
from optvet.engine.vet.session import VetSession
from optvet.spec.requirement import Required

Passes = tuple[str, ...]
Clear = Callable[[Passes], Passes]
"""Reports the faults of a pipeline and returns its safe passes."""


def demand(session: VetSession, meter: RequirementMeter, safe: Passes, clear: Clear) -> Passes:
    """Report the passes because of which requirements are not met.

    Args:
        session: Where trials are made and findings are added.
        meter: Measures the requirements.
        safe: The pipeline without the culprits of faults.
        clear: Vets a shorter pipeline, since removing a pass may cause a fault.

    Returns:
        The passes of ``safe`` with which all requirements are met.
    """
    table, ledger = session.case.passes, session.ledger
    judged, kept = [], frozenset(table.pipeline)
    for required in meter.required:
        session.runner.progress(f"measuring {required}", 0, None)
        reading = meter.read(required, table.pipeline)
        if reading.met is False and not _is_met_by_the_original(meter, required):
            words = f"the original itself does not meet it in a second run: {reading.words}"
            reading = replace(reading, met=None, words=words)
        else:
            judged.append(required)
        ledger.requirements.append(record_of(required, reading))
        if reading.met is None:
            ledger.add_undecided_reason(f"requirement {required}: {reading.words}")
        elif not reading.met:
            kept &= frozenset(_rest(session, UnmetRequirement(meter, required), table.pipeline))
    while True:
        shorter = tuple(name for name in safe if name in kept)
        shorter = shorter if shorter == safe else clear(shorter)
        unmet = next((r for r in judged if meter.read(r, shorter).met is False), None)
        if unmet is None or shorter == table.required_of(shorter):
            return shorter
        safe, kept = shorter, frozenset(_rest(session, UnmetRequirement(meter, unmet), shorter))


def _is_met_by_the_original(meter: RequirementMeter, required: Required) -> bool:
    """Whether a second run of the original, compared with the first, meets the requirement."""
    return meter.read(required, None, fresh=True).met is True


def _rest(session: VetSession, unmet: UnmetRequirement, passes: Passes) -> Passes:
    """``passes`` without those that break the requirement.

    The requirement may still not be met when no optional pass is left.
    """
    table = session.case.passes
    while unmet.read(passes).met is False:
        culprit = blame(session.runner, passes, unmet, session.request.strategy)
        optional = [name for name in culprit if name not in table.required]
        searched = session.request.strategy != "none"
        if not _report(session, unmet, culprit) or not optional or not searched:
            return table.required_of(passes)
        passes = tuple(name for name in passes if name != optional[-1])
    return passes


def _report(session: VetSession, unmet: UnmetRequirement, culprit: Sequence[str]) -> bool:
    """Add the finding; False if new processes do not repeat it, which is recorded as undecided."""
    table = session.case.passes
    passes = table.complete(culprit) if culprit else table.base
    if unmet.read(passes, fresh=True).met is not False:
        words = f"requirement {unmet.required} was unmet once, not again in a fresh process"
        session.ledger.add_undecided_reason(words)
        return False
    trial = session.runner.trial(passes, unmet.samples, "confirm")
    witness = session.witness(unmet.read(passes).witness)
    finding = unmet.describe(trial, culprit)
    session.ledger.add(finding.model_copy(update={"witness": witness}))
    return True
