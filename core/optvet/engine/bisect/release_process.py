"""Processes with one release on their path, which answer one task after the other.

Starting one, and importing there what vets a model, takes longer than most tasks.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import Any

from optvet.engine.environment.child_process import ChildEnd, started_below, status_of

_MODULE = "optvet.engine.bisect.in_release"
_MOST_WAITING = 4
"""Each holds what it has imported in memory."""
LONGEST_S = 3600.0
MARK = "optvet answers: "
"""Begins each answer, on a line of its own."""

Task = Mapping[str, Any]
Document = dict[str, Any]


class ReleaseProcesses:
    """Asks processes, and keeps some of them for the next tasks; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[frozenset[tuple[str, str]], _ReleaseProcess] = {}

    def ask(
        self, variables: Mapping[str, str], task: Task, *, alone: bool = False
    ) -> Document | ChildEnd:
        """The document that answers a task, or how the process ended without one.

        Args:
            variables: All variables of the process.
            task: What ``in_release`` takes.
            alone: Whether the process does this task alone.
        """
        key = frozenset(variables.items())
        with self._lock:
            process = None if alone else self._waiting.pop(key, None)
        if process is not None:
            answer = self._answer(process, key, task)
            if not isinstance(answer, ChildEnd) or answer.status is None:
                return answer
            # It may have ended while it waited, or by what earlier tasks have left there.
        return self._answer(_ReleaseProcess(variables), None if alone else key, task)

    def close(self) -> None:
        """End the processes that wait."""
        with self._lock:
            waiting, self._waiting = list(self._waiting.values()), {}
        for process in waiting:
            process.close()

    def _answer(
        self, process: _ReleaseProcess, key: frozenset[tuple[str, str]] | None, task: Task
    ) -> Document | ChildEnd:
        """What a process answers, which then waits under ``key`` or ends."""
        with contextlib.ExitStack() as stack:
            stack.callback(process.close)
            answer = process.ask(task)
            if key is not None and not isinstance(answer, ChildEnd):
                with self._lock:
                    if len(self._waiting) < _MOST_WAITING and key not in self._waiting:
                        self._waiting[key] = process
                        stack.pop_all()
            return answer


class _ReleaseProcess:
    """One process; it ends with this one."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        command = [sys.executable, "-P", "-m", _MODULE]
        with contextlib.ExitStack() as stack:
            self._errors = stack.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
            self._process = stack.enter_context(
                started_below(command, variables, stdin=subprocess.PIPE, stderr=self._errors)
            )
            self._ending = stack.pop_all()

    def ask(self, task: Task) -> Document | ChildEnd:
        """The document that answers a task; a process that gives none is ended."""
        started = time.monotonic()
        late = threading.Timer(LONGEST_S, os.killpg, (self._process.pid, signal.SIGKILL))
        late.start()
        try:
            line = self._line_for(json.dumps(task))
        finally:
            late.cancel()
        if line is not None:
            document: Document = json.loads(line)
            return document
        in_time = time.monotonic() - started < LONGEST_S
        self._errors.seek(0)
        errors = self._errors.read()
        self.close()
        return ChildEnd(status_of(self._process) if in_time else None, "", errors)

    def _line_for(self, task: str) -> str | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{task}\n")
            self._process.stdin.flush()
        # What runs before the tasks may print too.
        marked = (line.partition(MARK) for line in self._process.stdout)
        return next((answer for _, mark, answer in marked if mark), None)

    def close(self) -> None:
        """End the process, with all that it has started."""
        self._ending.close()
