"""What is wrong with a store, in words: damaged, locked, read-only, or on a full disk.

A store may come from another machine or from a cache of a CI system, so it is checked as any other
document: its folder before SQLite opens it, its tables and the types of their values after that.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from optvet.engine.campaign.schema import MIGRATIONS
from optvet.spec.errors import InfrastructureError, InputError, OptvetError, UsageError
from optvet.spec.foreign import NotReadable, open_file

DATABASE = "campaigns.sqlite3"
ARTIFACTS = "artifacts"
MOST_VALUE_BYTES = 64 << 20
"""The largest value that is read from a database, and the largest answer when it is unpacked."""
BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_READ_ONLY = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM})
_SHARED_MEMORY_BYTES = 32 << 10
_OF_THE_MACHINE = frozenset(
    {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_NOLFS}
)
DATABASE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite raises; its messages may quote a damaged file, which cannot always be decoded."""
_MAGIC = b"SQLite format 3\0"
_END_OF_TIME = 253_402_300_800
"""The year 10000, in seconds since 1970."""
_TIMES = frozenset({"created", "finished", "started", "ended", "beat", "wall_s"})
_TYPES = {"TEXT": "text", "INTEGER": "integer", "REAL": "real", "BLOB": "blob"}


def damage_error(path: Path, words: str) -> InputError:
    """The error for a store whose content is not what optvet writes."""
    return InputError(
        f"store {path} is damaged: {words}; make a new store of what can be read with: optvet "
        f"campaign repair {path}, or choose a new folder"
    )


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Within the block, an error of a parser says that ``what`` of the store is damaged."""
    try:
        yield
    except OptvetError as error:
        raise damage_error(path, f"{what}: {error}") from error
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise damage_error(path, f"{what}: {reason}") from error


def explain_error(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> OptvetError:
    """The error of optvet's for one of SQLite's: a lock, no right to write, a full disk, damage."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in BUSY:
        return InfrastructureError(
            f"store {path} is locked by another process ({error}); wait until that has ended, or "
            "end it, then continue"
        )
    if code in _READ_ONLY:
        return read_only(path)
    if code == sqlite3.SQLITE_FULL or "disk is full" in str(error):
        return full(path, str(error))
    if code in _OF_THE_MACHINE and _lacks_room(path):
        return full(path, "the disk is full")
    if code in _OF_THE_MACHINE:
        return InfrastructureError(
            f"store {path} cannot be read or written: {error}; check the disk, and that all of the "
            "folder is yours"
        )
    return damage_error(path, str(error))


def _lacks_room(path: Path) -> bool:
    """Whether the disk lacks the room for SQLite's shared memory, 32 KiB.

    SQLite calls that an error of input and output, and only what the database lacks a full disk.
    """
    try:
        about = os.statvfs(path)
    except OSError:
        return False
    return about.f_bavail * about.f_frsize < _SHARED_MEMORY_BYTES


def read_only(path: Path) -> UsageError:
    """The error for a store that cannot be written."""
    return UsageError(
        f"store {path} is read-only, by its medium or its permissions; copy it to where you may "
        "write, or choose another folder (show, report, export, status, diff and tables only read)"
    )


def full(path: Path, reason: str) -> InfrastructureError:
    """The error for a store on a full disk."""
    return InfrastructureError(
        f"store {path} cannot be written: {reason}; make room, then continue with: optvet campaign "
        f"resume {path}"
    )


def of_folder(path: Path, error: OSError) -> OptvetError:
    """The error for a folder that cannot be made or written."""
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return read_only(path)
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return full(path, reason)
    return InfrastructureError(f"store {path} cannot be opened: {reason}; choose another folder")


def is_writable(path: Path) -> bool:
    """Whether files of the store can be made and changed, as far as can be told."""
    file = path / DATABASE
    try:
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return False
        return os.access(path, os.W_OK | os.X_OK, effective_ids=True) and (
            not file.exists() or os.access(file, os.W_OK, effective_ids=True)
        )
    except OSError:
        return False


# --- checks --------------------------------------------------------------------------------------


def check_folder(path: Path) -> None:
    """Refuse a folder whose files SQLite should not open, before it does.

    SQLite trusts what lies beside a database: it follows a link called ``-shm`` and overwrites
    where that leads, and deletes a file that a journal names. optvet leaves no ``-journal``.

    Raises:
        InputError: The folder was tampered with, or is damaged.
    """
    file = path / DATABASE
    for suffix in ("-wal", "-shm", "-journal"):
        beside = file.with_name(file.name + suffix)
        try:
            about = os.lstat(beside)
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(about.st_mode):
            raise damage_error(path, f"{beside.name} is no regular file")
        if suffix == "-journal" and about.st_size:
            raise damage_error(path, f"{beside.name} is there, which optvet does not write")
    if (path / ARTIFACTS).is_symlink():
        raise damage_error(path, f"{ARTIFACTS} is a link, and a store holds its files itself")
    try:
        with open_file(file) as opened:
            start = opened.read(len(_MAGIC))
    except NotReadable as error:
        raise damage_error(path, f"{DATABASE}: {error.strerror}") from error
    if start and start != _MAGIC:
        raise damage_error(path, f"{DATABASE} is no database")


def check_tables(path: Path, database: sqlite3.Connection, version: int) -> None:
    """Refuse other tables, views, triggers or types of values than optvet makes.

    Raises:
        InputError: There are some.
    """
    expected = _objects(version)
    found = _list_schema(database)
    for name in sorted(found.keys() - expected.keys()):
        raise damage_error(path, f"it has {name[0]} {name[1][:60]!r}, which optvet does not make")
    for name in sorted(expected.keys() - found.keys()):
        raise damage_error(path, f"{name[0]} {name[1]!r} is missing")
    for name, sql in expected.items():
        if found[name] != sql:
            raise damage_error(path, f"{name[0]} {name[1]!r} is not as optvet makes it")
    for table, checks in _checks(version).items():
        cases = " ".join(f"WHEN {wrong} THEN '{column}'" for column, wrong in checks)
        query = f"SELECT CASE {cases} END AS wrong FROM {table} WHERE wrong IS NOT NULL LIMIT 1"
        if (row := database.execute(query).fetchone()) is not None:
            raise damage_error(path, f"{row[0]!r} of a row of {table} is no value for it")


def _list_schema(database: sqlite3.Connection) -> dict[tuple[str, str], str]:
    rows = database.execute("SELECT type, name, sql FROM sqlite_master")
    # SQLite's own indices and statistics have names that nobody else can give.
    return {
        (str(kind), str(name)): " ".join(str(sql).split())
        for kind, name, sql in rows
        if not str(name).startswith("sqlite_")
    }


@cache
def _objects(version: int) -> dict[tuple[str, str], str]:
    """Tables and indices of a store of that version, with the text that made each."""
    database = empty(version)
    try:
        return _list_schema(database)
    finally:
        database.close()


@cache
def _checks(version: int) -> dict[str, Sequence[tuple[str, str]]]:
    """Columns by table, each with a condition that is true of a wrong value."""
    database = empty(version)
    try:
        return {
            name: [
                (str(column[1]), _wrong(*column))
                for column in database.execute(f"PRAGMA table_info({name})")
            ]
            for kind, name in _objects(version)
            if kind == "table"
        }
    finally:
        database.close()


def _wrong(_: int, name: str, declared: str, not_null: int, __: object, key: int) -> str:
    wrong = f"typeof({name}) != '{_TYPES[declared]}'"
    if name in _TIMES:
        wrong += f" OR {name} NOT BETWEEN 0 AND {_END_OF_TIME - 1}"
    return wrong if not_null or key else f"{name} IS NOT NULL AND ({wrong})"


def empty(version: int) -> sqlite3.Connection:
    """An empty store of that version, in memory."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    for statement in statements(0, version):
        database.execute(statement)
    return database


def statements(first: int, last: int = len(MIGRATIONS)) -> Iterator[str]:
    """What converts a store of version ``first`` to version ``last``."""
    for script in MIGRATIONS[first:last]:
        yield from filter(str.strip, script.split(";\n"))
