"""The resident process of ``optvet serve``: runs each command that is typed in a fork of itself.

It has imported what commands import, and has a single thread. A fork takes over the streams,
the folder and the variables of the process that was typed (``optvet_resident``), and runs the
command as that process would have.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from optvet.cli.app import COMMANDS, GROUPS
from optvet.cli.errors import INTERRUPTED
from optvet.engine.work.sandbox.standby import fork_standby, preloaded
from optvet.spec.records import DOCUMENTS
from optvet_resident import CODE, GO, LENGTH, REFUSED, RELAYED, RUNS, peer_of, socket_path

IDLE, STALE, TAKEN = 0, 75, 76
"""Exit codes: no command came, installed code has changed, another process serves already."""
READY = "ready: commands typed with this environment start at once; Ctrl-C ends"
_REQUEST_BYTES = 16 << 20
_PATIENCE_S = 2.0
_PDEATHSIG = 1
_PEER_HANDLE = 77
"""``SO_PEERPIDFD``: the process at the other end, as a descriptor."""
_Stamp = tuple[int, int]


@dataclass
class _Client:
    """A process that was typed.

    Attributes:
        channel: The socket to it.
        request: What it wants to be run.
        streams: Its standard streams.
        pid: The fork that runs it, once there is one.
        learned: Where that one tells what it imported.
    """

    channel: socket.socket
    request: Mapping[str, Any]
    streams: list[int]
    pid: int = 0
    learned: int = -1

    def fileno(self) -> int:
        """For ``select``."""
        return self.channel.fileno()


@dataclass
class _Resident:
    surroundings: Any
    idle_s: float
    listener: socket.socket
    wake: tuple[int, int]
    clients: list[_Client] = field(default_factory=list)
    imported: frozenset[str] = frozenset()
    refused: set[str] = field(default_factory=set)
    stamps: dict[str, _Stamp] = field(default_factory=dict)
    code: int | None = None

    def await_command(self) -> _Client | None:
        """Serve; returns in a fork that is to run a command, and None when the service ends."""
        used = time.monotonic()
        while self.code is None or (self.code == STALE and self.clients):
            sources: list[Any] = [self.listener, self.wake[0], *self.clients]
            ready, _, _ = select.select(sources, [], [], 1.0)
            if self.wake[0] in ready:
                self._reap(os.read(self.wake[0], 4096))
            for client in [c for c in self.clients if c in ready]:
                if self._heed(client):
                    return client
            if self.listener in ready:
                self._admit()
            if self.clients:
                used = time.monotonic()
            elif time.monotonic() - used > self.idle_s:
                self.code = IDLE
        return None

    def _admit(self) -> None:
        """Take a request, or refuse it."""
        channel, _ = self.listener.accept()
        channel.settimeout(_PATIENCE_S)
        streams: list[int] = []
        try:
            if not _may_ask(channel):
                _say("a confined process asked for a command, which was refused")
                raise OSError("confined")
            head, streams, _, _ = socket.recv_fds(channel, LENGTH.size, 3)
            request = json.loads(_receive(channel, LENGTH.unpack(head)[0]))
            if self._is_stale():
                self.code = STALE
            other = _other(self.surroundings, request["surroundings"])
            if other:
                _say(f"a command ran by itself, for it has another {', another '.join(other)}")
            if self.code is not None or other:
                channel.sendall(REFUSED)
                raise OSError("other surroundings")
            channel.sendall(RUNS)
        except (OSError, ValueError, LookupError):  # It runs its command by itself.
            _close(streams)
            channel.close()
            return
        self.clients.append(_Client(channel, request, streams))

    def _heed(self, client: _Client) -> bool:
        """Heed what a client sends; True in the fork that is to run its command."""
        try:
            numbers = client.channel.recv(16)
        except OSError:
            numbers = b""
        if not numbers:
            if client.pid:  # It was killed: so is its command.
                _signal(client.pid, signal.SIGKILL)
            else:
                self._forget(client)
            return False
        for number in numbers:
            if bytes([number]) == GO and not client.pid:
                if self._fork(client):
                    return True
            elif client.pid and number:
                _signal(client.pid, number)
        return False

    def _fork(self, client: _Client) -> bool:
        """Fork a process for a command; True in the fork."""
        client.learned, told = os.pipe()
        for end in (client.learned, told):
            os.set_blocking(end, False)
        signal.pthread_sigmask(signal.SIG_BLOCK, RELAYED)  # Until the fork has its own handlers.
        client.pid = os.fork()
        if client.pid == 0:
            signal.set_wakeup_fd(-1)
            self.listener.close()
            _close([*self.wake, client.learned])
            for other in self.clients:
                other.channel.close()
                if other is not client:
                    _close([*other.streams, other.learned])
            client.learned = told
            return True
        signal.pthread_sigmask(signal.SIG_UNBLOCK, RELAYED)
        _close([told, *client.streams])
        client.streams = []
        return False

    def _reap(self, signals: bytes) -> None:
        """Tell clients whose commands have ended, and learn what these imported."""
        if {signal.SIGINT, signal.SIGTERM} & set(signals):
            self.code = IDLE
        for client in [c for c in self.clients if c.pid]:
            pid, status = os.waitpid(client.pid, os.WNOHANG)
            if not pid:
                continue
            learned = _read(client.learned)
            with contextlib.suppress(OSError):
                client.channel.sendall(CODE.pack(os.waitstatus_to_exitcode(status)))
            self._forget(client)
            with contextlib.suppress(ValueError):  # A signal has ended the command before.
                self._learn(*json.loads(learned))

    def _learn(self, modules: list[str], libraries: list[str]) -> None:
        """Import what a command imported, and the libraries of its servers if those are the first.

        What ends an import, or starts a thread, is left to the commands.
        """
        new = [m for m in modules if m not in sys.modules and m not in self.refused]
        for names in (new, [] if self.imported else libraries):
            wanted = [n for n in names if n not in self.refused]
            if not wanted:
                continue
            if not _is_harmless(wanted):
                self.refused.update(wanted)
                continue
            _import(wanted)
            if names is libraries:
                self.imported = frozenset(libraries)
        self.settle()

    def settle(self) -> None:
        """Note the state of what has been imported, and keep the collector away from it."""
        self.stamps = _stamps() | self.stamps  # What has changed since stays as it was imported.
        gc.collect()
        gc.freeze()

    def _is_stale(self) -> bool:
        return any(_stamp(path) != stamp for path, stamp in self.stamps.items())

    def _forget(self, client: _Client) -> None:
        self.clients.remove(client)
        client.channel.close()
        _close([*client.streams, client.learned])

    def end(self) -> None:
        """End all commands as SIGTERM does, and tell their clients."""
        running = [client for client in self.clients if client.pid]
        for client in running:
            _signal(client.pid, signal.SIGTERM)
            _signal(client.pid, signal.SIGCONT)  # It may have been stopped.
        for client in running:
            with contextlib.suppress(OSError):
                _, status = os.waitpid(client.pid, 0)
                client.channel.sendall(CODE.pack(os.waitstatus_to_exitcode(status)))


def main(surroundings: str, idle_s: float) -> int:
    """Serve until no command has come for ``idle_s`` seconds; the exit code.

    Args:
        surroundings: ``optvet_resident.surroundings`` of the process that serves, as JSON.
        idle_s: Seconds.
    """
    _end_with_parent(signal.SIGTERM)
    path = socket_path(os.environ)
    with open(path.with_suffix(".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return TAKEN
        for name in (*COMMANDS, *GROUPS):
            import_module(f"optvet.cli.{name}")
        for document in DOCUMENTS.values():
            document.model_rebuild()  # Pydantic does that when one is first used.
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen(16)
        resident = _Resident(json.loads(surroundings), idle_s, listener, _wake_on_signals())
        resident.settle()
        _say(READY)
        client = resident.await_command()
        if client is not None:
            lock.close()
            _leave(_run(client, resident.imported))
        path.unlink(missing_ok=True)
        listener.close()
        resident.end()
    return IDLE if resident.code is None else resident.code


def _run(client: _Client, imported: frozenset[str]) -> int:
    """Run a command as the process that was typed would; the exit code."""
    request, before = client.request, frozenset(sys.modules)
    _end_with_parent(signal.SIGKILL)
    os.setsid()
    for number in (*RELAYED, signal.SIGCHLD):
        ignored = number in request["ignored"]
        signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
    if signal.SIGINT not in request["ignored"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream, source in enumerate(client.streams):
        os.dup2(source, stream)
    _close(client.streams)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    os.umask(request["umask"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    tempfile.tempdir = None
    sys.argv[:] = ["optvet", *request["arguments"]]
    fork_standby(imported, [client.learned])
    from optvet.cli import main as run

    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, RELAYED)
        code = run(request["arguments"])
    except KeyboardInterrupt:  # while the command sets up its folders, or clears them away
        os.write(2, b"interrupted\n")
        code = INTERRUPTED
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ours = sorted(m for m in set(sys.modules) - before if m.startswith("optvet"))
    with contextlib.suppress(OSError):
        os.write(client.learned, json.dumps([ours, sorted(preloaded())]).encode())
    return code


def is_confined(process: int) -> bool:
    """Whether a process may have been confined (``landlock(7)``), or has ended.

    Workers run foreign code, and Landlock does not keep them from a socket. A command that the
    resident process runs for them would not be confined. What is confined cannot gain privileges.
    """
    with contextlib.suppress(OSError):
        return "NoNewPrivs:\t0" not in Path(f"/proc/{process}/status").read_text()
    return True


def _may_ask(channel: socket.socket) -> bool:
    """Whether at the other end there is a process of this user that is not confined."""
    process, user = peer_of(channel)
    with contextlib.suppress(OSError):  # Before Linux 6.5 there is no such option.
        handle = channel.getsockopt(socket.SOL_SOCKET, _PEER_HANDLE)
        try:
            allowed = user == os.getuid() and not is_confined(process)
            # It lives: what was read is about it, and not about a later one with its number.
            return allowed and not select.select([handle], [], [], 0)[0]
        finally:
            os.close(handle)
    return user == os.getuid() and not is_confined(process)


def _other(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """What differs, in words: variables by their names."""
    mine, other = ours["variables"], theirs["variables"]
    names = [n for n in sorted({**mine, **other}) if mine.get(n) != other.get(n)]
    return [*names, *(n for n in ours if n != "variables" and ours[n] != theirs[n])]


def _say(line: str) -> None:
    """Tell the process of ``optvet serve``, which shows it."""
    os.write(1, f"{line}\n".encode("utf-8", "backslashreplace"))


def _leave(code: int) -> NoReturn:
    """End the process as Python does, but for the modules, which would be copied to be cleared."""
    with contextlib.suppress(OSError):  # Whoever read is gone.
        sys.stdout.flush()
        sys.stderr.flush()
    atexit._run_exitfuncs()
    os._exit(code)


def _is_harmless(modules: Iterable[str]) -> bool:
    """Whether importing ``modules`` neither ends a process nor starts a thread; tried in a fork."""
    pid = os.fork()
    if pid == 0:
        try:
            signal.set_wakeup_fd(-1)
            signal.alarm(60)
            _import(modules)
            os._exit(len(os.listdir("/proc/self/task")) - 1)
        finally:
            os._exit(70)
    _, status = os.waitpid(pid, 0)
    return status == 0


def _import(modules: Iterable[str]) -> None:
    for name in modules:
        with contextlib.suppress(ImportError):  # Absent: who needs it says so.
            import_module(name)


def _stamps() -> dict[str, _Stamp]:
    """Date and size of the files of all modules, and of the folders on the path."""
    files = [getattr(m, "__file__", None) for m in list(sys.modules.values())]
    return {path: _stamp(path) for path in (*files, *sys.path) if isinstance(path, str) and path}


def _stamp(path: str) -> _Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


def _wake_on_signals() -> tuple[int, int]:
    """A pipe that the number of each signal is written to that this process heeds."""
    wake, told = os.pipe()
    os.set_blocking(told, False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    return wake, told


def _end_with_parent(number: int) -> None:
    ctypes.CDLL(None).prctl(_PDEATHSIG, number, 0, 0, 0)


def _signal(pid: int, number: int) -> None:
    """Send a signal as a terminal does, to all of a command; SIGTERM and SIGHUP to it alone."""
    alone = number in (signal.SIGTERM, signal.SIGHUP)
    with contextlib.suppress(ProcessLookupError):
        # It makes its group itself, and may not have done so yet.
        if alone or os.getpgid(pid) != pid:
            os.kill(pid, number)
        else:
            os.killpg(pid, number)


def _receive(channel: socket.socket, size: int) -> bytes:
    if size > _REQUEST_BYTES:
        raise ValueError("too large")
    parts: list[bytes] = []
    while size:
        if not (part := channel.recv(size)):
            raise OSError("ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _read(fd: int) -> bytes:
    with contextlib.suppress(BlockingIOError):
        return os.read(fd, 1 << 20)
    return b""


def _close(files: Iterable[int]) -> None:
    for fd in files:
        with contextlib.suppress(OSError):
            os.close(fd)
