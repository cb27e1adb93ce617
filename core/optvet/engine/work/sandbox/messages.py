"""The messages between the processes: packets, memory files, texts of exceptions.

A message is a head of fixed size, followed by data. Small data is in the packet itself. Large data
is in a memory file whose descriptor is sent with the packet; the file is sealed, so that its sender
can neither change nor truncate it while the receiver has it mapped.

A task is pickled with its large arrays beside the pickle: they are written into that file from
where they are, and the worker uses them where it has mapped them, as private writable memory.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import mmap
import os
import pickle
import re
import socket
import struct
from collections.abc import Sequence
from typing import Any

from optvet.engine.work.sandbox.portable import pickle_portably
from optvet.spec.errors import REFUSALS

INLINE_BYTES = 32 << 10  # A packet must fit the socket's send buffer (208 KiB by default).
STATUS = struct.Struct("=qq")  # pid first; at death exit code and peak resident bytes
HEAD = struct.Struct("=c16s")  # tag (the kind of the message) and ticket of its task
TEXT_CHARS = 64 << 10
"""Limit of a text from foreign code: a search in a message of 200 MB would block the caller."""
NAME_CHARS = 200
NO_MEMORY = re.compile(
    r"std::bad_alloc|bad allocation|MemoryError|out of memory|"
    r"(cannot|can't|failed to|unable to) allocate",
    re.IGNORECASE,
)

_MAX_FDS = 5
_BESIDE_BYTES = 64 << 10  # An array this large is worth its own place.
_PLACE_BYTES = 64  # What libraries align arrays to.
_COUNT = struct.Struct("=Q")
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
"""Nobody changes a file that has these."""


class MalformedMessage(Exception):
    """The received packet is not a message of this protocol: foreign code wrote to the socket."""


def memory_file(stack: contextlib.ExitStack, *, sealable: bool = False) -> int:
    """A file without a name, closed by ``stack``."""
    flags = os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if sealable else 0)
    fd = os.memfd_create("optvet-sandbox", flags)
    stack.callback(os.close, fd)
    return fd


def pack(value: object) -> list[bytes | memoryview]:
    """The data of a message that holds ``value``, in pieces; raises whatever pickling raises."""
    buffers: list[pickle.PickleBuffer] = []

    def beside(buffer: pickle.PickleBuffer) -> bool:
        """Keep a large buffer for its own place; true for one that is to be pickled."""
        if buffer.raw().nbytes < _BESIDE_BYTES:
            return True
        buffers.append(buffer)
        return False

    whole = pickle_portably(value, beside)
    pieces = [memoryview(whole), *(b.raw() for b in buffers)]
    head: bytes | memoryview = b"".join(
        _COUNT.pack(n) for n in (len(pieces), *(p.nbytes for p in pieces))
    )
    parts = [head, bytes(-len(head) % _PLACE_BYTES)]
    for piece in pieces:
        parts += [piece, bytes(-len(piece) % _PLACE_BYTES)]
    return parts


def unpack(data: bytes | mmap.mmap) -> Any:
    """The value that ``pack`` packed; its large arrays lie in ``data``."""
    view = memoryview(data)
    (count,) = _COUNT.unpack_from(view)
    sizes = [_COUNT.unpack_from(view, _COUNT.size * (1 + i))[0] for i in range(count)]
    places, at = [], _COUNT.size * (1 + count)
    for size in sizes:
        at += -at % _PLACE_BYTES
        places.append(view[at : at + size])
        at += size
    return pickle.loads(places[0], buffers=places[1:])


def send(
    channel: socket.socket,
    tag: bytes,
    ticket: bytes,
    data: Sequence[bytes | memoryview],
    flags: int = 0,
    file: int | None = None,
) -> None:
    """Send one message, whose data is these pieces, and with it a descriptor; atomic."""
    head = HEAD.pack(tag, ticket)
    files = [] if file is None else [file]
    with contextlib.ExitStack() as stack:
        if sum(len(piece) for piece in data) <= INLINE_BYTES:
            head = b"".join([head, *data])
        else:
            fd = memory_file(stack, sealable=True)
            for piece in data:
                write_all(fd, piece)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
            files = [fd, *files]
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
        # socket.send_fds ignores its flags.
        channel.sendmsg([head], [rights] if files else [], flags)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write ``data`` where ``fd`` stands."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def receive(channel: socket.socket, flags: int = 0) -> tuple[bytes, bytes, bytes | mmap.mmap]:
    """Tag, ticket and data of the next message.

    Raises:
        EOFError: The other side is gone.
        MalformedMessage: The packet is not a message of this protocol.
        OSError: As ``socket.recvmsg``; BlockingIOError with MSG_DONTWAIT if there is none.
    """
    message, fds, whole = receive_fds(channel, HEAD.size + INLINE_BYTES, flags)
    try:
        if not message and not fds:
            raise EOFError
        if not whole or len(message) < HEAD.size or len(fds) > 1:
            raise MalformedMessage
        tag, ticket = HEAD.unpack(message[: HEAD.size])
        return tag, ticket, _map_memory(fds[0]) if fds else message[HEAD.size :]
    finally:
        for fd in fds:
            os.close(fd)


def receive_task(channel: socket.socket) -> tuple[bytes, bytes | mmap.mmap, int | None]:
    """Ticket and data of the next message, and the descriptor that came with it, if any.

    Raises:
        EOFError: The other side is gone.
        MalformedMessage: The packet is not a message of this protocol.
    """
    message, fds, _ = receive_fds(channel, HEAD.size + INLINE_BYTES)
    if not message and not fds:
        raise EOFError
    _, ticket = HEAD.unpack(message[: HEAD.size])
    data: bytes | mmap.mmap = message[HEAD.size :]
    if not data:
        memory = fds.pop(0)
        try:
            data = _map_memory(memory)
        finally:
            os.close(memory)
    return ticket, data, fds.pop() if fds else None


def receive_fds(channel: socket.socket, size: int, flags: int = 0) -> tuple[bytes, list[int], bool]:
    """Bytes and descriptors of the next packet, and whether all of it was received.

    ``socket.recv_fds`` of CPython ignores its flags (gh-107898): it would block.
    """
    fds = array.array("i")
    message, ancillary, how, _ = channel.recvmsg(
        size, socket.CMSG_SPACE(_MAX_FDS * fds.itemsize), flags | socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return message, list(fds), not how & (socket.MSG_TRUNC | socket.MSG_CTRUNC)


def _map_memory(fd: int) -> mmap.mmap:
    """The contents of a sealed memory file; reading a mapped file that was truncated is a SIGBUS.

    Raises:
        MalformedMessage: The descriptor is not a sealed memory file.
    """
    try:
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS != SEALS:
            raise MalformedMessage
        # Private: before Linux 6.7 a file sealed against writing cannot be mapped shared at all.
        # Writable: a task may write into its arguments, which changes its own pages alone.
        return mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except (OSError, ValueError) as error:
        raise MalformedMessage from error


def cut(text: str, limit: int = TEXT_CHARS) -> str:
    """``text`` as a plain string that can be encoded; head and tail of one beyond ``limit``."""
    if len(text) > limit:
        mark = f"\n[... {len(text) - limit} characters or more left out ...]\n"
        half = max(0, (limit - len(mark)) // 2)
        text = f"{text[:half]}{mark}{text[-half:] if half else ''}"
    return text.encode("utf-8", "backslashreplace").decode()


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def text_of(error: BaseException) -> str:
    """The message of an exception, cut to ``TEXT_CHARS``; its type if the message is empty.

    Colours of a terminal are left out, in which libraries write some messages.
    """
    try:
        return cut(_COLOUR.sub("", str(error)) or type(error).__name__)
    except Exception:
        return f"{type_name(error)} (its text is not available)"


def type_name(error: BaseException) -> str:
    """The type of an exception, with its module unless it is built in.

    For a subclass of an error in ``REFUSALS``, such as a plugin may define, the name of that error.
    """
    kind = next((k for k in type(error).__mro__ if k in REFUSALS), type(error))
    name = kind.__qualname__ if kind.__module__ == "builtins" else qualified_name(kind)
    return cut(name, NAME_CHARS)


def qualified_name(kind: type) -> str:
    """Module and name of a type."""
    return f"{kind.__module__}.{kind.__qualname__}"
