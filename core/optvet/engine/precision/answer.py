"""The parts to keep: searched, and measured again in new processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from optvet.engine.precision.measure import Measure
from optvet.engine.precision.search import FoundList, search
from optvet.engine.precision.setting import PrecisionSetting
from optvet.engine.precision.suspects import suspects
from optvet.engine.vet.require.gauges import RequirementReading
from optvet.engine.work.trials.trial_runner import Progress
from optvet.spec.foreign import read_file
from optvet.spec.optimizer_protocols import LowersPrecision
from optvet.spec.precision import PrecisionRequest
from optvet.spec.records.precision import (
    PrecisionRisk,
    PrecisionVerdict,
)

OBSERVED = 8
"""Samples on which inner values are observed."""


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


def find_answer(
    setting: PrecisionSetting, request: PrecisionRequest, progress: Progress
) -> FoundPrecision:
    """The shortest list found with which the requirements are met, or why there is none."""
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
        named = not found.minimal and frozenset(found.kept) not in measure.tried
        verdict: PrecisionVerdict = "unmet" if named else "undecided"
        words = words if named else f"new processes do not repeat it: {words}"
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
