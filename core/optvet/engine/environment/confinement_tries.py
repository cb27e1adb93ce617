"""Tries one means of confinement in this process; writes 1 if it holds here, else why not.

``security`` runs this file by an interpreter of its own for each, since none can be undone. It
imports nothing of optvet.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import select
import signal
import struct
import sys

_CLONE_NEWUSER, _CLONE_NEWPID = 0x10000000, 0x20000000
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _PR_GET_NO_NEW_PRIVS = 1, 22, 38, 39
_SECCOMP_MODE_FILTER, _BPF_RET_K, _SECCOMP_RET_ALLOW = 2, 0x06, 0x7FFF0000
_LIBC = ctypes.CDLL(None, use_errno=True)
_WAIT_S = 5.0


def user_namespace() -> str:
    """Make a namespace of users and one of processes, as ``bwrap`` does."""
    return _error_text(_LIBC.unshare(_CLONE_NEWUSER | _CLONE_NEWPID))


def seccomp() -> str:
    """Install a filter that allows everything."""
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    code = ctypes.create_string_buffer(struct.pack("=HBBI", _BPF_RET_K, 0, 0, _SECCOMP_RET_ALLOW))
    program = ctypes.create_string_buffer(struct.pack("@HP", 1, ctypes.addressof(code)))
    return _error_text(_LIBC.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0))


def no_new_privs() -> str:
    """Give up ever to gain privileges."""
    if _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return _error_text(-1)
    return "" if _LIBC.prctl(_PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 else "it has no effect"


def death_with_parent() -> str:
    """Let a process be killed when the one that started it ends."""
    (read, write), (is_set, tell) = os.pipe(), os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            os.close(1)  # Else whoever waits for this output waits for this process.
            os.write(tell, b"1")
            signal.alarm(60)
            signal.pause()
        os.read(is_set, 1)
        os._exit(0)
    os.close(write)
    ended, _, _ = select.select([read], [], [], _WAIT_S)
    return "" if ended else "the process lives on"


def memory() -> str:
    """Take more address space than the limit allows."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    try:
        mmap.mmap(-1, 2 << 30)
    except (OSError, MemoryError):
        return ""
    return "more can be taken"


def file_size() -> str:
    """Write a file that is larger than the limit."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    try:
        file = os.memfd_create("optvet")
        if os.write(file, bytes(8192)) == 4096:
            os.write(file, b"more")
    except OSError as error:
        return "" if error.errno == errno.EFBIG else os.strerror(error.errno or 0)
    return "more can be written"


def processes() -> str:
    """Start more processes than the limit allows."""
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    try:
        if os.fork() == 0:
            os._exit(0)
    except OSError:
        return ""
    return "it does not hold for root" if os.getuid() == 0 else "more can be started"


def _error_text(status: int) -> str:
    return "" if status == 0 else os.strerror(ctypes.get_errno())


TRIES = {
    each.__name__: each
    for each in (
        user_namespace,
        seccomp,
        no_new_privs,
        death_with_parent,
        memory,
        file_size,
        processes,
    )
}

if __name__ == "__main__":
    sys.stdout.write(TRIES[sys.argv[1]]() or "1")
