import contextlib
import gc
import mmap
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.work import faults

from optvet.engine.work.sandbox import Limits, Outcome, Sandbox, enter, last_stage
from optvet.plugin import allow_reservations
from optvet.spec.errors import InfrastructureError, PluginError

pytestmark = pytest.mark.usefixtures("own_servers")

PRELOAD = ["numpy", "onnx", "tests.engine.work.faults"]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(jobs=2, limits=Limits(60, 1 << 30), preload=PRELOAD) as shared:
        yield shared


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie, whose parent may be slow to reap it, does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def children(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] not in "ZX":
                found += [int(folder.name), *children(int(folder.name))]
    return found


def until(claim: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not claim():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


# What comes back


def test_a_value_comes_back(sandbox: Sandbox) -> None:
    value = {"x": np.arange(3), "y": ["é", None]}
    outcome = sandbox.call(faults.echo, value)
    assert outcome.ok
    assert outcome.failure is None
    assert repr(outcome.value) == repr(value)


@pytest.mark.parametrize("fresh", [False, True])
def test_a_worker_is_another_process_than_the_caller(sandbox: Sandbox, fresh: bool) -> None:
    assert sandbox.call(faults.process_id, fresh=fresh).value not in (None, os.getpid())


def test_an_exception_is_an_error(sandbox: Sandbox) -> None:
    failure = sandbox.call(faults.raise_error, "no such pass").failure
    assert failure is not None
    assert (failure.kind, failure.stage, failure.message) == ("error", "build", "no such pass")
    assert (failure.error_type, failure.signal) == ("ValueError", None)


def test_an_exception_that_cannot_be_pickled_is_an_error(sandbox: Sandbox) -> None:
    failure = sandbox.call(faults.raise_unpicklable).failure
    assert failure is not None
    assert (failure.kind, failure.message) == ("error", "not picklable")
    assert failure.error_type == "tests.engine.work.faults.UnpicklableError"


def test_what_native_code_said_is_appended_to_an_exception(sandbox: Sandbox) -> None:
    failure = sandbox.call(faults.print_and_raise, "core: bad shape", "failed").failure
    assert failure is not None
    assert failure.message == "failed\n\nnative output:\ncore: bad shape"


def test_what_native_code_said_is_not_repeated(sandbox: Sandbox) -> None:
    failure = sandbox.call(faults.print_and_raise, "bad shape\n", "failed: bad shape").failure
    assert failure is not None
    assert failure.message == "failed: bad shape"


def test_a_result_that_cannot_be_pickled_is_an_error(sandbox: Sandbox) -> None:
    failure = sandbox.call(faults.return_unpicklable).failure
    assert failure is not None
    assert failure.kind == "error"
    assert re.search(r"result \(_thread.lock\) cannot be pickled: ", failure.message)


def test_a_result_that_calls_a_function_is_an_error(sandbox: Sandbox) -> None:
    failure = sandbox.call(faults.return_poison).failure
    assert failure is not None
    assert failure.message == (
        "the task's result cannot be read: "
        "optvet.testing.optimizers.raise_error is no class of data"
    )


def test_abort_has_its_signal_and_last_words(sandbox: Sandbox) -> None:
    failure = sandbox.call(faults.abort, "x" * 3000 + "terminate called").failure
    assert failure is not None
    assert (failure.kind, failure.signal, failure.error_type) == ("abort", "SIGABRT", "")
    assert failure.message.endswith("terminate called")
    assert len(failure.message) == 2000


def test_a_segmentation_fault_is_an_abort(sandbox: Sandbox) -> None:
    failure = sandbox.call(faults.segfault).failure
    assert failure is not None
    assert (failure.kind, failure.signal) == ("abort", "SIGSEGV")
    assert failure.message == "died of SIGSEGV without a message"


@pytest.mark.parametrize("leave", [faults.leave, faults.leave_at_once])
@pytest.mark.parametrize("status", [0, 3])
def test_leaving_is_an_abort_with_the_status(
    sandbox: Sandbox, leave: Callable[[int], None], status: int
) -> None:
    failure = sandbox.call(leave, status).failure
    assert failure is not None
    assert (failure.kind, failure.signal) == ("abort", None)
    assert failure.message == f"exited with status {status}"


def test_memory_beyond_the_limit_is_out_of_memory(sandbox: Sandbox) -> None:
    failure = sandbox.call(faults.hog_memory).failure
    assert failure is not None
    assert (failure.kind, failure.error_type) == ("out-of-memory", "MemoryError")


def test_memory_within_the_limit_is_granted_to_each_task(sandbox: Sandbox) -> None:
    for _ in range(4):
        assert sandbox.call(faults.hog_memory, 600 << 20).ok


def reserve(reserved: int, written: int) -> int:
    """Reserve address space as drivers of GPUs do, then write to other memory."""
    allow_reservations()
    space = mmap.mmap(-1, reserved, flags=mmap.MAP_PRIVATE, prot=0)
    faults.hog_memory(written)
    return len(space)


def test_a_driver_may_reserve_more_than_the_limit_but_not_write_to_it() -> None:
    with Sandbox(jobs=1, limits=Limits(60, 256 << 20), preload=PRELOAD) as sandbox:
        for _ in range(2):  # The second runs in a worker that has reserved before.
            assert sandbox.call(reserve, 64 << 30, 150 << 20).value == 64 << 30
        failure = sandbox.call(reserve, 64 << 30, 512 << 20).failure
        assert failure is not None
        assert failure.kind == "out-of-memory"


def test_a_native_allocation_that_fails_is_out_of_memory(sandbox: Sandbox) -> None:
    words = "terminate called after throwing an instance of 'std::bad_alloc'"
    failure = sandbox.call(faults.abort, words).failure
    assert failure is not None
    assert (failure.kind, failure.signal) == ("out-of-memory", "SIGABRT")


def test_a_hung_task_ends_at_its_limit(sandbox: Sandbox) -> None:
    start = time.monotonic()
    failure = sandbox.call(faults.hang, timeout_s=0.3).failure
    assert time.monotonic() - start < 1.3
    assert failure is not None
    assert (failure.kind, failure.message) == ("timeout", "no result after 0.3 s")


@pytest.mark.long
def test_a_busy_machine_makes_no_task_too_slow(sandbox: Sandbox) -> None:
    core = min(os.sched_getaffinity(0))
    spin = f"import os\nos.sched_setaffinity(0, {{{core}}})\nprint(flush=True)\nwhile True: pass"
    with contextlib.ExitStack() as others:
        for _ in range(3):
            command = [sys.executable, "-c", spin]
            other = others.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            others.callback(other.kill)
            assert other.stdout is not None
            other.stdout.readline()
        start = time.monotonic()
        assert sandbox.call(faults.compute, 0.35, core, timeout_s=0.5).ok
        assert time.monotonic() - start > 0.6, "nothing was in its way"
        failure = sandbox.call(faults.compute, 60.0, core, timeout_s=0.5).failure
    assert failure is not None
    assert failure.kind == "timeout"


def test_the_children_of_a_hung_task_end_with_it(sandbox: Sandbox, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    assert not sandbox.call(faults.hang_with_child, str(note), timeout_s=1.0).ok
    assert until(lambda: not alive(int(note.read_text())))


def test_the_children_of_a_dead_task_end_with_it(sandbox: Sandbox, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    assert not sandbox.call(faults.abort_with_child, str(note)).ok
    assert until(lambda: not alive(int(note.read_text())))


def test_endless_output_fills_nothing_and_ends_at_the_limit(sandbox: Sandbox) -> None:
    failure = sandbox.call(faults.print_forever, timeout_s=1.0).failure
    assert failure is not None
    assert failure.kind == "timeout"


@pytest.mark.parametrize("fault", [faults.enter_and_abort, faults.enter_and_hang])
def test_a_death_has_the_stage_entered_last(sandbox: Sandbox, fault: Callable[[str], None]) -> None:
    for stage in ("check", "load", "run", "compare", "build"):
        failure = sandbox.call(fault, stage, timeout_s=0.2).failure
        assert failure is not None
        assert failure.stage == stage


def test_a_task_begins_at_the_stage_build(sandbox: Sandbox) -> None:
    for _ in range(2):
        failure = sandbox.call(faults.enter_and_raise, "run").failure
        assert failure is not None
        assert failure.stage == "run"
    for _ in range(2):
        failure = sandbox.call(faults.raise_error, "").failure
        assert failure is not None
        assert failure.stage == "build"
        assert sandbox.call(last_stage).value == "build"


def test_outside_a_worker_a_stage_is_only_remembered() -> None:
    before = last_stage()
    enter("load" if before != "load" else "run")
    try:
        assert last_stage() != before
    finally:
        enter(before)
    assert last_stage() == before


def test_nothing_reaches_the_terminal(sandbox: Sandbox, capfd: pytest.CaptureFixture[str]) -> None:
    assert sandbox.call(faults.print_and_return, "loud").value == "loud"
    assert not sandbox.call(faults.abort, "loud").ok
    assert capfd.readouterr() == ("", "")


def test_one_task_does_not_inherit_the_words_of_another(sandbox: Sandbox) -> None:
    with Sandbox(jobs=1, preload=PRELOAD) as alone:
        assert alone.call(faults.print_and_return, "earlier").ok
        failure = alone.call(faults.raise_error, "later").failure
        assert failure is not None
        assert failure.message == "later"


@pytest.mark.parametrize("size", [0, (32 << 10) - 100, 32 << 10, 100 << 20])
def test_arguments_and_results_of_any_size_pass(sandbox: Sandbox, size: int) -> None:
    value = b"x" * size
    assert sandbox.call(faults.echo, value) == Outcome(value, None)


def _doubled(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    for array in arrays.values():
        array += array  # In place: a task may write into its arguments.
    return arrays


@pytest.mark.parametrize("kept", [True, False])
def test_arrays_of_any_size_arrive_and_the_callers_stay(sandbox: Sandbox, kept: bool) -> None:
    made = np.random.default_rng(0).normal(size=(3, 70_000))
    arrays: dict[str, np.ndarray] = {
        "large": made,
        "of columns": np.asfortranarray(made),
        "every third": made[:, ::3],
        "small": np.arange(5, dtype=np.float16),
        "none": np.zeros((0, 4), np.int8),
    }
    before = {name: array.copy() for name, array in arrays.items()}
    outcome = sandbox.call(_doubled, arrays, fresh=not kept)
    assert outcome.value is not None
    for name, array in before.items():
        np.testing.assert_array_equal(arrays[name], array)
        np.testing.assert_array_equal(outcome.value[name], array * 2)
        assert outcome.value[name].dtype == array.dtype


def test_a_worker_has_one_thread_per_library_and_leaves_no_core_file(sandbox: Sandbox) -> None:
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    assert sandbox.call(os.getenv, "OMP_NUM_THREADS").value == threads
    import resource

    soft, _ = sandbox.call(resource.getrlimit, resource.RLIMIT_CORE).value or (None, None)
    assert soft == 0


# What the task is not to blame for


def test_a_function_that_cannot_be_sent_is_the_plugins_fault(sandbox: Sandbox) -> None:
    with pytest.raises(PluginError, match=r"<lambda>.* cannot be sent to a worker: .*picklable"):
        sandbox.call(lambda: 1)


def test_a_task_that_cannot_be_loaded_is_the_plugins_fault(sandbox: Sandbox) -> None:
    with pytest.raises(PluginError, match="a worker cannot load task 'echo': poisoned; "):
        sandbox.call(faults.echo, faults.Poison())
    assert sandbox.call(faults.echo, 1).ok


def test_a_module_that_cannot_be_preloaded_is_skipped() -> None:
    with Sandbox(jobs=1, preload=["no_such_module", *PRELOAD]) as sandbox:
        assert sandbox.call(faults.echo, 1).value == 1


def test_a_module_that_kills_the_server_is_not_preloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "optvet_deadly.py").write_text("import os; os.abort()")
    monkeypatch.syspath_prepend(str(tmp_path))
    with Sandbox(jobs=1, preload=["optvet_deadly"]) as sandbox:
        assert sandbox.call(faults.echo, 1).value == 1
        failure = sandbox.call(faults.import_module, "optvet_deadly").failure
        assert failure is not None
        assert failure.signal == "SIGABRT"


def test_a_worker_that_dies_between_tasks_costs_no_task() -> None:
    with Sandbox(jobs=1, preload=PRELOAD) as sandbox:
        for _ in range(20):
            pid = sandbox.call(faults.process_id).value
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            assert sandbox.call(faults.echo, 1).value == 1


# Isolation, parallelism


def test_a_worker_serves_task_after_task() -> None:
    with Sandbox(jobs=1, preload=PRELOAD) as sandbox:
        assert len({sandbox.call(faults.process_id).value for _ in range(5)}) == 1
        assert [sandbox.call(faults.remember, "k", n).value for n in range(3)] == [None, 0, 1]


def test_a_fresh_worker_shares_nothing_before_or_after() -> None:
    with Sandbox(jobs=1, preload=PRELOAD) as sandbox:
        kept = sandbox.call(faults.process_id).value
        assert sandbox.call(faults.remember, "k", "kept").value is None
        fresh = [sandbox.call(faults.process_id, fresh=True).value for _ in range(3)]
        assert len({kept, *fresh}) == 4
        assert sandbox.call(faults.remember, "k", "fresh", fresh=True).value is None
        assert sandbox.call(faults.remember, "k", "fresh", fresh=True).value is None
        assert sandbox.call(faults.remember, "k", "again").value == "kept"
        assert sandbox.call(faults.process_id).value == kept
        assert until(lambda: not any(alive(pid) for pid in fresh if pid))


def test_a_judging_task_never_runs_where_tested_code_ran() -> None:
    with Sandbox(jobs=1, preload=PRELOAD) as sandbox:
        tested = sandbox.call(faults.process_id).value
        assert sandbox.call(faults.remember, "k", "touched").value is None
        judging = sandbox.call(faults.process_id, role="judging").value
        assert sandbox.call(faults.remember, "k", "clean", role="judging").value is None
        assert tested != judging
        # Both stay warm, and a role is "tested" unless the task says otherwise.
        assert sandbox.call(faults.process_id).value == tested
        assert sandbox.call(faults.process_id, role="judging").value == judging
        assert sandbox.call(faults.remember, "k", 1, role="tested").value == "touched"


def test_the_death_of_a_tested_process_leaves_the_judging_one() -> None:
    with Sandbox(jobs=1, preload=PRELOAD) as sandbox:
        judging = sandbox.call(faults.process_id, role="judging").value
        assert not sandbox.call(faults.segfault).ok
        assert sandbox.call(faults.process_id, role="judging").value == judging
        assert not sandbox.call(faults.segfault, role="judging").ok
        assert sandbox.call(faults.process_id, role="judging").value not in (None, judging)


def test_jobs_run_at_once_and_no_more_than_allowed() -> None:
    with Sandbox(jobs=2, preload=PRELOAD) as sandbox:
        for future in [sandbox.submit(faults.hang, 0.05) for _ in range(2)]:
            future.result()
        start = time.monotonic()
        for future in [sandbox.submit(faults.hang, 0.5) for _ in range(4)]:
            assert future.result().ok
        assert 1.0 <= time.monotonic() - start < 1.95


def test_tasks_one_after_the_other_share_a_process() -> None:
    with Sandbox(jobs=2, preload=PRELOAD) as sandbox:
        first = sandbox.call(os.getpid).value
        for future in [sandbox.submit(faults.hang, 0.05) for _ in range(2)]:
            assert future.result().ok
        assert {sandbox.call(os.getpid).value for _ in range(4)} == {first}


def test_many_threads_may_submit_at_once(sandbox: Sandbox) -> None:
    wrong: list[object] = []

    def submit(number: int) -> None:
        for index in range(20):
            value = number * 1000 + index
            if index % 7 == 0 and sandbox.call(faults.segfault).ok:
                wrong.append("survived")
            if sandbox.call(faults.echo, value, fresh=index % 5 == 0).value != value:
                wrong.append(value)

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# Ends


def test_close_ends_all_processes_at_once_and_frees_all_files() -> None:
    gc.collect()  # What other tests have left open is no part of the count.
    files = len(os.listdir("/proc/self/fd"))
    sandbox = Sandbox(jobs=2, preload=PRELOAD)
    running = [sandbox.submit(faults.hang) for _ in range(2)]
    waiting = sandbox.submit(faults.hang)
    assert sandbox._servers is not None
    server = sandbox._servers.shared._process.pid
    assert until(lambda: len(children(server)) == 2, 60.0)
    time.sleep(0.1)
    processes = [server, *children(server)]
    start = time.monotonic()
    sandbox.close()
    assert time.monotonic() - start < 1.0
    assert until(lambda: not any(map(alive, processes)), 1.0)
    for future in running:
        with pytest.raises(InfrastructureError, match="the sandbox was closed while the task ran"):
            future.result(5)
    with pytest.raises(CancelledError):
        waiting.result(5)
    with pytest.raises(InfrastructureError, match="the sandbox is closed"):
        sandbox.call(faults.nothing)
    assert until(lambda: len(os.listdir("/proc/self/fd")) <= files)  # others may close some
    sandbox.close()


def test_close_before_the_server_is_ready_is_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "optvet_slow.py").write_text("import time; time.sleep(60)")
    monkeypatch.syspath_prepend(str(tmp_path))
    sandbox = Sandbox(jobs=1, preload=["optvet_slow"])
    future = sandbox.submit(faults.nothing)
    time.sleep(0.3)
    start = time.monotonic()
    sandbox.close()
    assert time.monotonic() - start < 2.0
    with pytest.raises(InfrastructureError):
        future.result(5)


def test_deaths_leak_no_files(sandbox: Sandbox) -> None:
    assert not sandbox.call(faults.segfault).ok
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        assert not sandbox.call(faults.segfault).ok
        assert sandbox.call(faults.echo, 1, fresh=True).ok
        assert not sandbox.call(faults.hang, timeout_s=0.01).ok
    assert len(os.listdir("/proc/self/fd")) <= files + 4


# Callers of every kind: none has a main guard

SCRIPT = """
import os, sys
from optvet.engine.work.sandbox import Sandbox
from tests.engine.work import faults
print("top level", flush=True)
sandbox = Sandbox(jobs=1)
signal = sandbox.call(faults.abort).failure.signal
print(sandbox.call(faults.echo, "first").value, signal, flush=True)
pid = sandbox.call(faults.process_id).value
print("pid", pid, sandbox._servers.shared._process.pid, flush=True)
"""
HANG = "sandbox.call(faults.hang)\n"


def python(*args: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background of a shell has it ignored, and so would this.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},  # for ``faults``
        **options,
    )


def check(output: str) -> list[int]:
    """The pids of the script, whose top level ran once."""
    lines = output.splitlines()
    assert lines[:2] == ["top level", "first SIGABRT"]
    assert len(lines) == 3
    return [int(pid) for pid in lines[2].split()[1:]]


@pytest.mark.long
@pytest.mark.parametrize("way", ["script", "-m", "-c", "stdin", "exec"])
def test_a_plain_script_may_use_the_sandbox_at_its_top_level(tmp_path: Path, way: str) -> None:
    (tmp_path / "plain.py").write_text(SCRIPT)
    # As in a notebook: __main__ has neither file nor specification.
    without_file = (
        "from pathlib import Path; import __main__; del __main__.__spec__; "
        "exec(Path('plain.py').read_text())"
    )
    args = {
        "script": ["plain.py"],
        "-m": ["-m", "plain"],
        "-c": ["-c", SCRIPT],
        "stdin": ["-"],
        "exec": ["-c", without_file],
    }[way]
    process = python(*args, cwd=tmp_path, stdin=subprocess.PIPE)
    output, errors = process.communicate(SCRIPT if way == "stdin" else "", timeout=60)
    assert (process.returncode, errors) == (0, "")
    # The script never closed its sandbox: the end of the interpreter did.
    pids = check(output)
    assert until(lambda: not any(map(alive, pids)), 2.0)


def started(script: Path) -> tuple[subprocess.Popen[str], list[int]]:
    script.write_text(SCRIPT + HANG)
    process = python(str(script), start_new_session=True)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    pids = check("".join(lines))
    time.sleep(0.3)
    assert all(map(alive, pids))
    return process, pids


def test_ctrl_c_reaches_the_caller_alone_and_leaves_nothing(tmp_path: Path) -> None:
    process, pids = started(tmp_path / "plain.py")
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert errors.count("Traceback") == 1
    assert until(lambda: not any(map(alive, pids)), 2.0)


@pytest.mark.parametrize("fatal", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_a_caller_that_is_killed(tmp_path: Path, fatal: signal.Signals) -> None:
    process, pids = started(tmp_path / "plain.py")
    process.send_signal(fatal)
    process.communicate(timeout=10)
    assert until(lambda: not any(map(alive, pids)), 2.0)


@pytest.mark.long
def test_a_fork_of_the_caller_keeps_no_worker_alive_and_closes_none(tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    # The child outlives its parent, with copies of all its sockets.
    script.write_text(
        SCRIPT.replace("import os, sys", "import os, sys, time, warnings")
        + "warnings.simplefilter('ignore')\n"
        + "child = os.fork()\n"
        + "if child == 0:\n    os.close(1); os.close(2); time.sleep(4); os._exit(0)\n"
        + "other = os.fork()\n"
        + "if other == 0:\n    sys.exit()\n"
        + "os.waitpid(other, 0)\n"
        + "assert sandbox.call(faults.process_id).value == pid\n"
        + "os.kill(os.getpid(), 9)\n"
    )
    process = python(str(script))
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (-9, "")
    pids = check(output)
    assert until(lambda: not any(map(alive, pids)), 2.5)
