"""Large models: they are used from files, in one task at a time, or refused early.

Measured peaks of memory, as multiples of the model's size: an optimizer takes about 5 with the
model as bytes and 4 from a file; a runtime 3 from bytes, 1.2 from a file, and only the mapping if
the weights are external; the checker 3 from bytes and 2 from a file. So a large model is not loaded
as bytes if a plugin can take a file, tasks run one by one, and workers end after one task unless
there is memory in plenty.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from optvet.spec.errors import InfrastructureError, InputError
from optvet.spec.extras import given
from optvet.spec.memory import in_units
from optvet.spec.optimizer_protocols import Optimizer, TakesFiles
from optvet.spec.removal import remove_folder
from optvet.spec.runtime_protocols import Runtime, RuntimeExtras
from optvet.spec.types import Model

LARGE_BYTES = 512 << 20
"""Models from this size on are used from files."""
PROTOBUF_LIMIT = 2**31 - 1
"""Bytes that one protobuf message can have at most."""
WITH_BYTES = 6.0
"""Peak memory of an optimizer that takes bytes, as a multiple of the model's size."""
_OVERHEAD_BYTES = 256 << 20
_RETURNED_BYTES = 1 << 30
_PLENTY = 3
_KEPT = 2.5
_PREFIX = "large-"


def is_large(model: Model) -> bool:
    """Whether the model is used from files."""
    return model.size_bytes >= LARGE_BYTES


def keeps_memory(model: Model, optimizer: Optimizer) -> bool:
    """Whether a worker keeps the memory that it frees, for the rest of its task.

    Of a large model that takes up to a quarter more of it, and half of the time that the system
    takes to give memory; so it is done where there is plenty.
    """
    if not is_large(model):
        return True
    free = available_bytes()
    need = need_bytes(model.size_bytes, optimizer)
    return model.size_bytes < _RETURNED_BYTES and free is not None and free > _PLENTY * need


def keeps_workers(model: Model, optimizer: Optimizer) -> bool:
    """Whether workers serve one task after the other, with the memory that they keep.

    Of a large model the workers of two roles have kept 2.4 times what one step needs, and half of
    the time of a task is the system's, to give memory. Other processes may do the same at the same
    time, one per processor.
    """
    if not is_large(model):
        return True
    share = (available_bytes() or 0) / (os.cpu_count() or 1)
    return keeps_memory(model, optimizer) and share > _KEPT * need_bytes(
        model.size_bytes, optimizer
    )


def check_size(
    source: str, size_bytes: int, optimizer: Optimizer, others: tuple[Runtime, ...] = ()
) -> None:
    """Refuse a model that is too large for the optimizer or a runtime, before it is read.

    Args:
        source: The user's name of the model.
        size_bytes: Its size with external data.
        optimizer: The optimizer.
        others: The runtimes.

    Raises:
        InputError: One of them does not take a model of this size.
    """
    limit = optimizer.traits.max_model_bytes
    if isinstance(optimizer, TakesFiles):
        limit = None
    if limit is not None and size_bytes > limit:
        raise InputError(
            f"{source}: the model has {size_bytes:,} bytes; {optimizer.name} takes at most "
            f"{limit:,}: it is given a model as one protobuf message. Give a smaller model, or an "
            "optimizer that reads files"
        )
    for runtime in others if size_bytes > PROTOBUF_LIMIT else ():
        if not given(runtime, RuntimeExtras.load_file):
            raise InputError(
                f"{source}: the model has {size_bytes:,} bytes; runtime {runtime.name!r} loads at "
                f"most {PROTOBUF_LIMIT:,}: it is given a model as one protobuf message. Choose "
                "a runtime that reads files"
            )


def need_bytes(size_bytes: int, optimizer: Optimizer) -> int:
    """Expected peak memory of one step, in bytes."""
    factor = WITH_BYTES
    if size_bytes >= LARGE_BYTES and isinstance(optimizer, TakesFiles):
        factor = optimizer.memory_factor
    return int(factor * size_bytes) + _OVERHEAD_BYTES


def check_room(source: str, size_bytes: int, optimizer: Optimizer, memory_bytes: int) -> None:
    """Refuse a large model that needs more memory than the limit, or the machine, has.

    Otherwise the optimizer would run out of memory, which would be reported as a finding.
    """
    if size_bytes < LARGE_BYTES:
        return
    need = need_bytes(size_bytes, optimizer)
    words = (
        f"{source}: the model has {in_units(size_bytes)}, and a step of "
        f"{optimizer.name} takes about {in_units(need)} of memory"
    )
    if need > memory_bytes:
        raise InputError(
            f"{words}; the limit is {in_units(memory_bytes)}: say --memory {-(-need >> 30) + 1}G"
        )
    free = available_bytes()
    if free is not None and need > free:
        raise InputError(
            f"{words}, but only {in_units(free)} are available: free some, or use a larger machine"
        )


def jobs_that_fit(model: Model, optimizer: Optimizer, wanted: int) -> tuple[int, str]:
    """Number of parallel tasks, and the reason if it is less than ``wanted``, else ""."""
    need = need_bytes(model.size_bytes, optimizer)
    if is_large(model):
        fitting = 1
        why = f"the model has {in_units(model.size_bytes)}, and a step takes {in_units(need)}"
    else:
        free = available_bytes()
        fitting = wanted if free is None else max(1, free // need)
        why = f"a step may take {in_units(need)}, and {in_units(free or 0)} are available"
    if fitting >= wanted:
        return wanted, ""
    return fitting, f"{fitting} of {wanted} at a time: {why}"


def available_bytes() -> int | None:
    """Free memory of the machine, or of this control group if that is less; None if unknown."""
    found = [_of_machine(), *_of_groups()]
    known = [size for size in found if size is not None]
    return min(known, default=None)


def _of_machine() -> int | None:
    for line in _text(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


def _of_groups() -> Iterator[int | None]:
    """Free memory of each control group, version 1 or 2, that contains this process."""
    root = Path("/sys/fs/cgroup")
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base, files = (
            (root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"))
            if controllers
            else (root, ("memory.max", "memory.current", ""))
        )
        # Inside a container, the container's group is the root.
        path = Path(name.lstrip("/"))
        for folder in (path, *path.parents):
            yield _left_in(base / folder, *files)


def _left_in(group: Path, limit: str, usage: str, prefix: str) -> int | None:
    bound, used = _text(group / limit).strip(), _text(group / usage).strip()
    if not (bound.isdigit() and used.isdigit()) or int(bound) >= 1 << 60:
        return None
    # Cached pages of files count as used, but are freed when memory is needed.
    cached = next(
        (
            int(line.split()[1])
            for line in _text(group / "memory.stat").splitlines()
            if line.startswith(f"{prefix}inactive_file ")
        ),
        0,
    )
    return max(0, int(bound) - int(used) + cached)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@contextlib.contextmanager
def scratch_folder(model: Model, root: Path) -> Iterator[Path | None]:
    """A temporary folder below ``root`` for results of a large model; None for other models.

    It is not in the system's folder for temporary files, which is often in memory. Folders of
    killed processes are removed by later ones.
    """
    if not is_large(model):
        yield None
        return
    try:
        root.mkdir(parents=True, exist_ok=True)
        for left in root.glob(f"{_PREFIX}*"):
            if not _is_alive(left.name.removeprefix(_PREFIX).split("-")[0]):
                remove_folder(left)
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=root))
    except OSError as error:
        raise InfrastructureError(
            f"cannot make a folder for a large model in {root}: {error}; choose another with "
            "--cache-dir"
        ) from error
    try:
        yield folder
    finally:
        remove_folder(folder)


def _is_alive(pid: str) -> bool:
    return not pid.isdigit() or Path(f"/proc/{pid}").exists()
