"""A worker process: serves tasks one after the other and records the stage of each."""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence

from optvet.engine.work.sandbox.landlock import confine
from optvet.engine.work.sandbox.messages import (
    NO_MEMORY,
    cut,
    qualified_name,
    receive_task,
    send,
    text_of,
    type_name,
    unpack,
)
from optvet.engine.work.sandbox.outcome import Limits
from optvet.engine.work.sandbox.portable import pickle_portably
from optvet.spec import task_memory
from optvet.spec.symptoms import Stage

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CHANNEL_LOST = 79
"""Exit status of a worker that cannot send its answer because its task closed the socket."""

_stage: Stage = "build"
_stage_fd: int | None = None
_stderr_fd: int | None = None
_file_fd: int | None = None
_marks: list[tuple[Stage, int]] = []
"""The stages of this task, each with the size of its stderr when it began."""
_WARNING_CHARS = 2000


def enter(stage: Stage) -> None:
    """Record the stage that begins, so that it is known if this process dies."""
    global _stage
    _stage = stage
    if _stage_fd is not None:
        # Padded to one length: the file is overwritten, never truncated in between.
        os.pwrite(_stage_fd, f"{stage:<16}".encode("ascii"), 0)
    _marks.append((stage, _stderr_size()))


def _stderr_size() -> int:
    """How many bytes this task has written to its stderr."""
    if _stderr_fd is None:
        return 0
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    try:
        return os.fstat(_stderr_fd).st_size
    except OSError:  # The task has closed it.
        return 0


def handed_file() -> int | None:
    """The descriptor that the caller gave to this task, if any; see ``Sandbox.submit``."""
    return _file_fd


def in_worker() -> bool:
    """Whether this process is a worker."""
    return _stderr_fd is not None


def last_stage() -> Stage:
    """The stage recorded last; "build" if none was."""
    return _stage


def idle(seconds: float) -> None:
    """Do nothing for ``seconds``: the control that shows whether others kill processes here."""
    time.sleep(seconds)


def work(
    fds: Sequence[int],
    folder: str,
    path: Sequence[str] | None,
    limits: Limits,
    server: int,
    own_folder: str,
) -> None:
    """Serve tasks until the caller ends.

    Args:
        fds: Descriptors of the socket, of the files for stdout, stderr, and for the stage.
        folder: The current folder of tasks.
        path: Their ``sys.path``; None in another environment, which has its own.
        limits: Those of each task.
        server: Process id of the server.
        own_folder: For temporary files of this worker; it is made here.
    """
    socket_fd, stdout_fd, stderr_fd, stage_fd = fds
    if not _settle(stdout_fd, stderr_fd, server):
        return
    global _stage_fd, _stderr_fd, _file_fd
    _stage_fd, _stderr_fd = stage_fd, stderr_fd
    warnings.formatwarning = _warning_line
    if path is not None:
        sys.path[:] = path
    with contextlib.suppress(OSError):
        os.chdir(folder)
    with contextlib.suppress(OSError):
        os.makedirs(own_folder, 0o700, exist_ok=True)
        os.environ["TMPDIR"] = tempfile.tempdir = own_folder
    if limits.writable is not None:
        confine((own_folder, *limits.writable))
    channel = socket.socket(fileno=socket_fd)
    # A limit of the process is set before this: a worker whose limits differ later is replaced.
    start, me, state = task_memory.counted_bytes(), os.getpid(), _ProcessState()
    counted = task_memory.reserves()
    while True:
        try:
            ticket, data, _file_fd = receive_task(channel)
        except (EOFError, ConnectionResetError):
            return
        _marks.clear()
        with warnings.catch_warnings():
            pass  # Python gives each warning once; this makes it forget those of earlier tasks.
        enter("build")
        tag, answer = _answer(data, limits)
        del data
        if os.getpid() != me:
            return  # The task forked, and this is the child; the worker itself will answer.
        if _file_fd is not None:
            with contextlib.suppress(OSError):  # The task has closed it.
                os.close(_file_fd)
        # A worker that leaks is replaced; caches that libraries keep on purpose are smaller.
        if counted != task_memory.reserves():
            start, counted = task_memory.counted_bytes(), True
        grown = task_memory.counted_bytes() - start
        leaving = not state.restore() or grown > limits.memory_bytes
        try:
            send(channel, tag.upper() if leaving else tag, ticket, [answer])
        except OSError:
            os._exit(CHANNEL_LOST)
        if leaving:
            return


def _warning_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """A warning of Python on one line, as ``warnings.formatwarning`` but without source code."""
    words = cut(" ".join(str(message).split()), _WARNING_CHARS)
    return f"{filename}:{lineno}: {category.__name__}: {words}\n"


def _settle(stdout_fd: int, stderr_fd: int, server: int) -> bool:
    """Become a worker: own session, own output, killed when the server dies; False if it has."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # Processes that a task starts stay below its worker in every session, and so can be found.
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.getppid() != server:  # It died before it could be watched.
        return False
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    os.dup2(stdout_fd, 1)
    os.dup2(stderr_fd, 2)
    os.close(stdout_fd)
    # Line buffering: into a file, C's stdout is buffered in blocks, which are lost in a crash.
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, 1, 0)
    return True


class _ProcessState:
    """The state of the process that must be the same at the start of each task."""

    def __init__(self) -> None:
        self._folder = _folder()
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        # Its inner dictionary: copying os.environ decodes every variable, as slow as a small task.
        self._variables: dict[bytes, bytes] = vars(os.environ)["_data"]
        self._environment = dict(self._variables)
        self._threads = threading.active_count()
        self._output = _file_of(1), _file_of(2)
        self._limits = _resource_limits()

    def restore(self) -> bool:
        """Restore what can be restored; False if the process must not serve another task."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        if _folder() != self._folder:
            with contextlib.suppress(OSError):
                os.chdir(self._folder)
        return (
            _folder() == self._folder
            # Not restored: a library that sets a variable when it is imported needs it later.
            and self._variables == self._environment
            and threading.active_count() <= self._threads
            and (_file_of(1), _file_of(2)) == self._output
            and _resource_limits() == self._limits
            and not _has_children()
        )


def _resource_limits() -> list[tuple[int, int]]:
    """All resource limits of this process except the soft ones on memory, which tasks change."""
    on_memory = ("RLIMIT_AS", "RLIMIT_DATA")
    names = [n for n in dir(resource) if n.startswith("RLIMIT_") and n not in on_memory]
    limits = [resource.getrlimit(getattr(resource, name)) for name in names]
    return [*limits, *((0, resource.getrlimit(getattr(resource, n))[1]) for n in on_memory)]


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def _file_of(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _has_children() -> bool:
    """Whether any child process is alive; those that have ended are reaped."""
    try:
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is not None:
            pass
    except ChildProcessError:
        return False
    return True


def _answer(data: bytes | mmap.mmap, limits: Limits) -> tuple[bytes, bytes]:
    """Run one task; tag and data of its answer: ``v`` value, ``f`` failure, ``u`` not loadable."""
    try:
        function, args = unpack(data)
    except Exception as error:
        return b"u", _words(text_of(error))
    # After loading: the memory of the arguments does not count.
    task_memory.limit_task(limits.memory_bytes)
    try:
        value = function(*args)
    except SystemExit as leaving:
        _flush()
        os._exit(_exit_status(leaving.code))
    except BaseException as error:
        task_memory.limit_task(None)
        return b"f", _describe_error(error)
    finally:
        _flush()
    task_memory.limit_task(None)
    return _pickle_value(value)


def _pickle_value(value: object) -> tuple[bytes, bytes]:
    """The value and, if the task wrote to stderr, where in it each stage began."""
    marks = tuple(_marks) if _stderr_size() else ()
    try:
        return b"v", pickle_portably((value, marks))
    except MemoryError as error:
        return b"f", _describe_error(error)
    except Exception as error:
        kind = cut(qualified_name(type(value)), 200)
        text = f"the task's result ({kind}) cannot be pickled: {text_of(error)}"
        return b"f", _words("error", text, type_name(error))


def _describe_error(error: BaseException) -> bytes:
    """Kind, message and type of an exception, as strings: not every exception can be pickled."""
    text = text_of(error)
    starved = isinstance(error, MemoryError) or NO_MEMORY.search(text)
    return _words("out-of-memory" if starved else "error", text, type_name(error))


def _words(*words: str) -> bytes:
    return json.dumps(words).encode()


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_PERTURB = -1, -3, -6


def _mallopt(option: int, value: int) -> None:
    """Set an option of the C library's allocator, if it is the GNU one."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(option, value)


def keep_memory() -> None:
    """Let the allocator keep what is freed."""
    # Weights of a hundred megabytes are copied several times per task; returning the pages to the
    # system each time made one pass over a model of 97 MB three times slower.
    _mallopt(_M_MMAP_THRESHOLD, 1 << 30)
    _mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def poison_memory() -> None:
    """Fill memory that is allocated from now on with a pattern; called in a worker.

    In a new process, uninitialized memory is mostly zero, so that code which reads it gives the
    same result each time. With the pattern the result differs.
    """
    _mallopt(_M_PERTURB, 165)
