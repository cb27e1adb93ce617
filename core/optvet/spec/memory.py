"""How much memory one set of inputs may take.

A file of a few kilobytes can announce, or unpack to, any number of bytes. Code that reads inputs
calls ``check_size`` first, with the size that a header announces or a shape implies, so that a file
that is too large is refused before memory is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import IO

import numpy as np

from optvet.spec.errors import InputError

DEFAULT_BYTES = 8 << 30
_limit: ContextVar[int] = ContextVar("optvet_memory_bytes", default=DEFAULT_BYTES)


@contextmanager
def limit_memory(size_bytes: int) -> Iterator[None]:
    """Within the block, ``check_size`` refuses sizes above ``size_bytes``."""
    token = _limit.set(size_bytes)
    try:
        yield
    finally:
        _limit.reset(token)


def memory_limit() -> int:
    """Bytes that one set of inputs may take here: the value of ``--memory``."""
    return _limit.get()


def check_size(what: str, size_bytes: int) -> None:
    """Raise if inputs of this size exceed the memory limit; call it before allocating them.

    Args:
        what: Dataset, file and part of the file; the error message begins with it.
        size_bytes: Peak memory for reading or making the inputs.

    Raises:
        InputError: ``size_bytes`` exceeds ``memory_limit()``.
    """
    limit = memory_limit()
    if size_bytes > limit:
        # More than any machine has is a mistake in the input; a higher limit would not help.
        raise_it = f", or say --memory {_enough(size_bytes)}" if size_bytes < 1 << 50 else ""
        raise InputError(
            f"{what}: takes {in_units(size_bytes)} of memory, and one step may take "
            f"{in_units(limit)}; give smaller inputs{raise_it}"
        )


def announced_bytes(file: IO[bytes]) -> int:
    """Bytes of the array that the header of an npy file announces; the header is read.

    Also of a file that is cut short: numpy takes the memory before it finds that out.

    Raises:
        ValueError: There is no such header. A forged one can lead to other errors of numpy's too.
    """
    version = np.lib.format.read_magic(file)
    # The third version differs from the second in the encoding of names alone.
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read(file)
    return math.prod(shape) * dtype.itemsize


def in_units(size_bytes: int) -> str:
    """A size as people write it, with three digits: ``5.59 GiB``.

    >>> in_units(6_000_000_000)
    '5.59 GiB'
    """
    size, units = float(size_bytes), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1024, units[1:]
    # A shape in a file may imply any number of bytes.
    return f"{size:.3g} {units[0]}" if size < 1e6 else f"more than {1e6:.0f} {units[0]}"


def _enough(size_bytes: int) -> str:
    """A value for ``--memory`` that is at least this size."""
    gib = size_bytes / (1 << 30)
    return f"{math.ceil(gib)}G" if gib >= 1 else f"{math.ceil(size_bytes / (1 << 20))}M"
