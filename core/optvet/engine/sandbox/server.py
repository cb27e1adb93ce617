"""In the server: import once, then fork, kill and reap workers until the caller is gone."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import traceback
import warnings
from typing import Any, NoReturn

from optvet.engine.sandbox.messages import STATUS
from optvet.engine.sandbox.worker import keep_memory, work


def serve(fd: int, preload: tuple[str, ...], memory_bytes: int, caller: int) -> NoReturn:
    """Fork, kill and reap workers until the caller is gone."""
    for name in preload:
        # Absent or broken: the task that needs it fails with the reason.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    # Python 3.12 warns of a fork beside native threads; here they are the preloaded libraries'
    # idle pools, and the child starts its own.
    warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
    keep_memory()
    gc.collect()
    gc.freeze()  # Else the collector of each worker writes to, and so copies, all shared pages.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wake_r, wake_w = os.pipe()
    os.set_blocking(wake_w, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    channel = socket.socket(fileno=fd)
    channel.set_inheritable(False)
    channel.send(b"r")
    children: dict[int, int] = {}
    try:
        # Once a second the parent is looked at too: a fork of the caller keeps the socket open.
        while os.getppid() == caller:
            sources: list[Any] = [channel, wake_r]
            ready, _, _ = select.select(sources, [], [], 1.0)
            if wake_r in ready:
                os.read(wake_r, 4096)
                _reap(children)
            if channel in ready and not _obey(channel, children, memory_bytes):
                break
    finally:
        for pid in children:
            _kill_group(pid)
        # Reaped, so that what the workers used counts as used by the caller.
        with contextlib.suppress(ChildProcessError):
            for pid in children:
                os.waitpid(pid, 0)
        os._exit(0)


def _obey(channel: socket.socket, children: dict[int, int], memory_bytes: int) -> bool:
    """Carry out one request of the caller; False if the caller is gone."""
    try:
        message, fds, _, _ = socket.recv_fds(channel, 1 << 18, 4, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return False
    if message[:1] == b"k":
        pid = STATUS.unpack(message[1:])[0]
        if pid in children:
            _kill_group(pid)
    elif message[:1] == b"f":
        server = os.getpid()
        # Where there are too many processes the caller finds its status pipe closed.
        with contextlib.suppress(OSError):
            pid = os.fork()
            if pid == 0:
                try:
                    for inherited in [channel.detach(), *children.values(), fds[3]]:
                        os.close(inherited)
                    folder, path = pickle.loads(message[1:])
                    work(fds[0], fds[1], fds[2], folder, path, memory_bytes, server)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(70)  # No exit handlers: those of native libraries crash and hang.
            children[pid] = fds.pop()
            _tell(children[pid], pid, 0)
    for fd in fds:
        os.close(fd)
    return bool(message)


def _reap(children: dict[int, int]) -> None:
    """Report each worker that has ended, after killing what it left behind."""
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, options)) is not None:
            # Before it is reaped: until then its number, which is its group's, is not reused.
            _kill_group(ended.si_pid)
            pid, status, usage = os.wait4(ended.si_pid, 0)
            if (report := children.pop(pid, None)) is not None:
                _tell(report, os.waitstatus_to_exitcode(status), usage.ru_maxrss << 10)
                os.close(report)


def _tell(report: int, first: int, second: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(report, STATUS.pack(first, second))


def _kill_group(pid: int) -> None:
    # The worker makes the group itself and may not have got there yet.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
