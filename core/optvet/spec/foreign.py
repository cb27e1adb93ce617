"""Reading files that a user, a document or another program named.

Every such path is input: it may be a pipe that never ends, a device, a socket, a link to one of
these, or a file of any size. What reads one opens it here: a regular file alone is opened, looked
at by its descriptor, and refused if it is larger than the reader allows, before a byte is read.
Patterns and folders are searched within limits, and never in the file systems of the kernel.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import io
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from optvet.spec.errors import InputError
from optvet.spec.words import show

if TYPE_CHECKING:
    import onnx

MOST_BYTES = (2 << 30) + (64 << 20)
"""What is read of a file unless the reader says otherwise: a protobuf message has at most 2 GiB."""
_PIECE = 1 << 16
MOST_ENTRIES = 200_000
MOST_S = 20.0
"""Limits of one pattern: entries that are looked at, and seconds."""
MOST_FILES = 3_000_000
MOST_FILES_S = 120.0
"""The same of one folder, which may hold a data set."""
MOST_LEVELS = 32
_KERNEL = ("/proc", "/sys", "/dev")
_MEMORY = "/dev/shm"
"""Not a device: a file system in memory, where folders for temporary files may be."""
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


class NotReadable(InputError, OSError):
    """A path is no regular file, or a file is larger than its reader allows.

    Also an ``OSError``, whose ``strerror`` says why, so that readers report it as any other.
    """

    def __str__(self) -> str:
        """``PATH: REASON``."""
        return f"{self.filename}: {self.strerror}"


def open_file(path: str | os.PathLike[str], *, most_bytes: int | None = None) -> io.BufferedReader:
    """A regular file, open to be read; the caller closes it.

    Args:
        path: Its path; links are followed.
        most_bytes: The largest size; None for any, if the caller reads the file in pieces.

    Raises:
        NotReadable: It is no regular file, or is larger.
        OSError: It cannot be opened.
        ValueError: The path has a zero byte.
    """
    # Looked at first, since to open a device may already do something. Without O_NONBLOCK, to open
    # a pipe would wait for its other end, should it have taken the file's place in between.
    _check_kind(path, os.stat(path))
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        about = os.fstat(descriptor)
        _check_kind(path, about)
        if most_bytes is not None and about.st_size > most_bytes:
            raise _too_large(path, most_bytes)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_name(path: str | os.PathLike[str]) -> None:
    """Refuse the name of a file that no document can hold: JSON and stores are in UTF-8.

    Raises:
        InputError: It is not in UTF-8.
    """
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError as error:
        name = ascii(os.fspath(path))
        raise InputError(f"{name}: the name of the file is not in UTF-8; rename it") from error


def check_file(path: str | os.PathLike[str], *, most_bytes: int | None = None) -> None:
    """Refuse what ``open_file`` refuses, for a library that opens files by their path."""
    open_file(path, most_bytes=most_bytes).close()


def read_file(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a regular file of at most ``most_bytes``; raises as ``open_file``."""
    with open_file(path, most_bytes=most_bytes) as file:
        pieces, size = list[bytes](), 0
        # In pieces: a file may grow, and of one of the kernel's the size is not known.
        while piece := file.read(max(_PIECE, os.fstat(file.fileno()).st_size - size)):
            pieces.append(piece)
            size += len(piece)
            if size > most_bytes:
                raise _too_large(path, most_bytes)
        # One piece as a rule, which is not copied once more.
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def read_text(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> str:
    """The content of a regular file in UTF-8, with ends of lines as a text file has them.

    Raises:
        UnicodeDecodeError: It is not in UTF-8.
        OSError: As ``open_file``.
    """
    text = read_file(path, most_bytes).decode("utf-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def open_text(path: str | os.PathLike[str], *, newline: str | None = None) -> TextIO:
    """A regular file in UTF-8, open to be read in pieces; raises as ``open_file``."""
    return io.TextIOWrapper(open_file(path), encoding="utf-8", newline=newline)


def load_model(path: str | os.PathLike[str], *, weights: bool = True) -> onnx.ModelProto:
    """The model in a regular file; ``weights`` in other files are checked and read by onnx.

    Raises:
        DecodeError: It is no model.
        OSError: As ``open_file``.
    """
    check_file(path, most_bytes=MOST_BYTES)
    import onnx  # here: an answer from the cache needs no model

    return onnx.load(os.fspath(path), load_external_data=weights)


def _check_kind(path: str | os.PathLike[str], about: os.stat_result) -> None:
    if not stat.S_ISREG(about.st_mode):
        kind = _KINDS.get(stat.S_IFMT(about.st_mode), "no regular file")
        number = errno.EISDIR if stat.S_ISDIR(about.st_mode) else errno.EINVAL
        raise NotReadable(number, f"it is {kind}, expected a regular file", os.fspath(path))


def _too_large(path: str | os.PathLike[str], most_bytes: int) -> NotReadable:
    words = f"it has more than {most_bytes:,} bytes, the most that is read of such a file"
    return NotReadable(errno.EFBIG, f"{words}; give a smaller one", os.fspath(path))


# --- searching -----------------------------------------------------------------------------------


def files_in(folder: Path, suits: Callable[[Path], bool] = lambda path: True) -> list[Path]:
    """Regular files in a folder and below it that suit, sorted; links to folders are not followed.

    Raises:
        InputError: The folder is one of the kernel's, or holds more than is searched.
    """
    search = _FolderSearch(str(folder), MOST_FILES, MOST_FILES_S)
    found = [
        Path(path)
        for inner in search.below(str(folder), follow=False)
        for path, entry in search.entries(inner)
        if suits(Path(path)) and _tells(entry.is_file)
    ]
    return sorted(found)


def matching(pattern: str) -> list[str]:
    """Paths that match a pattern as of ``glob``, where ``**`` is any number of folders; sorted.

    Links to folders are followed, each folder is entered once.

    Raises:
        InputError: The pattern is about a folder of the kernel's, or about more than is searched.
    """
    path = Path(pattern)
    search = _FolderSearch(pattern, MOST_ENTRIES, MOST_S)
    found = [path.anchor]
    parts = path.parts[1:] if path.anchor else path.parts
    for number, part in enumerate(parts, 1):
        if part == "**":
            found = [inner for each in found for inner in search.below(each, follow=True)]
            part = "*" if number == len(parts) else ""
        if glob.has_magic(part):
            found = [
                path
                for each in found
                for path, entry in search.entries(each)
                if fnmatch.fnmatchcase(entry.name, part)
                and (part.startswith(".") or not entry.name.startswith("."))
            ]
        elif part:
            found = [p for each in found if os.path.lexists(p := os.path.join(each, part))]
    return sorted(dict.fromkeys(found))


class _FolderSearch:
    """Looks at folders, within the limits of one search; "" is the current folder."""

    def __init__(self, what: str, most: int, most_s: float) -> None:
        self._what, self._most, self._most_s = what, most, most_s
        self._seen = 0
        self._deadline = time.monotonic() + most_s

    def entries(self, folder: str) -> list[tuple[str, os.DirEntry[str]]]:
        """What is in a folder, by path; nothing if it cannot be read."""
        if _is_of_the_kernel(folder):
            raise self._refusal(f"{folder or '.'} is a folder of the kernel, not of files")
        found = []
        try:
            with os.scandir(folder or ".") as listed:
                for entry in listed:
                    self._seen += 1
                    if self._seen > self._most:
                        raise self._refusal(f"there are more than {self._most:,} entries")
                    if time.monotonic() > self._deadline:
                        raise self._refusal(f"to look at all takes more than {self._most_s:g} s")
                    found.append((os.path.join(folder, entry.name), entry))
        except OSError:
            return []
        return found

    def below(self, folder: str, *, follow: bool) -> Iterator[str]:
        """A folder and those below it, each once; what the kernel mounts there is left out."""
        known: set[tuple[int, int]] = set()
        waiting = [(folder, 0)]
        while waiting:
            place, level = waiting.pop()
            try:
                about = os.stat(place or ".")
            except OSError:
                continue
            if not stat.S_ISDIR(about.st_mode) or (about.st_dev, about.st_ino) in known:
                continue
            if level > MOST_LEVELS:
                raise self._refusal(f"there are more than {MOST_LEVELS} levels of folders")
            known.add((about.st_dev, about.st_ino))
            yield place
            waiting += [
                (path, level + 1)
                for path, entry in self.entries(place)
                # As ``glob`` does, a pattern that follows links leaves hidden folders out.
                if not (follow and entry.name.startswith("."))
                and _tells(entry.is_dir, follow_symlinks=follow)
                and not _is_of_the_kernel(path)
            ]

    def _refusal(self, words: str) -> InputError:
        return InputError(f"{show(self._what)}: {words}; name the folder of what you mean")


def _tells(predicate: Callable[..., bool], **more: bool) -> bool:
    try:
        return predicate(**more)
    except OSError:
        return False


def _is_of_the_kernel(folder: str) -> bool:
    """Whether a folder, after following links, is one where entries are no files of anybody."""
    place = os.path.realpath(folder or ".")
    if place == _MEMORY or place.startswith(f"{_MEMORY}/"):
        return False
    return any(place == root or place.startswith(f"{root}/") for root in _KERNEL)
