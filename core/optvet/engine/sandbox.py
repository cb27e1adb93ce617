"""Foreign native code runs here: in worker processes that may abort, hang or eat memory.

A small server process imports the ``preload`` modules once; every worker is a fork of it, so a
fresh one costs milliseconds. A worker serves tasks one after the other until it dies; then the
next task gets a new one. Whatever happens in a worker comes back as an ``Outcome``.

Why not a library. pebble's ``ProcessPool`` is fast enough (0.1 ms for a task that does nothing,
103 ms from a segfault to the next result), but all its workers share one pipe and one lock, so the
misfortune of one ends them all. Measured with pebble 5.2: an argument that does not unpickle breaks
the pool for good ("All workers expired"), and after a worker is killed while it sends a large
result the next task never ends. The fork server of ``multiprocessing`` runs the caller's
``__main__`` again, which recurses in a script without a main guard, is one per process whatever
its preload list, and lets ``active_children()`` of any thread steal an exit code. Here each worker
has a socket of its own whose messages are atomic, and the server does nothing but fork, kill and
reap: 0.1 ms for a task that does nothing, 2.4 ms in a fresh worker, 3 ms from a segfault to the
next result (two cores, onnx, onnxruntime and onnxoptimizer preloaded).

Processes and how they end::

    caller ──socket── server (own session; imports preload)
      │                 └── fork: worker (own session, dies with the server)
      └──── socket, output file, stage file, status pipe ────┘

The server kills a worker's whole process group when asked, when the worker dies, and when the
caller's end of the socket closes, which the kernel does even for a caller that was SIGKILLed.
No file has a name: output, stage and large messages are memory files, gone with their last user.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import mmap
import os
import pickle
import queue
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any, Generic, Literal, NoReturn, TypeVar, cast, get_args

from optvet.spec.errors import InfrastructureError, PluginError
from optvet.spec.types import Failure, Stage

T = TypeVar("T")

_INLINE_BYTES = 32 << 10  # A packet must fit the socket's send buffer (208 KiB by default).
_OUTPUT_BYTES = 16 << 20  # A task that prints in a loop must not fill the memory of the machine.
_TAIL_CHARS = 2000
_START_S = 120.0
_STATUS = struct.Struct("=qq")  # pid first; at death exit code and peak resident bytes
_STAGES: tuple[Stage, ...] = get_args(Stage)
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_NO_MEMORY = re.compile(
    r"std::bad_alloc|bad allocation|MemoryError|out of memory|"
    r"(cannot|can't|failed to|unable to) allocate",
    re.IGNORECASE,
)
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Limits:
    """What one task may use.

    Attributes:
        timeout_s: Wall clock of one task, seconds.
        memory_bytes: Address space that a task may add to its worker's.
    """

    timeout_s: float = 120.0
    memory_bytes: int = 8 << 30


_DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What a task returned, or how it failed; exactly one of the two counts."""

    value: T | None
    failure: Failure | None

    @property
    def ok(self) -> bool:
        """Whether the task returned a value."""
        return self.failure is None


@dataclass
class _Task:
    function: Callable[..., Any]
    args: tuple[object, ...]
    fresh: bool
    timeout_s: float
    future: Future[Outcome[Any]] = field(default_factory=Future)


class Sandbox:
    """Runs functions in worker processes, ``jobs`` at a time; thread-safe.

    Functions and arguments travel by pickle: a function must be importable in a worker, so it
    cannot live in ``__main__``, which workers never run.

    Args:
        jobs: How many tasks run at once, each in a process of its own.
        limits: What each task may use.
        preload: Modules imported once in the server. One that cannot be imported is skipped
            (the task that needs it will say so); if one kills the server, none is preloaded.
    """

    def __init__(
        self,
        *,
        jobs: int = 2,
        limits: Limits = _DEFAULT_LIMITS,
        preload: Sequence[str] = (),
    ) -> None:
        self.limits = limits
        self._jobs = max(1, jobs)
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False
        self._owner = os.getpid()
        self._preload = tuple(preload)
        self._server: _Server | None = None
        atexit.register(self.close)

    def submit(
        self,
        function: Callable[..., T],
        /,
        *args: object,
        fresh: bool = False,
        timeout_s: float | None = None,
    ) -> Future[Outcome[T]]:
        """Start ``function(*args)`` in a worker as soon as one is free.

        Args:
            function: Importable in a worker.
            args: Picklable.
            fresh: Run in a new process that serves nothing else, before or after.
            timeout_s: Instead of the sandbox's own limit.

        Returns:
            The outcome. The future raises only where the task is not to blame: PluginError if the
            task cannot be sent to a worker, InfrastructureError if the sandbox failed or closed.
        """
        limit = self.limits.timeout_s if timeout_s is None else timeout_s
        task = _Task(function, args, fresh, limit)
        with self._lock:
            if self._closed:
                raise InfrastructureError("the sandbox is closed; no task can be started in it")
            # With the first task: answers that are all remembered need no process.
            self._server = self._server or _Server(self._preload, self.limits)
            self._tasks.put(task)
            # A thread for each task up to the number of jobs: few tasks, few processes.
            if len(self._threads) < self._jobs:
                name = f"optvet-sandbox-{len(self._threads)}"
                thread = threading.Thread(target=self._slot, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return cast("Future[Outcome[T]]", task.future)

    def call(
        self,
        function: Callable[..., T],
        /,
        *args: object,
        fresh: bool = False,
        timeout_s: float | None = None,
    ) -> Outcome[T]:
        """Run ``function(*args)`` in a worker and wait for the outcome; see ``submit``."""
        return self.submit(function, *args, fresh=fresh, timeout_s=timeout_s).result()

    def close(self) -> None:
        """Kill all workers, cancel what waits, and free everything; may be called twice."""
        # A fork of the caller (os.fork) inherits this object but owns none of its processes.
        if os.getpid() != self._owner:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        with contextlib.suppress(queue.Empty):
            while True:
                waiting = self._tasks.get_nowait()
                if waiting is not None:
                    waiting.future.cancel()
                    waiting.future.set_running_or_notify_cancel()
        for _ in self._threads:
            self._tasks.put(None)
        if self._server is not None:
            self._server.stop()
        for thread in self._threads:
            thread.join(timeout=5)

    def __enter__(self) -> Sandbox:
        """The sandbox itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _slot(self) -> None:
        """Run tasks one after the other, keeping one warm worker."""
        assert self._server is not None
        with contextlib.ExitStack() as stack:
            kept = stack.enter_context(_Kept(self._server))
            while (task := self._tasks.get()) is not None:
                if task.future.set_running_or_notify_cancel():
                    self._finish(task, kept)
                # Else arguments and result of a finished task live until the next one comes.
                del task

    def _finish(self, task: _Task, kept: _Kept) -> None:
        """Give the task's future its outcome, whatever happens."""
        try:
            outcome = _execute(task, kept)
        except BaseException as error:
            task.future.set_exception(self._ended() if self._closed else error)
        else:
            # Killed by close() and not by what it did: no evidence against the task.
            if self._closed and not outcome.ok:
                task.future.set_exception(self._ended())
            else:
                task.future.set_result(outcome)

    def _ended(self) -> InfrastructureError:
        return InfrastructureError("the sandbox was closed while the task ran")


class _Kept:
    """The one worker that a slot keeps between tasks."""

    def __init__(self, server: _Server) -> None:
        self.server = server
        self.worker: _Worker | None = None

    def __enter__(self) -> _Kept:
        return self

    def __exit__(self, *_: object) -> None:
        if self.worker is not None:
            self.worker.close()

    @contextlib.contextmanager
    def borrow(self, *, fresh: bool) -> Iterator[_Worker]:
        """A live worker; closed afterwards if it is fresh or has died."""
        worker = None if fresh else self.worker
        if worker is None or worker.is_dead():
            if worker is not None:
                worker.close()
                self.worker = None
            worker = _Worker(self.server)
        try:
            yield worker
        except BaseException:
            worker.spent = True
            raise
        finally:
            if fresh or worker.spent:
                worker.close()
                self.worker = self.worker if fresh else None
            else:
                self.worker = worker


def _execute(task: _Task, kept: _Kept) -> Outcome[Any]:
    """Run ``task`` in a worker; again if the worker was gone before it began."""
    name = getattr(task.function, "__qualname__", repr(task.function))
    try:
        payload = pickle.dumps((task.function, task.args), protocol=5)
    except Exception as error:
        raise PluginError(
            f"task {name!r} cannot be sent to a worker: {_text(error)}; functions and arguments "
            "must be picklable, defined at the top level of an importable module"
        ) from error
    for _ in range(3):
        with kept.borrow(fresh=task.fresh) as worker:
            outcome = worker.run(name, payload, task.timeout_s)
        if outcome is not None:
            return outcome
    raise InfrastructureError(f"no worker lived long enough to begin task {name!r}")


class _Worker:
    """The caller's side of one worker process."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._status: tuple[int, int] | None = None
        self.spent = False
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            self._socket, socket_w = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.callback(self._socket.close)
            theirs.callback(socket_w.close)
            self._output = _memory_file(ours)
            # Appending, so that truncating it between tasks leaves no hole before the next write.
            fcntl.fcntl(self._output, fcntl.F_SETFL, os.O_APPEND)
            self._stage = _memory_file(ours)
            self._status_r, status_w = os.pipe()
            ours.callback(os.close, self._status_r)
            theirs.callback(os.close, status_w)
            server.fork([socket_w.fileno(), self._output, self._stage, status_w])
            theirs.close()
            if not wait([self._status_r], _START_S):
                raise InfrastructureError(f"no worker process started within {_START_S:g} s")
            data = os.read(self._status_r, _STATUS.size)
            if len(data) != _STATUS.size:
                raise InfrastructureError("the server of the sandbox died while it forked")
            self._pid = _STATUS.unpack(data)[0]
            self._resources = ours.pop_all()

    def is_dead(self) -> bool:
        """Whether the process has ended."""
        return bool(wait([self._status_r], 0))

    def close(self) -> None:
        """Kill the process and its children; free what belonged to it."""
        self._server.kill(self._pid)
        self._resources.close()

    def run(self, name: str, payload: bytes, timeout_s: float) -> Outcome[Any] | None:
        """The outcome of one task; None if the process was gone before it began."""
        os.ftruncate(self._output, 0)
        os.ftruncate(self._stage, 0)
        try:
            _send(self._socket, b"t", payload)
        except (BrokenPipeError, ConnectionResetError):
            self.spent = True
            return None
        reply = self._reply(timeout_s)
        if reply == "timeout":
            self.spent = True
            return self._failed("timeout", f"no result after {timeout_s:g} s")
        if reply == "death":
            self.spent = True
            return self._death()
        tag, data = reply
        if tag == b"u":
            raise PluginError(
                f"a worker cannot load task {name!r}: {pickle.loads(data)}; what a task needs must "
                "be defined at the top level of an importable module, not in __main__"
            )
        return self._value(data) if tag == b"v" else self._exception(data)

    def _reply(
        self, timeout_s: float
    ) -> Literal["timeout", "death"] | tuple[bytes, bytes | mmap.mmap]:
        """The worker's message, or why there is none."""
        deadline = time.monotonic() + timeout_s
        sources: list[Any] = [self._socket, self._status_r]
        while True:
            left = deadline - time.monotonic()
            ready = wait(sources, max(0.0, min(left, 0.5)))
            # A message counts even if the process has died since: the task itself was done.
            if self._socket in ready or (ready and self._socket in sources):
                try:
                    return _receive(self._socket, socket.MSG_DONTWAIT)
                except (EOFError, ConnectionResetError):
                    sources.remove(self._socket)
                except BlockingIOError:
                    pass
            if self._status_r in ready:
                return "death"
            if left <= 0:
                self._server.kill(self._pid)
                wait([self._status_r], 5)
                return "timeout"
            if os.fstat(self._output).st_size > _OUTPUT_BYTES:
                os.ftruncate(self._output, 0)

    def _value(self, data: bytes | mmap.mmap) -> Outcome[Any]:
        try:
            return Outcome(pickle.loads(data), None)
        except Exception as error:
            text = f"the task's result cannot be unpickled: {_text(error)}"
            return self._failed("error", text, error_type=_type_name(error))

    def _exception(self, data: bytes | mmap.mmap) -> Outcome[Any]:
        kind, message, error_type = pickle.loads(data)
        native = [line for line in self._tail().splitlines() if line.strip() not in message]
        if native:
            message = "\n".join([message, "", "native output:", *native])
        return self._failed(kind, message, error_type=error_type)

    def _death(self) -> Outcome[Any] | None:
        data = os.read(self._status_r, _STATUS.size)
        if len(data) != _STATUS.size:
            raise InfrastructureError("the server of the sandbox died while a task ran")
        exit_code, peak_bytes = _STATUS.unpack(data)
        tail = self._tail()
        if not self._stage_text():
            return None
        if exit_code >= 0:
            text = f"exited with status {exit_code}"
            return self._failed("abort", f"{text}\n{tail}" if tail else text)
        name = _signal_name(-exit_code)
        if name == "SIGKILL":
            text = "killed by SIGKILL, as the kernel does when the machine is out of memory"
            return self._failed("out-of-memory", f"{text}\n{tail}".strip(), signal=name)
        # An allocation that fails under the limit often ends in a null pointer: no message then,
        # but a process that had grown to its limit.
        starved = peak_bytes >= 0.9 * self._server.limits.memory_bytes
        kind: Literal["abort", "out-of-memory"] = (
            "out-of-memory" if starved or _NO_MEMORY.search(tail) else "abort"
        )
        return self._failed(kind, tail or f"died of {name} without a message", signal=name)

    def _failed(
        self,
        kind: Literal["error", "abort", "timeout", "out-of-memory"],
        message: str,
        *,
        error_type: str = "",
        signal: str | None = None,
    ) -> Outcome[Any]:
        stage = self._stage_text()
        known: Stage = stage if stage in _STAGES else "build"
        return Outcome(None, Failure(kind, known, message, error_type, signal))

    def _stage_text(self) -> str:
        return os.pread(self._stage, 16, 0).decode("ascii", "replace").strip()

    def _tail(self) -> str:
        """The last characters that the task's process wrote to its stdout and stderr."""
        size = os.fstat(self._output).st_size
        data = os.pread(self._output, 4 * _TAIL_CHARS, max(0, size - 4 * _TAIL_CHARS))
        return data.decode("utf-8", "replace")[-_TAIL_CHARS:].strip()


class _Server:
    """The caller's side of the process from which workers are forked."""

    def __init__(self, preload: tuple[str, ...], limits: Limits) -> None:
        self.limits = limits
        self._preload = preload
        self._lock = threading.RLock()
        self._stopped = False
        self._ready = False
        self._start()

    def fork(self, fds: Sequence[int]) -> None:
        """Ask for a worker that owns copies of ``fds``: socket, output, stage, status."""
        request = b"f" + pickle.dumps((os.getcwd(), sys.path))
        with self._lock:
            for _ in range(3):
                if self._stopped:
                    break
                try:
                    self._await_ready()
                    socket.send_fds(self._socket, [request], fds)
                    return
                except OSError:
                    if not self._stopped:
                        self._restart()
        words = self._log()
        raise InfrastructureError(f"the server of the sandbox does not run: {words}".rstrip(" :"))

    def kill(self, pid: int) -> None:
        """Kill a worker and its children, if it still lives."""
        # Through the server, which alone knows whether the pid is still that of its child.
        with self._lock, contextlib.suppress(OSError):
            self._socket.send(b"k" + _STATUS.pack(pid, 0))

    def stop(self) -> None:
        """End the server and with it all workers."""
        self._stopped = True
        # Before taking the lock: its holder may be waiting for modules to be imported.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._end()

    def _start(self) -> None:
        with contextlib.ExitStack() as stack:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.callback(theirs.close)
            log = _memory_file(stack)
            self._log_fd = os.dup(log)
            code = (
                f"import sys; sys.path[:] = {sys.path!r}; from optvet.engine import sandbox; "
                f"sandbox._serve({theirs.fileno()}, {self._preload!r}, "
                f"{self.limits.memory_bytes}, {os.getpid()})"
            )
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env=_environment(os.environ),
                start_new_session=True,  # Ctrl-C is for the caller, who then closes the sandbox.
            )
        self._ready = False

    def _await_ready(self) -> None:
        """Wait until the modules are imported.

        Raises:
            OSError: The server died or hangs in an import.
        """
        if self._ready:
            return
        self._socket.settimeout(_START_S)
        try:
            if not self._socket.recv(1):
                raise ConnectionResetError
        finally:
            self._socket.settimeout(None)
        self._ready = True

    def _restart(self) -> None:
        # A server that was never ready died of, or hangs in, an import: a worker shall tell.
        if not self._ready:
            self._preload = ()
        self._end()
        self._start()

    def _end(self) -> None:
        self._socket.close()
        try:
            self._process.wait(2 if self._ready else 0.2)
        except subprocess.TimeoutExpired:
            # Still importing: nothing was forked, so nothing is orphaned.
            self._process.kill()
            self._process.wait()
        os.close(self._log_fd)

    def _log(self) -> str:
        try:
            return os.pread(self._log_fd, _TAIL_CHARS, 0).decode("utf-8", "replace")
        except OSError:
            return ""


def _environment(base: Mapping[str, str]) -> dict[str, str]:
    """``base``, with one thread per worker unless it says otherwise."""
    return {**dict.fromkeys(_THREADS, "1"), **base}


def _memory_file(stack: contextlib.ExitStack) -> int:
    """A file without a name, closed by ``stack``."""
    fd = os.memfd_create("optvet-sandbox")
    stack.callback(os.close, fd)
    return fd


def _send(channel: socket.socket, tag: bytes, data: bytes) -> None:
    """Send one message; atomic, and never waits for the other side to read."""
    if len(data) <= _INLINE_BYTES:
        channel.send(tag + data)
        return
    with contextlib.ExitStack() as stack:
        fd = _memory_file(stack)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        socket.send_fds(channel, [tag], [fd])


def _receive(channel: socket.socket, flags: int = 0) -> tuple[bytes, bytes | mmap.mmap]:
    """Tag and data of the next message.

    Raises:
        EOFError: The other side is gone.
    """
    message, fds, _, _ = socket.recv_fds(
        channel, _INLINE_BYTES + 1, 1, flags | socket.MSG_CMSG_CLOEXEC
    )
    if not message:
        raise EOFError
    if not fds:
        return message[:1], message[1:]
    try:
        return message[:1], mmap.mmap(fds[0], 0, prot=mmap.PROT_READ)
    finally:
        os.close(fds[0])


def _text(error: BaseException) -> str:
    """What an exception says; its type where it says nothing."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return f"{type(error).__name__} (its text cannot be had)"


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else _qualified(kind)


def _qualified(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# In the server ----------------------------------------------------------------------------------


def _serve(fd: int, preload: tuple[str, ...], memory_bytes: int, caller: int) -> NoReturn:
    """Fork, kill and reap workers until the caller is gone."""
    for name in preload:
        # Absent or broken: the task that needs it fails with the reason.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    # Python 3.12 warns of a fork beside native threads; here they are the preloaded libraries'
    # idle pools, and the child starts its own.
    warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
    _keep_memory()
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


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_PERTURB = -1, -3, -6


def _mallopt(option: int, value: int) -> None:
    """Tune the C library's allocator, where it is the GNU one."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(option, value)


def _keep_memory() -> None:
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


def _obey(channel: socket.socket, children: dict[int, int], memory_bytes: int) -> bool:
    """Carry out one request of the caller; False if the caller is gone."""
    try:
        message, fds, _, _ = socket.recv_fds(channel, 1 << 18, 4, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return False
    if message[:1] == b"k":
        pid = _STATUS.unpack(message[1:])[0]
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
                    _work(fds[0], fds[1], fds[2], folder, path, memory_bytes, server)
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
        os.write(report, _STATUS.pack(first, second))


def _kill_group(pid: int) -> None:
    # The worker makes the group itself and may not have got there yet.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


# In a worker ------------------------------------------------------------------------------------

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


def _work(
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
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
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
            _, data = _receive(channel)
        except (EOFError, ConnectionResetError):
            return
        enter("build")
        _send(channel, *_answer(data, memory_bytes))
        del data
        # One that leaks makes room for a new process; what it keeps on purpose is smaller.
        if _address_space() - start > memory_bytes:
            return


def _answer(data: bytes | mmap.mmap, memory_bytes: int) -> tuple[bytes, bytes]:
    """Run one task; the tag and data of its answer: v value, f failure, u unloadable."""
    try:
        function, args = pickle.loads(data)
    except Exception as error:
        return b"u", pickle.dumps(_text(error))
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
        text = f"the task's result ({_qualified(type(value))}) cannot be pickled: {_text(error)}"
        return b"f", pickle.dumps(("error", text, _type_name(error)))


def _described(error: BaseException) -> tuple[str, str, str]:
    """Kind, message and type of an exception, as strings: it may itself not be picklable."""
    text = _text(error)
    starved = isinstance(error, MemoryError) or _NO_MEMORY.search(text)
    return "out-of-memory" if starved else "error", text, _type_name(error)


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
