"""Asks the resident process of ``optvet serve``, if there is one, to run this process's command.

Not part of the package ``optvet``, whose import is what the resident process saves. The request is
one JSON document, with the three standard streams; the answer is ``RUNS`` or ``REFUSED``. A command
that it runs begins when this process has sent ``GO``, and ends with the answer of its exit code. In
between, the number of each signal that this process gets is sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

RUNS, REFUSED, GO = b"r", b"n", b"\0"
LENGTH = struct.Struct("=I")
CODE = struct.Struct("=i")
PEER = struct.Struct("=3i")
"""Process, user and group at the other end of a socket (``SO_PEERCRED``)."""
RELAYED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
OF_THE_SHELL = re.compile(
    r"_|PWD|OLDPWD|SHLVL|PATH|MAIL|PS\d|PROMPT.*|HIST.*|LS_COLORS|EDITOR|VISUAL|PAGER|LESS.*|COLUMNS|"
    r"LINES|TERM.*|COLORTERM|NO_COLOR|FORCE_COLOR|WINDOWID|DISPLAY|WAYLAND_DISPLAY|STY|"
    r"(DBUS|GNOME|ITERM|KONSOLE|SSH|TMUX|VSCODE|VTE|WT|XDG_SESSION|VIRTUAL_ENV)_.*|TMUX"
)
"""Variables that may differ: no library reads them when it is imported. A command has its own."""
_LIMITS = 16
"""Kinds of ``RLIMIT_…`` that Linux has."""
_WAIT_S = 2.0


def socket_path(variables: Mapping[str, str]) -> Path:
    """Where the resident process of this Python environment and user listens."""
    places = [variables.get("XDG_RUNTIME_DIR"), variables.get("TMPDIR")]
    place = next((p for p in places if p and os.path.isdir(p)), "/tmp")
    return Path(place, f"optvet-serve-{os.getuid()}", f"{hash_of(sys.prefix):016x}")


def hash_of(text: str) -> int:
    """A number for a text, the same in each process (FNV-1a, 64 bits)."""
    number = 0xCBF29CE484222325
    for byte in os.fsencode(text):
        number = (number ^ byte) * 0x100000001B3 % (1 << 64)
    return number


def is_private(folder: Path) -> bool:
    """Whether ``folder`` is one that this user alone can open; not so through a link."""
    with contextlib.suppress(OSError):
        status = folder.lstat()
        private = status.st_uid == os.getuid() and not status.st_mode & 0o077
        return private and folder.is_dir() and not folder.is_symlink()
    return False


def peer_of(channel: socket.socket) -> tuple[int, int]:
    """Process and user at the other end."""
    credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
    process, user, _ = PEER.unpack(credentials)
    return process, user


def surroundings(variables: Mapping[str, str]) -> dict[str, Any]:
    """What a command may depend on, besides its folder, streams and arguments.

    The resident process runs commands only where this is equal, so that none computes something
    else than it would by itself.
    """
    return {
        "variables": {n: v for n, v in variables.items() if not OF_THE_SHELL.fullmatch(n)},
        "path": sys.path,
        "python": [sys.executable, sys.version, list(sys.flags), sys.warnoptions],
        "user": [os.getuid(), os.geteuid(), os.getgid(), os.getegid(), sorted(os.getgroups())],
        "limits": [resource.getrlimit(n) for n in range(_LIMITS)],
        "priority": [os.getpriority(os.PRIO_PROCESS, 0), sorted(os.sched_getaffinity(0))],
        "spaces": [_link(f"/proc/self/ns/{n}") for n in ("mnt", "net", "pid", "user")],
        "root": _link("/proc/self/root"),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    }


def ask(arguments: Sequence[str]) -> int | None:
    """Run a command in the resident process; its exit code.

    None if there is no such process, or none that would run it as this one does.
    """
    path = socket_path(os.environ)
    if list(arguments[:1]) == ["serve"] or not is_private(path.parent):
        return None
    try:
        request = _request(arguments)
    except OSError:  # A closed stream, whose number a socket would get, or a deleted folder.
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        try:
            channel.settimeout(_WAIT_S)
            channel.connect(str(path))
            if peer_of(channel)[1] != os.getuid():
                return None
            socket.send_fds(channel, [LENGTH.pack(len(request))], [0, 1, 2])
            channel.sendall(request)
            if channel.recv(1) != RUNS:
                return None
            channel.sendall(GO)
        except OSError:  # No such process, or one that has just ended.
            return None
        channel.settimeout(None)
        return _wait(channel)


def _request(arguments: Sequence[str]) -> bytes:
    for stream in range(3):
        os.fstat(stream)
    mask = os.umask(0)
    os.umask(mask)
    document = {
        "surroundings": surroundings(os.environ),
        "arguments": list(arguments),
        "folder": os.getcwd(),
        "umask": mask,
        "variables": dict(os.environ),
        "ignored": [s for s in RELAYED if signal.getsignal(s) is signal.SIG_IGN],
    }
    return json.dumps(document).encode()


def _wait(channel: socket.socket) -> int:
    """Pass signals on until the command has ended; its exit code."""

    def relay(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            channel.sendall(bytes([number]))

    def stop(number: int, frame: FrameType | None) -> None:
        relay(signal.SIGSTOP, None)
        os.kill(os.getpid(), signal.SIGSTOP)
        relay(signal.SIGCONT, None)

    for number in RELAYED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, relay)
    signal.signal(signal.SIGTSTP, stop)
    answer = b""
    while len(answer) < CODE.size:
        more = b""
        with contextlib.suppress(ConnectionResetError):
            more = channel.recv(CODE.size - len(answer))
        if not more:
            os.write(2, b"optvet serve has ended, and the command with it\n")
            return 3
        answer += more
    (code,) = CODE.unpack(answer)
    if code < 0:  # A signal ended it: so that the shell says so, too.
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    return int(code)


def _link(path: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(path)
    return ""
