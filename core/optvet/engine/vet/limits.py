"""Whether what fails under a limit of the sandbox fails because of that limit alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from optvet.engine.models.large import available_bytes
from optvet.engine.vet.session import Session
from optvet.engine.work.cache import Cache
from optvet.engine.work.facts import Trial
from optvet.engine.work.lab import Lab
from optvet.engine.work.preload import preload_for
from optvet.engine.work.sandbox import Limits, Sandbox, landlock
from optvet.spec.types import Failure, Sample

_MORE = 4
"""How many times the limit is tried; what needs more is taken to grow without bound."""


def passes_with_more(session: Session, passes: tuple[str, ...], samples: Sequence[Sample]) -> str:
    """What is said where ``passes`` run with more memory; empty where they do not, or none is left.

    At most half of the memory that is free is tried, so that nothing else on the machine suffers.
    """
    limits = session.lab.sandbox.limits
    more = min(_MORE * limits.memory_bytes, (available_bytes() or 0) // 2)
    if more <= limits.memory_bytes:
        return ""
    if _fails(session, passes, samples, replace(limits, memory_bytes=more)):
        return ""
    was, now = (f"{size / (1 << 20):.0f}M" for size in (limits.memory_bytes, more))
    return f"it needs more than --memory {was}, and passes with {now}: the limit ends it"


def passes_unconfined(session: Session, trial: Trial, samples: Sequence[Sample]) -> str:
    """What is said where the failing passes of ``trial`` run if they may write and connect.

    Empty where they do not, where nothing failed, and where nothing is confined.
    """
    limits = session.lab.sandbox.limits
    if limits.writable is None or not landlock.is_active() or not _has_failed(trial):
        return ""
    if _fails(session, trial.passes, samples, replace(limits, writable=None)):
        return ""
    return (
        "it needs to write outside of its folder for temporary files, or to connect, which "
        f"workers may not; it passes with {landlock.VARIABLE}=off (or name the folders there)"
    )


def _fails(
    session: Session, passes: tuple[str, ...], samples: Sequence[Sample], limits: Limits
) -> bool:
    """Whether ``passes`` still fail under other ``limits``; nothing is remembered of it."""
    case, cache = session.case, Cache(None)
    preload = preload_for(case.optimizer, case.candidate.runtime)
    try:
        with Sandbox(jobs=1, limits=limits, preload=preload) as box:
            return _has_failed(Lab(case, box, cache).trial(passes, samples, "confirm"))
    finally:
        cache.close()


def _has_failed(trial: Trial) -> bool:
    return trial.build.failure is not None or any(
        isinstance(run, Failure) for run in trial.runs.values()
    )
