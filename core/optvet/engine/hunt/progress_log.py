"""What a worker of a hunt was doing when it died, and the records that it left.

Nothing here knows what candidates are: workers of another environment, which make sources, import
this module too.
"""

from __future__ import annotations

import mmap
import os
import resource
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from optvet.engine.work.sandbox.answers import read_answer
from optvet.engine.work.sandbox.messages import write_all
from optvet.engine.work.sandbox.portable import pickle_portably

RecordT = TypeVar("RecordT")
_LENGTH = 8


@dataclass(frozen=True)
class LoggedStep:
    """What a worker was doing when it died.

    Attributes:
        number: Of the candidate.
        step: What was done with it.
        passes: What was applied, such as passes or operators.
        candidate: The candidate, as it was kept; None if it was not.
        signal: What killed the worker, or another word for how it ended.
    """

    number: int
    step: str
    passes: tuple[str, ...]
    candidate: object
    signal: str

    @property
    def valid(self) -> bool:
        """Whether an optimizer died of it, so that it counts as one that was judged."""
        return self.step in ("optimize", "run")


_HEAD = 8192
_END = b"\0"


@dataclass(frozen=True)
class StepLimit:
    """Seconds that a step may take before it ends its process; 0 for any number.

    Of wall clock, by SIGALRM; or of CPU time, by SIGXCPU, where steps wait for other processes and
    a busy machine is no reason to end them.
    """

    seconds: float = 0.0
    of_cpu: bool = False

    def begin(self) -> None:
        """Begin a step."""
        if not self.of_cpu:
            signal.setitimer(signal.ITIMER_REAL, self.seconds)
            return
        # Counted since the process began; whole seconds are all that the system takes.
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + self.seconds), hard))

    def end(self) -> None:
        """No step runs any more: the process goes on to other tasks."""
        if not self.of_cpu:
            signal.setitimer(signal.ITIMER_REAL, 0)
            return
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))


class ProgressLog:
    """The file that says what a worker is doing: lines at its head, behind them the candidate.

    Written some fifty times per model: the head is mapped memory, which a crash leaves intact.
    Each note begins a step, which has the ``limit``.
    """

    def __init__(self, path: Path, limit: StepLimit) -> None:
        self._limit = limit
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.truncate(self._file, max(_HEAD, os.fstat(self._file).st_size))
        self._head = mmap.mmap(self._file, _HEAD)
        self._about = ""

    def begin(self, index: int, number: int) -> None:
        """The candidate of this number within the batch, and within the hunt."""
        self._about = f"{index}\n{number}\n"

    def note(self, step: str, passes: Sequence[str]) -> None:
        """What is about to be done, and with which passes."""
        self._limit.begin()
        # Cut to the head, so that it never runs into the candidate behind it.
        line = f"{self._about}{step}\n{','.join(passes)}".encode()[: _HEAD - 1] + _END
        self._head[: len(line)] = line

    def keep(self, candidate: object) -> None:
        """The candidate, which dataclasses, arrays and plain values make up."""
        # Whatever kills the worker from here on was not the maker of the candidate.
        self.note("reference", ())
        os.lseek(self._file, _HEAD, os.SEEK_SET)
        write_all(self._file, pickle_portably(candidate))

    def close(self) -> None:
        """Close the file, and end the last step."""
        self._limit.end()
        self._head.close()
        os.close(self._file)


def read_log(path: Path, ended_by: str) -> tuple[int, LoggedStep] | None:
    """The candidate during which the worker died, by its index, and its last logged step, if any.

    A worker that was ended by SIGALRM stood still.
    """
    try:
        data = path.read_bytes()
        index, number, step, names = data[:_HEAD].partition(_END)[0].decode().split("\n")
        candidate = read_answer(data[_HEAD:]) if len(data) > _HEAD else None
        passes = tuple(names.split(",")) if names else ()
        return int(index), LoggedStep(int(number), step, passes, candidate, ended_by)
    except Exception:  # cut short, or overwritten: unpickling may raise anything
        return None


def write_record(journal: int, index: int, record: object, seconds: float) -> None:
    """Append the record of a candidate to the open file ``journal``.

    Args:
        journal: A descriptor.
        index: Of the candidate within the batch.
        record: What became of it.
        seconds: CPU time of the worker so far.
    """
    data = pickle_portably((index, record, seconds))
    write_all(journal, len(data).to_bytes(_LENGTH, "big") + data)


def read_journal(path: Path, kind: type[RecordT]) -> Iterator[tuple[int, RecordT, float]]:
    """Index, record and CPU seconds of the worker so far; one that cannot be read ends it."""
    try:
        data = path.read_bytes()
    except OSError:
        return
    at = 0
    while at + _LENGTH <= len(data):
        size = int.from_bytes(data[at : at + _LENGTH], "big")
        # A worker that died left the last record as far as it was written.
        if at + _LENGTH + size > len(data):
            return
        try:
            index, record, seconds = read_answer(data[at + _LENGTH : at + _LENGTH + size])
        except Exception:  # as in what workers send: unpickling may raise anything
            return
        if not (isinstance(index, int) and isinstance(record, kind) and isinstance(seconds, float)):
            return
        yield index, record, seconds
        at += _LENGTH + size
