"""One folder for all temporary files of a run, which a later run removes if this one is killed.

``optvet-USER/run-PID-STARTED`` lies in the system's folder for temporary files. For a command it is
what ``TMPDIR`` names, for this process and for all that it starts. A program that calls optvet
keeps its own ``TMPDIR``: there only what optvet makes lies in the folder. Each worker has a folder
of its own in it, which holds what libraries and optimizers leave, such as the compiler cache of
PyTorch.
"""

from __future__ import annotations

import atexit
import contextlib
import glob
import hashlib
import os
import platform
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from optvet.spec.removal import remove_folder

_RUN = re.compile(r"run-(\d+)-(\d+)")
_AT_START = 100_000
"""Entries of an earlier run that a run removes before it begins: a second or two."""


def start_time(pid: int) -> str:
    """When a process started, in ticks since the machine did; empty if there is no such process.

    It distinguishes a process from a later one with the same id.
    """
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if after_name[0] in ("Z", "X") else after_name[19]


def mark() -> str:
    """The name of this process among all of this machine since it was started, as ``PID-TICKS``."""
    return f"{os.getpid()}-{start_time(os.getpid())}"


def is_left(marked: str) -> bool:
    """Whether ``PID-TICKS`` names a process that has ended."""
    pid, _, ticks = marked.partition("-")
    return pid.isdigit() and ticks.isdigit() and start_time(int(pid)) != ticks


@contextlib.contextmanager
def temporary_files_in_one_folder(on_left: Callable[[Path], None]) -> Iterator[None]:
    """Set ``TMPDIR`` to a folder of this run until the block ends, then remove it.

    Folders of this user's runs that were killed are removed first. Within a run nothing changes,
    nor where no such folder can be made.

    Args:
        on_left: Called with the folder if it cannot be removed.
    """
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    root = Path(tempfile.gettempdir())
    folder = None if _is_in_a_run(root) else _make_folder(root / f"optvet-{os.getuid()}")
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
        if folder not in _ours.values():  # Else it is of the program that calls this command.
            _remove(folder)
            if folder.exists():
                on_left(folder)


_lock = threading.Lock()
_ours: dict[tuple[int, Path], Path] = {}
"""Folders of this process, by its id (a fork is another process) and the folder they lie in."""


def run_folder() -> Path | None:
    """The folder of this run, made if need be and removed at exit; None if none can be made.

    Unlike ``temporary_files_in_one_folder`` it changes nothing for the program that calls optvet.
    """
    root = Path(tempfile.gettempdir())
    if _is_in_a_run(root):
        return root
    with _lock:
        owner = os.getpid(), root
        if owner not in _ours or not _ours[owner].is_dir():
            folder = _make_folder(root / f"optvet-{os.getuid()}")
            if folder is None:
                return None
            _ours[owner] = folder
            atexit.register(_remove, folder, owner[0])
        return _ours[owner]


def temporary_variables() -> dict[str, str]:
    """The variable that puts a child's temporary files into the folder of this run."""
    folder = run_folder()
    return {} if folder is None else {"TMPDIR": str(folder)}


@contextlib.contextmanager
def temporary_folder(prefix: str, place: Path | None = None) -> Iterator[str]:
    """A temporary folder in ``place``, else in that of this run, which the next run clears."""
    folder = tempfile.mkdtemp(prefix=prefix, dir=place or run_folder())
    try:
        yield folder
    finally:
        remove_folder(folder)


def folder_beside(target: Path) -> Path:
    """A new folder beside ``target``, to become it once it is whole.

    What runs that were killed have left there is removed; not what another machine or container
    that shares the disk is making.
    """
    prefix = f".{target.name}-"
    for left in target.parent.glob(f"{glob.escape(prefix)}*-*-*"):
        pid, ticks, place, *_ = left.name.removeprefix(prefix).split("-")
        if place == _place() and is_left(f"{pid}-{ticks}"):
            remove_folder(left)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{mark()}-{_place()}-", dir=target.parent))


@contextlib.contextmanager
def made_beside(target: Path) -> Iterator[Path]:
    """As ``folder_beside``; what is still there at the end is removed."""
    folder = folder_beside(target)
    try:
        yield folder
    finally:
        remove_folder(folder)


def _place() -> str:
    """Which processes have ids of one kind: those of this machine, or of this container."""
    with contextlib.suppress(OSError):
        about = f"{platform.node()} {os.stat('/proc/self/ns/pid').st_ino}"
        return hashlib.sha256(about.encode()).hexdigest()[:12]
    return "unknown"


def _is_in_a_run(folder: Path) -> bool:
    return any(_RUN.fullmatch(part) for part in folder.parts)


def _remove(folder: Path, owner: int | None = None) -> None:
    """Remove a run's folder; not in a fork of the process that made it."""
    if owner in (None, os.getpid()):
        remove_folder(folder)
        with contextlib.suppress(OSError):  # Others are running.
            folder.parent.rmdir()


def _make_folder(ours: Path) -> Path | None:
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
                folder.mkdir(mode=0o700, exist_ok=True)
            except FileNotFoundError:  # Another run has just ended, and removed ``ours``.
                continue
            return folder
    return None


def _clear(ours: Path) -> None:
    """Remove the folders of runs that have ended."""
    for left in ours.iterdir():
        found = _RUN.fullmatch(left.name)
        if found and is_left(f"{found[1]}-{found[2]}"):
            remove_folder(left, most=_AT_START)
