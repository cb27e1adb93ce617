"""What is wrong with a store, in words: damaged, locked, read-only, or on a full disk.

A store may come from another machine or from a cache of a CI system, so it is checked as any other
document: its folder before SQLite opens it, its tables and the types of their values after that.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from optvet.engine.campaign.schema import MIGRATIONS
from optvet.engine.database import (
    BROKEN,
    BUSY,
    READ_ONLY,
    ForeignDatabase,
    check_files,
    check_objects,
    check_values,
)
from optvet.spec.errors import InfrastructureError, InputError, OptvetError, UsageError

DATABASE = "campaigns.sqlite3"
ARTIFACTS = "artifacts"
_SHARED_MEMORY_BYTES = 32 << 10
DATABASE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite raises; its messages may quote a damaged file, which cannot always be decoded."""
_END_OF_TIME = 253_402_300_800
"""The year 10000, in seconds since 1970."""
_TIMES = frozenset({"created", "finished", "started", "ended", "beat", "wall_s"})


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
    if code in READ_ONLY:
        return read_only(path)
    if code == sqlite3.SQLITE_FULL or "disk is full" in str(error):
        return full(path, str(error))
    if code in BROKEN and _lacks_room(path):
        return full(path, "the disk is full")
    if code in BROKEN:
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

    Raises:
        InputError: The folder was tampered with, or is damaged.
    """
    if (path / ARTIFACTS).is_symlink():
        raise damage_error(path, f"{ARTIFACTS} is a link, and a store holds its files itself")
    try:
        check_files(path / DATABASE)
    except ForeignDatabase as error:
        raise damage_error(path, str(error)) from error


def check_tables(path: Path, database: sqlite3.Connection, version: int) -> None:
    """Refuse other tables, views, triggers or types of values than optvet makes.

    Raises:
        InputError: There are some.
    """
    tables = tuple(statements(0, version))
    beyond = f"NOT BETWEEN 0 AND {_END_OF_TIME - 1}"
    try:
        check_objects(database, tables)
        check_values(database, tables, {name: f"{name} {beyond}" for name in sorted(_TIMES)})
    except ForeignDatabase as error:
        raise damage_error(path, str(error)) from error


def statements(first: int, last: int = len(MIGRATIONS)) -> Iterator[str]:
    """What converts a store of version ``first`` to version ``last``."""
    for script in MIGRATIONS[first:last]:
        yield from filter(str.strip, script.split(";\n"))
