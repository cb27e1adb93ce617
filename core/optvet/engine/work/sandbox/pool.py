"""The sandbox: runs functions in worker processes, several at a time."""

from __future__ import annotations

import atexit
import contextlib
import heapq
import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from optvet.engine.work.sandbox.forks import Server, Servers
from optvet.engine.work.sandbox.interpreter import Interpreter
from optvet.engine.work.sandbox.kept import leave_servers, take_servers
from optvet.engine.work.sandbox.messages import pack, text_of
from optvet.engine.work.sandbox.outcome import Limits, Outcome, Role
from optvet.engine.work.sandbox.remote import OUTSIDE, Worker
from optvet.engine.work.sandbox.worker import idle
from optvet.spec.errors import BudgetSpent, InfrastructureError, PluginError
from optvet.spec.types import Failure, FailureKind

T = TypeVar("T")

_DEFAULT_LIMITS = Limits()
_CONTROL_S = 30.0


@dataclass
class _PoolTask:
    function: Callable[..., Any]
    args: tuple[object, ...]
    fresh: bool
    timeout_s: float
    role: Role
    alone: bool = False
    file: int | None = None
    future: Future[Outcome[Any]] = field(default_factory=Future)


class Sandbox:
    """Runs functions in worker processes, ``jobs`` at a time; thread-safe.

    Functions and arguments travel by pickle: a function must be importable in a worker, so it
    cannot live in ``__main__``, which workers never run.

    Args:
        jobs: How many tasks run at once, each in a process of its own.
        limits: Limits of each task.
        preload: Modules imported once in the server. A module that cannot be imported is skipped:
            the task that needs it fails. If an import kills the server, none is preloaded.
        interpreter: Python of another environment, in which tasks run; by default this one.
        lender: A sandbox of the same modules and interpreter that is closed later. Its server
            forks the workers of this one too, which then imports nothing anew.
    """

    def __init__(
        self,
        *,
        jobs: int = 2,
        limits: Limits = _DEFAULT_LIMITS,
        preload: Sequence[str] = (),
        interpreter: Interpreter | None = None,
        lender: Sandbox | None = None,
    ) -> None:
        self.limits = limits
        self._jobs = max(1, jobs)
        self._waiting: deque[_PoolTask] = deque()
        self._slots: list[queue.SimpleQueue[_PoolTask | None]] = []
        self._free: list[int] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False
        self._running = 0
        self._owner = os.getpid()
        self._preload = tuple(preload)
        self._interpreter = interpreter
        self._lender = lender
        self._servers: Servers | None = None
        self._gate = _TaskGate()
        self._until: float | None = None
        self.budget_spent = False
        atexit.register(self.close)

    def submit(
        self,
        function: Callable[..., T],
        /,
        *args: object,
        fresh: bool = False,
        timeout_s: float | None = None,
        role: Role = "tested",
        alone: bool = False,
        file: int | None = None,
    ) -> Future[Outcome[T]]:
        """Start ``function(*args)`` in a worker as soon as one is free.

        Args:
            function: Importable in a worker.
            args: Picklable.
            fresh: Run in a new process that serves nothing else, before or after.
            timeout_s: Time limit in seconds, in place of the sandbox's.
            role: "judging" for a task that runs no code under test. Its worker never serves a
                "tested" task, so that tested code cannot change the answer through its process.
            alone: Wait for the tasks that run, and start no other until this one is done: for
                timing.
            file: A descriptor that the task gets a copy of (``handed_file``), open until it is
                done. A confined worker cannot open files of the caller by their names in /proc.

        Returns:
            The outcome. The future raises only errors that the task does not cause: PluginError if
            it cannot be sent to a worker, InfrastructureError if the sandbox failed or closed.

        Raises:
            InfrastructureError: The sandbox is closed.
            BudgetSpent: The time of ``budget`` is over.
        """
        limit = self.limits.timeout_s if timeout_s is None else timeout_s
        self._left_s()
        fresh = fresh or self.limits.single_task
        task = _PoolTask(function, args, fresh, limit, role, alone, file)
        with self._lock:
            if self._closed:
                raise InfrastructureError("the sandbox is closed; no task can be started in it")
            self._take_servers()
            self._hand_over(task)
        return cast("Future[Outcome[T]]", task.future)

    def _take_servers(self) -> Servers:
        """Not before the first task: if all answers are cached, no process is needed."""
        if self._servers is None and self._lender is not None:
            self._servers = self._lender.lend_servers()
        self._servers = self._servers or take_servers(self._preload, self._interpreter)
        return self._servers

    def lend_servers(self) -> Servers:
        """What forks the workers of this sandbox."""
        with self._lock:
            return self._take_servers()

    def _hand_over(self, task: _PoolTask) -> None:
        """Give a task to the first free slot, to a new one if none is free, or let it wait.

        The first: tasks one after the other share a process, and what one imports, the next has.
        """
        if self._free:
            self._slots[heapq.heappop(self._free)].put(task)
        elif (number := len(self._slots)) < self._jobs:
            self._slots.append(queue.SimpleQueue())
            self._slots[number].put(task)
            name = f"optvet-sandbox-{number}"
            thread = threading.Thread(target=self._slot, args=(number,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        else:
            self._waiting.append(task)

    def _release(self, number: int) -> None:
        """Give a slot the task that waits longest; else it is free."""
        if self._waiting:
            self._slots[number].put(self._waiting.popleft())
        else:
            heapq.heappush(self._free, number)

    def call(
        self,
        function: Callable[..., T],
        /,
        *args: object,
        fresh: bool = False,
        timeout_s: float | None = None,
        role: Role = "tested",
        alone: bool = False,
    ) -> Outcome[T]:
        """Run ``function(*args)`` in a worker and wait for the outcome; see ``submit``."""
        return self.submit(
            function, *args, fresh=fresh, timeout_s=timeout_s, role=role, alone=alone
        ).result()

    @contextlib.contextmanager
    def budget(self, seconds: float | None) -> Iterator[None]:
        """Start no task once the time is over, and stop those that run: they raise BudgetSpent.

        ``budget_spent`` says whether that was so. None for no limit.
        """
        self.budget_spent = False
        self._until = None if seconds is None else time.monotonic() + seconds
        try:
            yield
        finally:
            self._until = None

    @property
    def left_s(self) -> float | None:
        """Seconds that are left of the budget; None where there is none."""
        return None if self._until is None else self._until - time.monotonic()

    def _left_s(self) -> float:
        """Seconds that are left.

        Raises:
            BudgetSpent: None are.
        """
        left_s = math.inf if self._until is None else self._until - time.monotonic()
        if left_s > 0:
            return left_s
        self.budget_spent = True
        raise BudgetSpent

    def _run(self, task: _PoolTask, kept: _IdleWorkers) -> Outcome[Any]:
        """The outcome of a task, which ends where the budget does."""
        left_s = self._left_s()
        task.timeout_s = min(limit := task.timeout_s, left_s)
        outcome = _Attempts(task, kept).outcome()
        if left_s < limit and _kind(outcome) == "timeout":
            self.budget_spent = True
            raise BudgetSpent
        return outcome

    @property
    def used(self) -> bool:
        """Whether a task was ever submitted."""
        return self._servers is not None

    def close(self) -> None:
        """Kill all workers, cancel waiting tasks, and free all resources; may be called twice."""
        # A fork of the caller (os.fork) inherits this object but owns none of its processes.
        if os.getpid() != self._owner:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            idle = not self._running
            waiting = [*self._waiting]
            self._waiting.clear()
        atexit.unregister(self.close)
        for task in waiting:
            task.future.cancel()
            task.future.set_running_or_notify_cancel()
        for slot in self._slots:
            slot.put(None)
        if idle:  # Workers end with their threads, before anybody else gets the server.
            self._join()
        if self._servers is not None and self._lender is None:
            leave_servers(self._preload, self._servers, idle=idle, interpreter=self._interpreter)
        self._join()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join(timeout=5)

    def __enter__(self) -> Sandbox:
        """The sandbox itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _slot(self, number: int) -> None:
        """Run tasks one after the other, keeping a warm worker for each role."""
        assert self._servers is not None
        with contextlib.ExitStack() as stack:
            kept = stack.enter_context(_IdleWorkers(self._servers, self.limits))
            while (task := self._slots[number].get()) is not None:
                if task.future.set_running_or_notify_cancel():
                    with self._gate.admit(task.alone):
                        self._finish(task, kept, number)
                else:
                    with self._lock:
                        self._release(number)
                # Else arguments and result of a finished task stay in memory until the next task.
                del task

    def _finish(self, task: _PoolTask, kept: _IdleWorkers, number: int) -> None:
        """Set the outcome of the task, or the exception, on its future."""
        with self._lock:
            closed = self._closed
            self._running += not closed
        if closed:
            task.future.set_exception(self._make_closed_error())
            return
        try:
            try:
                outcome = self._run(task, kept)
            finally:
                # Before its result is known, upon which the caller may close the sandbox.
                with self._lock:
                    self._running -= 1
                    self._release(number)
        except BaseException as error:
            task.future.set_exception(self._make_closed_error() if self._closed else error)
        else:
            # close() killed the process, not the task itself.
            if self._closed and not outcome.ok:
                task.future.set_exception(self._make_closed_error())
            else:
                task.future.set_result(outcome)

    def _make_closed_error(self) -> InfrastructureError:
        return InfrastructureError("the sandbox was closed while the task ran")


class _TaskGate:
    """Lets tasks run side by side, or one alone; who waits to be alone holds back newer tasks."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._waiting = 0
        self._alone = False

    @contextlib.contextmanager
    def admit(self, alone: bool) -> Iterator[None]:
        """Within the block a task runs, ``alone`` or beside others."""
        with self._changed:
            self._waiting += alone
            self._changed.wait_for(
                lambda: not self._alone and (not self._running if alone else not self._waiting)
            )
            self._waiting -= alone
            self._alone = alone
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._alone = False
                self._changed.notify_all()


class _IdleWorkers:
    """The workers that a slot keeps between tasks: at most one per role."""

    def __init__(self, servers: Servers, limits: Limits) -> None:
        self.servers, self.limits = servers, limits
        self.workers: dict[Role, Worker] = {}

    def __enter__(self) -> _IdleWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers.values():
            worker.close()

    @contextlib.contextmanager
    def borrow(self, role: Role, *, fresh: bool) -> Iterator[Worker]:
        """A live worker; closed afterwards if it is fresh or must not serve another task."""
        worker = None if fresh else self.workers.pop(role, None)
        if worker is not None and not worker.is_usable():
            worker.close()
            worker = None
        worker = worker or _new_worker(self.servers.get, self.limits)
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


def _new_worker(server: Callable[[], Server], limits: Limits) -> Worker:
    """A worker forked by ``server()``, which is called again if that server is dead.

    Raises:
        InfrastructureError: Three attempts failed.
    """
    for pause_s in (0.0, 0.1, 0.5):
        time.sleep(pause_s)
        try:
            return Worker(server(), limits)
        except OSError as error:
            reason = error
    raise InfrastructureError(f"no worker process can be started: {reason}") from reason


class _Attempts:
    """One task, repeated until its outcome is its own and not the effect of another process.

    Others may kill a process: a user, a memory watchdog, another task that kills the server. Such
    a death counts only if it happens again where no other process can be the cause.
    """

    def __init__(self, task: _PoolTask, kept: _IdleWorkers) -> None:
        self._task, self._kept = task, kept
        self._name = getattr(task.function, "__qualname__", repr(task.function))
        try:
            self._payload = pack((task.function, task.args))
        except Exception as error:
            raise PluginError(
                f"task {self._name!r} cannot be sent to a worker: {text_of(error)}; functions and "
                "arguments must be picklable, defined at the top level of an importable module"
            ) from error

    def outcome(self) -> Outcome[Any]:
        """The outcome of the task itself."""
        started = time.monotonic()
        first = self._attempt(fresh=self._task.fresh)
        if not _is_from_outside(first):
            return first
        took_s = time.monotonic() - started
        second = self._attempt(fresh=True)
        if not _is_from_outside(second) or _kind(second) == "out-of-memory":
            return second
        # The control: a process that does nothing for as long. Then a third attempt.
        idle_lived = self._idle(min(took_s, _CONTROL_S))
        third = self._attempt(fresh=True)
        if not _is_from_outside(third):
            return third
        return _explain_deaths(first, second, third, idle_lived=idle_lived)

    def _attempt(self, *, fresh: bool) -> Outcome[Any]:
        """The outcome of one attempt; repeated if the worker died before the task began."""
        task = self._task
        for _ in range(3):
            with self._kept.borrow(task.role, fresh=fresh) as worker:
                result = worker.run(self._name, self._payload, task.timeout_s, task.file)
            if isinstance(result, Outcome):
                return result
            if result == "server lost":
                return self._alone()
        raise InfrastructureError(f"no worker lived long enough to begin task {self._name!r}")

    def _alone(self) -> Outcome[Any]:
        """The outcome under a server of its own, after the shared server died during the task."""
        for _ in range(2):
            with self._kept.servers.alone() as server:
                worker = Worker(server, self._kept.limits)
                try:
                    limit = self._task.timeout_s
                    result = worker.run(self._name, self._payload, limit, self._task.file)
                    stage = worker.stage()
                finally:
                    worker.close()
            if isinstance(result, Outcome):
                return result
        words = "ended the process that started its own, each of 3 times"
        return Outcome(None, Failure("abort", stage, words))

    def _idle(self, seconds: float) -> bool:
        """Whether a process that does nothing lives for ``seconds``."""
        payload = pack((idle, (seconds,)))
        with self._kept.borrow(self._task.role, fresh=True) as worker:
            result = worker.run("idle", payload, seconds + _CONTROL_S)
        return isinstance(result, Outcome) and result.ok


def _is_from_outside(outcome: Outcome[Any]) -> bool:
    """Whether the process was killed by a signal that no crash raises."""
    return outcome.failure is not None and outcome.failure.signal in OUTSIDE


def _kind(outcome: Outcome[Any]) -> FailureKind | None:
    return outcome.failure.kind if outcome.failure is not None else None


def _explain_deaths(*deaths: Outcome[Any], idle_lived: bool) -> Outcome[Any]:
    """The outcome after three deaths by such a signal: "abort", or "killed" if undecided."""
    last = deaths[-1].failure
    assert last is not None
    if _kind(deaths[-1]) == "out-of-memory":
        return deaths[-1]
    same = len({(d.failure.signal, d.failure.stage) for d in deaths if d.failure}) == 1
    if idle_lived and same:
        words = "each of 3 times, while an idle process lived: the task seems to do so itself"
        return Outcome(None, replace(last, kind="abort", message=f"{last.message}\n{words}"))
    words = "something kills processes on this machine, so the task has no result"
    return Outcome(None, replace(last, kind="killed", message=f"{last.message}\n{words}"))
