"""Campaigns whose processes are killed, whose jobs kill theirs, and that share a store."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from tests.assault.harness import LONG
from tests.commands import HEAD, Run, Spawn
from tests.engine.campaign import deadly

from optvet.engine.campaign import JobResult, find_campaign, open_store, states, trials
from optvet.engine.campaign.store import DATABASE

ROOT = Path(__file__).parents[3]

KILLS = 40 if LONG else 3
JOBS = 14 if LONG else 10


def write_models(folder: Path, names: list[str]) -> None:
    folder.mkdir()
    for number, name in enumerate(names):
        text = (
            f"{HEAD}{name} (float[2,{number + 2}] x) => (float[2,{number + 2}] y) {{ y = Relu(x) }}"
        )
        onnx.save(onnx.parser.parse_model(text), folder / f"{number:02}-{name}.onnx")


def told(trial: JobResult) -> dict[str, Any]:
    """An answer without what it cost, which depends on what was computed before."""
    assert trial.document is not None
    answer: dict[str, Any] = json.loads(trial.document)
    answer.pop("cost", None)
    return answer


def answers(store: Path) -> dict[str, dict[str, Any]]:
    with open_store(store) as opened:
        return {t.key: told(t) for t in trials(opened, find_campaign(opened))}


def answered(store: Path) -> int:
    """How many jobs are done, looked up beside whoever writes."""
    if not (store / DATABASE).is_file():
        return 0
    try:
        with closing(sqlite3.connect(store / DATABASE)) as database:
            query = "SELECT count(*) FROM jobs WHERE state = 'done'"
            return int(database.execute(query).fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def ends(store: Path) -> dict[str, list[str | None]]:
    """How the attempts at each job ended, by job."""
    found: dict[str, list[str | None]] = {}
    with open_store(store) as opened:
        query = "SELECT job, end FROM attempts ORDER BY job, number"
        for job, end in opened.database.execute(query):
            found.setdefault(job, []).append(end)
    return found


@pytest.fixture
def campaign(place: Path) -> Path:
    write_models(place / "models", [f"m{n}" for n in range(JOBS)])
    file = place / "c.toml"
    file.write_text('models = ["models/"]\n[vet]\nlimit = 1\n')
    return file


@pytest.mark.release
def test_a_campaign_killed_many_times_ends_as_one_that_was_left_alone(
    campaign: Path, place: Path, spawn: Spawn, run: Run
) -> None:
    """SIGKILL at random moments, each after some progress or some time."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    killed = 0
    first = ["campaign", "run", campaign, "--store", "killed", "--jobs", 2]
    while killed < KILLS:
        again = ["campaign", "resume", "killed", "--jobs", 2]
        started = answered(place / "killed")
        process = spawn(
            *(again if started else first), environment={"OPTVET_CACHE": str(place / "cache-1")}
        )
        wanted, until = started + chance.randint(0, 1), time.monotonic() + chance.uniform(0.2, 2)
        while process.poll() is None and time.monotonic() < until + 30:
            done = answered(place / "killed")
            # However fast the machine is, jobs are left for the next.
            if done >= wanted and (time.monotonic() > until or done >= started + 2):
                break
            time.sleep(0.02)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed += 1
    assert killed >= 3
    # Every kill may have come before there was a store.
    again = ["campaign", "resume", "killed", "--jobs", 2]
    last = spawn(
        *(again if (place / "killed").exists() else first),
        environment={"OPTVET_CACHE": str(place / "cache-1")},
    )
    out, err = last.communicate(timeout=300)
    assert last.returncode == 0, out + err
    whole = spawn(
        "campaign",
        "run",
        campaign,
        "--store",
        "whole",
        environment={"OPTVET_CACHE": str(place / "cache-1")},
    )
    whole.communicate(timeout=300)
    assert answers(place / "killed") == answers(place / "whole")
    for attempts in ends(place / "killed").values():
        assert attempts.count("done") == 1
        assert set(attempts) <= {"done", "lost"}
    with open_store(place / "killed") as store:
        assert store.database.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert states(store, find_campaign(store))["done"] == JOBS


@pytest.mark.long
def test_workers_end_with_the_process_that_started_them(
    campaign: Path, place: Path, spawn: Spawn
) -> None:
    process = spawn("campaign", "run", campaign, "--store", "s", "--jobs", 2)
    wait_for(lambda: answered(place / "s") >= 1)
    workers = children(process.pid)
    assert workers
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(lambda: not any(Path(f"/proc/{pid}/stat").exists() for pid in workers))


@pytest.mark.long
def test_two_processes_on_one_store_share_the_jobs(
    campaign: Path, place: Path, spawn: Spawn
) -> None:
    command = ["campaign", "run", campaign, "--store", "shared", "--jobs", 1]
    both = [spawn(*command), spawn(*command)]
    for process in both:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert f"{JOBS} jobs: {JOBS} clean" in out
    assert set(map(tuple, ends(place / "shared").values())) == {("done",)}
    with open_store(place / "shared") as store:
        owners = store.database.execute("SELECT count(DISTINCT owner) FROM attempts").fetchone()
        assert owners[0] == 2
        assert store.database.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


@pytest.mark.long
def test_ctrl_c_ends_a_campaign_in_order(campaign: Path, place: Path, spawn: Spawn) -> None:
    process = spawn("campaign", "run", campaign, "--store", "s", "--jobs", 2)
    wait_for(lambda: answered(place / "s") >= 2)
    workers = children(process.pid)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"of {JOBS} jobs are answered and kept; continue with: optvet campaign resume s" in err
    assert "Traceback" not in err
    wait_for(lambda: not any(Path(f"/proc/{pid}/stat").exists() for pid in workers))
    found = [end for attempts in ends(place / "s").values() for end in attempts]
    assert set(found) <= {"done", "released"}
    with open_store(place / "s") as store:
        assert states(store, find_campaign(store))["running"] == 0
        assert store.database.execute("SELECT count(*) FROM owners").fetchone()[0] == 0


@pytest.mark.long
def test_of_many_jobs_that_abort_hang_and_eat_memory_none_is_lost(
    place: Path, spawn: Spawn
) -> None:
    aborts, others, sound = (3, 5, 47) if LONG else (2, 2, 6)
    names = [f"abort_{n}" for n in range(aborts)]
    names += [f"{kind}_{n}" for kind in ("hang", "eat") for n in range(others)]
    names += [f"sound_{n}" for n in range(sound)]
    random.Random(0).shuffle(names)
    write_models(place / "models", names)
    deadly.install(place / "plugins")
    (place / "c.toml").write_text(
        'models = ["models/"]\noptimizers = ["deadly"]\n'
        '[vet]\nlimit = 1\ntimeout = 4\nmemory = "512M"\n'
    )
    # The plugin's module is one of these tests.
    path = f"{place / 'plugins'}:{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    process = spawn("campaign", "run", "c.toml", "--jobs", 2, environment={"PYTHONPATH": path})
    _, err = process.communicate(timeout=580)
    assert process.returncode == 1, err
    assert Counter(map(tuple, ends(place / "c.store").values())) == {("done",): len(names)}
    with open_store(place / "c.store") as store:
        found: Counter[tuple[str, str, str]] = Counter()
        for trial in trials(store, find_campaign(store)):
            assert trial.result is not None
            name = Path(trial.model).stem.split("-")[1].split("_")[0]
            faults = [f for f in trial.result.findings if f.severity == "fault"]
            fault = faults[0] if faults else None
            assert len(faults) <= 1
            about = (str(fault.symptom), fault.stage) if fault else ("clean", "")
            found[(name, *about)] += 1
            if fault:
                assert fault.culprit == ["strike"]
    assert found == {
        ("sound", "clean", ""): sound,
        ("abort", "optimizer-abort", "build"): aborts,
        ("hang", "timeout", "build"): others,
        ("eat", "out-of-memory", "build"): others,
    }


def children(pid: int) -> list[int]:
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for task in Path(f"/proc/{pid}/task").iterdir():
        words += (task / "children").read_text().split()
    return sorted(set(map(int, words)))


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "what was waited for did not happen"
        time.sleep(0.05)
