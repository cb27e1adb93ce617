"""Writing files atomically, and their checksums."""

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
    """Open a temporary file that replaces ``path`` when the block ends without an error.

    Until then, and after an error, the previous file at ``path`` is untouched. A symbolic link is
    followed. The new file has the permissions of the one that it replaces, or the default ones; if
    ``private``, only its owner may read and write it.

    Raises:
        OSError: The file cannot be written.
    """
    # Only a regular file may be replaced: replacing /dev/full would turn it into a regular file.
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
    content: bytes | str,
    *,
    private: bool = False,
    advice: str = "make room, or choose another cache folder",
) -> None:
    """Write ``content`` to ``path`` atomically; missing folders are made.

    Args:
        path: The file to write.
        content: What to write; a text in UTF-8.
        private: Whether the owner alone may read it.
        advice: What the user can do if it cannot be written.

    Raises:
        InfrastructureError: It cannot be written; the previous file is untouched.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, private=private) as file:
            file.write(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        words = error.strerror or error
        raise InfrastructureError(f"cannot write {path}: {words}; {advice}") from error


def file_sha256(path: Path) -> str:
    """SHA-256 of the content of ``path``, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
