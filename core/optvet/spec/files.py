"""Files that are written whole or not at all, and what they hold."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from optvet.spec.errors import InfrastructureError


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of ``path`` once the block ends without an error.

    Until then, and after an error, what was at ``path`` before is still there. A link is followed.
    The file has the permissions of the one that it replaces, or those of any new file; if
    ``private``, those for its owner alone.

    Raises:
        OSError: The file cannot be written.
    """
    # Only a regular file may be replaced: that would turn /dev/full into one.
    if path.exists() and not path.is_file():
        with path.open("wb") as special:
            yield special
        return
    target = path.resolve()
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


def private_folder(path: Path) -> None:
    """Make the folder ``path``, and those above it that are missing, for the user alone.

    Raises:
        OSError: It cannot be made.
    """
    if path.is_dir():
        return
    private_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)


def write_file(
    path: Path,
    content: bytes | str,
    *,
    private: bool = False,
    advice: str = "make room, or choose another cache folder",
) -> None:
    """All of ``content`` as ``path``, or nothing.

    Folders that are missing are made.

    Args:
        path: The file to write.
        content: What to write; a text in UTF-8.
        private: Whether the owner alone may read it.
        advice: What the user can do if it cannot be written.

    Raises:
        InfrastructureError: It cannot be written; what was there before still is.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, private=private) as file:
            file.write(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        words = error.strerror or error
        raise InfrastructureError(f"cannot write {path}: {words}; {advice}") from error


def file_sha256(path: Path) -> str:
    """SHA-256 of what ``path`` holds, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
