"""SQLite files that others may have named, left or changed: one function opens them.

A store comes from another machine, a cache from a CI system, a hunt's folder from a colleague. What
SQLite does for whoever writes such files: it deletes the file that a journal names, overwrites
where a link called ``-shm`` leads, and evaluates views and triggers as long as they please. So the
files are looked at before SQLite opens them, and tables before anything is asked of them.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path

from optvet.spec.foreign import NotReadable, open_file

MOST_VALUE_BYTES = 64 << 20
"""The largest value that is read, unless the caller says otherwise."""
BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
READ_ONLY = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM})
BROKEN = frozenset(
    {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_NOLFS}
)
"""Primary codes of errors that are the machine's; none says anything about the content."""
BESIDE = ("-wal", "-shm", "-journal")
"""Ends of the names of files that SQLite keeps beside a database."""
_JOURNAL_S = 2.0
"""A database has a journal for a moment while another process makes it."""
_MAGIC = b"SQLite format 3\0"
_TYPES = {"TEXT": "text", "INTEGER": "integer", "REAL": "real", "BLOB": "blob"}
Statements = tuple[str, ...]


class ForeignDatabase(sqlite3.DatabaseError):
    """A database that optvet did not leave like this; the message says what is wrong."""


def open_database(
    file: Path,
    tables: Statements = (),
    *,
    busy_s: float,
    most_value_bytes: int = MOST_VALUE_BYTES,
    one_thread: bool = True,
) -> sqlite3.Connection:
    """An open database in WAL mode; it is made if it is not there.

    Args:
        file: The database.
        tables: Statements that make its tables if there are none, and that say what else may be in
            it: any other object or type of value is refused. Without, the caller checks them.
        busy_s: How long to wait for other processes, in seconds.
        most_value_bytes: The largest value that can be read.
        one_thread: Whether only the calling thread uses the connection.

    Raises:
        sqlite3.Error: It cannot be opened; ``ForeignDatabase``: it was tampered with.
    """
    deadline = time.monotonic() + busy_s
    while True:
        check_files(file)
        database = sqlite3.connect(
            file, timeout=busy_s, isolation_level=None, check_same_thread=one_thread
        )
        try:
            settle(database, most_value_bytes)
            made = bool(objects_of(database))
            if tables and made:
                check_objects(database, tables)
            database.execute("PRAGMA journal_mode=WAL")
            if tables and not made:
                # All or none: who is killed here leaves an empty file, not half of the tables.
                with transaction(database):
                    for statement in tables:
                        database.execute(statement)
            return database
        except BaseException as error:
            database.close()
            # SQLite calls no busy handler for the change to WAL, so it is repeated here.
            busy = getattr(error, "sqlite_errorcode", 0) & 0xFF in BUSY
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def is_of_the_machine(error: Exception) -> bool:
    """Whether an error says that the database cannot be read or written, whatever is in it."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in BUSY | READ_ONLY | BROKEN | {sqlite3.SQLITE_FULL}


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """A transaction that takes the write lock at its start, so that it cannot fail for it later."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        # SQLite itself has already rolled back where the disk is full.
        with suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise


def check_files(file: Path) -> None:
    """Refuse files that SQLite should not open. optvet leaves no journal, link or second name.

    Raises:
        ForeignDatabase: There are some.
    """
    deadline = time.monotonic() + _JOURNAL_S
    while (wrong := _wrong_file(file)) is not None:
        if not wrong.startswith(f"{file.name}-journal") or time.monotonic() > deadline:
            raise ForeignDatabase(wrong)
        time.sleep(0.02)
    try:
        with open_file(file) as opened:
            start = opened.read(len(_MAGIC))
    except FileNotFoundError:
        return
    except NotReadable as error:
        raise ForeignDatabase(f"{file.name}: {error.strerror}") from error
    except OSError as error:
        unreadable = sqlite3.OperationalError(f"{file.name}: {error.strerror}")
        unreadable.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise unreadable from error
    if start and start != _MAGIC:
        raise ForeignDatabase(f"{file.name} is no database")


def _wrong_file(file: Path) -> str | None:
    for end in ("", *BESIDE):
        name = f"{file.name}{end}"
        try:
            about = os.lstat(file.with_name(name))
        except OSError:
            continue
        if not stat.S_ISREG(about.st_mode):
            return f"{name} is no regular file"
        if about.st_nlink > 1:
            return f"{name} is also a file elsewhere, which would be written"
        if end == "-journal" and about.st_size:
            return f"{name} is there, which optvet does not leave"
    return None


def settle(database: sqlite3.Connection, most_value_bytes: int = MOST_VALUE_BYTES) -> None:
    """Trust nothing of the file: neither functions in its tables, nor lengths in its pages."""
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, most_value_bytes)
    database.execute("PRAGMA trusted_schema=OFF")
    database.execute("PRAGMA cell_size_check=ON")


def objects_of(database: sqlite3.Connection) -> dict[tuple[str, str], str]:
    """Kind and name of each table, index, view and trigger, with the text that made it."""
    rows = database.execute("SELECT type, name, sql FROM sqlite_master")
    # SQLite's own indices and statistics have names that nobody else can give.
    return {
        (str(kind), str(name)): " ".join(str(sql).split())
        for kind, name, sql in rows
        if not str(name).startswith("sqlite_")
    }


def check_objects(database: sqlite3.Connection, tables: Statements) -> None:
    """Refuse other tables, views and triggers than ``tables`` makes, before any is read.

    Raises:
        ForeignDatabase: There are some, or one is missing.
    """
    expected, found = _objects(tables), objects_of(database)
    for kind, name in sorted(found.keys() - expected.keys()):
        raise ForeignDatabase(f"it has {kind} {name[:60]!r}, which optvet does not make")
    for kind, name in sorted(expected.keys() - found.keys()):
        raise ForeignDatabase(f"{kind} {name!r} is missing")
    for (kind, name), sql in expected.items():
        if found[kind, name] != sql:
            raise ForeignDatabase(f"{kind} {name!r} is not as optvet makes it")


def check_values(
    database: sqlite3.Connection, tables: Statements, wrong: Mapping[str, str] | None = None
) -> None:
    """Refuse values of other types than those that ``tables`` declares.

    Args:
        database: One that ``check_objects`` has passed.
        tables: The statements that make its tables.
        wrong: Further conditions in SQL that hold for no value of a column, by its name.

    Raises:
        ForeignDatabase: There are some.
    """
    further = tuple((wrong or {}).items())
    for table, checks in _checks(tables, further).items():
        cases = " ".join(f"WHEN {condition} THEN '{column}'" for column, condition in checks)
        query = f"SELECT CASE {cases} END AS wrong FROM {table} WHERE wrong IS NOT NULL LIMIT 1"
        if (row := database.execute(query).fetchone()) is not None:
            raise ForeignDatabase(f"{row[0]!r} of a row of {table} is no value for it")


def in_memory(tables: Iterable[str]) -> sqlite3.Connection:
    """An empty database with these tables."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    for statement in tables:
        database.execute(statement)
    return database


@cache
def _objects(tables: Statements) -> Mapping[tuple[str, str], str]:
    with closing(in_memory(tables)) as database:
        return objects_of(database)


@cache
def _checks(
    tables: Statements, further: tuple[tuple[str, str], ...]
) -> Mapping[str, Sequence[tuple[str, str]]]:
    """Columns by table, each with a condition that is true of a wrong value."""
    with closing(in_memory(tables)) as database:
        return {
            name: [
                (str(column[1]), _wrong_value(dict(further), *column))
                for column in database.execute(f"PRAGMA table_info({name})")
            ]
            for kind, name in objects_of(database)
            if kind == "table"
        }


def _wrong_value(
    further: Mapping[str, str],
    _: int,
    name: str,
    declared: str,
    not_null: int,
    __: object,
    key: int,
) -> str:
    wrong = f"typeof({name}) != '{_TYPES[declared]}'"
    if name in further:
        wrong += f" OR {further[name]}"
    return wrong if not_null or key else f"{name} IS NOT NULL AND ({wrong})"
