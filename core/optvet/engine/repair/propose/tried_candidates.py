"""What candidates explain, kept in a file: one of them may end the worker that tries it.

An attribute of another value can send a kernel into an endless loop, or out of its memory. So what
was tried is written down before and after, and who asks again goes on behind the one that ended it.
"""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Callable
from pathlib import Path

from optvet.engine.repair.candidates import RepairCandidate

_STANDSTILL_S = 5.0
"""Wall clock of one candidate on the nodes around a fault; beyond it SIGALRM ends the worker."""


class TriedCandidates:
    """The candidates that were tried before, in this worker or in one that ended."""

    def __init__(self, file: Path, standstill_s: float = _STANDSTILL_S) -> None:
        self._file, self._standstill_s = file, standstill_s
        self._known: dict[str, int] = {}
        if file.exists():
            for line in file.read_text().splitlines():
                key, depth = json.loads(line)
                self._known[key] = depth
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def depth(self, candidate: RepairCandidate, tried: Callable[[RepairCandidate], int]) -> int:
        """What ``tried`` gives for a candidate; -1 for one that ended a worker."""
        operations = [repr(edit.operations) for edit in candidate.edits]
        key = hashlib.sha256("\n".join(operations).encode()).hexdigest()
        if key in self._known:
            return self._known[key]
        self._note(key, -1)
        signal.setitimer(signal.ITIMER_REAL, self._standstill_s)
        try:
            found = tried(candidate)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._note(key, found)
        return found

    def _note(self, key: str, depth: int) -> None:
        self._known[key] = depth
        with self._file.open("a") as file:
            file.write(json.dumps([key, depth]) + "\n")


def count_worker_deaths(file: Path) -> int:
    """How many candidates have ended a worker."""
    depths: dict[str, list[int]] = {}
    if file.exists():
        for line in file.read_text().splitlines():
            key, depth = json.loads(line)
            depths.setdefault(key, []).append(depth)
    return sum(len(found) == 1 for found in depths.values())
