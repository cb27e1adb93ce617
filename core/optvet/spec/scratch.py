"""One folder for all temporary files of a run, which a later run removes if this one is killed.

``optvet-USER/run-PID-STARTED`` lies in the system's folder for temporary files. It is what
``TMPDIR`` names for this process and for all that it starts, so it holds what libraries and
optimizers leave there too, such as the compiler cache of PyTorch.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_RUN = re.compile(r"run-(\d+)-(\d+)")


def started(pid: int) -> str:
    """When a process started, in ticks since the machine did; empty if there is no such process.

    With it a process is told from a later one that was given the same id.
    """
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if after_name[0] in ("Z", "X") else after_name[19]


def mark() -> str:
    """The name of this process among all of this machine since it was started, as ``PID-TICKS``."""
    return f"{os.getpid()}-{started(os.getpid())}"


def is_left(marked: str) -> bool:
    """Whether ``PID-TICKS`` names a process that has ended."""
    pid, _, ticks = marked.partition("-")
    return pid.isdigit() and ticks.isdigit() and started(int(pid)) != ticks


@contextlib.contextmanager
def temporary_files_in_one_folder() -> Iterator[None]:
    """Set ``TMPDIR`` to a folder of this run until the block ends, then remove it.

    Folders of this user's runs that were killed are removed first. Within a run nothing changes,
    nor where no such folder can be made.
    """
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    root = Path(tempfile.gettempdir())
    folder = None if _RUN.fullmatch(root.name) else _made(root / f"optvet-{os.getuid()}")
    if folder is None:
        yield
        return
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before[0]
        if before[1] is None:
            os.environ.pop("TMPDIR", None)
        else:
            os.environ["TMPDIR"] = before[1]
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # Others are running.
            folder.parent.rmdir()


def _made(ours: Path) -> Path | None:
    """A new folder of this run in ``ours``; None if that is not this user's alone."""
    with contextlib.suppress(OSError):
        for _ in range(3):
            ours.mkdir(mode=0o700, exist_ok=True)
            # Everybody may write to /tmp: a link, or a folder of somebody else, is not used.
            status = ours.lstat()
            if not ours.is_dir() or ours.is_symlink() or status.st_uid != os.getuid():
                return None
            if status.st_mode & 0o077:
                return None
            _clear(ours)
            folder = ours / f"run-{mark()}"
            try:
                folder.mkdir(mode=0o700)
            except FileNotFoundError:  # Another run has just ended, and removed ``ours``.
                continue
            return folder
    return None


def _clear(ours: Path) -> None:
    """Remove the folders of runs that have ended."""
    for left in ours.iterdir():
        found = _RUN.fullmatch(left.name)
        if found and is_left(f"{found[1]}-{found[2]}"):
            shutil.rmtree(left, ignore_errors=True)
