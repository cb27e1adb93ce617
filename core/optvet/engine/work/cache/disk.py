"""The cache of results on disk: bytes under a key that covers everything they depend on.

Small values live in an SQLite database, large ones in files beside it. A cache may be lost but
must not lie and must not stop the work, so every value carries a digest of itself and its key: what
is damaged or cannot be read is a miss, and what cannot be written is not (``Cache.degraded`` says
why). Nothing waits for the disk: a power cut may take what was just written.

Several processes use one folder at once. A file is complete before the row that names it exists
and is named after its content, so two writers of one key cannot mix their halves; whatever order
deletions take, the worst is a row without a file, which is a miss.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import platformdirs

from optvet.engine.database import BESIDE, BUSY, open_database, transaction
from optvet.spec.files import private_folder, replacing

T = TypeVar("T")

_INLINE_BYTES = 64 << 10
_MOST_VALUE_BYTES = 1 << 20
_MAX_BYTES = 4 << 30
_BUSY_S = 10.0
_USED_S = 600.0  # The time of the last use is updated this rarely: not every read shall be a write.
_ORPHAN_S = 3600.0  # A writer adds its row well within this time after its file.
_RECOUNT = 256
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})
_TABLES = (
    """CREATE TABLE IF NOT EXISTS entries (
    key TEXT PRIMARY KEY, kind TEXT NOT NULL, size INTEGER NOT NULL, digest BLOB NOT NULL,
    value BLOB, file TEXT, used REAL NOT NULL
)""",
)


def cache_root() -> Path:
    """The user's cache folder for optvet, or what OPTVET_CACHE names; it may not exist yet."""
    named = os.environ.get("OPTVET_CACHE")
    return Path(named) if named else platformdirs.user_cache_path("optvet")


@dataclass(frozen=True)
class KindInfo:
    """Number of values of one kind, and their total bytes."""

    entries: int
    size_bytes: int


@dataclass(frozen=True)
class CacheInfo:
    """The contents of a cache by kind of value; ``path`` is None if it stores nothing."""

    path: Path | None
    kinds: Mapping[str, KindInfo]

    @property
    def entries(self) -> int:
        """Total number of values."""
        return sum(kind.entries for kind in self.kinds.values())

    @property
    def size_bytes(self) -> int:
        """Total number of bytes."""
        return sum(kind.size_bytes for kind in self.kinds.values())


class Cache:
    """A folder of values; safe for several threads and processes at once.

    Args:
        root: The folder; it is made, for the user only, if it does not exist. None: nothing is
            stored.
        max_bytes: Limit of the total size; beyond it the least recently used values are removed.
        clock: Seconds, as ``time.time``.

    Attributes:
        degraded: Why nothing is written any more (disk full, no permission …); None while writing
            works. It is set at most once; values can still be read.
    """

    def __init__(
        self,
        root: Path | None,
        *,
        max_bytes: int = _MAX_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.degraded: str | None = None
        self._root = root
        self._max_bytes = max_bytes
        self._clock = clock
        self._lock = threading.RLock()
        self._database: sqlite3.Connection | None = None
        self._generation = 0
        self._puts = 0
        self._total = 0
        self._open()

    def get(self, key: str) -> bytes | None:
        """The value stored under ``key``; None if there is none or it is damaged."""
        with self._lock:
            return self._guard(lambda database: self._get(database, key), None)

    def read(
        self,
        key: str,
        decode: Callable[[bytes], T],
        encode: Callable[[T], bytes] | None = None,
    ) -> T | None:
        """The decoded value under ``key``; None if there is none or ``decode`` fails.

        A value with a correct digest may still have content that optvet never wrote. With
        ``encode`` it counts only if it is what ``encode`` makes of the decoded value: a document of
        which fields are missing is not read as one with their defaults.
        """
        value = self.get(key)
        if value is None:
            return None
        with contextlib.suppress(Exception):  # malformed bytes may raise anything
            decoded = decode(value)
            if encode is None or encode(decoded) == value:
                return decoded
        with self._lock:
            forget = self._forget_key
            self._guard(lambda database: forget(database, key), None)
        return None

    def put(self, key: str, kind: str, value: bytes) -> None:
        """Store ``value`` under ``key``, replacing what is there.

        Missing space or permission is not an error: see ``degraded``.

        Args:
            key: From the function ``key``.
            kind: What sort of value it is ("trial", "artifact" …), for ``info``.
            value: Any bytes.
        """
        with self._lock:
            if self.degraded is not None or len(value) > self._max_bytes:
                return
            try:
                self._guard(lambda database: self._put(database, key, kind, value), None, True)
            except OSError as error:
                self._degrade(error)

    def info(self) -> CacheInfo:
        """The present content, by kind."""
        # Rows of other types are a foreign hand's: they are read by no key either.
        query = (
            "SELECT kind, count(*), sum(size) FROM entries WHERE typeof(kind) = 'text' "
            "AND typeof(size) = 'integer' GROUP BY kind ORDER BY kind"
        )
        with self._lock:
            rows: list[Any] = []
            rows = self._guard(lambda database: database.execute(query).fetchall(), rows)
        return CacheInfo(
            self._root, {kind: KindInfo(count, int(size)) for kind, count, size in rows}
        )

    def clear(self) -> int:
        """Remove all values; returns the number of bytes they had."""
        with self._lock:
            before = self.info().size_bytes
            self._guard(lambda database: self._clear(database), None)
            self._total = after = self.info().size_bytes
        return before - after

    def close(self) -> None:
        """Close the database; afterwards ``get`` returns None for every key."""
        with self._lock:
            if self._database is not None:
                with contextlib.suppress(sqlite3.Error):
                    self._database.close()
                self._database = None

    def __enter__(self) -> Cache:
        """The cache itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _open(self) -> None:
        """Open the newest database of the folder, and a newer one if that is damaged."""
        if self._root is None:
            return
        try:
            private_folder(self._blobs)
            self._generation = max(self._generations(), default=0)
            self._database = self._connect()
            self._total = self._count(self._database)
        except OSError as error:
            self._degrade(error)
        except sqlite3.Error as error:
            self._recover(error)

    @property
    def _blobs(self) -> Path:
        assert self._root is not None
        return self._root / "blobs"

    def _path(self, generation: int) -> Path:
        assert self._root is not None
        return self._root / f"index-{generation}.sqlite3"

    def _generations(self) -> list[int]:
        assert self._root is not None
        names = [
            path.name.split("-")[1].split(".")[0] for path in self._root.glob("index-*.sqlite3")
        ]
        return [int(name) for name in names if name.isdecimal()]

    def _connect(self) -> sqlite3.Connection:
        """A connection to a database that has the table."""
        database = open_database(
            self._path(self._generation),
            _TABLES,
            busy_s=_BUSY_S,
            most_value_bytes=_MOST_VALUE_BYTES,
            one_thread=False,
        )
        database.execute("PRAGMA synchronous=OFF")
        return database

    def _guard(
        self, act: Callable[[sqlite3.Connection], T], otherwise: T, writes: bool = False
    ) -> T:
        """Run ``act`` on the database; if that is damaged, on a new one; else ``otherwise``."""
        for _ in range(2):
            if self._database is None or (writes and self.degraded is not None):
                break
            try:
                return act(self._database)
            except sqlite3.Error as error:
                code = _code(error)
                if not writes and code in BUSY:
                    break
                self._recover(error)
        return otherwise

    def _recover(self, error: sqlite3.Error) -> None:
        """Switch to an empty database if this one is damaged; else stop writing."""
        if _code(error) not in _DAMAGED:
            self._degrade(error)
            return
        self.close()
        # A new name, never the old one: a process that still has the old database open deletes
        # "its" journal by name when it closes, and would take the new database's.
        damaged = self._generation
        self._generation = max([damaged + 1, *self._generations()])
        try:
            self._database = self._connect()
        except (OSError, sqlite3.Error) as again:
            self._degrade(again)
            return
        self._total = 0
        for suffix in ("", *BESIDE):
            with contextlib.suppress(OSError):
                os.unlink(f"{self._path(damaged)}{suffix}")

    def _degrade(self, error: Exception) -> None:
        if self.degraded is None:
            reason = "it is a file" if self._root and self._root.is_file() else str(error)
            self.degraded = f"cache {str(self._root)!r} is no longer written: {reason}"

    def _get(self, database: sqlite3.Connection, key: str) -> bytes | None:
        query = "SELECT digest, value, file, used FROM entries WHERE key = ?"
        row = database.execute(query, (key,)).fetchone()
        if row is None:
            return None
        digest, value, file, used = row
        if file is not None:
            value = self._read(str(file))
        if not isinstance(value, bytes) or _digest(key, value) != digest:
            self._forget(database, key, digest, file)
            return None
        now = self._clock()
        if not isinstance(used, float) or abs(now - used) > _USED_S:
            # If the use cannot be recorded (read-only folder), only the order of eviction suffers.
            with contextlib.suppress(sqlite3.OperationalError):
                database.execute("UPDATE entries SET used = ? WHERE key = ?", (now, key))
        return value

    def _read(self, file: str) -> bytes | None:
        try:
            return (self._blobs / os.path.basename(file)).read_bytes()
        except (OSError, ValueError):
            return None

    def _forget(self, database: sqlite3.Connection, key: str, digest: Any, file: Any) -> None:
        """Remove a damaged entry, unless another process has just replaced it."""
        with contextlib.suppress(sqlite3.OperationalError):
            database.execute("DELETE FROM entries WHERE key = ? AND digest IS ?", (key, digest))
        if isinstance(file, str):
            self._unlink(file)

    def _forget_key(self, database: sqlite3.Connection, key: str) -> None:
        query = "SELECT digest, file FROM entries WHERE key = ?"
        row = database.execute(query, (key,)).fetchone()
        if row is not None:
            self._forget(database, key, *row)

    def _put(self, database: sqlite3.Connection, key: str, kind: str, value: bytes) -> None:
        digest = _digest(key, value)
        inline = len(value) <= _INLINE_BYTES
        file = None if inline else f"{key[:32]}-{digest.hex()[:32]}"
        if file is not None:
            with replacing(self._blobs / file, private=True) as stream:
                stream.write(value)
        row = (key, kind, len(value), digest, value if inline else None, file, self._clock())
        try:
            with transaction(database):
                query = "SELECT file FROM entries WHERE key = ?"
                old = database.execute(query, (key,)).fetchone()
                database.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        except BaseException:
            if file is not None:
                self._unlink(file)
            raise
        if old is not None and old[0] is not None and old[0] != file:
            self._unlink(str(old[0]))
        self._puts += 1
        self._total += len(value)
        self._limit_size(database)

    def _unlink(self, file: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            (self._blobs / os.path.basename(file)).unlink()

    def _limit_size(self, database: sqlite3.Connection) -> None:
        """Remove the least recently used values until a tenth of the space is free again."""
        if self._puts % _RECOUNT == 0:
            self._total = self._count(database)  # Other processes add too.
        if self._total <= self._max_bytes:
            return
        with transaction(database):
            excess = self._count(database) - self._max_bytes
            excess += self._max_bytes // 10 if excess > 0 else 0
            dropped = []
            for key, size, file in database.execute(
                "SELECT key, size, file FROM entries ORDER BY used, rowid"
            ):
                if excess <= 0:
                    break
                dropped.append((key, file))
                excess -= size
            keys = [(key,) for key, _ in dropped]
            database.executemany("DELETE FROM entries WHERE key = ?", keys)
        for _, file in dropped:
            if file is not None:
                self._unlink(str(file))
        self._total = self._count(database)
        self._sweep(database)

    def _sweep(self, database: sqlite3.Connection) -> None:
        """Remove files that no row names: their writer died between the two."""
        query = "SELECT file FROM entries WHERE file IS NOT NULL"
        named = {file for (file,) in database.execute(query)}
        for path in self._blobs.iterdir():
            with contextlib.suppress(OSError):
                if path.name not in named and time.time() - path.stat().st_mtime > _ORPHAN_S:
                    path.unlink()

    def _count(self, database: sqlite3.Connection) -> int:
        return int(database.execute("SELECT total(size) FROM entries").fetchone()[0])

    def _clear(self, database: sqlite3.Connection) -> None:
        database.execute("DELETE FROM entries")
        for path in self._blobs.iterdir():
            if not path.name.startswith("new-"):  # Another process is writing it.
                self._unlink(path.name)
        self._sweep(database)
        # Gives the space back; not worth waiting for where another process is at work.
        with contextlib.suppress(sqlite3.OperationalError):
            database.execute("VACUUM")
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary error code; the one for damage if Python could not read a row."""
    extended: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    return extended & 0xFF


def _digest(key: str, value: bytes) -> bytes:
    """A checksum of key and value: it reveals an index that points to another key's row."""
    return hashlib.sha256(key.encode() + b"\0" + value).digest()
