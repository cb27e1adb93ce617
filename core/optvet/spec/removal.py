"""Removal of folders in which foreign code has worked."""

from __future__ import annotations

import contextlib
import os
import uuid
from itertools import islice
from pathlib import Path

MOST = 1_000_000
"""Entries that one removal looks at."""
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_folder(folder: Path | str, most: int = MOST) -> bool:
    """Whether ``folder`` is gone, after all below it was removed; no link is followed.

    It raises nothing. What cannot be removed stays, and so does what lies behind the first ``most``
    entries: folders within folders, thousands deep, must neither end nor hang who removes them.
    """
    path = os.fspath(folder)
    try:
        top = _open(path, None)
        try:
            _empty(top, most)
        finally:
            os.close(top)
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _empty(top: int, most: int) -> None:
    """Remove what the open folder ``top`` holds.

    A folder within a folder is moved up into ``top`` before it is emptied. So two descriptors are
    enough at any depth, and no path becomes too long for the system.
    """
    prefix = uuid.uuid4().hex
    waiting: list[str | None] = [None]  # None is ``top`` itself
    moved = 0
    while waiting and most > 0:
        name = waiting.pop()
        try:
            below = os.dup(top) if name is None else _open(name, top)
        except OSError:
            continue
        try:
            with os.scandir(below) as found:
                entries = list(islice(found, most))
            most -= max(len(entries), 1)
            for entry in entries:
                with contextlib.suppress(OSError):
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.name, dir_fd=below)
                    elif name is None:
                        waiting.append(entry.name)
                    else:
                        moved += 1
                        above = f"{prefix}-{moved}"
                        _move_up(entry.name, below, above, top)
                        waiting.append(above)
        finally:
            os.close(below)
        if name is not None:
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=top)


def _move_up(name: str, below: int, above: str, top: int) -> None:
    try:
        os.rename(name, above, src_dir_fd=below, dst_dir_fd=top)
    except PermissionError:  # The system must change the folder's own "..".
        os.close(_open(name, below))
        os.rename(name, above, src_dir_fd=below, dst_dir_fd=top)


def _open(name: str, place: int | None) -> int:
    """A descriptor of a folder, which may be read and changed from now on if it is this user's."""
    path = os.open(name, os.O_PATH | _FOLDER, dir_fd=place)
    try:
        if os.fstat(path).st_mode & 0o700 != 0o700:
            with contextlib.suppress(OSError):
                os.chmod(f"/proc/self/fd/{path}", 0o700)  # A name could be a link by now.
        return os.open(".", os.O_RDONLY | _FOLDER, dir_fd=path)
    finally:
        os.close(path)
