"""Claims on jobs: which process runs which job, and the release of claims of dead processes.

A claim names its *owner*: a process, by machine, boot, process namespace, process id and start time
(process ids are reused). An owner on the same machine and in the same namespace is dead if there is
no such process. Another owner is dead if it has sent no heartbeat for ``SILENCE_S``.

An answer is accepted only from the owner of the claim. So a process that was taken for dead, such
as on a machine that slept, cannot answer a job that another process has claimed since.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from optvet.engine.campaign.sharing import shared_optimizers
from optvet.engine.campaign.store import CampaignStore

SILENCE_S = 120.0
BEAT_S = 5.0

End = Literal["done", "failed", "lost", "released"]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Owner:
    """A process that runs jobs."""

    host: str
    boot: str
    namespace: str
    pid: int
    started: int

    @property
    def id(self) -> str:
        """Its name in the store."""
        return f"{self.host}/{self.boot[:8]}/{self.namespace}/{self.pid}/{self.started}"

    @property
    def is_gone(self) -> bool | None:
        """Whether the process has ended; None if it is on another machine or namespace."""
        here = this_process()
        if (self.host, self.boot, self.namespace) != (here.host, here.boot, here.namespace):
            return None
        return _start_time(self.pid) != self.started


def this_process() -> Owner:
    """This process as an owner."""
    pid = os.getpid()
    return Owner(socket.gethostname(), _boot(), _namespace(), pid, _start_time(pid) or 0)


def _boot() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return "unknown"


def _namespace() -> str:
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return "unknown"


def _start_time(pid: int) -> int | None:
    """Start time of a process, in clock ticks since boot; None if there is no such process."""
    try:
        about = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name of the process is in parentheses, and may have any characters.
    fields = about.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def join(store: CampaignStore, owner: Owner, clock: Clock = time.time) -> None:
    """Register ``owner``, so that it can claim jobs."""
    row = (owner.id, owner.host, owner.boot, owner.namespace, owner.pid, owner.started, clock())
    with store.transaction() as database:
        database.execute("INSERT OR REPLACE INTO owners VALUES (?, ?, ?, ?, ?, ?, ?)", row)


def beat(store: CampaignStore, owner: Owner, clock: Clock = time.time) -> None:
    """Store a heartbeat of ``owner``."""
    with store.transaction() as database:
        database.execute("UPDATE owners SET beat = ? WHERE id = ?", (clock(), owner.id))


_IN_USE = "(SELECT {} FROM jobs WHERE state = 'running')"
_OTHER_MODEL = f"model_digest NOT IN {_IN_USE.format('model_digest')}"
_OTHER_OPTIMIZER = f"optimizer NOT IN {_IN_USE.format('optimizer')}"
_CHOICES = (
    f"optimizer = :near AND {_OTHER_MODEL}",
    "optimizer = :near",
    f"{_OTHER_OPTIMIZER} AND {_OTHER_MODEL}",
    _OTHER_OPTIMIZER,
)
"""Which jobs are claimed first.

A worker that stays with one optimizer imports its libraries once, and two workers with different
ones import none twice. Results of the original are cached, so no two workers take one model at the
same time, where there is another. Of one choice, the model is first that took longest under
another optimizer: a long job that starts last is waited for by all other workers. Of equal ones
it is the one that was added first.
"""
_SHARED = (f"optimizer = :near AND {_OTHER_MODEL}", "optimizer = :near")


def claim(
    store: CampaignStore, campaign: int, owner: Owner, *, near: str = "", clock: Clock = time.time
) -> str | None:
    """Claim a queued job for ``owner``; its key, or None if none is queued or it should wait.

    It should wait if other workers will be done with the rest before it has imported a library.

    Args:
        store: The store.
        campaign: The campaign of the job.
        owner: Who claims it.
        near: The optimizer whose libraries the worker has loaded that will run the job.
        clock: Tells the time.
    """
    with store.transaction() as database:
        row = _first(database, campaign, near, _CHOICES)
        if row is None:
            shared = shared_optimizers(database, campaign, clock())
            rows = (_first(database, campaign, optimizer, _SHARED) for optimizer in shared)
            row = next(rows, None)
        if row is None:
            return None
        job = str(row["job"])
        database.execute(
            "UPDATE jobs SET state = 'running', owner = ? WHERE key = ?", (owner.id, job)
        )
        database.execute(
            "INSERT INTO attempts (job, number, owner, started) "
            "SELECT ?, count(*) + 1, ?, ? FROM attempts WHERE job = ?",
            (job, owner.id, clock(), job),
        )
    return job


def _first(
    database: sqlite3.Connection, campaign: int, near: str, choices: Iterable[str]
) -> sqlite3.Row | None:
    """The first queued job of the first of ``choices`` that has one."""
    # CROSS JOIN keeps this order of the tables: the first job in turn is the first of an index,
    # and nothing is sorted, so that a claim takes as long among 10,000 jobs as among ten.
    query = (
        "SELECT job FROM jobs CROSS JOIN campaign_jobs ON job = key "
        "WHERE state = 'queued' AND campaign = :campaign AND {} "
        "ORDER BY expected_s DESC, jobs.rowid LIMIT 1"
    )
    about = {"campaign": campaign, "near": near}
    found = (database.execute(query.format(choice), about).fetchone() for choice in choices)
    return next((row for row in found if row is not None), None)


def owns(database: sqlite3.Connection, job: str, owner: Owner) -> bool:
    """Whether ``owner`` still has its claim on ``job``; to be called in a transaction."""
    query = "SELECT 1 FROM jobs WHERE key = ? AND owner = ? AND state = 'running'"
    return database.execute(query, (job, owner.id)).fetchone() is not None


def end_attempt(database: sqlite3.Connection, job: str, end: End, now: float) -> None:
    """Record how the last attempt at ``job`` ended; to be called in a transaction."""
    database.execute(
        "UPDATE attempts SET ended = ?, end = ? WHERE job = ? AND end IS NULL", (now, end, job)
    )


def release(
    store: CampaignStore,
    owner: Owner,
    jobs: Iterable[str],
    end: End = "released",
    clock: Clock = time.time,
) -> None:
    """Queue ``jobs`` again, which ``owner`` has claimed and will not finish."""
    with store.transaction() as database:
        for job in jobs:
            if owns(database, job, owner):
                _queue(database, job, end, clock())


def take_back(store: CampaignStore, clock: Clock = time.time) -> int:
    """Queue the jobs of dead owners again; returns their number."""
    with store.transaction() as database:
        query = "SELECT *, started AS owner_started FROM owners"
        owners = {row["id"]: row for row in database.execute(query)}
        claims = database.execute("SELECT key, owner FROM jobs WHERE state = 'running'").fetchall()
        dead = {id for id, row in owners.items() if _is_dead(row, clock())}
        lost = [row["key"] for row in claims if row["owner"] in dead or row["owner"] not in owners]
        for job in lost:
            _queue(database, job, "lost", clock())
        database.executemany("DELETE FROM owners WHERE id = ?", [(id,) for id in dead])
    return len(lost)


def running_jobs(store: CampaignStore, clock: Clock = time.time) -> list[tuple[sqlite3.Row, bool]]:
    """Claimed jobs, each with True if its owner lives."""
    query = (
        "SELECT j.model, j.optimizer, j.pipeline, j.owner, a.started, o.host, o.boot, "
        "o.namespace, o.pid, o.started AS owner_started, o.beat FROM jobs j "
        "JOIN attempts a ON a.job = j.key AND a.end IS NULL "
        "LEFT JOIN owners o ON o.id = j.owner WHERE j.state = 'running' ORDER BY a.started"
    )
    return [(row, not _is_dead(row, clock())) for row in store.database.execute(query)]


def leave(store: CampaignStore, owner: Owner, clock: Clock = time.time) -> None:
    """Remove ``owner``; jobs that it has claimed and not finished are queued again."""
    with store.transaction() as database:
        query = "SELECT key FROM jobs WHERE state = 'running' AND owner = ?"
        for (job,) in database.execute(query, (owner.id,)).fetchall():
            _queue(database, job, "released", clock())
        database.execute("DELETE FROM owners WHERE id = ?", (owner.id,))


def _queue(database: sqlite3.Connection, job: str, end: End, now: float) -> None:
    end_attempt(database, job, end, now)
    database.execute("UPDATE jobs SET state = 'queued', owner = NULL WHERE key = ?", (job,))


def _is_dead(row: sqlite3.Row, now: float) -> bool:
    if row["host"] is None:
        return True
    owner = Owner(row["host"], row["boot"], row["namespace"], row["pid"], row["owner_started"])
    gone = owner.is_gone
    return now - row["beat"] > SILENCE_S if gone is None else gone
