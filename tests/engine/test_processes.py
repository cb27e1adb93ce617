from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

import pytest

from optvet.engine.processes import LocalWorkers
from optvet.spec.executor import WorkerLost


def pid_of(report: Callable[[str], None]) -> int:
    return os.getpid()


def say_and_wait(report: Callable[[str], None]) -> None:
    report("here")
    threading.Event().wait()


def test_a_worker_of_a_number_is_the_same_process_each_time() -> None:
    workers = LocalWorkers(2)
    try:
        first, second = (workers.submit_to(n, pid_of).result(60) for n in (0, 1))
        assert first != second
        again = [workers.submit_to(n, pid_of) for n in (1, 0, 0, 1)]
        assert [future.result(60) for future in again] == [second, first, first, second]
        assert workers.submit(pid_of).result(60) in (first, second)
    finally:
        workers.close()


def test_what_runs_and_what_waits_is_lost_when_workers_are_closed() -> None:
    workers, begun = LocalWorkers(1), threading.Event()
    running = workers.submit_to(0, say_and_wait, report=lambda text: begun.set())
    waiting = workers.submit_to(0, pid_of)
    assert begun.wait(60)
    workers.close()
    for future in (running, waiting):
        with pytest.raises(WorkerLost):
            future.result(60)


def test_a_worker_that_waits_for_a_task_ends_in_order_when_its_parent_hangs_up() -> None:
    ours, theirs = socket.socketpair()
    held, life = os.pipe()
    code = f"from optvet.engine.processes import serve; serve({theirs.fileno()}, {held})"
    with subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno(), held]) as worker:
        theirs.close()
        os.close(held)
        with Connection(ours.detach()) as channel:
            channel.send((max, (1,)))  # Not to be called with a report: the answer is an error,
            assert channel.recv()[0] == "raised"  # and the worker waits for its next task.
            os.close(life)
            assert worker.wait(60) == 0, "1 is how it is ended that does not end"
