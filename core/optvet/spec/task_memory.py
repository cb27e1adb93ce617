"""The memory that a task in a worker may take, by address space or by what can be written to.

Address space bounds everything, shared memory too, but a driver of GPUs reserves as much of it as
host and devices have memory together, without using it. ``allow_reservations`` then counts private
writable memory instead (``RLIMIT_DATA`` in ``getrlimit(2)``), which reservations are not part of.
"""

from __future__ import annotations

import resource

_VM_SIZE, _VM_DATA = 0, 5
"""Fields of ``/proc/self/statm``."""

_allowed_bytes: int | None = None
"""What the task of this process may add; None outside tasks."""
_reserves = False


def limit_task(size_bytes: int | None) -> None:
    """Let this process add so many bytes to what it has; None lifts the limit."""
    global _allowed_bytes
    _allowed_bytes = size_bytes
    counted, other = resource.RLIMIT_AS, resource.RLIMIT_DATA
    if _reserves:
        counted, other = other, counted
    _set_soft(other, None)
    _set_soft(counted, None if size_bytes is None else counted_bytes() + size_bytes)


def allow_reservations() -> None:
    """Count private writable memory instead of address space, until this process ends.

    For plugins that are about to load a driver of GPUs. Without a limit it changes nothing.
    """
    global _reserves
    if not _reserves:
        _reserves = True
        if _allowed_bytes is not None:
            limit_task(_allowed_bytes)


def reserves() -> bool:
    """Whether ``allow_reservations`` was called in this process."""
    return _reserves


def counted_bytes() -> int:
    """What this process has of what is limited: address space, or writable private memory."""
    return _statm(_VM_DATA if _reserves else _VM_SIZE)


def _statm(field: int) -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[field]) * resource.getpagesize()


def _set_soft(which: int, size: int | None) -> None:
    """Set a soft limit in bytes; None lifts it."""
    hard = resource.getrlimit(which)[1]
    if size is None or (hard != resource.RLIM_INFINITY and size > hard):
        size = hard
    resource.setrlimit(which, (size, hard))
