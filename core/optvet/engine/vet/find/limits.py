"""Whether a limit of the sandbox alone may cause a failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from optvet.engine.models.large import available_bytes
from optvet.engine.vet.find.model_files import files_of
from optvet.engine.vet.session import VetSession
from optvet.engine.work.cache.disk import Cache
from optvet.engine.work.sandbox import Sandbox, landlock
from optvet.engine.work.trials.server_modules import preload_for
from optvet.engine.work.trials.trial_results import Trial
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.spec.shortage import shortage_in, shortage_of_time
from optvet.spec.types import Failure, Sample

_MORE = 4
"""How many times the limit is tried; what needs more is taken to grow without bound."""


def passes_with_more(
    session: VetSession, passes: tuple[str, ...], samples: Sequence[Sample]
) -> str:
    """A remark if ``passes`` succeed with more memory; empty if not, or none is free.

    It takes at most half of the free memory, so that nothing else on the machine suffers.
    """
    limits = session.runner.sandbox.limits
    more = min(_MORE * limits.memory_bytes, (available_bytes() or 0) // 2)
    if more <= limits.memory_bytes:
        return ""
    # No cache: a result under other limits must never be found by a later vet.
    case, cache = session.case, Cache(None)
    preload = preload_for(case.optimizer, case.candidate.runtime)
    try:
        with Sandbox(jobs=1, limits=replace(limits, memory_bytes=more), preload=preload) as box:
            trial = TrialRunner(case, box, cache).trial(passes, samples, "confirm")
    finally:
        cache.close()
    if trial.build.failure is not None:
        return ""
    if any(isinstance(run, Failure) for run in trial.runs.values()):
        return ""
    was, now = (f"{size / (1 << 20):.0f}M" for size in (limits.memory_bytes, more))
    return f"it needs more than --memory {was}, and passes with {now}: the limit ends it"


def was_short(trial: Trial) -> str:
    """A remark if the machine may lack what ``trial`` needs; empty if no error says so."""
    words = shortage_in(_messages(trial))
    words = words or shortage_of_time(failure.signal for failure in _failures(trial))
    return words and f"the machine may be why it fails, and not the pass: {words}"


def _failures(trial: Trial) -> list[Failure]:
    found = [trial.build.failure, *trial.runs.values()]
    return [f for f in found if isinstance(f, Failure)]


def _messages(trial: Trial) -> str:
    return "\n".join(f"{f.error_type} {f.message}" for f in _failures(trial))


def was_denied(session: VetSession, trial: Trial) -> str:
    """A remark if confinement may be why ``trial`` fails; empty if it cannot be.

    No trial runs without confinement: a pass might do harm. A pass that tried to change the files
    of the model itself is at fault.
    """
    if session.runner.sandbox.limits.writable is None or not landlock.is_active():
        return ""
    words = _messages(trial)
    if not landlock.DENIED.search(words) or _names_the_model(session, words):
        return ""
    return (
        "workers may not write outside of their folder for temporary files, nor connect, which may "
        f"be why it fails; {landlock.VARIABLE}=off allows it, or name the folders there"
    )


def _names_the_model(session: VetSession, words: str) -> bool:
    """Whether a message names a file of the model or its sidecar."""
    files = files_of(session.case.model)
    spelled = (str(s) for f in files for s in (f, f.absolute(), f.resolve()))
    return any(place in words for place in spelled)
