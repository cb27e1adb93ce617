"""What a campaign of thousands of tiny jobs costs beside its jobs, per 1,000, and in memory.

Called by ``campaign.py --parts many``. The models are made, the campaign is planned as the command
plans it, one job is vetted, and its answer is stored for every job, by claim and record as a worker
does. So the store is that of a campaign that ran, and took none of its time. Then each command that
reads the store runs in a process of its own: ``run`` and ``resume``, which find every answer there,
``status``, ``show``, ``export`` and ``report``. What grows with more than the number of jobs costs
more per 1,000 in the larger campaign.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import onnx.parser

from optvet import VetRequest, VetResult
from optvet.engine.campaign import Digests, add_campaign, open_store, plan_campaign, read_campaign
from optvet.engine.campaign.leases import claim, join, leave, this_process
from optvet.engine.campaign.store_answers import record
from optvet.engine.discovery import Plugins
from optvet.engine.vetting import vet_request

Row = dict[str, tuple[float, float]]
"""CPU seconds and MiB of the largest resident set, by what was done."""


def many(place: Path, amounts: Sequence[int]) -> None:
    """Print CPU seconds per 1,000 jobs, and memory, for campaigns of these sizes."""
    rows: dict[int, Row] = {}
    for amount in amounts:
        rows[amount] = _measure(place / str(amount), amount)
        print(f"{amount:,} jobs: seconds of CPU per 1,000 jobs, and MiB", flush=True)
        for what, (cpu_s, peak) in rows[amount].items():
            print(f"  {what:<22} {1000 * cpu_s / amount:8.2f} s  {peak:7.0f} MiB", flush=True)
    first, last = min(amounts), max(amounts)
    if first < last:
        print(f"from {first:,} to {last:,} jobs: times as much CPU per job, and memory")
        for what, (cpu_s, peak) in rows[last].items():
            before_s, before = rows[first][what]
            each = cpu_s / last / (before_s / first or 1e-9)
            print(f"  {what:<22} {each:8.2f}  {peak / before:8.2f}")


def _measure(place: Path, amount: int) -> Row:
    models, store, cache = place / "models", place / "store", place / "cache"
    models.mkdir(parents=True)
    for number in range(amount):
        text = f'<ir_version: 8, opset_import: ["": 17]> n{number} (float[2] x) => '
        model = onnx.parser.parse_model(f"{text}(float[2] y) {{ y = Relu(x) }}")
        onnx.save(model, models / f"{number:06}.onnx")
    file = place / "c.toml"
    file.write_text('models = ["models/"]\noptimizers = ["onnxoptimizer"]\n[vet]\nlimit = 1\n')
    found: Row = {}
    _fill(file, store, cache, found)
    commands: dict[str, list[str | Path]] = {
        "run again": ["campaign", "run", file, "--store", store, "--cache-dir", cache, "-q"],
        "resume": ["campaign", "resume", store, "--cache-dir", cache, "-q"],
        "status": ["campaign", "status", store],
        "show": ["campaign", "show", store],
        "export": ["campaign", "export", store, "--out", place / "export.json"],
        "report, markdown": ["report", store, "--out", place / "report.md"],
        "report, HTML": ["report", store, "--out", place / "report.html"],
    }
    for name, words in commands.items():
        found[name] = _run(words)
    return found


def _fill(file: Path, store: Path, cache: Path, found: Row) -> None:
    """Plan the campaign and answer all of its jobs."""
    plugins = Plugins()
    started = time.process_time()
    with open_store(store, create=True) as opened:
        plan = plan_campaign(
            read_campaign(file, plugins), plugins, Digests(opened.database), cache_dir=cache
        )
        campaign = add_campaign(opened, plan)
        found["plan"] = time.process_time() - started, _peak()
        request = plan.jobs[0].request
        assert isinstance(request, VetRequest)
        answer: VetResult = vet_request(request, plugins)
        owner = this_process()
        join(opened, owner)
        started, near = time.process_time(), ""
        while (job := claim(opened, campaign.id, owner, near=near)) is not None:
            record(opened, owner, job, answer, 0.1)
            near = "onnxoptimizer"
        found["claim and record"] = time.process_time() - started, _peak()
        leave(opened, owner)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _run(words: Sequence[str | Path]) -> tuple[float, float]:
    """What a command takes; its output goes nowhere."""
    process = subprocess.Popen(
        [sys.executable, "-m", "optvet_start", *map(str, words)], stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1, 4):
        sys.exit(f"optvet {' '.join(map(str, words[:2]))} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
