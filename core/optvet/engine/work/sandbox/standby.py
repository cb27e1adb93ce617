"""A server process that is forked from this one before this one does anything, and waits.

In a fork of the resident process of ``optvet serve``, modules are imported already. The server is
then a fork too, and starts at once. It is used for a sandbox whose server would have imported the
same libraries anyway: no task sees a library that it would not have seen.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from subprocess import TimeoutExpired
from typing import NoReturn

from optvet.engine.work.sandbox.messages import memory_file
from optvet.engine.work.sandbox.server import serve

MARK = "OPTVET_SANDBOX"
"""The variable that marks the processes of one server; see ``forks``."""
MARK_CHARS = 64
"""Characters of the value that a resident process begins with: the mark is written over them."""
_ENVIRONMENT_FIELDS = slice(47, 49)
"""Of ``/proc/self/stat``, after the name: where the variables of the process begin and end."""


class ForkedServer:
    """The process of a server, as ``subprocess.Popen`` shows one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code; None while the process lives."""
        if self.returncode is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; the exit code.

        Raises:
            TimeoutExpired: It lives after ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutExpired("server", timeout or 0.0)
            time.sleep(0.001)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process, unless it has ended."""
        self.send_signal(signal.SIGKILL)


class _Standby:
    def __init__(self, pid: int, channel: socket.socket, imported: frozenset[str]) -> None:
        self.process = ForkedServer(pid)
        self.channel = channel
        self.imported = imported
        self.owner = os.getpid()
        self.path = list(sys.path)


_waiting: _Standby | None = None
_preloaded: set[str] = set()
"""Modules that the servers of this process were asked to import."""


def fork_standby(imported: Iterable[str], private: Sequence[int]) -> None:
    """Fork a server that waits; this process must have a single thread.

    Args:
        imported: Libraries that were imported for servers; the sandbox must ask for all of them.
        private: Descriptors that neither the server nor its workers are to have.
    """
    global _waiting
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        for fd in private:
            os.close(fd)
        _wait(theirs)
    theirs.close()
    _waiting = _Standby(pid, ours, frozenset(imported))


def start_standby(
    preload: tuple[str, ...], channel: socket.socket, log: int, variables: Mapping[str, str]
) -> ForkedServer | None:
    """Make the waiting process the server at the other end of ``channel``; None if none waits.

    Args:
        preload: Modules that it imports.
        channel: The server's end of the socket to this process.
        log: The file of its stdout and stderr.
        variables: Those of its environment.
    """
    global _waiting
    _preloaded.update(preload)
    standby = _waiting
    if standby is None or standby.owner != os.getpid() or standby.path != sys.path:
        return None
    if not standby.imported <= set(preload):
        return None
    _waiting = None
    with contextlib.ExitStack() as stack:
        stack.callback(standby.channel.close)
        order = memory_file(stack)
        with os.fdopen(os.dup(order), "wb") as file:
            pickle.dump((preload, os.getpid(), dict(variables)), file)
        try:
            socket.send_fds(standby.channel, [b"o"], [channel.fileno(), log, order])
        except OSError:  # It was killed.
            standby.process.kill()
            return None
    return standby.process


def preloaded() -> frozenset[str]:
    """Modules that servers of this process were asked to import so far."""
    return frozenset(_preloaded)


def _wait(channel: socket.socket) -> NoReturn:
    """Wait to become a server, or for the end of the caller."""
    try:
        os.setsid()  # Ctrl-C is for the caller, who then closes the sandbox.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _, fds, _, _ = socket.recv_fds(channel, 1, 3)
        if len(fds) == 3:
            channel.close()
            _become(*fds)
    finally:
        os._exit(70)


def _become(channel: int, log: int, order: int) -> NoReturn:
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    with os.fdopen(order, "rb") as file:
        file.seek(0)
        preload, caller, variables = pickle.load(file)
    for fd in (nothing, log):
        os.close(fd)
    os.environ.clear()
    os.environ.update(variables)
    _show_mark(variables[MARK])
    serve(channel, preload, caller)


def _show_mark(mark: str) -> None:
    """Write ``mark`` where other processes read the variables of this one.

    They see those of the resident process otherwise, which this one was forked from.
    """
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()[_ENVIRONMENT_FIELDS]
    begin, end = map(int, fields)
    head = f"{MARK}=".encode()
    at = ctypes.string_at(begin, end - begin).find(head)
    if at >= 0:
        ctypes.memmove(begin + at + len(head), mark.encode(), min(len(mark), MARK_CHARS))
