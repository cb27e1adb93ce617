"""Files of findings, each stored once under its SHA-256.

A file is complete before a row refers to it, and an old file without a row is removed. So a process
that is killed in between may leave a file too many, but none is missing. If a file is removed to
make room just before another answer refers to it, this is noticed, and that job is run again.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from optvet.engine.campaign.damage import ARTIFACTS, damage_error
from optvet.engine.campaign.leases import Clock
from optvet.engine.campaign.store import CampaignStore
from optvet.spec.errors import InputError
from optvet.spec.executor import WorkerLost
from optvet.spec.files import write_file
from optvet.spec.foreign import files_in, read_file

FOLDER = ARTIFACTS
_ORPHAN_S = 3600.0
"""Files without a row are removed after this time; a job stores its answer much sooner."""


@dataclass(frozen=True)
class NewArtifact:
    """A file of finding ``number``; ``content`` is None if it is in the store already."""

    number: int
    name: str
    digest: str
    size: int
    content: bytes | None = None


@dataclass(frozen=True)
class FindingFile:
    """A file of a finding; ``path`` is its place in the store."""

    name: str
    digest: str
    size: int
    path: Path


def folder_of(store: CampaignStore) -> Path:
    """The folder of a store's files."""
    return store.path / FOLDER


def keep(folder: Path, content: bytes) -> str:
    """Write ``content`` to ``folder``; returns its digest."""
    digest = hashlib.sha256(content).hexdigest()
    path = place_of(folder, digest)
    try:
        # A new time of change keeps a file that is used again from being swept.
        os.utime(path)
    except FileNotFoundError:
        write_file(path, content, private=True, advice="make room, then continue")
    return digest


def add_artifacts(
    store: CampaignStore, job: str, files: Iterable[NewArtifact], clock: Clock = time.time
) -> None:
    """Add rows for the files of a job; to be called in the transaction of its answer.

    Raises:
        WorkerLost: A file is missing.
    """
    now = clock()
    for file in files:
        if not place_of(folder_of(store), file.digest).is_file():
            raise WorkerLost("a file of this answer was removed to make room")
        store.database.execute(
            "INSERT OR IGNORE INTO artifacts VALUES (?, ?, ?)", (file.digest, file.size, now)
        )
        store.database.execute(
            "INSERT OR REPLACE INTO finding_artifacts VALUES (?, ?, ?, ?)",
            (job, file.number, file.name, file.digest),
        )


def artifacts(store: CampaignStore, trial: str, number: int) -> list[FindingFile]:
    """The files of one finding, by name; empty if no bundle was requested, or it was removed.

    Args:
        store: The store.
        trial: Key of the finding's trial.
        number: Index of the finding in the answer.
    """
    query = (
        "SELECT name, f.digest, size FROM finding_artifacts f JOIN artifacts a "
        "ON a.digest = f.digest WHERE job = ? AND number = ? ORDER BY name"
    )
    folder = folder_of(store)
    return [
        FindingFile(row["name"], row["digest"], row["size"], place_of(folder, row["digest"]))
        for row in store.database.execute(query, (trial, number))
    ]


def content_of(file: FindingFile) -> bytes:
    """The content of a file of a finding.

    Raises:
        InputError: It is gone, or does not have its digest any more.
    """
    try:
        content = read_file(file.path)
    except OSError as error:
        raise InputError(f"{file.path}: {error.strerror}; the store is damaged") from error
    if hashlib.sha256(content).hexdigest() != file.digest:
        raise InputError(f"{file.path} was changed; the store is damaged")
    return content


def write_bundle(files: Iterable[FindingFile], out: Path) -> None:
    """Write a bundle as a folder, as ``optvet replay`` takes it.

    Raises:
        InputError: A file is gone, or does not have its digest any more.
    """
    for file in files:
        content = content_of(file)
        target = out / file.name
        if "\0" in file.name or not target.resolve().is_relative_to(out.resolve()):
            raise InputError(f"a file of a finding is called {file.name!r}; the store is damaged")
        write_file(target, content, advice="choose another folder")


def collect_garbage(store: CampaignStore, max_bytes: int, clock: Clock = time.time) -> int:
    """Remove bundles, the oldest first, until files take at most ``max_bytes``.

    Files without a finding are removed in any case. Returns the number of removed bytes.
    """
    # In the transaction, so that no row can refer to a file while it is removed.
    with store.transaction() as database:
        total = database.execute("SELECT total(size) FROM artifacts").fetchone()[0]
        removed = _drop_files_without_finding(store)
        oldest = database.execute(
            "SELECT job, number, min(created) AS born FROM finding_artifacts f "
            "JOIN artifacts a ON a.digest = f.digest GROUP BY job, number ORDER BY born, job"
        ).fetchall()
        for row in oldest:
            if total - removed <= max_bytes:
                break
            about = (row["job"], row["number"])
            database.execute("DELETE FROM finding_artifacts WHERE job = ? AND number = ?", about)
            removed += _drop_files_without_finding(store)
        return removed + _sweep(store, clock())


def _drop_files_without_finding(store: CampaignStore) -> int:
    """Remove files without a finding; returns the number of removed bytes."""
    query = "FROM artifacts WHERE digest NOT IN (SELECT digest FROM finding_artifacts)"
    rows = store.database.execute(f"SELECT digest, size {query}").fetchall()
    store.database.execute(f"DELETE {query}")
    for row in rows:
        place_of(folder_of(store), row["digest"]).unlink(missing_ok=True)
    return sum(row["size"] for row in rows)


def _sweep(store: CampaignStore, now: float) -> int:
    """Remove old files without a row, left by killed jobs; returns the number of removed bytes."""
    named = {row[0] for row in store.database.execute("SELECT digest FROM artifacts")}
    removed = 0
    for path in _files(folder_of(store)):
        with suppress(OSError):
            about = path.stat()
            if path.name not in named and now - about.st_mtime > _ORPHAN_S:
                path.unlink()
                removed += about.st_size
    return removed


def _files(folder: Path) -> Iterator[Path]:
    """Files that ``keep`` made, or began to make; none behind a link, nor of another's."""
    if folder.is_symlink():
        return
    for path in files_in(folder) if folder.is_dir() else ():
        own = _DIGEST.fullmatch(path.name) and path.parent.name == path.name[:2]
        begun = _BEGUN.fullmatch(path.name) and len(path.parent.name) == 2
        if path.parent.parent == folder and (own or begun):
            yield path


_DIGEST = re.compile("[0-9a-f]{64}")
_BEGUN = re.compile(r"\.[0-9a-f]{16}\.tmp")


def place_of(folder: Path, digest: str) -> Path:
    """Where the file with that digest is; raises ``InputError`` if it is none."""
    if not _DIGEST.fullmatch(digest):
        raise damage_error(folder.parent, f"{digest[:80]!r} is no digest of a file")
    return folder / digest[:2] / digest
