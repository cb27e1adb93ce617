"""Whether what ends for want of memory is ended by the limit alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from optvet.engine.models.large import available_bytes
from optvet.engine.vet.session import Session
from optvet.engine.work.cache import Cache
from optvet.engine.work.lab import Lab
from optvet.engine.work.preload import preload_for
from optvet.engine.work.sandbox import Sandbox
from optvet.spec.types import Failure, Sample

_MORE = 4
"""How many times the limit is tried; what needs more is taken to grow without bound."""


def passes_with_more(session: Session, passes: tuple[str, ...], samples: Sequence[Sample]) -> str:
    """What is said where ``passes`` run with more memory; empty where they do not, or none is left.

    At most half of the memory that is free is tried, so that nothing else on the machine suffers.
    """
    limits, case = session.lab.sandbox.limits, session.case
    more = min(_MORE * limits.memory_bytes, (available_bytes() or 0) // 2)
    if more <= limits.memory_bytes:
        return ""
    preload, cache = preload_for(case.optimizer, case.candidate.runtime), Cache(None)
    try:
        with Sandbox(jobs=1, limits=replace(limits, memory_bytes=more), preload=preload) as box:
            trial = Lab(case, box, cache).trial(passes, samples, "confirm")
    finally:
        cache.close()
    if trial.build.failure is not None:
        return ""
    if any(isinstance(run, Failure) for run in trial.runs.values()):
        return ""
    was, now = (f"{size / (1 << 20):.0f}M" for size in (limits.memory_bytes, more))
    return f"it needs more than --memory {was}, and passes with {now}: the limit ends it"
