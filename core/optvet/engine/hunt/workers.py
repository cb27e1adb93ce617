"""Batches of candidates, done by one worker after the other: any candidate may end its worker.

A worker writes a record behind each candidate, and a log line before each step. So the death of a
worker is the result of the candidate that it had, and the next worker goes on behind it.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, Self, TypeVar

from optvet.engine.hunt.progress_log import (
    LoggedStep,
    ProgressLog,
    StepLimit,
    read_journal,
    read_log,
    write_record,
)
from optvet.engine.work.sandbox import Sandbox
from optvet.spec.errors import InfrastructureError
from optvet.spec.types import Failure

RecordT = TypeVar("RecordT")
_LIMIT_SIGNALS = ("SIGALRM", "SIGXCPU")
"""What ends a worker whose step took longer than ``Batch.limit``."""


class Batch(Protocol[RecordT]):
    """Candidates to make and to look at, in order; it is sent to workers."""

    @property
    def first(self) -> int:
        """Number of the first candidate within the hunt."""
        ...

    @property
    def count(self) -> int:
        """How many there are."""
        ...

    @property
    def place(self) -> Path:
        """Where its files lie, but for their suffixes."""
        ...

    @property
    def record(self) -> type[RecordT]:
        """What ``opened`` gives for a candidate."""
        ...

    @property
    def limit(self) -> StepLimit:
        """What a step of a candidate may take before it ends its worker."""
        ...

    def opened(self, log: ProgressLog) -> AbstractContextManager[Callable[[int], RecordT]]:
        """What makes and looks at the candidate of an index. Called in a worker."""
        ...

    def after_death(self, results: Sequence[RecordT | LoggedStep]) -> Self:
        """The batch for the next worker, ``results`` being those so far."""
        ...


def results_of(sandbox: Sandbox, batch: Batch[RecordT]) -> tuple[list[RecordT | LoggedStep], float]:
    """Results of a batch in order, and its CPU seconds; deaths of workers are results.

    Raises:
        InfrastructureError: A worker ended, and no candidate is to blame.
    """
    journal, log = _journal_of(batch), _log_of(batch)
    results: list[RecordT | LoggedStep] = []
    seconds = 0.0
    # As often as workers die: the next one begins behind the candidate that killed the last.
    while len(results) < batch.count:
        # The sandbox limits a batch as a whole, ``limit`` each step.
        failure = sandbox.call(do_batch, batch, len(results)).failure
        # The sandbox repeats a task whose process was killed: the first record of each counts.
        records = list(read_journal(journal, batch.record))
        fresh = {index: record for index, record, _ in reversed(records)}
        results += [fresh[index] for index in sorted(fresh)]
        journal.unlink(missing_ok=True)
        seconds += records[-1][2] if records else 0.0
        if failure is None and len(results) == batch.count:
            break
        results.append(_death(failure, batch, len(results)))
        batch = batch.after_death(results)
        # What stood still has used the budget too, though it left no record.
        if failure is not None and failure.signal in _LIMIT_SIGNALS:
            seconds += batch.limit.seconds
    log.unlink(missing_ok=True)
    return results, seconds


def _death(failure: Failure | None, batch: Batch[RecordT], index: int) -> LoggedStep:
    """What the worker was doing with the candidate of this index, which ended it.

    Raises:
        InfrastructureError: It was not the candidate that ended it.
    """
    again = "run it again, a hunt with --resume"
    if failure is None:
        raise InfrastructureError(
            f"results of a batch of candidates cannot be read ({batch.place.name}); {again}"
        )
    if failure.kind == "error":
        words = failure.message.partition("\n")[0][:300]
        raise InfrastructureError(
            f"a batch of candidates failed: {failure.error_type}: {words}; {again}, and without a "
            "plugin that is named here"
        )
    logged = read_log(_log_of(batch), failure.signal or failure.kind)
    # What another process killed says nothing; nor does a worker that died between candidates.
    if failure.kind == "killed" or logged is None or logged[0] != index:
        raise InfrastructureError(
            f"a worker ended, but not because of a candidate: {failure.message}; {again}"
        )
    return logged[1]


def do_batch(batch: Batch[RecordT], start: int) -> None:
    """Do the candidates from the index ``start`` on. Called in a worker."""
    began = cpu_seconds()
    # The worker is to die of it, so that the log says of which step.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    journal = os.open(_journal_of(batch), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    log = ProgressLog(_log_of(batch), batch.limit)
    try:
        with batch.opened(log) as look:
            for index in range(start, batch.count):
                log.begin(index, batch.first + index)
                record = look(index)
                write_record(journal, index, record, cpu_seconds() - began)
    finally:
        os.close(journal)
        log.close()


def cpu_seconds() -> float:
    """CPU time of this process and of those that it has waited for: some compilers are one."""
    spent = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


def _journal_of(batch: Batch[RecordT]) -> Path:
    return batch.place.with_suffix(".journal")


def _log_of(batch: Batch[RecordT]) -> Path:
    return batch.place.with_suffix(".log")
