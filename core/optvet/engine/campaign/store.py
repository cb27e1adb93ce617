"""A store: one SQLite database and one folder of artifacts, for any number of campaigns.

A job is claimed in one transaction and answered in another, with all its findings and metrics, so
that no answer is stored in part. A process that is killed between the two leaves a claim, which
another process takes back; see ``leases``. Several processes of one machine may use a store at the
same time. SQLite's write-ahead log needs shared memory, so the folder must not be on a network file
system.

A store that cannot be written, such as on a read-only medium, can be read: nothing is written
beside it.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from optvet.engine.campaign.damage import (
    DATABASE,
    DATABASE_ERRORS,
    check_folder,
    check_tables,
    damage_error,
    explain_error,
    is_writable,
    of_folder,
    read_only,
    statements,
)
from optvet.engine.campaign.schema import MIGRATIONS
from optvet.engine.database import BUSY, open_database, settle, transaction
from optvet.spec.errors import InfrastructureError, UsageError
from optvet.spec.scratch import temporary_folder

__all__ = ["BUSY_S", "DATABASE", "CampaignStore", "open_store"]

BUSY_S = 60.0


class CampaignStore:
    """An open store; used by one thread at a time.

    Attributes:
        path: The folder.
        database: Its database; rows are ``sqlite3.Row``.
    """

    def __init__(
        self, path: Path, database: sqlite3.Connection, more: ExitStack | None = None
    ) -> None:
        self.path, self.database = path, database
        self._more = more or ExitStack()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction; takes the write lock at its start, so that it cannot fail later for it.

        Raises:
            OptvetError: The database cannot be written; it says whether it is locked, read-only,
                damaged, or on a full disk.
        """
        try:
            with transaction(self.database):
                yield self.database
        except DATABASE_ERRORS as error:
            raise explain_error(self.path, error) from error

    def close(self) -> None:
        """Close the database."""
        self.database.close()
        self._more.close()

    def __enter__(self) -> CampaignStore:
        """The store itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the store; an error of the database becomes a readable message."""
        with suppress(sqlite3.Error):
            self.close()
        if isinstance(error, DATABASE_ERRORS):
            raise explain_error(self.path, error) from error


def open_store(path: Path, *, create: bool = False, to_read: bool = False) -> CampaignStore:
    """The store in the folder ``path``, migrated to the current tables.

    Args:
        path: The folder.
        create: Whether to make it if it is not there.
        to_read: Whether it is only read, which a store that cannot be written allows too.

    Raises:
        UsageError: There is no store, a later version of optvet wrote it, it is damaged, or it
            cannot be written and is not only read.
        InfrastructureError: It cannot be opened or made, or is locked.
    """
    file = path / DATABASE
    try:
        if not create and not file.exists():
            raise UsageError(
                f"{path} is no store; `optvet campaign run FILE --store {path}` makes one"
            )
        path.mkdir(parents=True, exist_ok=True)
        check_folder(path)
    except OSError as error:
        raise of_folder(path, error) from error
    if not is_writable(path):
        if not to_read:
            raise read_only(path)
        return _open_to_read(path)
    try:
        return _open_to_write(path, create=create)
    except (InfrastructureError, UsageError) as error:
        # On a full disk no shared memory can be made, yet the store can be read.
        if not to_read or not isinstance(error.__cause__, sqlite3.OperationalError):
            raise
        code = getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF
        if code in BUSY:
            raise
        return _open_to_read(path)


def _open_to_write(path: Path, *, create: bool) -> CampaignStore:
    """A store to be read and written."""
    try:
        database = _connect(path / DATABASE)
    except DATABASE_ERRORS as error:
        raise explain_error(path, error) from error
    return _prepare(path, database, ExitStack(), create=create)


def _open_to_read(path: Path) -> CampaignStore:
    """A store to be read, beside which nothing is written."""
    with ExitStack() as stack:
        file = (path / DATABASE).absolute()
        log = file.with_name(f"{file.name}-wal")
        try:
            if log.exists() and log.stat().st_size:
                # A killed process left what it wrote last in the log, which is replayed on a copy.
                folder = Path(stack.enter_context(temporary_folder("optvet-store-")))
                for each in (file, log):
                    shutil.copyfile(each, folder / each.name)
                database = _connect(folder / file.name)
            else:
                database = sqlite3.connect(
                    f"file:{quote(str(file))}?mode=ro&immutable=1", uri=True, isolation_level=None
                )
                if 0 < _version(database) < len(MIGRATIONS):
                    # A database without a name is a temporary file.
                    migrated = sqlite3.connect("", isolation_level=None)
                    database.backup(migrated)
                    database.close()
                    database = migrated
                settle(database)
                database.row_factory = sqlite3.Row
        except DATABASE_ERRORS as error:
            raise explain_error(path, error) from error
        return _prepare(path, database, stack.pop_all(), create=False)


def _prepare(
    path: Path, database: sqlite3.Connection, more: ExitStack, *, create: bool
) -> CampaignStore:
    """The store of an open database, checked and migrated."""
    store = CampaignStore(path, database, more)
    try:
        _migrate(store, create=create)
        check_tables(path, database, len(MIGRATIONS))
    except BaseException as error:
        store.close()
        if isinstance(error, DATABASE_ERRORS):
            raise explain_error(path, error) from error
        raise
    return store


def _connect(file: Path) -> sqlite3.Connection:
    database = open_database(file, busy_s=BUSY_S)
    database.row_factory = sqlite3.Row
    database.execute("PRAGMA synchronous=NORMAL")
    database.execute("PRAGMA foreign_keys=ON")
    return database


def _migrate(store: CampaignStore, *, create: bool) -> None:
    version = _version(store.database)
    if version == len(MIGRATIONS):
        return
    if version > len(MIGRATIONS):
        raise UsageError(
            f"store {store.path} was written by a later version of optvet (its tables are of "
            f"version {version}, known are {len(MIGRATIONS)}); upgrade optvet"
        )
    if version < 0:
        raise damage_error(store.path, f"its tables are of version {version}")
    if version == 0 and not create:
        raise damage_error(store.path, "its database has no tables of optvet")
    with store.transaction() as database:
        # Another process may have migrated it while this one waited.
        version = _version(database)
        check_tables(store.path, database, version)
        for statement in statements(version):
            database.execute(statement)
        database.execute(f"PRAGMA user_version={len(MIGRATIONS)}")


def _version(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])
