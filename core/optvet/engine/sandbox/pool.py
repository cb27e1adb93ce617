"""The sandbox as callers see it: tasks in, outcomes out, some at a time."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from optvet.engine.sandbox.messages import text_of
from optvet.engine.sandbox.outcome import Limits, Outcome, Role
from optvet.engine.sandbox.remote import Server, Worker
from optvet.spec.errors import InfrastructureError, PluginError

T = TypeVar("T")

_DEFAULT_LIMITS = Limits()


@dataclass
class _Task:
    function: Callable[..., Any]
    args: tuple[object, ...]
    fresh: bool
    timeout_s: float
    role: Role
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
        self._server: Server | None = None
        atexit.register(self.close)

    def submit(
        self,
        function: Callable[..., T],
        /,
        *args: object,
        fresh: bool = False,
        timeout_s: float | None = None,
        role: Role = "subject",
    ) -> Future[Outcome[T]]:
        """Start ``function(*args)`` in a worker as soon as one is free.

        Args:
            function: Importable in a worker.
            args: Picklable.
            fresh: Run in a new process that serves nothing else, before or after.
            timeout_s: Instead of the sandbox's own limit.
            role: "referee" for a task that runs no code under test. Its worker has never served a
                "subject", so nothing that a subject did to its process can change the answer.

        Returns:
            The outcome. The future raises only where the task is not to blame: PluginError if the
            task cannot be sent to a worker, InfrastructureError if the sandbox failed or closed.
        """
        limit = self.limits.timeout_s if timeout_s is None else timeout_s
        task = _Task(function, args, fresh, limit, role)
        with self._lock:
            if self._closed:
                raise InfrastructureError("the sandbox is closed; no task can be started in it")
            # With the first task: answers that are all remembered need no process.
            self._server = self._server or Server(self._preload, self.limits)
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
        role: Role = "subject",
    ) -> Outcome[T]:
        """Run ``function(*args)`` in a worker and wait for the outcome; see ``submit``."""
        return self.submit(function, *args, fresh=fresh, timeout_s=timeout_s, role=role).result()

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
        """Run tasks one after the other, keeping a warm worker for each role."""
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
    """The workers that a slot keeps between tasks: one for each role that was asked for."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.workers: dict[Role, Worker] = {}

    def __enter__(self) -> _Kept:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers.values():
            worker.close()

    @contextlib.contextmanager
    def borrow(self, role: Role, *, fresh: bool) -> Iterator[Worker]:
        """A live worker; closed afterwards if it is fresh or has died."""
        worker = None if fresh else self.workers.pop(role, None)
        if worker is not None and worker.is_dead():
            worker.close()
            worker = None
        worker = worker or Worker(self.server)
        try:
            yield worker
        except BaseException:
            worker.spent = True
            raise
        finally:
            if fresh or worker.spent:
                worker.close()
            else:
                self.workers[role] = worker


def _execute(task: _Task, kept: _Kept) -> Outcome[Any]:
    """Run ``task`` in a worker; again if the worker was gone before it began."""
    name = getattr(task.function, "__qualname__", repr(task.function))
    try:
        payload = pickle.dumps((task.function, task.args), protocol=5)
    except Exception as error:
        raise PluginError(
            f"task {name!r} cannot be sent to a worker: {text_of(error)}; functions and arguments "
            "must be picklable, defined at the top level of an importable module"
        ) from error
    for _ in range(3):
        with kept.borrow(task.role, fresh=task.fresh) as worker:
            outcome = worker.run(name, payload, task.timeout_s)
        if outcome is not None:
            return outcome
    raise InfrastructureError(f"no worker lived long enough to begin task {name!r}")
