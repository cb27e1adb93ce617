"""In a worker: serve tasks one after the other, and say in which stage each is."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import pickle
import resource
import signal
import socket
import sys

from optvet.engine.sandbox.messages import NO_MEMORY, qualified, receive, send, text_of, type_name
from optvet.spec.types import Stage

PR_SET_PDEATHSIG = 1

_stage: Stage = "build"
_stage_fd: int | None = None


def enter(stage: Stage) -> None:
    """Announce the stage that begins, so that the death of this process has a stage."""
    global _stage
    _stage = stage
    if _stage_fd is not None:
        # Padded to one length: the file is overwritten, never truncated in between.
        os.pwrite(_stage_fd, f"{stage:<16}".encode("ascii"), 0)


def entered() -> Stage:
    """The stage announced last; "build" if none was."""
    return _stage


def work(
    socket_fd: int,
    output_fd: int,
    stage_fd: int,
    folder: str,
    path: list[str],
    memory_bytes: int,
    server: int,
) -> None:
    """Serve tasks until the caller is gone."""
    global _stage_fd
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != server:  # It died before it could be watched.
        return
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    os.close(output_fd)
    # Into a file, C's stdout would be kept in a buffer that dies with the process.
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, 1, 0)
    _stage_fd = stage_fd
    sys.path[:] = path
    with contextlib.suppress(OSError):
        os.chdir(folder)
    channel = socket.socket(fileno=socket_fd)
    start = _address_space()
    while True:
        try:
            _, data = receive(channel)
        except (EOFError, ConnectionResetError):
            return
        enter("build")
        send(channel, *_answer(data, memory_bytes))
        del data
        # One that leaks makes room for a new process; what it keeps on purpose is smaller.
        if _address_space() - start > memory_bytes:
            return


def _answer(data: bytes | mmap.mmap, memory_bytes: int) -> tuple[bytes, bytes]:
    """Run one task; the tag and data of its answer: v value, f failure, u unloadable."""
    try:
        function, args = pickle.loads(data)
    except Exception as error:
        return b"u", pickle.dumps(text_of(error))
    # After loading: the arguments are not what the task adds.
    _limit_address_space(_address_space() + memory_bytes)
    try:
        value = function(*args)
    except SystemExit as leaving:
        _flush()
        os._exit(_exit_status(leaving.code))
    except BaseException as error:
        _limit_address_space(None)
        return b"f", pickle.dumps(_described(error))
    finally:
        _flush()
    _limit_address_space(None)
    return _pickled(value)


def _pickled(value: object) -> tuple[bytes, bytes]:
    try:
        return b"v", pickle.dumps(value, protocol=5)
    except MemoryError as error:
        return b"f", pickle.dumps(_described(error))
    except Exception as error:
        text = f"the task's result ({qualified(type(value))}) cannot be pickled: {text_of(error)}"
        return b"f", pickle.dumps(("error", text, type_name(error)))


def _described(error: BaseException) -> tuple[str, str, str]:
    """Kind, message and type of an exception, as strings: it may itself not be picklable."""
    text = text_of(error)
    starved = isinstance(error, MemoryError) or NO_MEMORY.search(text)
    return "out-of-memory" if starved else "error", text, type_name(error)


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _address_space() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _limit_address_space(size: int | None) -> None:
    """Set the soft limit in bytes; None lifts it."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if size is None or (hard != resource.RLIM_INFINITY and size > hard):
        size = hard
    resource.setrlimit(resource.RLIMIT_AS, (size, hard))


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_PERTURB = -1, -3, -6


def _mallopt(option: int, value: int) -> None:
    """Tune the C library's allocator, where it is the GNU one."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(option, value)


def keep_memory() -> None:
    """Let the allocator keep what is freed."""
    # A hundred megabytes of weights are copied several times per task; handing the pages back each
    # time costs two thirds of it (0.15 s against 0.05 s for one pass over a model of 97 MB).
    _mallopt(_M_MMAP_THRESHOLD, 1 << 30)
    _mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def poison_memory() -> None:
    """Fill what is allocated from now on with a pattern; called inside a worker.

    Code that reads memory it never wrote mostly finds zeros in a young process, and so seems to
    agree with itself; with this it does not.
    """
    _mallopt(_M_PERTURB, 165)
