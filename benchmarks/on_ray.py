"""The same campaign on this machine alone, and on a Ray cluster on it that loses a node.

Called by ``campaign.py --parts ray``, and needs the extra ``ray``. The cluster has a head without
processors and three nodes with one each. When a third of the jobs are answered, a node that is at
work is killed, with the job that it has. Then the answers of both stores are compared job by job:
verdict, and culprit, symptom and fingerprint of each finding. Of the jobs, one in ten has a fault,
and one in twenty takes some seconds, so that a node dies while it works.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import onnx.parser

from optvet import InputError
from optvet.engine.campaign import find_campaign, findings, open_store, trials

HEAD = '<ir_version: 8, opset_import: ["": 17]>'
LOOP = """<body = body (int64 i, bool c, float[2,{n}] a) => (bool d, float[2,{n}] b)
{{ d = Identity(c)  b = Abs(a) }}>"""
TURNS = 5_000_000
NODES = 3
LONG = 20
"""Times in a row that a node is seen at work, before it is killed."""


def on_ray(place: Path, amount: int) -> None:
    """Print the times of both campaigns, and how many answers are lost, repeated or different."""
    import ray
    from ray.cluster_utils import Cluster

    file = _campaign(place, amount)
    alone_s = _run(file, place / "alone", "--jobs", str(NODES))
    node = {"include_dashboard": False, "object_store_memory": 1 << 27}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **node})
    try:
        for _ in range(NODES):
            cluster.add_node(num_cpus=1, object_store_memory=1 << 27)
        cluster.wait_for_nodes()
        killed: list[int] = []
        watcher = threading.Thread(
            target=_lose_one, args=(cluster, place / "ray", amount // 3, killed), daemon=True
        )
        watcher.start()
        options = {"address": cluster.address, "memory_gib": "0.25"}
        words = [w for o in options.items() for w in ("--executor-option", "=".join(o))]
        ray_s = _run(file, place / "ray", "--executor", "ray", *words)
    finally:
        ray.shutdown()
        cluster.shutdown()
    one, other = _answers(place / "alone"), _answers(place / "ray")
    different = sum(one[job] != other.get(job) for job in one)
    with open_store(place / "ray") as store:
        ends = store.database.execute("SELECT end, COUNT(*) FROM attempts GROUP BY end").fetchall()
    told = ", ".join(f"{count} {end}" for end, count in sorted(map(tuple, ends)))
    print(f"{amount} jobs on this machine, {NODES} at a time: {alone_s:.1f} s")
    lost = f"one was killed after {killed[0]} answers" if killed else "none was killed"
    print(f"  on Ray, {NODES} nodes: {ray_s:.1f} s; {lost}")
    print(f"  attempts: {told}; lost answers {len(one) - len(other)}, different {different}")


def _campaign(place: Path, amount: int) -> Path:
    models = place / "models"
    models.mkdir(parents=True)
    for number in range(amount):
        onnx.save(_model(number), models / f"{number:04}.onnx")
    file = place / "c.toml"
    file.write_text('models = ["models/"]\noptimizers = ["onnxoptimizer"]\n[vet]\nlimit = 1\n')
    return file


def _model(number: int) -> onnx.ModelProto:
    size = number + 2
    if number % 10 == 0:
        text = f"(float[3,{size}] a, float[3,4] b) => (float[{size},4] y) {{ t = Transpose(a)"
        text += "  y = Gemm(t, b) }"
    elif number % 20 == 15:
        text = f"(float[2,{size}] x) => (float[2,{size}] y) {{ count = Constant <value = int64 "
        text += f"{{{TURNS}}}> ()  go = Constant <value = bool {{1}}> ()  y = Loop (count, go, x) "
        text += LOOP.format(n=size) + " }"
    else:
        text = f"(float[2,{size}] x) => (float[2,{size}] y) {{ y = Relu(x) }}"
    return onnx.parser.parse_model(f"{HEAD} n{number} {text}")


def _run(file: Path, store: Path, *more: str) -> float:
    """Wall seconds of ``optvet campaign run``, with a cache of its own."""
    words = ["campaign", "run", str(file), "--store", str(store), "-q"]
    words += ["--cache-dir", f"{store}-cache", *more]
    started = time.monotonic()
    code = subprocess.run(
        [sys.executable, "-m", "optvet_start", *words], stdout=subprocess.DEVNULL, check=False
    ).returncode
    if code not in (0, 1, 4):
        sys.exit(f"the campaign failed with exit code {code}")
    return time.monotonic() - started


def _lose_one(cluster: Any, store: Path, after: int, killed: list[int]) -> None:
    """Kill a node that is at work when ``after`` jobs are answered; notes how many were."""
    while (done := _answered(store)) < after:
        time.sleep(0.1)
    seen: Counter[int] = Counter()
    while True:
        time.sleep(0.1)
        for number, node in enumerate(cluster.worker_nodes):
            (raylet,) = node.all_processes["raylet"]
            busy = any(b"ray::_call" in command for command in _below(raylet.process.pid))
            seen[number] = busy * (seen[number] + 1)
            if seen[number] == LONG:
                cluster.remove_node(node, False)
                killed.append(done)
                return


def _below(pid: int) -> list[bytes]:
    """Command lines of the children of a process; Ray writes into them what a worker does."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):  # it has ended
            found.append(Path(f"/proc/{child}/cmdline").read_bytes())
    return found


def _answered(store: Path) -> int:
    if not os.path.exists(store):
        return 0
    with contextlib.suppress(InputError), open_store(store) as opened:  # it is being made
        return sum(bool(t.verdict) for t in trials(opened, find_campaign(opened)))
    return 0


def _answers(store: Path) -> dict[str, list[object]]:
    """Verdict, and what is said of each finding, by model."""
    with open_store(store) as opened:
        campaign = find_campaign(opened)
        jobs = {t.key: t for t in trials(opened, campaign) if t.verdict}
        found: dict[str, list[object]] = {key: [t.verdict] for key, t in jobs.items()}
        for row in findings(opened, campaign):
            about = row.finding
            found[row.trial] += [about.symptom, about.culprit, about.fingerprint]
    return {jobs[key].model: answer for key, answer in found.items()}
