"""Folders with one release each, which are kept, shared between projects and bounded in disk.

A release is installed into a folder beside its own, which is renamed when it is complete. Whoever
uses a release holds a shared lock on it; whoever makes or removes it, an exclusive one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import platformdirs
from packaging.utils import canonicalize_name
from pydantic import BaseModel, Field

from optvet.engine.environment.package_index import PackageIndex, install
from optvet.spec.errors import InfrastructureError, InputError
from optvet.spec.parsing import read_json
from optvet.spec.removal import remove_folder
from optvet.spec.scratch import is_left, made_beside

MARKER = "optvet-release.json"
MOST_BYTES = 20_000_000_000
"""Bound of all releases together, if the user names none."""
_LEFT = re.compile(r"\..+-(\d+)-(\d+)-(?:[0-9a-f]{12}|unknown)-\w+")

Say = Callable[[str], None]


def releases_root() -> Path:
    """The user's folder for releases; it may not exist yet."""
    return _data_folder() / "releases"


def _data_folder() -> Path:
    return platformdirs.user_data_path("optvet")


class _Marker(BaseModel):
    """What a marker says; the folder may have come from another machine."""

    package: str
    version: str
    size_bytes: Annotated[int, Field(strict=True, ge=0, lt=1 << 63)]


@dataclass(frozen=True)
class KeptRelease:
    """A release that is installed in a folder of its own.

    Attributes:
        package: The distribution's name.
        version: As the index spells it.
        folder: What is put on the path.
        size_bytes: Of all files.
        used: When it was last used, seconds since the epoch.
    """

    package: str
    version: str
    folder: Path
    size_bytes: int
    used: float


@dataclass(frozen=True)
class ReleaseStore:
    """All releases that were installed."""

    root: Path
    most_bytes: int = MOST_BYTES

    @contextlib.contextmanager
    def using(
        self, package: str, version: str, index: PackageIndex, say: Say = lambda words: None
    ) -> Iterator[Path]:
        """The folder of a release, installed if it is not there; nobody removes it meanwhile.

        Raises:
            NotInstallable: There is no wheel that fits.
            InfrastructureError: The disk is full, or the index is out of reach.
        """
        folder = self.root / self._name(package, version, index)
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock = _Lock(self.root, folder.name)
        except OSError as error:
            raise _unwritable(self.root, error) from error
        with lock:
            lock.share()
            while not (folder / MARKER).is_file():
                lock.own()
                if not (folder / MARKER).is_file():
                    say(f"installing {package} {version}")
                    self._make(package, version, folder, index)
                # Between the two another process may remove it.
                lock.share()
            with contextlib.suppress(OSError):
                os.utime(folder / MARKER)
            self._bound(folder)
            yield folder

    def kept(self) -> list[KeptRelease]:
        """What is there, by package and version; folders that others are making are not."""
        found = []
        for marker in sorted(self.root.glob(f"*/{MARKER}")):
            try:
                about = _Marker.model_validate(read_json(marker, "record"))
                used = marker.stat().st_mtime
            except (OSError, ValueError, InputError):
                continue
            found.append(
                KeptRelease(about.package, about.version, marker.parent, about.size_bytes, used)
            )
        return found

    def remove(self, release: KeptRelease) -> bool:
        """Whether a release was removed; not while another process uses it."""
        with _Lock(self.root, release.folder.name) as lock:
            if not lock.own(wait=False):
                return False
            # Renamed first: a removal that is cut short leaves no half of a release.
            with made_beside(release.folder) as beside, contextlib.suppress(OSError):
                release.folder.rename(beside / "removed")
        return not release.folder.exists()

    def clear_left(self) -> None:
        """Remove what installations have left that were killed."""
        for folder in self.root.glob(".*"):
            left = _LEFT.fullmatch(folder.name)
            if left and folder.is_dir() and is_left(f"{left[1]}-{left[2]}"):
                remove_folder(folder)

    def _name(self, package: str, version: str, index: PackageIndex) -> str:
        name = canonicalize_name(package)
        platform = re.sub(r"\W+", "_", sysconfig.get_platform())
        parts = [name, version, f"{sys.implementation.cache_tag}", platform]
        if build := index.build_of(package, version):
            parts.append(hashlib.sha256(json.dumps(build).encode()).hexdigest()[:12])
        return "-".join(parts)

    def _make(self, package: str, version: str, folder: Path, index: PackageIndex) -> None:
        self.clear_left()
        try:
            if folder.exists():  # Without a marker: what a full disk has left of a removal.
                remove_folder(folder)
            with made_beside(folder) as beside:
                content = beside / "content"
                install(package, version, content, index)
                size = sum(f.stat().st_size for f in content.rglob("*") if f.is_file())
                about = {"package": package, "version": version, "size_bytes": size}
                about |= {"index": index.name, "installed": time.time()}
                (content / MARKER).write_text(json.dumps(about, indent=1) + "\n")
                content.rename(folder)
        except OSError as error:
            raise _unwritable(self.root, error) from error

    def _bound(self, used: Path) -> None:
        """Remove releases, the longest unused first, until the rest fits."""
        kept = self.kept()
        excess = sum(r.size_bytes for r in kept) - self.most_bytes
        for release in sorted(kept, key=lambda r: r.used):
            if excess <= 0:
                return
            if release.folder != used and self.remove(release):
                excess -= release.size_bytes


class _Lock:
    """A lock file beside a release, for as long as the block lasts."""

    def __init__(self, root: Path, name: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(root / f"{name}.lock", flags, 0o666)

    def __enter__(self) -> _Lock:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def share(self) -> None:
        """Hold it together with others."""
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def own(self, *, wait: bool = True) -> bool:
        """Whether it is held alone now."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True


def _unwritable(root: Path, error: OSError) -> InfrastructureError:
    return InfrastructureError(
        f"{root}: {error.strerror or error}; make room (optvet env clear), or set XDG_DATA_HOME to "
        "another folder"
    )
