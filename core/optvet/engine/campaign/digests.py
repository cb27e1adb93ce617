"""Digests of models and data; files that have not changed are not read again."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # ships no types

import optvet
from optvet.engine.campaign.damage import DATABASE
from optvet.engine.campaign.store import CampaignStore, open_store
from optvet.engine.contract import source_returns
from optvet.engine.discovery import Plugins
from optvet.engine.models.sidecar import config_for
from optvet.engine.work.cache.cache_key import key
from optvet.graph.outline import is_outside, outline_of, place_of
from optvet.graph.weights import tensors_of
from optvet.spec.convert import parts_of
from optvet.spec.errors import OptvetError
from optvet.spec.files import file_sha256, private_folder
from optvet.spec.foreign import files_in
from optvet.spec.scratch import temporary_folder

_READ_BYTES = 64 << 20
"""Larger data is identified by name, size and time of change."""
_MOST_FILES = 100_000
_TABLES = ("models", "files")
"""What ``Digests`` keeps in a store."""
_Planned = TypeVar("_Planned")


@dataclass(frozen=True)
class Digests:
    """Digests of files, cached in the database of a store by size and time of change."""

    database: sqlite3.Connection

    def of_model(self, reference: str, plugins: Plugins, cache_dir: Path) -> tuple[str, int]:
        """Digest and size in bytes of a model; "" and 0 if it cannot be read.

        A name of a model source is resolved once: later runs need no network.
        """
        try:
            path = self._file(reference, plugins, cache_dir)
            files = files_of(path)
            config = config_for(path)
            size_bytes = sum(file.stat().st_size for file in files)
            return key([self.of_file(file) for file in files], config), size_bytes
        except (OptvetError, OSError):
            return "", 0

    def of_source(self, source: str) -> tuple[str, int]:
        """Digest and size in bytes of what is converted; "" and 0 if it cannot be read.

        A Python file may import others, which it does not cover.
        """
        name, function = parts_of(source)
        path = Path(name).expanduser()
        try:
            if path.is_dir():
                return digest_of_data(str(path)), 0
            files = files_of(path) if path.suffix == ".onnx" else [path]
            return key([self.of_file(file) for file in files], function), path.stat().st_size
        except OSError:
            return "", 0

    def _file(self, reference: str, plugins: Plugins, cache_dir: Path) -> Path:
        scheme, colon, rest = reference.partition(":")
        if not colon or scheme not in plugins.names("model source"):
            return Path(reference).expanduser()
        about = f"{optvet.__version__} {cache_dir} {reference}"
        query = "SELECT path FROM models WHERE reference = ?"
        row = self.database.execute(query, (about,)).fetchone()
        if row is not None and Path(row[0]).is_file():
            return Path(row[0])
        private_folder(cache_dir / "models")
        path = source_returns.files(plugins.model_source(scheme), rest, cache_dir / "models")[0]
        insert = "INSERT OR REPLACE INTO models (reference, path) VALUES (?, ?)"
        self.database.execute(insert, (about, str(path)))
        return path

    def of_file(self, path: Path) -> str:
        """SHA-256 of a file.

        Raises:
            OSError: It cannot be read.
        """
        about = path.stat()
        stamp = (str(path.resolve()), about.st_size, about.st_mtime_ns)
        row = self.database.execute(
            "SELECT digest FROM files WHERE path = ? AND size = ? AND mtime_ns = ?", stamp
        ).fetchone()
        if row is not None:
            return str(row[0])
        digest = file_sha256(path)
        self.database.execute(
            "INSERT OR REPLACE INTO files (path, size, mtime_ns, digest) VALUES (?, ?, ?, ?)",
            (*stamp, digest),
        )
        return digest


@contextmanager
def planned_store(
    path: Path, plan: Callable[[Digests], _Planned]
) -> Iterator[tuple[CampaignStore, _Planned]]:
    """A store to write to, with what ``plan`` gave; none is made if it raises an error.

    Raises:
        UsageError, InfrastructureError: As ``open_store`` does.
    """
    if (path / DATABASE).exists():
        with open_store(path) as store:
            yield store, plan(Digests(store.database))
        return
    with (
        temporary_folder("optvet-plan-") as folder,
        open_store(Path(folder), create=True) as draft,
    ):
        made = plan(Digests(draft.database))
        known = {t: draft.database.execute(f"SELECT * FROM {t}").fetchall() for t in _TABLES}
    with open_store(path, create=True) as store:
        for table, rows in known.items():
            for row in rows:
                marks = ", ".join("?" * len(row))
                store.database.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row)
        yield store, made


def files_of(path: Path) -> list[Path]:
    """The file of a model, and the files of its external weights."""
    try:
        outline = outline_of(path)
        places = {place_of(t, path.parent)[0] for t in tensors_of(outline) if is_outside(t)}
    except (DecodeError, ValueError, KeyError):
        places = set()  # not a model: the job reports it
    return [path, *sorted(place for place in places - {path} if os.path.isfile(place))]


def digest_of_data(argument: str) -> str:
    """A digest of the files of a dataset's argument; empty if that is not a path."""
    try:
        path = Path(argument).expanduser()
        if not argument or not os.path.exists(path):
            return ""
        if path.is_file() and path.stat().st_size <= _READ_BYTES:
            return file_sha256(path)
        files = [path] if path.is_file() else files_in(path)[:_MOST_FILES]
        return _stamps(path, files)
    except OSError:
        return ""


def _stamps(root: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        about = file.stat()
        digest.update(f"{file.relative_to(root)} {about.st_size} {about.st_mtime_ns}\n".encode())
    return digest.hexdigest()
