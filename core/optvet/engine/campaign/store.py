"""A store: one SQLite database and one folder of artifacts, for any number of campaigns.

A job is claimed in one transaction and answered in another, with all its findings and metrics, so
that no answer is stored in part. A process that is killed between the two leaves a claim, which
another process takes back; see ``leases``. Several processes of one machine may use a store at the
same time. SQLite's write-ahead log needs shared memory, so the folder must not be on a network file
system.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from optvet.engine.campaign.schema import MIGRATIONS
from optvet.spec.errors import InfrastructureError, UsageError

DATABASE = "campaigns.sqlite3"
BUSY_S = 60.0
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


class Store:
    """An open store; used by one thread at a time.

    Attributes:
        path: The folder.
        database: Its database; rows are ``sqlite3.Row``.
    """

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self.path, self.database = path, database

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction; takes the write lock at its start, so that it cannot fail later for it.

        Raises:
            InfrastructureError: The database cannot be written, such as on a full disk.
        """
        try:
            self.database.execute("BEGIN IMMEDIATE")
            try:
                yield self.database
                self.database.execute("COMMIT")
            except BaseException:
                # If the disk is full, SQLite has rolled back already.
                with suppress(sqlite3.Error):
                    self.database.execute("ROLLBACK")
                raise
        except sqlite3.OperationalError as error:
            raise InfrastructureError(
                f"store {self.path} cannot be written: {error}; make room, then go on with: "
                "optvet campaign resume"
            ) from error

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    def __enter__(self) -> Store:
        """The store itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def open_store(path: Path, *, create: bool = False) -> Store:
    """The store in the folder ``path``, migrated to the current tables.

    Args:
        path: The folder.
        create: Whether to make it if it is not there.

    Raises:
        UsageError: There is no store, or a later version of optvet wrote it.
        InfrastructureError: It cannot be opened or made.
    """
    file = path / DATABASE
    if not create and not file.is_file():
        raise UsageError(f"{path} is no store; `optvet campaign run FILE --store {path}` makes one")
    try:
        path.mkdir(parents=True, exist_ok=True)
        database = _connect(file)
    except (OSError, sqlite3.Error) as error:
        raise InfrastructureError(f"store {path} cannot be opened: {error}") from error
    try:
        store = Store(path, database)
        _migrate(store)
    except BaseException:
        database.close()
        raise
    return store


def _connect(file: Path) -> sqlite3.Connection:
    deadline = time.monotonic() + BUSY_S
    while True:
        database = sqlite3.connect(file, timeout=BUSY_S, isolation_level=None)
        database.row_factory = sqlite3.Row
        try:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")
            database.execute("PRAGMA foreign_keys=ON")
            return database
        except BaseException as error:
            database.close()
            # SQLite calls no busy handler for the change to WAL, so it is repeated here.
            busy = getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _migrate(store: Store) -> None:
    if (version := _version(store)) == len(MIGRATIONS):
        return
    if version > len(MIGRATIONS):
        raise UsageError(
            f"store {store.path} was written by a later version of optvet (its tables are of "
            f"version {version}, known are {len(MIGRATIONS)}); upgrade optvet"
        )
    with store.transaction() as database:
        # Another process may have migrated it while this one waited.
        for script in MIGRATIONS[_version(store) :]:
            for statement in filter(str.strip, script.split(";\n")):
                database.execute(statement)
        database.execute(f"PRAGMA user_version={len(MIGRATIONS)}")


def _version(store: Store) -> int:
    return int(store.database.execute("PRAGMA user_version").fetchone()[0])
