"""Writing files atomically, and their checksums."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from optvet.spec.errors import InfrastructureError, UsageError
from optvet.spec.foreign import open_file
from optvet.spec.shortage import shortage


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces ``path`` when the block ends without an error.

    Until then, and after an error, the previous file at ``path`` is untouched. A symbolic link is
    not followed, but for those of the system, such as ``/dev/stdout``. The new file has the
    permissions of the one that it replaces, or the default ones; if ``private``, only its owner may
    read and write it.

    Raises:
        OSError: The file cannot be written, or is a pipe that nobody reads.
    """
    refuse_link(path)
    # Only a regular file may be replaced: replacing /dev/full would turn it into a regular file.
    if path.exists() and not path.is_file():
        with os.fdopen(_open_special(path), "wb") as special:
            yield special
        return
    target = path.resolve() if path.is_symlink() else path
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    try:
        with os.fdopen(os.open(temporary, flags, 0o600 if private else 0o666), "wb") as file:
            if not private and target.exists():
                os.fchmod(file.fileno(), target.stat().st_mode & 0o777)
            yield file
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def _open_special(path: Path) -> int:
    """A device or a pipe, open to be written; to open a pipe that nobody reads would wait."""
    try:
        opened = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        words = "it is a pipe that nobody reads"
        raise OSError(errno.ENXIO, words, str(path)) from error
    os.set_blocking(opened, True)
    return opened


def refuse_link(path: Path) -> None:
    """Refuse to write through a link that is at ``path``: it may lead to any file of the user.

    Raises:
        OSError: There is one, and it is none of the system's own.
    """
    if path.is_symlink():
        place = path.parent.resolve()
        if place != Path("/dev") and place.parts[:2] != ("/", "proc"):
            words = "it is a link, which is not followed"
            raise OSError(errno.ELOOP, words, str(path))


def refuse_links_in(path: Path) -> None:
    """Refuse a file or folder to be written over that has a link or a pipe at it or below it.

    Raises:
        OSError: There is one.
    """
    _refuse_other(path)
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            _refuse_other(Path(folder, name))


def folder_without_links(path: Path) -> None:
    """Make a folder that holds what optvet writes and nothing else; one that is there is checked.

    Raises:
        UsageError: It cannot be made, or a link or a pipe lies directly in it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        for place in path.iterdir():
            _refuse_other(place)
    except OSError as error:
        raise UsageError(f"--out {error.filename}: {error.strerror}") from error


def _refuse_other(path: Path) -> None:
    """Refuse what is neither a file nor a folder: optvet leaves no such thing in its folders."""
    refuse_link(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        words = "it is neither a file nor a folder, so it is not written"
        raise OSError(errno.EINVAL, words, str(path))


def refuse_links_of_others(path: Path) -> None:
    """Refuse a path through a link that another user put into a folder where everybody may.

    Links of the user, and of who owns that folder, are followed: they chose where it leads.

    Raises:
        OSError: There is one.
    """
    for place in (path.absolute(), *path.absolute().parents):
        if place.is_symlink():
            folder = place.parent.stat()
            if place.lstat().st_uid not in (os.getuid(), folder.st_uid) and folder.st_mode & 0o002:
                words = "it is a link that another user made, which is not followed"
                raise OSError(errno.ELOOP, words, str(place))


def private_folder(path: Path) -> None:
    """Make the folder ``path`` and its missing parents, accessible to the user only.

    Raises:
        OSError: It cannot be made.
    """
    if path.is_dir():
        return
    private_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)


def write_file(
    path: Path,
    content: bytes | str | Iterable[bytes | memoryview],
    *,
    private: bool = False,
    advice: str = "make room, or choose another cache folder",
) -> None:
    """Write ``content`` to ``path`` atomically; missing folders are made.

    Args:
        path: The file to write.
        content: What to write; a text in UTF-8, or pieces one after the other.
        private: Whether the owner alone may read it.
        advice: What the user can do if it cannot be written.

    Raises:
        InfrastructureError: It cannot be written; the previous file is untouched.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, private=private) as file:
            file.writelines(_pieces(content))
    except OSError as error:
        words = f"cannot write {path}: {error.strerror or error}"
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)  # for which ``advice`` is made
        raise InfrastructureError(
            f"{words}; {advice if full else shortage(error) or advice}"
        ) from error


def _pieces(content: bytes | str | Iterable[bytes | memoryview]) -> Iterable[bytes | memoryview]:
    if isinstance(content, str):
        return [content.encode()]
    return [content] if isinstance(content, bytes) else content


def file_sha256(path: Path) -> str:
    """SHA-256 of the content of ``path``, hexadecimal."""
    with open_file(path) as file:
        return sha256_of(file)


_SETTLED_NS = 2_000_000_000
_digests: OrderedDict[tuple[int, ...], str] = OrderedDict()


def sha256_of(file: BufferedReader) -> str:
    """SHA-256 of an open file, hexadecimal; a file that has not changed since is not read again.

    Whatever changes a file changes its time of change (ctime), which nobody can set. A file that
    changed just now may change again within one tick of its clock, so its digest is not kept.
    """
    about = os.fstat(file.fileno())
    name = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
    if name in _digests:
        return _digests[name]
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    if time.time_ns() - about.st_ctime_ns > _SETTLED_NS:
        _digests[name] = digest
        while len(_digests) > 64:
            _digests.popitem(last=False)
    return digest
