"""Worker processes on this machine: started once, kept while they serve, replaced when they die.

A worker is a Python process of its own, so whatever happens to it stops no other. It ends with its
parent, however that ends: it holds the reading end of a pipe whose other end only the parent has.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from optvet.engine.options import NoOptions
from optvet.spec.executor import Report, WorkerLost
from optvet.spec.scratch import temporary_variables

T = TypeVar("T")

JOB_BYTES = 2 << 30
"""Memory that one job is counted with; most take less."""
_KEPT_BYTES = 1 << 30
"""A worker that holds more than this after a job is replaced by a new one."""
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_END_S = 3.0


class LocalExecutor:
    """Processes of this machine, as many as it has processors and memory for."""

    name = "local"
    options: BaseModel = NoOptions()
    shares_disk = True
    preference = 100

    def start(self, options: BaseModel, *, jobs: int | None) -> LocalWorkers:
        """Workers; the processes are started with the first jobs."""
        return LocalWorkers(jobs or fitting_jobs())


def fitting_jobs() -> int:
    """How many jobs fit: one per processor, and no more than memory has room for."""
    processors = len(os.sched_getaffinity(0))
    return max(1, min(processors, memory_bytes() // JOB_BYTES))


def memory_bytes() -> int:
    """Memory of this machine, or what its control group may use of that."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            return min(whole, int(Path(file).read_text()))
    return whole


@dataclass
class _ProcessTask:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    report: Report | None
    number: int | None
    future: Future[Any] = field(default_factory=Future)


class LocalWorkers:
    """``count`` processes, each fed by a thread."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._tasks: deque[_ProcessTask] = deque()
        self._changed = threading.Condition()
        self._threads: dict[int, threading.Thread] = {}
        self._processes: set[_Process] = set()
        self._closed = False

    def submit(
        self, function: Callable[..., T], /, *arguments: Any, report: Report | None = None
    ) -> Future[T]:
        """Run ``function(*arguments, report)`` in a worker; see ``Workers``."""
        return self._add(_ProcessTask(function, arguments, report, None))

    def submit_to(
        self,
        number: int,
        function: Callable[..., T],
        /,
        *arguments: Any,
        report: Report | None = None,
    ) -> Future[T]:
        """Run ``function(*arguments, report)`` in one worker; see ``WorkersExtras``."""
        return self._add(_ProcessTask(function, arguments, report, number))

    def close(self) -> None:
        """End all workers."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for process in list(self._processes):
            process.hang_up()
        for thread in self._threads.values():
            thread.join(timeout=2 * _END_S)

    def _add(self, task: _ProcessTask) -> Future[Any]:
        with self._changed:
            self._tasks.append(task)
            self._changed.notify_all()
            number = len(self._threads) if task.number is None else task.number
            if number < self.count and number not in self._threads:
                thread = threading.Thread(
                    target=self._serve, args=(number,), name="optvet-worker", daemon=True
                )
                self._threads[number] = thread
                thread.start()
        return task.future

    def _next(self, number: int) -> _ProcessTask | None:
        """The next task of worker ``number``; None if there will be none."""
        with self._changed:
            while True:
                for task in self._tasks:
                    if task.number in (None, number):
                        self._tasks.remove(task)
                        return task
                if self._closed:
                    return None
                self._changed.wait()

    def _serve(self, number: int) -> None:
        process: _Process | None = None
        while (task := self._next(number)) is not None:
            if self._closed:
                task.future.set_exception(WorkerLost("the workers were closed"))
                continue
            try:
                if process is None:
                    process = _Process()
                    self._processes.add(process)
                    if self._closed:
                        process.hang_up()
                kept = process.run(task)
            except (OSError, EOFError) as error:
                status = process.end() if process is not None else None
                task.future.set_exception(WorkerLost(_words(status, error)))
                kept = False
            except BaseException as error:
                task.future.set_exception(error)
                kept = False
            if not kept and process is not None:
                process.end()
                self._processes.discard(process)
                process = None
        if process is not None:
            process.end()


def _words(status: int | None, error: Exception) -> str:
    if status is None:
        return f"a worker could not be started: {error}"
    how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    return f"the worker of this job {how}"


class _Process:
    """The parent's side of one worker process."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        read_end, self._life = os.pipe()
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from optvet.engine import processes; "
            f"processes.serve({theirs.fileno()}, {read_end})"
        )
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), read_end],
                env={**dict.fromkeys(_THREADS, "1"), **os.environ, **temporary_variables()},
                start_new_session=True,  # Ctrl-C is for the parent, which then ends the workers.
            )
        except BaseException:
            ours.close()
            os.close(self._life)
            self._life = -1
            raise
        finally:
            theirs.close()
            os.close(read_end)
        self._channel = Connection(ours.detach())
        self._lock = threading.Lock()

    def run(self, task: _ProcessTask) -> bool:
        """Give ``task`` to the worker and its future the result; whether it can serve another.

        Raises:
            OSError, EOFError: The worker is gone.
        """
        self._channel.send((task.function, task.arguments))
        while True:
            kind, value, more = self._channel.recv()
            if kind == "report":
                if task.report is not None:
                    task.report(value)
            elif kind == "raised":
                task.future.set_exception(value)
                return True
            else:
                task.future.set_result(value)
                return bool(more < _KEPT_BYTES)

    def hang_up(self) -> None:
        """Tell the worker that it shall end, whatever it does."""
        with self._lock:
            if self._life >= 0:
                os.close(self._life)
                self._life = -1

    def end(self) -> int:
        """End the worker; its status."""
        self.hang_up()
        try:
            status = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        with suppress(OSError):
            self._channel.close()
        return status


# --- in the worker -------------------------------------------------------------------------------


def serve(channel_fd: int, held_fd: int) -> None:
    """Run one task after the other until the parent hangs up."""
    for fd in (channel_fd, held_fd):
        os.set_inheritable(fd, False)
    # Whatever the parent does with Ctrl-C: here it is how the parent's end is told.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with, args=(held_fd,), daemon=True).start()
    channel = Connection(channel_fd)
    lock = threading.Lock()

    def send(kind: str, value: Any, more: int = 0) -> None:
        with lock:
            channel.send((kind, value, more))

    with suppress(EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        while True:
            function, arguments = channel.recv()
            try:
                result = function(*arguments, lambda text: send("report", text))
            except Exception as error:
                send("raised", error)
            else:
                send("result", result, _resident_bytes())
    os._exit(0)


def _end_with(held_fd: int) -> None:
    """End this process when the parent has hung up: in order if it can, else at once."""
    os.read(held_fd, 1)
    timer = threading.Timer(_END_S * 0.8, os._exit, (1,))
    timer.daemon = True
    timer.start()
    # A signal, since the main thread may wait for its next task in a call that nothing else ends.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * resource.getpagesize()
