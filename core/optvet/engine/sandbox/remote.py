"""The caller's side of the processes: one object per worker, one for the server."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any, Literal, get_args

from optvet.engine.sandbox.messages import (
    NO_MEMORY,
    STATUS,
    memory_file,
    receive,
    send,
    text_of,
    type_name,
)
from optvet.engine.sandbox.outcome import Limits, Outcome
from optvet.spec.errors import InfrastructureError, PluginError
from optvet.spec.types import Failure, Stage

_OUTPUT_BYTES = 16 << 20  # A task that prints in a loop must not fill the memory of the machine.
_TAIL_CHARS = 2000
_START_S = 120.0
_STAGES: tuple[Stage, ...] = get_args(Stage)
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Worker:
    """The caller's side of one worker process."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._status: tuple[int, int] | None = None
        self.spent = False
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            self._socket, socket_w = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.callback(self._socket.close)
            theirs.callback(socket_w.close)
            self._output = memory_file(ours)
            # Appending, so that truncating it between tasks leaves no hole before the next write.
            fcntl.fcntl(self._output, fcntl.F_SETFL, os.O_APPEND)
            self._stage = memory_file(ours)
            self._status_r, status_w = os.pipe()
            ours.callback(os.close, self._status_r)
            theirs.callback(os.close, status_w)
            server.fork([socket_w.fileno(), self._output, self._stage, status_w])
            theirs.close()
            if not wait([self._status_r], _START_S):
                raise InfrastructureError(f"no worker process started within {_START_S:g} s")
            data = os.read(self._status_r, STATUS.size)
            if len(data) != STATUS.size:
                raise InfrastructureError("the server of the sandbox died while it forked")
            self._pid = STATUS.unpack(data)[0]
            self._resources = ours.pop_all()

    def is_dead(self) -> bool:
        """Whether the process has ended."""
        return bool(wait([self._status_r], 0))

    def close(self) -> None:
        """Kill the process and its children; free what belonged to it."""
        self._server.kill(self._pid)
        self._resources.close()

    def run(self, name: str, payload: bytes, timeout_s: float) -> Outcome[Any] | None:
        """The outcome of one task; None if the process was gone before it began."""
        os.ftruncate(self._output, 0)
        os.ftruncate(self._stage, 0)
        try:
            send(self._socket, b"t", payload)
        except (BrokenPipeError, ConnectionResetError):
            self.spent = True
            return None
        reply = self._reply(timeout_s)
        if reply == "timeout":
            self.spent = True
            return self._failed("timeout", f"no result after {timeout_s:g} s")
        if reply == "death":
            self.spent = True
            return self._death()
        tag, data = reply
        if tag == b"u":
            raise PluginError(
                f"a worker cannot load task {name!r}: {pickle.loads(data)}; what a task needs must "
                "be defined at the top level of an importable module, not in __main__"
            )
        return self._value(data) if tag == b"v" else self._exception(data)

    def _reply(
        self, timeout_s: float
    ) -> Literal["timeout", "death"] | tuple[bytes, bytes | mmap.mmap]:
        """The worker's message, or why there is none."""
        deadline = time.monotonic() + timeout_s
        sources: list[Any] = [self._socket, self._status_r]
        while True:
            left = deadline - time.monotonic()
            ready = wait(sources, max(0.0, min(left, 0.5)))
            # A message counts even if the process has died since: the task itself was done.
            if self._socket in ready or (ready and self._socket in sources):
                try:
                    return receive(self._socket, socket.MSG_DONTWAIT)
                except (EOFError, ConnectionResetError):
                    sources.remove(self._socket)
                except BlockingIOError:
                    pass
            if self._status_r in ready:
                return "death"
            if left <= 0:
                self._server.kill(self._pid)
                wait([self._status_r], 5)
                return "timeout"
            if os.fstat(self._output).st_size > _OUTPUT_BYTES:
                os.ftruncate(self._output, 0)

    def _value(self, data: bytes | mmap.mmap) -> Outcome[Any]:
        try:
            return Outcome(pickle.loads(data), None)
        except Exception as error:
            text = f"the task's result cannot be unpickled: {text_of(error)}"
            return self._failed("error", text, error_type=type_name(error))

    def _exception(self, data: bytes | mmap.mmap) -> Outcome[Any]:
        kind, message, error_type = pickle.loads(data)
        native = [line for line in self._tail().splitlines() if line.strip() not in message]
        if native:
            message = "\n".join([message, "", "native output:", *native])
        return self._failed(kind, message, error_type=error_type)

    def _death(self) -> Outcome[Any] | None:
        data = os.read(self._status_r, STATUS.size)
        if len(data) != STATUS.size:
            raise InfrastructureError("the server of the sandbox died while a task ran")
        exit_code, peak_bytes = STATUS.unpack(data)
        tail = self._tail()
        if not self._stage_text():
            return None
        if exit_code >= 0:
            text = f"exited with status {exit_code}"
            return self._failed("abort", f"{text}\n{tail}" if tail else text)
        name = _signal_name(-exit_code)
        if name == "SIGKILL":
            text = "killed by SIGKILL, as the kernel does when the machine is out of memory"
            return self._failed("out-of-memory", f"{text}\n{tail}".strip(), signal=name)
        # An allocation that fails under the limit often ends in a null pointer: no message then,
        # but a process that had grown to its limit.
        starved = peak_bytes >= 0.9 * self._server.limits.memory_bytes
        kind: Literal["abort", "out-of-memory"] = (
            "out-of-memory" if starved or NO_MEMORY.search(tail) else "abort"
        )
        return self._failed(kind, tail or f"died of {name} without a message", signal=name)

    def _failed(
        self,
        kind: Literal["error", "abort", "timeout", "out-of-memory"],
        message: str,
        *,
        error_type: str = "",
        signal: str | None = None,
    ) -> Outcome[Any]:
        stage = self._stage_text()
        known: Stage = stage if stage in _STAGES else "build"
        return Outcome(None, Failure(kind, known, message, error_type, signal))

    def _stage_text(self) -> str:
        return os.pread(self._stage, 16, 0).decode("ascii", "replace").strip()

    def _tail(self) -> str:
        """The last characters that the task's process wrote to its stdout and stderr."""
        size = os.fstat(self._output).st_size
        data = os.pread(self._output, 4 * _TAIL_CHARS, max(0, size - 4 * _TAIL_CHARS))
        return data.decode("utf-8", "replace")[-_TAIL_CHARS:].strip()


class Server:
    """The caller's side of the process from which workers are forked."""

    def __init__(self, preload: tuple[str, ...], limits: Limits) -> None:
        self.limits = limits
        self._preload = preload
        self._lock = threading.RLock()
        self._stopped = False
        self._ready = False
        self._start()

    def fork(self, fds: Sequence[int]) -> None:
        """Ask for a worker that owns copies of ``fds``: socket, output, stage, status."""
        request = b"f" + pickle.dumps((os.getcwd(), sys.path))
        with self._lock:
            for _ in range(3):
                if self._stopped:
                    break
                try:
                    self._await_ready()
                    socket.send_fds(self._socket, [request], fds)
                    return
                except OSError:
                    if not self._stopped:
                        self._restart()
        words = self._log()
        raise InfrastructureError(f"the server of the sandbox does not run: {words}".rstrip(" :"))

    def kill(self, pid: int) -> None:
        """Kill a worker and its children, if it still lives."""
        # Through the server, which alone knows whether the pid is still that of its child.
        with self._lock, contextlib.suppress(OSError):
            self._socket.send(b"k" + STATUS.pack(pid, 0))

    def stop(self) -> None:
        """End the server and with it all workers."""
        self._stopped = True
        # Before taking the lock: its holder may be waiting for modules to be imported.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._end()

    def _start(self) -> None:
        with contextlib.ExitStack() as stack:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.callback(theirs.close)
            log = memory_file(stack)
            self._log_fd = os.dup(log)
            code = (
                f"import sys; sys.path[:] = {sys.path!r}; "
                f"from optvet.engine.sandbox import server; server.serve("
                f"{theirs.fileno()}, {self._preload!r}, "
                f"{self.limits.memory_bytes}, {os.getpid()})"
            )
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env=_environment(os.environ),
                start_new_session=True,  # Ctrl-C is for the caller, who then closes the sandbox.
            )
        self._ready = False

    def _await_ready(self) -> None:
        """Wait until the modules are imported.

        Raises:
            OSError: The server died or hangs in an import.
        """
        if self._ready:
            return
        self._socket.settimeout(_START_S)
        try:
            if not self._socket.recv(1):
                raise ConnectionResetError
        finally:
            self._socket.settimeout(None)
        self._ready = True

    def _restart(self) -> None:
        # A server that was never ready died of, or hangs in, an import: a worker shall tell.
        if not self._ready:
            self._preload = ()
        self._end()
        self._start()

    def _end(self) -> None:
        self._socket.close()
        try:
            self._process.wait(2 if self._ready else 0.2)
        except subprocess.TimeoutExpired:
            # Still importing: nothing was forked, so nothing is orphaned.
            self._process.kill()
            self._process.wait()
        os.close(self._log_fd)

    def _log(self) -> str:
        try:
            return os.pread(self._log_fd, _TAIL_CHARS, 0).decode("utf-8", "replace")
        except OSError:
            return ""


def _environment(base: Mapping[str, str]) -> dict[str, str]:
    """``base``, with one thread per worker unless it says otherwise."""
    return {**dict.fromkeys(_THREADS, "1"), **base}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
