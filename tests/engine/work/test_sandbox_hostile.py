"""No task makes the caller wait beyond its limit, and none reaches another task."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engine.work import faults, hostile

from optvet.engine.work.sandbox import Limits, Outcome, Sandbox
from optvet.engine.work.sandbox.messages import HEAD, INLINE_BYTES, TEXT_CHARS, cut, text_of
from optvet.spec.types import Failure

pytestmark = pytest.mark.usefixtures("own_servers")

LIMIT_S = 3.0
PRELOAD = ["numpy", "tests.engine.work.faults", "tests.engine.work.hostile"]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(jobs=1, limits=Limits(LIMIT_S, 1 << 30), preload=PRELOAD) as shared:
        shared.call(faults.nothing)
        yield shared


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def until(claim: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not claim():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def timed(sandbox: Sandbox, task: Callable[..., object], *args: object) -> Outcome[object]:
    """The outcome, which must have come in time, after which the sandbox must work."""
    start = time.monotonic()
    outcome = sandbox.call(task, *args)
    assert time.monotonic() - start < LIMIT_S + 2
    assert sandbox.call(faults.echo, "next") == Outcome("next", None)
    return outcome


def failure(outcome: Outcome[Any]) -> Failure:
    assert outcome.failure is not None
    return outcome.failure


# Leftovers: processes


@pytest.mark.parametrize("then", ["abort", "leave", "hang", "return"])
def test_a_detached_child_ends_with_its_task(sandbox: Sandbox, tmp_path: Path, then: str) -> None:
    note = tmp_path / "pid"
    outcome = timed(sandbox, hostile.leave_detached, str(note), then)
    kinds = {"abort": "abort", "leave": "abort", "hang": "timeout"}
    assert (outcome.failure.kind if outcome.failure else None) == kinds.get(then)
    assert until(lambda: not alive(int(note.read_text())))


def test_a_death_is_told_although_a_child_holds_the_socket(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    start = time.monotonic()
    outcome = sandbox.call(hostile.leave_detached, str(tmp_path / "pid"), "abort")
    assert failure(outcome).signal == "SIGABRT"
    assert time.monotonic() - start < LIMIT_S


def test_a_child_without_our_environment_ends_with_its_task(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    note = tmp_path / "pid"
    timed(sandbox, hostile.leave_in_clean_environment, str(note))
    assert until(lambda: not alive(int(note.read_text())))


def test_a_family_that_keeps_forking_is_ended(sandbox: Sandbox, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    timed(sandbox, hostile.leave_forking, str(note))

    def stands_still() -> bool:
        last = note.read_text()
        time.sleep(0.2)
        return note.read_text() == last and not (last and alive(int(last)))

    assert until(stands_still, 10.0)


def test_a_fork_that_returns_answers_for_nobody(sandbox: Sandbox) -> None:
    for _ in range(5):
        outcome = timed(sandbox, hostile.fork_and_return)
        assert isinstance(outcome.value, int)
        assert outcome.value > 0


def test_detached_children_end_when_the_sandbox_closes(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with Sandbox(jobs=1, preload=PRELOAD) as closing:
        closing.submit(hostile.leave_detached, str(note), "hang")
        assert until(note.exists, 20)
        assert until(lambda: bool(note.read_text()))
    assert until(lambda: not alive(int(note.read_text())))


@pytest.mark.long
def test_detached_children_end_with_a_server_that_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with Sandbox(jobs=1, preload=PRELOAD) as sandbox:
        assert sandbox.call(faults.nothing).ok
        running = sandbox.submit(hostile.leave_detached, str(note), "hang", timeout_s=3)
        assert until(note.exists, 20)
        assert until(lambda: bool(note.read_text()))
        assert sandbox._servers is not None
        first = int(note.read_text())
        os.kill(sandbox._servers.shared._process.pid, signal.SIGKILL)
        assert failure(running.result(60)).kind == "timeout"
        assert sandbox.call(faults.echo, 1).value == 1
        assert until(lambda: not alive(first))


# Leftovers: the state of the process


def test_a_thread_of_one_task_does_not_end_the_next(sandbox: Sandbox) -> None:
    first = sandbox.call(hostile.leave_thread).value
    assert sandbox.call(faults.hang, 0.6).ok
    assert sandbox.call(faults.process_id).value != first


@pytest.mark.parametrize("task", [hostile.set_alarm, hostile.native_alarm])
def test_an_alarm_of_one_task_does_not_end_the_next(
    sandbox: Sandbox, task: Callable[[], None]
) -> None:
    assert sandbox.call(task).ok
    assert sandbox.call(faults.hang, 1.2).ok


def test_a_change_of_folder_is_undone(sandbox: Sandbox, tmp_path: Path) -> None:
    first = sandbox.call(hostile.change_folder, str(tmp_path)).value
    assert sandbox.call(os.getcwd).value == os.getcwd()
    assert sandbox.call(faults.process_id).value == first


def test_what_cannot_be_undone_costs_the_worker(sandbox: Sandbox) -> None:
    first = sandbox.call(hostile.set_variable, "OPTVET_TEST", "1").value
    assert sandbox.call(os.getenv, "OPTVET_TEST").value is None
    assert sandbox.call(faults.process_id).value != first
    first = sandbox.call(hostile.forbid_files).value
    assert sandbox.call(faults.return_bytes, 1 << 20).ok
    assert sandbox.call(faults.process_id).value != first
    first = sandbox.call(hostile.redirect).value
    assert failure(sandbox.call(faults.abort, "heard")).message == "heard"
    assert sandbox.call(faults.process_id).value != first


def test_a_process_that_can_import_nothing_is_replaced(sandbox: Sandbox) -> None:
    first = sandbox.call(hostile.forget_modules).value
    assert sandbox.call(faults.process_id).value != first


def test_a_caller_whose_folder_is_gone_has_workers_all_the_same(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert sandbox.call(faults.echo, "here", fresh=True) == Outcome("here", None)


# Descriptors


@pytest.mark.parametrize("first", [0, 3])
def test_closing_all_descriptors_is_an_abort(sandbox: Sandbox, first: int) -> None:
    found = failure(timed(sandbox, hostile.close_descriptors, first))
    assert (found.kind, found.stage) == ("abort", "build")
    assert found.message == "closed the descriptors by which its result is sent"


def test_a_task_that_hangs_up_is_not_waited_for(sandbox: Sandbox) -> None:
    start = time.monotonic()
    found = failure(sandbox.call(hostile.hang_up_and_hang, timeout_s=60))
    assert found.kind == "abort"
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"v" * HEAD.size,
        b"v" + bytes(16) + b"data",
        b"f" + bytes(16) + b"{",
        b"v" * (HEAD.size + INLINE_BYTES + 1),
    ],
)
def test_a_forged_message_is_nobodys_result(sandbox: Sandbox, data: bytes) -> None:
    found = failure(timed(sandbox, hostile.send_raw, data, 3))
    assert found.kind == "abort"
    assert "descriptors by which its result is sent" in found.message


@pytest.mark.parametrize("data", [b"", b"v" * 1000])
def test_a_flood_of_messages_ends_in_time(sandbox: Sandbox, data: bytes) -> None:
    assert failure(timed(sandbox, hostile.flood, data)).kind == "abort"


@pytest.mark.parametrize("count", [1, 2, 4, 5, 253])
def test_descriptors_that_are_sent_along_are_closed(sandbox: Sandbox, count: int) -> None:
    sandbox.call(faults.nothing)
    before = len(os.listdir("/proc/self/fd"))
    assert failure(timed(sandbox, hostile.send_descriptors, count)).kind == "abort"
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("size", [0, 1 << 20, 1 << 50])
def test_a_file_that_shrinks_while_it_is_read_is_refused(sandbox: Sandbox, size: int) -> None:
    assert failure(timed(sandbox, hostile.send_memory_file, size)).kind == "abort"


def test_files_that_a_task_scribbles_on_do_no_harm(sandbox: Sandbox) -> None:
    found = failure(timed(sandbox, hostile.scribble_on_files))
    assert (found.kind, found.stage, found.signal) == ("abort", "build", "SIGABRT")


# Signals


def test_a_task_that_stops_itself_ends_at_its_limit(sandbox: Sandbox) -> None:
    assert failure(timed(sandbox, hostile.stop_myself)).kind == "timeout"


def test_a_task_that_stops_its_parent_ends_at_its_limit(sandbox: Sandbox) -> None:
    assert failure(timed(sandbox, hostile.stop_parent_and_hang)).kind == "timeout"


# Words


def test_a_long_message_is_cut_in_the_worker(sandbox: Sandbox) -> None:
    text = failure(timed(sandbox, hostile.raise_text, 20 << 20)).message
    assert text.startswith("headxxx")
    assert text.endswith("xxxtail")
    assert "characters or more left out" in text
    assert len(text) <= TEXT_CHARS


def test_a_long_type_name_is_cut(sandbox: Sandbox) -> None:
    assert len(failure(timed(sandbox, hostile.raise_named, 1 << 20)).error_type) <= 200


def test_an_exception_without_a_text_has_its_type(sandbox: Sandbox) -> None:
    found = failure(timed(sandbox, hostile.raise_speechless))
    assert found.message == "tests.engine.work.hostile.Speechless (its text is not available)"


def test_a_text_can_always_be_encoded(sandbox: Sandbox) -> None:
    found = failure(timed(sandbox, hostile.raise_surrogate))
    assert found.message == "half \\ud800 a character"


@pytest.mark.parametrize("size", [0, 9, 100, 101, 5000])
def test_a_cut_is_never_longer_than_asked(size: int) -> None:
    text = "x" * size
    short = cut(text, 100)
    assert len(short) <= 100
    assert (short == text) is (size <= 100)


def test_colours_of_a_message_are_left_out() -> None:
    assert text_of(RuntimeError("\x1b[96mstep 3\x1b[0m of 3\x1b[2J")) == "step 3 of 3\x1b[2J"
