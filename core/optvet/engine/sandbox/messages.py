"""What goes between the processes: packets, memory files, texts of exceptions."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import socket
import struct

INLINE_BYTES = 32 << 10  # A packet must fit the socket's send buffer (208 KiB by default).
STATUS = struct.Struct("=qq")  # pid first; at death exit code and peak resident bytes
NO_MEMORY = re.compile(
    r"std::bad_alloc|bad allocation|MemoryError|out of memory|"
    r"(cannot|can't|failed to|unable to) allocate",
    re.IGNORECASE,
)


def memory_file(stack: contextlib.ExitStack) -> int:
    """A file without a name, closed by ``stack``."""
    fd = os.memfd_create("optvet-sandbox")
    stack.callback(os.close, fd)
    return fd


def send(channel: socket.socket, tag: bytes, data: bytes) -> None:
    """Send one message; atomic, and never waits for the other side to read."""
    if len(data) <= INLINE_BYTES:
        channel.send(tag + data)
        return
    with contextlib.ExitStack() as stack:
        fd = memory_file(stack)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        socket.send_fds(channel, [tag], [fd])


def receive(channel: socket.socket, flags: int = 0) -> tuple[bytes, bytes | mmap.mmap]:
    """Tag and data of the next message.

    Raises:
        EOFError: The other side is gone.
    """
    message, fds, _, _ = socket.recv_fds(
        channel, INLINE_BYTES + 1, 1, flags | socket.MSG_CMSG_CLOEXEC
    )
    if not message:
        raise EOFError
    if not fds:
        return message[:1], message[1:]
    try:
        return message[:1], mmap.mmap(fds[0], 0, prot=mmap.PROT_READ)
    finally:
        os.close(fds[0])


def text_of(error: BaseException) -> str:
    """What an exception says; its type where it says nothing."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return f"{type(error).__name__} (its text cannot be had)"


def type_name(error: BaseException) -> str:
    """The type of an exception; with its module unless it is built in."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else qualified(kind)


def qualified(kind: type) -> str:
    """Module and name of a type."""
    return f"{kind.__module__}.{kind.__qualname__}"
