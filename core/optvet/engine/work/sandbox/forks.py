"""The caller's side of the server process, and its replacement when it dies."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path

from optvet.engine.work.sandbox.interpreter import OWN_VARIABLES, Interpreter, command
from optvet.engine.work.sandbox.landlock import VARIABLE as CONFINE
from optvet.engine.work.sandbox.landlock import with_users_own
from optvet.engine.work.sandbox.messages import STATUS, memory_file
from optvet.engine.work.sandbox.outcome import Limits
from optvet.spec.errors import InfrastructureError
from optvet.spec.scratch import run_folder, temporary_variables

START_S = 120.0
_LOG_CHARS = 2000
_SWEEP_S = 2.0
_MARK = "OPTVET_SANDBOX"
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Of OpenMP, OpenBLAS and MKL: one thread each in a worker, unless the user sets them."""


class Server:
    """One process from which workers are forked."""

    def __init__(self, preload: tuple[str, ...], interpreter: Interpreter | None = None) -> None:
        self.ready = False
        self._abroad = interpreter is not None
        self._stopped = False
        self._mark = f"{os.getpid()}-{uuid.uuid4().hex}"
        with contextlib.ExitStack() as stack:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.callback(theirs.close)
            log = memory_file(stack)
            self._log_fd = os.dup(log)
            without = () if interpreter is None else OWN_VARIABLES
            environment = {n: v for n, v in os.environ.items() if n not in without}
            variables = dict.fromkeys(_THREADS, "1") | environment | temporary_variables()
            variables[_MARK] = self._mark
            self._process = subprocess.Popen(
                command(
                    interpreter, f"server.serve({theirs.fileno()}, {preload!r}, {os.getpid()})"
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env=variables,
                start_new_session=True,  # Ctrl-C is for the caller, who then closes the sandbox.
            )

    def is_dead(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def await_ready(self) -> None:
        """Wait until the modules are imported.

        Raises:
            OSError: The server died or hangs in an import.
        """
        if self.ready:
            return
        self._socket.settimeout(START_S)
        try:
            if not self._socket.recv(1):
                raise ConnectionResetError
        finally:
            self._socket.settimeout(None)
        self.ready = True

    def fork(self, fds: Sequence[int], limits: Limits) -> None:
        """Ask for a worker that owns copies of ``fds``: socket, stdout, stderr, stage, status.

        Args:
            fds: The descriptors.
            limits: Those of its tasks.

        Raises:
            OSError: The server has died.
        """
        path = None if self._abroad else sys.path
        place = str(run_folder() or tempfile.gettempdir())
        writable = None if limits.writable is None else (place, *limits.writable)
        limits = replace(limits, writable=with_users_own(writable))
        request = b"f" + pickle.dumps((_folder(), path, place, limits))
        socket.send_fds(self._socket, [request], fds)

    def kill(self, pid: int) -> None:
        """Kill a worker and its children, if it still lives."""
        # Through the server, which alone knows whether the pid is still that of its child.
        with contextlib.suppress(OSError):
            self._socket.send(b"k" + STATUS.pack(pid, 0), socket.MSG_DONTWAIT)

    def nudge(self) -> None:
        """Send SIGCONT to the server, in case it was stopped by a SIGSTOP."""
        self._process.send_signal(signal.SIGCONT)

    def kill_itself(self) -> None:
        """Kill the server, and with it all its workers."""
        self._process.kill()

    def own_bytes(self) -> int:
        """Memory that the process shares with no file; 0 if it has ended."""
        with contextlib.suppress(OSError, ValueError):
            for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) << 10
        return 0

    def hang_up(self) -> None:
        """Make the server end, without waiting for it."""
        self._stopped = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """End the server, all workers, and the processes that they started."""
        self.hang_up()
        self.nudge()
        self._socket.close()
        try:
            self._process.wait(2 if self.ready else 0.2)
        except subprocess.TimeoutExpired:
            # Still importing: nothing was forked, so nothing is orphaned.
            self._process.kill()
            self._process.wait()
        if self.ready and self._process.returncode != 0:
            _sweep(f"{_MARK}={self._mark}".encode())
        os.close(self._log_fd)

    def log(self) -> str:
        """The beginning of the server's stdout and stderr."""
        try:
            return os.pread(self._log_fd, _LOG_CHARS, 0).decode("utf-8", "replace")
        except OSError:
            return ""


_OF_NO_WORKER = ("PYTEST_CURRENT_TEST", "OPTVET_CACHE", CONFINE, "TMPDIR")
"""Read by nothing that runs in workers: the first differs in each test; this process reads the next
two, and tells a worker what it may write; of the last each worker has its own."""


def variables() -> frozenset[tuple[str, str]]:
    """The variables of this process that workers may read."""
    return frozenset((n, v) for n, v in os.environ.items() if n not in _OF_NO_WORKER)


def origins(modules: Sequence[str]) -> frozenset[tuple[str, str | None]]:
    """The packages of ``modules``, and the files that they would be imported from now."""
    packages = {name.partition(".")[0] for name in modules}
    found = ((name, PathFinder.find_spec(name)) for name in packages)
    return frozenset((name, spec.origin if spec else None) for name, spec in found)


class Servers:
    """The server in use; a dead one is replaced.

    Attributes:
        variables: Those of this process when the first one was started.
        origins: Where that one imports its modules from.
        shared: The server that all workers share.
    """

    def __init__(self, preload: tuple[str, ...], interpreter: Interpreter | None = None) -> None:
        self._preload, self._interpreter = preload, interpreter
        self._lock = threading.Lock()
        self._stopped = False
        self._all: list[Server] = []
        self.variables, self.origins = variables(), origins(preload)
        self.shared: Server = self._start()

    def get(self) -> Server:
        """The server that all workers share, alive and ready.

        Raises:
            InfrastructureError: No server can be started, or the sandbox is closed.
        """
        with self._lock:
            words = ""
            for _ in range(3):
                if self._stopped:
                    break
                try:
                    if not self.shared.is_dead():
                        self.shared.await_ready()
                        return self.shared
                except OSError:
                    pass
                words = self._retire(self.shared)
                self.shared = self._start()
        raise InfrastructureError(f"the server of the sandbox does not run: {words}".rstrip(" :"))

    @contextlib.contextmanager
    def alone(self) -> Iterator[Server]:
        """A server that runs a single task: if it dies, that task is the cause.

        Raises:
            InfrastructureError: The server does not start, or the sandbox is closed.
        """
        with self._lock:
            if self._stopped:
                raise InfrastructureError("the sandbox is closed; no task can be started in it")
            server = self._start()
        try:
            try:
                server.await_ready()
            except OSError as error:
                words = f"a server of the sandbox does not start: {server.log()}".rstrip(" :")
                raise InfrastructureError(words) from error
            yield server
        finally:
            with self._lock:
                self._retire(server)

    def stop(self) -> None:
        """End all servers."""
        self._stopped = True
        # Before taking the lock: its holder may be waiting for modules to be imported.
        for server in list(self._all):
            server.hang_up()
        with self._lock:
            for server in list(self._all):
                self._retire(server)

    def _start(self) -> Server:
        server = Server(self._preload, self._interpreter)
        self._all.append(server)
        return server

    def _retire(self, server: Server) -> str:
        """End ``server``; returns its log."""
        # A server that was never ready died or hangs in an import. Without preloading, the task
        # that imports the module fails in its worker, with the reason.
        if not server.ready and not self._stopped:
            self._preload = ()
        words = server.log()
        if server in self._all:
            self._all.remove(server)
            server.stop()
        return words


def _folder() -> str:
    """The current folder; ``/`` if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return "/"


def _sweep(mark: bytes) -> None:
    """Kill every process that has ``mark`` in its environment.

    When a server is killed its workers die too, but not the processes that these started in
    sessions of their own; only the mark identifies those.
    """
    deadline = time.monotonic() + _SWEEP_S
    while time.monotonic() < deadline:
        found = [pid for pid in os.listdir("/proc") if pid.isdigit() and _bears(pid, mark)]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.01)


def _bears(pid: str, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
