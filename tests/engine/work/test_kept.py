from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from optvet import VetRequest
from optvet.engine.campaign import job
from optvet.engine.work.sandbox import Interpreter, Limits, Sandbox, keep_servers, kept
from optvet.engine.work.sandbox.forks import Servers
from optvet.spec.records import VetResult


@pytest.fixture(autouse=True)
def _keeping(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kept, "_kept", None)
    keep_servers()
    yield
    assert kept._kept is not None
    kept._kept.close()


def where(sandbox: Sandbox) -> tuple[int, int]:
    """Process ids of a server and of its worker."""
    server, worker = sandbox.call(os.getppid).value, sandbox.call(os.getpid).value
    assert server is not None
    assert worker is not None
    return server, worker


def test_the_next_sandbox_has_the_same_server_and_new_workers() -> None:
    with Sandbox(jobs=1) as sandbox:
        server, worker = where(sandbox)
    with Sandbox(jobs=1) as sandbox:
        again, another = where(sandbox)
    assert server == again
    assert worker != another
    with Sandbox(jobs=1, preload=("json",)) as sandbox:
        assert where(sandbox)[0] != server
    # Limits are those of the workers alone.
    limits = Limits(timeout_s=7.0, memory_bytes=1 << 30)
    with Sandbox(jobs=1, limits=limits) as sandbox:
        assert where(sandbox)[0] == server
        assert sandbox.call(bytearray, 2 << 30).failure is not None


def test_a_server_that_was_started_with_other_variables_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Sandbox(jobs=1) as sandbox:
        server, _ = where(sandbox)
    monkeypatch.setenv("OPTVET_TEST_OF_KEPT", "7")
    with Sandbox(jobs=1) as sandbox:
        assert sandbox.call(os.getenv, "OPTVET_TEST_OF_KEPT").value == "7"
        assert where(sandbox)[0] != server
    monkeypatch.delenv("OPTVET_TEST_OF_KEPT")
    with Sandbox(jobs=1) as sandbox:
        assert where(sandbox)[0] == server


def test_a_server_that_was_started_with_another_file_of_a_module_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = []
    for value in (1, 2):
        folder = tmp_path / str(value)
        folder.mkdir()
        (folder / "planted_here.py").write_text(f"value = {value}")
        monkeypatch.syspath_prepend(folder)
        with Sandbox(jobs=1, preload=("planted_here",)) as sandbox:
            seen.append(sandbox.call(eval, "__import__('planted_here').value").value)
    assert seen == [1, 2]


def test_the_folder_of_the_cache_asks_for_no_other_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with Sandbox(jobs=1) as sandbox:
        server, _ = where(sandbox)
    monkeypatch.setenv("OPTVET_CACHE", str(tmp_path))
    with Sandbox(jobs=1) as sandbox:
        assert where(sandbox)[0] == server


def test_two_sandboxes_at_once_share_no_server() -> None:
    with Sandbox(jobs=1) as first, Sandbox(jobs=1) as second:
        assert where(first)[0] != where(second)[0]


def test_a_sandbox_within_another_has_its_server_and_workers_of_its_own() -> None:
    with Sandbox(jobs=1) as lender:
        with Sandbox(jobs=1, lender=lender) as within:
            server, worker = where(within)
        again, another = where(lender)
        assert again == server
        assert another != worker
        with Sandbox(jobs=1) as beside:  # The server is the lender's, and not left to others.
            assert where(beside)[0] != server


def test_a_sandbox_that_is_closed_at_work_leaves_no_server() -> None:
    with Sandbox(jobs=1) as sandbox:
        server, worker = where(sandbox)
        sandbox.submit(time.sleep, 600.0)
        while not sandbox._running:
            time.sleep(0.01)
    assert not os.path.exists(f"/proc/{worker}")
    with Sandbox(jobs=1) as sandbox:
        assert where(sandbox)[0] != server


def test_a_server_that_died_while_it_waited_is_replaced() -> None:
    with Sandbox(jobs=1) as sandbox:
        server, _ = where(sandbox)
    os.kill(server, 9)
    with Sandbox(jobs=1) as sandbox:
        assert where(sandbox)[0] != server


def test_servers_that_wait_take_bounded_memory() -> None:
    shelf = kept.KeptServers(most_bytes=1 << 20)
    servers = shelf.take(())
    servers.get()
    assert servers.shared.own_bytes() > 1 << 20
    shelf.put_back((), servers)
    assert servers.shared.is_dead()


def test_jobs_of_one_worker_share_a_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    started: list[Servers] = []

    class Counted(Servers):
        def __init__(
            self,
            preload: tuple[str, ...],
            interpreter: Interpreter | None = None,
        ) -> None:
            super().__init__(preload, interpreter)
            started.append(self)

    monkeypatch.setattr(kept, "Servers", Counted)
    cache = tmp_path_factory.mktemp("cache")
    for model in ("zoo:wine-logreg", "zoo:digits-mlp"):
        request = VetRequest(
            model=model, optimizer="onnxoptimizer", limit=1, jobs=1, cache_dir=cache
        )
        answer = VetResult.model_validate_json(
            job.run_job(request, None, None, lambda _: None).document
        )
        assert answer.verdict == "clean"
        assert answer.cost.inferences > 0
    assert len(started) == 1
