"""Confines a process by Landlock: it writes below certain folders alone, and opens no TCP socket.

Landlock (``landlock(7)``) is part of Linux since 5.13 and needs no privileges. It holds for the
process and for all that it starts, and cannot be lifted. Reading stays as it is. Where the kernel
has none, or only version 1, under which files cannot be moved between folders, nothing is confined.

This module is imported by the interpreters of other environments, and uses nothing but ``ctypes``.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import platform
import re
import stat
import struct
import sys
from collections.abc import Iterable, Sequence

VARIABLE = "OPTVET_CONFINE"
DENIED = re.compile(
    r"EACCES|EPERM|EXDEV|PermissionError|[Pp]ermission ?[Dd]enied|[Oo]peration not permitted"
    r"|Invalid cross-device link"
)
"""Messages of programs that the kernel denies something."""
OLDEST = 2
NETWORK = 4
"""The version from which on sockets are confined."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # The same on all architectures.
_VERSION = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38
_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_CHANGES = _WRITE_FILE | sum(1 << bit for bit in range(4, 13))
"""To write into a file; to remove and to make files and folders of each kind."""
_BIND_AND_CONNECT_TCP = 0b11
_ARCHITECTURES = ("x86_64", "aarch64", "arm64", "riscv64", "ppc64le", "s390x")
_ALSO = (
    "/dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/ptmx /dev/pts /dev/shm "
    "/dev/nvidia* /dev/dri /dev/kfd /dev/accel /proc/self"
)
"""Devices of computation, shared memory, and the process's own entries."""


def setting() -> str:
    """The user's setting: ``off``, folders to write in (separated by colons), or empty."""
    value = os.environ.get(VARIABLE, "").strip()
    return "off" if value.lower() in ("off", "no", "0", "false") else value


def with_users_own(folders: Iterable[str] | None) -> tuple[str, ...] | None:
    """``folders`` and those that the user adds; None if nothing is to be confined."""
    if folders is None or setting() == "off":
        return None
    return (*folders, *filter(None, setting().split(os.pathsep)))


def version() -> int:
    """The version of Landlock's interface in this kernel; 0 if there is none."""
    if sys.platform != "linux" or platform.machine() not in _ARCHITECTURES:
        return 0
    return max(0, _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_VERSION)))


def is_active() -> bool:
    """Whether workers are confined here."""
    return setting() != "off" and version() >= OLDEST


def confine(folders: Iterable[str]) -> bool:
    """Let this thread, and all that it starts, write below ``folders`` alone; whether it worked."""
    abi = version()
    if abi < OLDEST:
        return False
    rights = _CHANGES | _REFER | (_TRUNCATE if abi >= 3 else 0)
    attributes = struct.pack("=Q", rights)
    if abi >= NETWORK:
        attributes += struct.pack("=Q", _BIND_AND_CONNECT_TCP)
    ruleset = _call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))
    if ruleset < 0:
        return False
    try:
        for pattern in (*map(glob.escape, folders), *_ALSO.split()):
            for path in glob.glob(pattern):
                _allow(ruleset, path, rights)
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        return (
            prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            and _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0)) == 0
        )
    finally:
        os.close(ruleset)


def confine_command(command: Sequence[str], folders: Sequence[str]) -> list[str]:
    """A command that runs ``command`` confined to ``folders`` and the user's own; see ``confine``.

    Where nothing is confined, it is ``command`` itself.
    """
    allowed = with_users_own(folders)
    if allowed is None or not is_active():
        return list(command)
    return [sys.executable, "-I", __file__, str(len(allowed)), *allowed, *command]


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Add a rule for what lies below ``path``, if it is there."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                rights &= _WRITE_FILE | _TRUNCATE
            beneath = struct.pack("=Qi", rights, fd)
            _call(
                _ADD_RULE,
                ctypes.c_int(ruleset),
                ctypes.c_int(_PATH_BENEATH),
                beneath,
                ctypes.c_uint(0),
            )
        finally:
            os.close(fd)


def _call(number: int, *arguments: object) -> int:
    """The result of a system call; negative if it failed."""
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    return int(syscall(ctypes.c_long(number), *arguments))


if __name__ == "__main__":
    first = 2 + int(sys.argv[1])
    confine(sys.argv[2:first])
    os.execvp(sys.argv[first], sys.argv[first:])
