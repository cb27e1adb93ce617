"""A death is held against a task only where nobody else can be its cause."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.engine.work import faults, hostile

from optvet.engine.work.sandbox import Limits, Sandbox

PRELOAD = ["numpy", "tests.engine.work.faults", "tests.engine.work.hostile"]


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(jobs=2, limits=Limits(20, 1 << 30), preload=PRELOAD) as own:
        own.call(faults.nothing)
        yield own


def until(claim: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not claim():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


class Killer(threading.Thread):
    """Kills each process that tells its number in a folder, so many of them."""

    def __init__(self, folder: Path, times: int, fatal: int = signal.SIGKILL) -> None:
        super().__init__(daemon=True)
        self.folder, self.times, self.fatal = folder, times, fatal
        self.killed: set[str] = set()
        self.stopped = threading.Event()

    def run(self) -> None:
        while len(self.killed) < self.times and not self.stopped.is_set():
            for name in set(os.listdir(self.folder)) - self.killed:
                self.killed.add(name)
                os.kill(int(name), self.fatal)
            time.sleep(0.005)


@pytest.mark.parametrize("fatal", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("times", [1, 2])
def test_a_worker_killed_by_somebody_else_costs_no_task(
    sandbox: Sandbox, tmp_path: Path, fatal: int, times: int
) -> None:
    killer = Killer(tmp_path, times, fatal)
    killer.start()
    outcome = sandbox.call(hostile.report_and_outlive, str(tmp_path), times)
    assert outcome.value == "lived"
    killer.join(5)
    assert len(killer.killed) == times


def test_a_task_that_dies_once_is_not_blamed(sandbox: Sandbox, tmp_path: Path) -> None:
    assert sandbox.call(hostile.die_once, str(tmp_path / "n"), "fine").value == "fine"


def test_a_task_that_kills_itself_each_time_is_an_abort(sandbox: Sandbox) -> None:
    failure = sandbox.call(os.kill, 0, signal.SIGKILL).failure
    assert failure is not None
    assert (failure.kind, failure.stage, failure.signal) == ("abort", "build", "SIGKILL")
    assert failure.message == (
        "killed by SIGKILL\n"
        "each of 3 times, while an idle process lived: the task seems to do so itself"
    )


def test_where_every_process_is_killed_nothing_is_known_of_the_task(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    stopped = threading.Event()

    def kill_all_workers() -> None:
        assert sandbox._servers is not None
        server = sandbox._servers.shared._process.pid
        children = Path(f"/proc/{server}/task/{server}/children")
        while not stopped.wait(0.1):
            for pid in children.read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)

    thread = threading.Thread(target=kill_all_workers)
    thread.start()
    try:
        failure = sandbox.call(faults.hang, 2.0).failure
    finally:
        stopped.set()
        thread.join()
    assert failure is not None
    assert (failure.kind, failure.signal) == ("killed", "SIGKILL")
    assert "something kills processes on this machine" in failure.message
    assert sandbox.call(faults.echo, 1).value == 1


def test_a_killed_task_that_had_grown_to_its_limit_is_out_of_memory() -> None:
    with Sandbox(jobs=1, limits=Limits(20, 64 << 20), preload=PRELOAD) as small:
        failure = small.call(hostile.grow_and_die, 60 << 20).failure
    assert failure is not None
    assert (failure.kind, failure.signal) == ("out-of-memory", "SIGKILL")


@pytest.mark.long
@pytest.mark.parametrize("times", [1, 2])
def test_a_server_killed_by_somebody_else_costs_no_task(
    sandbox: Sandbox, tmp_path: Path, times: int
) -> None:
    running = sandbox.submit(hostile.report_and_outlive, str(tmp_path), 2 * times)
    other = sandbox.submit(hostile.report_and_outlive, str(tmp_path), 2 * times)
    assert sandbox._servers is not None
    for number in range(times):
        assert until(lambda number=number: len(os.listdir(tmp_path)) >= 2 * (number + 1))  # type: ignore[misc]
        for server in list(sandbox._servers._all):
            os.kill(server._process.pid, signal.SIGKILL)
    assert (running.result(60).value, other.result(60).value) == ("lived", "lived")
    assert sandbox.call(faults.echo, 1).value == 1


@pytest.mark.long
@pytest.mark.parametrize("fatal", [signal.SIGKILL, signal.SIGTERM])
def test_a_task_that_kills_the_server_is_blamed_and_others_are_not(
    sandbox: Sandbox, tmp_path: Path, fatal: int
) -> None:
    innocent = sandbox.submit(hostile.report_and_sleep, str(tmp_path), 0.5)
    assert until(lambda: len(os.listdir(tmp_path)) == 1)
    guilty = sandbox.submit(hostile.kill_parent, fatal)
    failure = guilty.result(60).failure
    assert failure is not None
    assert (failure.kind, failure.stage) == ("abort", "build")
    assert failure.message == "ended the process that started its own, each of 3 times"
    assert innocent.result(60).value == "slept"
    assert sandbox.call(faults.echo, 1).value == 1
