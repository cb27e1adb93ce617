"""Makes a new store of what can be read of a damaged one.

Rows are read one by one from a private copy, from both ends of each table, so that a damaged page
costs no more than the rows on it. Nothing is taken over unseen: requests and answers are parsed,
files are compared with their digests, and findings and numbers are computed from the answers anew.
A campaign is kept if its jobs are those that it was planned with; the answers of others stay, and
are used when their file is run with the new store.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optvet.engine.campaign.artifacts import FindingFile, NewArtifact, content_of, keep, place_of
from optvet.engine.campaign.damage import (
    DATABASE,
    DATABASE_ERRORS,
    check_tables,
    of_folder,
)
from optvet.engine.campaign.leases import Owner, join, leave, this_process
from optvet.engine.campaign.results import campaign_from, trial_from
from optvet.engine.campaign.schema import MIGRATIONS
from optvet.engine.campaign.store import CampaignStore, open_store
from optvet.engine.campaign.store_answers import record
from optvet.engine.database import MOST_VALUE_BYTES
from optvet.engine.work.cache.cache_key import key
from optvet.spec.errors import OptvetError, UsageError
from optvet.spec.foreign import open_file
from optvet.spec.scratch import made_beside

_QUERY_S = 60.0
_STEPS = 100_000
Row = Mapping[str, Any]


@dataclass
class Rescued:
    """What became of a damaged store.

    Attributes:
        path: The new store.
        jobs: Jobs that were taken over; ``answers`` of them have their answer.
        campaigns: Campaigns that were taken over.
        files: Files of findings that were taken over.
        lost: What was lost, in sentences.
    """

    path: Path
    jobs: int = 0
    answers: int = 0
    campaigns: int = 0
    files: int = 0
    lost: list[str] = field(default_factory=list)


def rescue_store(path: Path, out: Path) -> Rescued:
    """Write what can be read of the store ``path`` to a new store ``out``; ``path`` is not changed.

    Raises:
        UsageError: There is no store, nothing of it can be read, or ``out`` is there.
        InfrastructureError: The new store cannot be written.
    """
    if os.path.lexists(out):
        raise UsageError(f"{out} exists already; choose another folder with --out")
    if not (path / DATABASE).exists():
        raise UsageError(f"{path} is no store; give the folder that has a {DATABASE}")
    found = Rescued(out)
    try:
        with made_beside(out.absolute().with_name("optvet")) as folder:
            target = folder / "new"
            with closing(_copy(path, folder)) as database:
                source = _DamagedDatabase(database)
                with open_store(target, create=True) as store:
                    _take_over(source, path, store, found)
                    check_tables(target, store.database, len(MIGRATIONS))
            if not found.jobs:
                raise UsageError(
                    f"nothing can be read of {path}; start a new store: optvet campaign run FILE "
                    "--store DIR"
                )
            target.rename(out)
    except OSError as error:
        raise of_folder(out, error) from error
    return found


def _copy(path: Path, folder: Path) -> sqlite3.Connection:
    """A copy of the database with its log, so that nothing is replayed or written in the store."""
    for name in (DATABASE, f"{DATABASE}-wal"):
        file = path / name
        if not file.exists() or (name != DATABASE and not stat.S_ISREG(file.lstat().st_mode)):
            continue
        with open_file(file) as original, (folder / name).open("wb") as copy:
            shutil.copyfileobj(original, copy)
    return sqlite3.connect(folder / DATABASE, isolation_level=None)


class _DamagedDatabase:
    """The tables of a damaged database, as far as they can be read."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._deadline = 0.0
        database.row_factory = sqlite3.Row
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_VALUE_BYTES)
        # What calls itself a table may be a question without an end.
        database.set_progress_handler(lambda: time.monotonic() > self._deadline, _STEPS)

    def rows(self, table: str, order: str) -> list[Row]:
        """Rows by their key: from the first on, and from the last back, each up to the damage."""
        found: dict[Any, Row] = {}
        for way in ("ASC", "DESC"):
            by = ", ".join(f"{column} {way}" for column in order.split(", "))
            for row in self._until_damage(f"SELECT {order}, * FROM {table} ORDER BY {by}"):
                found.setdefault(tuple(row[c] for c in order.split(", ")), row)
        return list(found.values())

    def jobs(self) -> list[Row]:
        """Rows of jobs; their keys are read from the index too, and then row by row."""
        found = {row["key"]: row for row in self.rows("jobs", "rowid")}
        for way in ("ASC", "DESC"):
            query = f"SELECT key FROM jobs ORDER BY key {way}"
            for name in [row["key"] for row in self._until_damage(query)]:
                if name not in found:
                    for row in self._until_damage("SELECT * FROM jobs WHERE key = ?", name):
                        found[name] = row
        return list(found.values())

    def _until_damage(self, query: str, *parameters: Any) -> Iterator[Row]:
        self._deadline = time.monotonic() + _QUERY_S
        with suppress(*DATABASE_ERRORS):
            for row in self._database.execute(query, parameters):
                yield dict(row)


# --- taking over ---------------------------------------------------------------------------------


def _take_over(source: _DamagedDatabase, path: Path, store: CampaignStore, found: Rescued) -> None:
    files: dict[str, list[Row]] = {}
    for row in source.rows("finding_artifacts", "job, number, name"):
        if _check_types(store, "finding_artifacts", row) is not None:
            files.setdefault(row["job"], []).append(row)
    owner = this_process()
    join(store, owner)
    broken = unanswered = gone = 0
    for row in source.jobs():
        typed_row = _check_types(store, "jobs", {"kind": "vet", "attempts": 1, **row})
        if typed_row is None or not _add_job(store, typed_row):
            broken += 1
            continue
        found.jobs += 1
        if typed_row["document"] is None:
            continue
        mine = files.get(typed_row["key"], ())
        kept = list(_copy_files(path, store, mine))
        if _add_answer(store, owner, typed_row, kept):
            found.answers += 1
            found.files += len(kept)
            gone += len(mine) - len(kept)
        else:
            unanswered += 1
    leave(store, owner)
    for number, words in (
        (broken, "jobs cannot be read"),
        (unanswered, "jobs have lost their answer, and wait to be run again"),
        (gone, "files of findings are gone or changed"),
    ):
        if number:
            found.lost.append(f"{number} {words}")
    _add_campaigns(source, store, found)


def _check_types(store: CampaignStore, table: str, row: Row) -> Row | None:
    """A row with all columns of a table; None if values are not of their types.

    A column of optional values that is not there, since its name is damaged, has none.
    """
    typed = dict(row)
    kinds: Mapping[str, Any] = {"TEXT": str, "INTEGER": int, "REAL": int | float, "BLOB": bytes}
    for column in store.database.execute(f"PRAGMA table_info({table})"):
        value = typed.setdefault(column["name"], None)
        needed = column["notnull"] or column["pk"]
        if not isinstance(value, kinds[column["type"]]) and (needed or value is not None):
            return None
    return typed


_JOB = (
    *("key", "cell", "request", "versions", "model", "model_digest", "optimizer", "pipeline"),
    *("dataset", "runtime", "comparator", "bundles", "kind"),
)


def _add_job(store: CampaignStore, row: Row) -> bool:
    """Add a job as one that waits; False if its request cannot be read."""
    with suppress(OptvetError):
        queued = {"state": "queued", "document": None, "verdict": None}
        assert trial_from({**row, **queued}, store.path).request
        places = ", ".join("?" * len(_JOB))
        insert = f"INSERT INTO jobs ({', '.join(_JOB)}) VALUES ({places})"
        with store.transaction() as database:
            database.execute(insert, [row[name] for name in _JOB])
        return True
    return False


def _copy_files(path: Path, store: CampaignStore, rows: Sequence[Row]) -> Iterator[NewArtifact]:
    """Files of a job that are as they were, copied to the new store."""
    for row in rows:
        with suppress(OptvetError):
            digest = row["digest"]
            place = place_of(path / "artifacts", digest)
            content = content_of(FindingFile(row["name"], digest, 0, place))
            keep(store.path / "artifacts", content)
            yield NewArtifact(row["number"], row["name"], digest, len(content))


def _add_answer(store: CampaignStore, owner: Owner, row: Row, files: Sequence[NewArtifact]) -> bool:
    """Add the answer of a job that waits; False if it cannot be read."""
    with suppress(OptvetError):
        answer = trial_from(row, store.path).answer
        if answer is None:
            return False
        wall_s, finished = float(row["wall_s"] or 0.0), float(row["finished"] or 0.0)
        if not (0 <= wall_s < 1e9 and 0 <= finished < 1e11):
            return False
        with store.transaction() as database:
            claim = "UPDATE jobs SET state = 'running', owner = ? WHERE key = ?"
            database.execute(claim, (owner.id, row["key"]))
            begin = "INSERT INTO attempts (job, number, owner, started) VALUES (?, 1, ?, ?)"
            database.execute(begin, (row["key"], owner.id, max(0.0, finished - wall_s)))
        return record(store, owner, row["key"], answer, wall_s, files, lambda: finished)
    return False


def _add_campaigns(source: _DamagedDatabase, store: CampaignStore, found: Rescued) -> None:
    jobs: dict[int, list[tuple[int, str]]] = {}
    for listed in source.rows("campaign_jobs", "campaign, position"):
        if _check_types(store, "campaign_jobs", listed) is not None:
            jobs.setdefault(listed["campaign"], []).append((listed["position"], listed["job"]))
    known = {row[0] for row in store.database.execute("SELECT key FROM jobs")}
    incomplete: list[str] = []
    for damaged in source.rows("campaigns", "id"):
        if (row := _check_types(store, "campaigns", damaged)) is None:
            continue
        keys = [job for _, job in sorted(jobs.get(row["id"], ()))]
        whole = row["plan"] == key(row["name"], keys) and known.issuperset(keys)
        if not whole or not _add_campaign(store, row, keys):
            incomplete.append(repr(row["name"][:60]))
            continue
        found.campaigns += 1
    if incomplete or not found.campaigns:
        names = f": {', '.join(incomplete)}" if incomplete else ""
        found.lost.append(
            f"{len(incomplete) or 'all'} campaigns do not have all their jobs any more{names}; run "
            f"their files again with --store {found.path}, which runs only the missing ones"
        )


def _add_campaign(store: CampaignStore, row: Row, keys: Sequence[str]) -> bool:
    with suppress(OptvetError):
        finished = row["finished"]
        for time_s in (row["created"], finished or 0.0):
            if not 0 <= time_s < 1e11:
                return False
        campaign_from(row, store.path)
        with store.transaction() as database:
            waits = "SELECT count(*) FROM jobs WHERE state = 'queued' AND key = ?"
            if any(database.execute(waits, (each,)).fetchone()[0] for each in keys):
                finished = None
            database.execute(
                "INSERT INTO campaigns (id, name, plan, source, settings, created, finished) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    *(row[n] for n in ("id", "name", "plan", "source", "settings", "created")),
                    finished,
                ),
            )
            rows = [(row["id"], number, each) for number, each in enumerate(keys)]
            database.executemany("INSERT INTO campaign_jobs VALUES (?, ?, ?)", rows)
        return True
    return False
