"""Says which resource ran out, or which limit was hit, and what the user can do.

The system tells it by an error's number; a message that has gone through other programs, by the
words for that number; SQLite by words of its own. Each names what was hit: "File too large" says
nothing to whom set a limit in another shell.
"""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping

from optvet.spec.foreign import NotReadable

_FEW_FILES = 256
"""Below this limit of open files, SQLite may fail to open a file for want of descriptors."""


def _of_sizes() -> str:
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most == resource.RLIM_INFINITY:
        return "the file system takes no file of that size; use another one"
    return f"a file may have at most {most:,} bytes here (ulimit -f); raise that limit"


def _of_files() -> str:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return f"at most {most:,} files may be open at a time (ulimit -n); raise that limit"


_LACKS: Mapping[int, Callable[[], str]] = {
    errno.EFBIG: _of_sizes,
    errno.EMFILE: _of_files,
    errno.ENFILE: lambda: "the machine has too many files open; end other processes",
    errno.ENOSPC: lambda: "make room",
    errno.EDQUOT: lambda: "make room",
    errno.EAGAIN: lambda: "end other processes, or raise your limits",
    errno.ENOMEM: lambda: "end other processes, or raise your limits",
    errno.EIO: lambda: "check the disk",
    errno.EROFS: lambda: "nothing may be written there; name another folder",
}
_IN_WORDS = (errno.EFBIG, errno.ENFILE, errno.EMFILE, errno.ENOSPC, errno.EDQUOT)
"""What the message of a failed task is searched for; the words for one may begin as another's."""
_WORDS = re.compile("|".join(re.escape(os.strerror(number)) for number in _IN_WORDS))


def shortage(error: BaseException) -> str:
    """What to do about what the machine lacked when ``error`` arose; empty if that is not known.

    Also the errors count from which it arose.
    """
    if isinstance(error, MemoryError):
        return _LACKS[errno.ENOMEM]()
    for each in _chain(error):
        if isinstance(each, NotReadable):  # The limit is the reader's own.
            return ""
        # Further back, an error such as EAGAIN may have been heeded.
        known = tuple(_LACKS) if each is error else _IN_WORDS
        if isinstance(each, OSError) and each.errno is not None and each.errno in known:
            return _LACKS[each.errno]()
        if words := _of_database(getattr(each, "sqlite_errorname", "")):
            return words
    return ""


def shortage_in(message: str) -> str:
    """The same of a message."""
    found = _WORDS.search(message)
    number = next((n for n in _IN_WORDS if found and os.strerror(n) == found[0]), None)
    return _LACKS[number]() if number is not None else ""


def shortage_of_time(signals: Iterable[str | None]) -> str:
    """The same of processes that were ended by signals, which the limit of processor time sends."""
    most = resource.getrlimit(resource.RLIMIT_CPU)[0]
    if most == resource.RLIM_INFINITY or {"SIGXCPU", "SIGKILL"}.isdisjoint(signals):
        return ""
    return f"a process may compute for {most:,} s here (ulimit -t); raise that limit"


def _of_database(name: str) -> str:
    """The same by the name of an error of SQLite, which does not give the system's number."""
    limited = resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
    if name.startswith("SQLITE_FULL"):
        return _LACKS[errno.ENOSPC]()
    if name.startswith("SQLITE_IOERR") and limited:
        return _of_sizes()
    few = 0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] < _FEW_FILES
    return _of_files() if name.startswith("SQLITE_CANTOPEN") and few else ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen = set[int]()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__
