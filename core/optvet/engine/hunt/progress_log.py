"""What a worker of a hunt was doing when it died, and the records that it left."""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from optvet.engine.hunt.make_candidates import MadeCandidate
from optvet.engine.hunt.quick_oracle import Examined
from optvet.engine.hunt.suspicions import Complaint, Place, Rewrite
from optvet.engine.work.sandbox.answers import read_answer
from optvet.engine.work.sandbox.messages import write_all
from optvet.engine.work.sandbox.portable import pickle_portably

_LENGTH = 8


@dataclass(frozen=True)
class Seed:
    """A model that is worth editing, and what fires on it.

    ``way`` is the mutator that prepared it, or else its operators: one of each way is enough.
    ``invented`` are names that passes gave to values that they made of it; ``shown`` is what looks
    wrong on it.
    """

    candidate: MadeCandidate
    rewrites: tuple[Rewrite, ...]
    way: str
    invented: tuple[str, ...] = ()
    shown: frozenset[Place] = frozenset()


@dataclass(frozen=True)
class CandidateOutcome:
    """What became of the candidate of a number.

    ``candidate`` is kept only where something is suspected. ``complaint`` is about a mutator, a
    fragment or a part of the optimizer's plugin that caused an exception. ``spent`` are entry and
    mutator of an edit of which there is no such variant. ``tried`` are digests of the edit.
    ``reached`` are lines of the passes' code that no model had reached.
    """

    number: int
    kind: str
    mutators: tuple[str, ...] = ()
    examined: Examined | None = None
    candidate: MadeCandidate | None = None
    complaint: Complaint | None = None
    seeds: tuple[Seed, ...] = ()
    spent: tuple[int, int] | None = None
    tried: tuple[int, ...] = ()
    reached: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoggedStep:
    """What a worker was doing when it died: the candidate, the step, and with which passes.

    ``signal`` is what killed it, or another word for how it ended.
    """

    number: int
    step: str
    passes: tuple[str, ...]
    candidate: MadeCandidate
    signal: str


_HEAD = 8192
_END = b"\0"


class ProgressLog:
    """The file that says what a worker is doing: lines at its head, behind them the candidate.

    Written some fifty times per model: the head is mapped memory, which a crash leaves intact. A
    step that takes ``standstill_s`` seconds of wall clock ends the process by SIGALRM.
    """

    def __init__(self, path: Path, standstill_s: float) -> None:
        self._standstill_s = standstill_s
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.truncate(self._file, max(_HEAD, os.fstat(self._file).st_size))
        self._head = mmap.mmap(self._file, _HEAD)
        self._about = ""

    def begin(self, index: int, number: int) -> None:
        """The candidate of this number within the batch, and within the hunt."""
        self._about = f"{index}\n{number}\n"

    def note(self, step: str, passes: Sequence[str]) -> None:
        """What is about to be done, and with which passes."""
        signal.setitimer(signal.ITIMER_REAL, self._standstill_s)
        line = f"{self._about}{step}\n{','.join(passes)}".encode()[: _HEAD - 1] + _END
        self._head[: len(line)] = line

    def keep(self, candidate: MadeCandidate) -> None:
        """The candidate."""
        self.note("reference", ())
        os.lseek(self._file, _HEAD, os.SEEK_SET)
        write_all(self._file, pickle_portably(candidate))

    def close(self) -> None:
        """Close the file."""
        self._head.close()
        os.close(self._file)


def read_log(path: Path, ended_by: str) -> tuple[int, LoggedStep] | None:
    """The candidate during which the worker died, by its index, and its last logged step, if any.

    A worker that was ended by SIGALRM stood still.
    """
    try:
        data = path.read_bytes()
        index, number, step, names = data[:_HEAD].partition(_END)[0].decode().split("\n")
        candidate = read_answer(data[_HEAD:]) if len(data) > _HEAD else MadeCandidate(b"", {}, ())
        if not isinstance(candidate, MadeCandidate):
            return None
        passes = tuple(names.split(",")) if names else ()
        return int(index), LoggedStep(int(number), step, passes, candidate, ended_by)
    except Exception:  # cut short, or overwritten: unpickling may raise anything
        return None


def write_record(journal: int, outcome: CandidateOutcome, seconds: float) -> None:
    """Append a record to the open file ``journal``, with the CPU seconds of the worker so far."""
    data = pickle_portably((outcome, seconds))
    write_all(journal, len(data).to_bytes(_LENGTH, "big") + data)


def read_journal(path: Path) -> Iterator[tuple[CandidateOutcome, float]]:
    """Records, and the CPU seconds of the worker so far; one that cannot be read ends it."""
    try:
        data = path.read_bytes()
    except OSError:
        return
    at = 0
    while at + _LENGTH <= len(data):
        size = int.from_bytes(data[at : at + _LENGTH], "big")
        if at + _LENGTH + size > len(data):
            return
        try:
            outcome, seconds = read_answer(data[at + _LENGTH : at + _LENGTH + size])
        except Exception:  # as in what workers send: unpickling may raise anything
            return
        if not isinstance(outcome, CandidateOutcome) or not isinstance(seconds, float):
            return
        yield outcome, seconds
        at += _LENGTH + size
