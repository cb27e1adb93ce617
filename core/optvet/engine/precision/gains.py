"""What a mixed model gains: how long it takes beside the original."""

from __future__ import annotations

from optvet.engine.vet.session import VetSession
from optvet.engine.vet.speed.timings import (
    failure_record,
    stopwatch,
    timing_record,
)
from optvet.engine.vet.speed.verdict import REPEATS
from optvet.spec.errors import NothingTested
from optvet.spec.records.precision import PrecisionResult
from optvet.spec.types import Sample


def time_mixed(plain: VetSession, sample: Sample, result: PrecisionResult) -> PrecisionResult:
    """``result`` with the time of the mixed model, or why it has none.

    Both models run under the runtime's own defaults, in turn. Only a list that meets the
    requirements is timed.
    """
    if result.verdict not in ("found", "nothing-to-keep"):
        return result
    kept = {part.name for part in result.kept}
    passes = tuple(name for name in plain.case.passes.pipeline if name not in kept)
    request, progress = plain.request, plain.runner.progress
    case = plain.case.both_shipped(request.runtime_options)
    with stopwatch(
        plain,
        case,
        (sample,),
        threshold=request.slower_than,
        repeats=REPEATS,
        progress=progress,
    ) as watch:
        try:
            timed = watch.time(passes)
        except NothingTested as error:
            return result.model_copy(update={"not_timed": str(error)})
        failure = failure_record(timed)
        if failure is not None:
            words = f"{failure.symptom} under the runtime's own defaults: {failure.message}"
            return result.model_copy(update={"not_timed": words})
        return result.model_copy(update={"timing": timing_record(watch, timed, memory=False)})
