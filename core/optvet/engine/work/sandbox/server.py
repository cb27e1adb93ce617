"""The server process: imports once, then forks, kills and reaps workers until the caller ends.

The server and every worker are subreapers (``prctl(2)``). A process that a task starts, even in a
session of its own, stays below its worker while the worker lives, and becomes a child of the server
when the worker dies. A child of the server that is not a worker is thus a leftover, and is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import time
import traceback
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any, NoReturn

from optvet.engine.work.sandbox.messages import STATUS, receive_fds
from optvet.engine.work.sandbox.worker import PR_SET_CHILD_SUBREAPER, keep_memory, work
from optvet.spec.removal import remove_folder

_END_S = 5.0


def serve(fd: int, preload: tuple[str, ...], caller: int) -> NoReturn:
    """Fork, kill and reap workers until the caller ends; never returns.

    Args:
        fd: The server's end of the socket to the caller.
        preload: Modules to import before the first fork; failures are ignored.
        caller: Process id of the caller.
    """
    gc.disable()  # Imports make much that stays and little garbage: looking for it takes 50 ms.
    for name in preload:
        # Absent or broken: the task that needs it fails with the reason.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    # Python 3.12 warns of a fork beside native threads; here they are the preloaded libraries'
    # idle pools, and the child starts its own.
    warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
    gc.enable()
    gc.freeze()  # Else the collector of each worker writes to, and so copies, all shared pages.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wake_r, wake_w = os.pipe()
    os.set_blocking(wake_r, False)
    os.set_blocking(wake_w, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    channel = socket.socket(fileno=fd)
    channel.set_inheritable(False)
    channel.send(b"r")
    workers: dict[int, int] = {}
    private = [wake_r, wake_w]
    try:
        # The parent is checked once a second too: a fork of the caller keeps the socket open.
        while os.getppid() == caller:
            sources: list[Any] = [channel, wake_r]
            ready, _, _ = select.select(sources, [], [], 1.0)
            if wake_r in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_r, 4096)
            if wake_r in ready or not ready:
                _reap(workers)
            if channel in ready and not _obey(channel, workers, private):
                break
    finally:
        _end()
        os._exit(0)


def _obey(channel: socket.socket, workers: dict[int, int], private: list[int]) -> bool:
    """Carry out one request of the caller; False if the caller has closed its socket."""
    try:
        message, fds, _ = receive_fds(channel, 1 << 18)
    except ConnectionResetError:
        return False
    if message[:1] == b"k":
        pid = STATUS.unpack(message[1:])[0]
        if pid in workers:
            _kill_group(pid)
    elif message[:1] == b"f":
        status = fds.pop()
        os.set_blocking(status, False)
        try:
            pid = _fork(channel, [*workers.values(), *private, status], fds, message)
        except OSError:
            # If no process can be forked, the caller finds its status pipe closed.
            os.close(status)
        else:
            workers[pid] = status
            _tell(status, pid, 0)
    for fd in fds:
        os.close(fd)
    return bool(message)


def _fork(channel: socket.socket, others: list[int], fds: list[int], message: bytes) -> int:
    """Process id of a new worker, which closes ``others``, the descriptors of other workers."""
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            for inherited in [channel.detach(), *others]:
                os.close(inherited)
            folder, path, place, limits = pickle.loads(message[1:])
            if limits.keeps_memory:
                keep_memory()
            work(fds, folder, path, limits, server, _own_folder(place, os.getpid()))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)  # No exit handlers: those of native libraries crash and hang.
    _folders[pid] = _own_folder(pickle.loads(message[1:])[2], pid)
    return pid


_folders: dict[int, str] = {}
"""The folder for temporary files of each worker."""


def _own_folder(place: str, pid: int) -> str:
    return os.path.join(place, f"worker-{pid}")


def _clear(pid: int) -> None:
    """Remove the folder of a worker that has ended."""
    if (folder := _folders.pop(pid, None)) is not None:
        try:
            os.rmdir(folder)
        except OSError:
            remove_folder(folder)


def _reap(workers: dict[int, int]) -> None:
    """Report each worker that has ended, after killing the processes that it started."""
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, options)) is not None:
            # Before it is reaped: until then its pid, also the id of its group, is not reused.
            if ended.si_pid in workers:
                _kill_group(ended.si_pid)
                _sweep(workers)
            pid, status, usage = os.wait4(ended.si_pid, 0)
            if (report := workers.pop(pid, None)) is not None:
                _tell(report, os.waitstatus_to_exitcode(status), usage.ru_maxrss << 10)
                os.close(report)
            _clear(pid)
    _sweep(workers)


def _sweep(workers: Collection[int], timeout_s: float = 0.5) -> None:
    """Kill all children except ``workers``, and those that become children by that.

    A process that still lives after ``timeout_s`` (it waits for a disk) is left to the next call.
    """
    deadline = time.monotonic() + timeout_s
    while left := [pid for pid in _children() if pid not in workers]:
        for pid in left:
            _kill_group(pid)
        if time.monotonic() > deadline:
            return
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.0005)


def _end() -> None:
    """Kill and reap all descendants of this process.

    Reaping adds the CPU time of the workers to that of the caller's children.
    """
    _sweep((), _END_S)
    for pid in list(_folders):
        _clear(pid)


def _children() -> list[int]:
    """Process ids of all child processes."""
    found: list[int] = []
    try:
        for task in os.listdir("/proc/self/task"):
            with contextlib.suppress(FileNotFoundError):
                words = Path(f"/proc/self/task/{task}/children").read_text()
                found += map(int, words.split())
    except OSError:
        return []
    return found


def _tell(report: int, first: int, second: int) -> None:
    with contextlib.suppress(BrokenPipeError, BlockingIOError):
        os.write(report, STATUS.pack(first, second))


def _kill_group(pid: int) -> None:
    """Kill a process and its process group, unless that is the server's own group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        group = os.getpgid(pid)
        if group != os.getpgrp():
            os.killpg(group, signal.SIGKILL)
    # A worker makes its group itself, and may not have done so yet.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
