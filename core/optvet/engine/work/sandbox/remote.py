"""The caller's side of one worker: sends a task and waits for its outcome.

Nothing here waits longer than the time limit of the task plus two seconds, whatever the worker or
its children do, but for the time in which the worker itself waits for a core, at most
``PATIENCE`` times the limit: descriptors that they share are read without blocking, and the death
of the worker is reported through a pipe that only the server writes to.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import signal
import socket
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any, Literal, get_args

from optvet.engine.work.sandbox.answers import read_answer
from optvet.engine.work.sandbox.cores import cores_of
from optvet.engine.work.sandbox.forks import START_S, Server
from optvet.engine.work.sandbox.landlock import DENIED, VARIABLE, is_active
from optvet.engine.work.sandbox.messages import (
    NO_MEMORY,
    STATUS,
    TEXT_CHARS,
    MalformedMessage,
    memory_file,
    receive,
    send,
    text_of,
    type_name,
)
from optvet.engine.work.sandbox.outcome import Limits, Outcome
from optvet.engine.work.sandbox.worker import CHANNEL_LOST
from optvet.spec.errors import InfrastructureError, PluginError
from optvet.spec.symptoms import Stage
from optvet.spec.types import Failure, FailureKind

Missing = Literal["not begun", "server lost"]
"""Why there is no outcome: the worker died before the task began, or the server died."""

_Silence = Literal["timeout", "death", "hung up", "malformed"]
_Reply = tuple[bytes, bytes | mmap.mmap]

_OUTPUT_BYTES = 16 << 20  # A task that prints in a loop must not fill the memory of the machine.
_TAIL_CHARS = 2000
_DEATH_S = 1.0  # How long the report of a death may take.
_STAGES: tuple[Stage, ...] = get_args(Stage)
_NOT_BEGUN = b"not begun".ljust(16)
_CONFINED = (
    "optvet lets workers write only to temporary files, and open no TCP socket; if this is why "
    f"it failed, and you trust it, set {VARIABLE}=off, or to the folders that it needs"
)
LEFT_OUT = "[... the rest is left out ...]"
PATIENCE = 3
"""How often the time limit may pass once more while a process waits for a core."""
OUTSIDE = frozenset({"SIGKILL", "SIGTERM", "SIGHUP"})
"""Signals that no crash raises: another process sent them, or the task did so itself."""


class Worker:
    """The caller's side of one worker process."""

    def __init__(self, server: Server, limits: Limits) -> None:
        self._server, self._limits = server, limits
        self._confined = limits.writable is not None and is_active()
        self._tickets: set[bytes] = set()
        self._kernel_kills = _kernel_kills()
        self.spent = False
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            self._socket, socket_w = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.callback(self._socket.close)
            theirs.callback(socket_w.close)
            self._stdout, self._stderr = memory_file(ours), memory_file(ours)
            for output in (self._stdout, self._stderr):
                # Appending: truncating it between tasks leaves no hole before the next write.
                fcntl.fcntl(output, fcntl.F_SETFL, os.O_APPEND)
            self._stage = memory_file(ours, sealable=True)
            os.pwrite(self._stage, _NOT_BEGUN, 0)
            fixed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self._stage, fcntl.F_ADD_SEALS, fixed)
            self._status_r, status_w = os.pipe()
            os.set_blocking(self._status_r, False)
            ours.callback(os.close, self._status_r)
            theirs.callback(os.close, status_w)
            inherited = [socket_w.fileno(), self._stdout, self._stderr, self._stage, status_w]
            server.fork(inherited, limits)
            theirs.close()
            self._pid = self._receive_pid()
            self._resources = ours.pop_all()

    def _receive_pid(self) -> int:
        """Process id of the worker, once the server has forked it.

        Raises:
            InfrastructureError: The server did not answer within ``START_S`` seconds.
            ConnectionResetError: The server could not fork.
        """
        deadline = time.monotonic() + START_S
        while not wait([self._status_r], 0.5):
            self._server.nudge()
            if time.monotonic() > deadline:
                self._server.kill_itself()
                raise InfrastructureError(f"no worker process started within {START_S:g} s")
        status = self._status()
        if status is None:
            raise ConnectionResetError("the server of the sandbox did not fork")
        return status[0]

    def _status(self) -> tuple[int, int] | None:
        """The two numbers of ``STATUS`` that the server reports; None if there are none."""
        try:
            data = os.read(self._status_r, STATUS.size)
        except BlockingIOError:
            return None
        return STATUS.unpack(data) if len(data) == STATUS.size else None

    def is_usable(self) -> bool:
        """Whether the process lives and has sent nothing since its last answer."""
        return not wait([self._status_r, self._socket], 0)

    def close(self) -> None:
        """Kill the process and its children; close its descriptors."""
        self._server.kill(self._pid)
        self._resources.close()

    def run(
        self,
        name: str,
        payload: Sequence[bytes | memoryview],
        timeout_s: float,
        file: int | None = None,
    ) -> Outcome[Any] | Missing:
        """The outcome of one task, or why there is none.

        Args:
            name: Of the task, for messages.
            payload: Function and arguments, packed.
            timeout_s: Time limit in seconds.
            file: A descriptor for the task.

        Raises:
            PluginError: A new worker cannot unpickle the task.
        """
        os.ftruncate(self._stdout, 0)
        os.ftruncate(self._stderr, 0)
        os.pwrite(self._stage, _NOT_BEGUN, 0)
        ticket = os.urandom(16)
        try:
            send(self._socket, b"t", ticket, payload, socket.MSG_DONTWAIT, file)
        except (BrokenPipeError, ConnectionResetError, BlockingIOError):
            self.spent = True
            return "not begun"
        reply = self._reply(ticket, timeout_s)
        self._tickets.add(ticket)
        if isinstance(reply, str):
            self.spent = True
            return self._silent(reply, timeout_s)
        tag, data = reply
        # A capital letter: the task changed the state of its process, which ends therefore.
        self.spent = tag.isupper()
        if tag == b"v" or tag == b"V":
            return self._value(data)
        try:
            words = json.loads(bytes(data))
            if tag in b"uU":
                if len(self._tickets) > 1:
                    # An earlier task may have broken an import; a new process decides.
                    self.spent = True
                    return "not begun"
                raise PluginError(
                    f"a worker cannot load task {name!r}: {words[0]}; what a task needs must be "
                    "defined at the top level of an importable module, not in __main__"
                )
            return self._exception(*words)
        except (ValueError, TypeError, KeyError):
            self.spent = True
            return self._silent("malformed", timeout_s)

    def _reply(self, ticket: bytes, timeout_s: float) -> _Silence | Missing | _Reply:
        """The worker's message, or why there is none."""
        deadline = time.monotonic() + timeout_s
        before, not_counted_s = cores_of(self._pid), 0.0
        while True:
            left = deadline + not_counted_s - time.monotonic()
            ready = wait([self._socket, self._status_r], max(0.0, min(left, 0.5)))
            if ready:
                # A message counts even if the process has died since: the task itself was done.
                with contextlib.suppress(BlockingIOError):
                    return self._read(ticket)
                return "death"
            if left <= 0:
                # A machine that does much else is no reason to call a task too slow.
                waited_s = min(
                    cores_of(self._pid).waited_since(before, timeout_s), PATIENCE * timeout_s
                )
                if waited_s <= not_counted_s + 0.05:
                    self._kill()
                    return "timeout"
                not_counted_s = waited_s
            for output in (self._stdout, self._stderr):
                if os.fstat(output).st_size > _OUTPUT_BYTES:
                    os.ftruncate(output, 0)

    def _read(self, ticket: bytes) -> _Silence | Missing | _Reply:
        """The message that has come; BlockingIOError if there is none."""
        try:
            tag, whose, data = receive(self._socket, socket.MSG_DONTWAIT)
        except (EOFError, ConnectionResetError):
            if not wait([self._status_r], _DEATH_S):
                self._kill()
                return "hung up"
            return "death"
        except MalformedMessage:
            self._kill()
            return "malformed"
        if whose == ticket and tag in (b"v", b"f", b"u", b"V", b"F", b"U"):
            return tag, data
        self._kill()
        # The answer has the ticket of an earlier task, whose leftovers sent it.
        return "not begun" if whose in self._tickets else "malformed"

    def _kill(self) -> None:
        """Kill the process and wait for its end, at most ``_DEATH_S`` seconds."""
        self._server.nudge()
        self._server.kill(self._pid)
        wait([self._status_r], _DEATH_S)

    # --- what came of it ---------------------------------------------------------------------

    def _value(self, data: bytes | mmap.mmap) -> Outcome[Any]:
        try:
            value, marks = read_answer(data)
            return Outcome(value, None, self._by_stage(marks) if marks else ())
        except Exception as error:
            text = f"the task's result cannot be read: {text_of(error)}"
            return self._failure("error", text, error_type=type_name(error))

    def _exception(self, kind: FailureKind, message: str, error_type: str) -> Outcome[Any]:
        native = [line for line in self._tail().splitlines() if line.strip() not in message]
        if native:
            message = "\n".join([message, "", "native output:", *native])
        return self._failure(kind, message, error_type=error_type)

    def _silent(self, why: _Silence | Missing, timeout_s: float) -> Outcome[Any] | Missing:
        if why == "timeout":
            return self._failure("timeout", f"no result after {timeout_s:g} s")
        if why == "hung up":
            return self._failure("abort", "closed the descriptors by which its result is sent")
        if why == "malformed":
            return self._failure("abort", "wrote to the descriptors by which its result is sent")
        if why == "death":
            return self._death()
        return why

    def _death(self) -> Outcome[Any] | Missing:
        status = self._status()
        if status is None:
            return "server lost"
        if os.pread(self._stage, len(_NOT_BEGUN), 0) == _NOT_BEGUN:
            return "not begun"
        exit_code, peak_bytes = status
        tail = self._tail()
        if exit_code == CHANNEL_LOST:
            return self._silent("hung up", 0.0)
        if exit_code >= 0:
            return self._failure("abort", f"exited with status {exit_code}\n{tail}".strip())
        name = _signal_name(-exit_code)
        # A failed allocation often leads to a null pointer, without a message; but then the
        # process has grown to its limit.
        starved = (
            peak_bytes >= 0.9 * self._limits.memory_bytes
            or NO_MEMORY.search(tail) is not None
            or (name == "SIGKILL" and _kernel_kills() > self._kernel_kills)
        )
        if name in OUTSIDE:
            words = f"killed by {name}" + (", the machine being out of memory" if starved else "")
            kind: FailureKind = "out-of-memory" if starved else "killed"
            return self._failure(kind, f"{words}\n{tail}".strip(), signal=name)
        kind = "out-of-memory" if starved else "abort"
        return self._failure(kind, tail or f"died of {name} without a message", signal=name)

    def _failure(
        self, kind: FailureKind, message: str, *, error_type: str = "", signal: str | None = None
    ) -> Outcome[Any]:
        if self._confined and DENIED.search(f"{error_type} {message}"):
            message = f"{message}\n{_CONFINED}"
        return Outcome(None, Failure(kind, self.stage(), message, error_type, signal))

    def stage(self) -> Stage:
        """The stage that the task recorded last; "build" if none."""
        stage = os.pread(self._stage, 16, 0).decode("ascii", "replace").strip()
        return next((s for s in _STAGES if s == stage), "build")

    def _by_stage(self, marks: Sequence[tuple[Stage, int]]) -> tuple[tuple[Stage, str], ...]:
        """The task's stderr per stage, at most ``TEXT_CHARS`` of it."""
        data = os.pread(self._stderr, TEXT_CHARS, 0)
        left_out = os.fstat(self._stderr).st_size - len(data)
        ends = [start for _, start in marks[1:]]
        texts = [
            data[start:end].decode("utf-8", "replace")
            for (_, start), end in zip(marks, [*ends, None], strict=True)
        ]
        if left_out > 0:
            texts[-1] += f"\n{LEFT_OUT}\n"
        return tuple((stage, text) for (stage, _), text in zip(marks, texts, strict=True))

    def _tail(self) -> str:
        """The last characters that the task's process wrote to its stdout and to its stderr."""
        ends = [_end_of(output) for output in (self._stdout, self._stderr)]
        return "\n".join(end for end in ends if end)[-_TAIL_CHARS:].strip()


def _end_of(output: int) -> str:
    size = os.fstat(output).st_size
    data = os.pread(output, 4 * _TAIL_CHARS, max(0, size - 4 * _TAIL_CHARS))
    return data.decode("utf-8", "replace")[-_TAIL_CHARS:].strip()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _kernel_kills() -> int:
    """How many processes the kernel has killed since boot because memory ran out."""
    with contextlib.suppress(OSError), open("/proc/vmstat", "rb") as file:
        for line in file:
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    return 0
