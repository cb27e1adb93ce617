"""Campaigns on a real Ray cluster of two nodes on this machine."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from tests.needs import needs

from optvet import InfrastructureError
from optvet.engine.campaign import (
    CampaignStore,
    Digests,
    Event,
    add_campaign,
    artifacts,
    find_campaign,
    findings,
    open_store,
    plan_campaign,
    read_campaign,
    run_campaign,
    trials,
)
from optvet.engine.discovery import Plugins
from optvet.plugin import WorkerLost

needs("ray", reason="needs optvet[ray]")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("ray")]

from optvet_ray import RayExecutor, RayOptions  # noqa: E402  # only where ray is installed

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
FAULTY = (
    HEAD
    + """
faulty (float[3,2] a, float[3,4] b) => (float[2,4] y) { t = Transpose(a)  y = Gemm(t, b) }
"""
)
# A thirtieth of a second each time that it is run.
SLOW = (
    HEAD
    + """
slow (float[2,3] x) => (float[2,3] y) {
  count = Constant <value = int64 {30000}> ()
  go = Constant <value = bool {1}> ()
  y = Loop (count, go, x) <body = body (int64 i, bool c, float[2,3] a) => (bool d, float[2,3] b) {
    d = Identity(c)  b = Abs(a)
  }>
}
"""
)
OPTIONS = RayOptions(memory_gib=0.25)


@pytest.fixture(scope="module")
def head() -> Iterator[Any]:
    """A head without processors."""
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": 1 << 27},
    )
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def cluster(head: Any) -> Any:
    """That head and two nodes with one processor each; what a test before has lost is replaced."""
    while len(head.worker_nodes) < 2:
        head.add_node(num_cpus=1, object_store_memory=1 << 27)
    head.wait_for_nodes()
    return head


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CampaignStore]:
    """A store with a campaign of ten jobs, whose models are files of this machine alone."""
    folder = tmp_path / "models"
    folder.mkdir()
    onnx.save(onnx.parser.parse_model(FAULTY), folder / "00-faulty.onnx")
    # Large models come first; these also take longer, so that a node dies at work on one.
    for name in ("slow-a", "slow-b"):
        onnx.save(onnx.parser.parse_model(SLOW), folder / f"{name}.onnx")
    for number in range(3, 10):
        shape = f"float[2,{number + 1}]"
        text = f"{HEAD}clean ({shape} x) => ({shape} y) {{ y = Relu(x) }}"
        onnx.save(onnx.parser.parse_model(text), folder / f"{number:02}-clean.onnx")
    file = tmp_path / "c.toml"
    file.write_text('models = ["models/"]\nbundles = true\n[vet]\nlimit = 1\n')
    plugins = Plugins()
    with open_store(tmp_path / "store", create=True) as opened:
        source = read_campaign(file, plugins)
        digests = Digests(opened.database)
        plan = plan_campaign(source, plugins, digests, cache_dir=tmp_path / "cache")
        add_campaign(opened, plan)
        yield opened


def lose_one(cluster: Any) -> None:
    """Kill a node that is at work on a job."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for node in list(cluster.worker_nodes):
            (raylet,) = node.all_processes["raylet"]
            if any(b"ray::_call" in command for command in commands_below(raylet.process.pid)):
                cluster.remove_node(node, False)
                return
        time.sleep(0.05)


def commands_below(pid: int) -> Iterator[bytes]:
    """Command lines of the children of a process; Ray writes into them what a worker does."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            yield Path(f"/proc/{child}/cmdline").read_bytes()


@pytest.mark.long
def test_a_campaign_on_a_cluster_survives_the_loss_of_a_node(
    cluster: Any, store: CampaignStore
) -> None:
    campaign = find_campaign(store)
    seen: Counter[str] = Counter()

    def told(event: Event) -> None:
        seen[event.kind] += 1
        if event.kind == "started" and seen["started"] == 2:
            threading.Thread(target=lose_one, args=(cluster,)).start()

    executor = RayExecutor()
    run_campaign(
        store,
        campaign,
        {t.key: t.request for t in trials(store, campaign)},
        lambda: executor.start(OPTIONS, jobs=2),
        shares_disk=executor.shares_disk,
        on_event=told,
    )
    found = list(trials(store, campaign))
    assert Counter(t.verdict for t in found) == {"clean": 9, "faulty": 1}, [t.error for t in found]
    assert all(t.result and t.result.model.source == t.request.model for t in found)
    ends = store.database.execute("SELECT job, end FROM attempts").fetchall()
    assert Counter(job for job, end in ends if end == "done") == {t.key: 1 for t in found}
    assert {end for _, end in ends} <= {"done", "lost"}
    assert seen["lost"] >= 1
    (row,) = [r for r in findings(store, campaign) if r.finding.severity == "fault"]
    files = artifacts(store, row.trial, row.number)
    assert {"model.onnx", "finding.json"} <= {file.name for file in files}
    assert all(file.path.stat().st_size == file.size for file in files)


def end_worker(report: Any) -> None:
    os._exit(1)


def raise_value(report: Any) -> None:
    raise ValueError("no")


def test_a_worker_that_dies_is_lost_and_an_exception_is_told(cluster: Any) -> None:
    workers = RayExecutor().start(OPTIONS, jobs=None)
    assert workers.count == 2
    with pytest.raises(WorkerLost, match="WorkerCrashed"):
        workers.submit(end_worker).result(timeout=60)
    with pytest.raises(ValueError, match="no"):
        workers.submit(raise_value).result(timeout=60)
    workers.close()


def test_a_cluster_without_room_is_told(cluster: Any) -> None:
    with pytest.raises(InfrastructureError, match="no room for one job"):
        RayExecutor().start(RayOptions(gpus=1), jobs=None)


def test_an_address_without_a_cluster_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # it does not listen
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        words = f"no cluster at '{address}'.*ray start --head"
        with pytest.raises(InfrastructureError, match=words):
            RayExecutor().start(RayOptions(address=address), jobs=1)
