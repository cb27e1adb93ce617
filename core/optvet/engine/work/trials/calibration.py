"""The inputs on which an optimizer measures ranges, in a file named by their content."""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from optvet.spec.files import write_file

_PREFIX = "calibration-"
_KEPT_S = 24 * 3600.0
"""How long a file is kept after its last use: another process may be using it."""


def write_inputs(folder: Path, feeds: Sequence[Mapping[str, np.ndarray]]) -> Path:
    """A file of ``feeds`` in ``folder``; equal inputs give the same file.

    The name says what is in it, since results in the cache depend on the name alone.
    """
    arrays = {f"{i}/{name}": value for i, each in enumerate(feeds) for name, value in each.items()}
    digest = hashlib.sha256()
    for name in sorted(arrays):
        value = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {value.dtype.str} {value.shape}".encode())
        digest.update(value.tobytes())
    path = folder / f"{_PREFIX}{digest.hexdigest()[:24]}.npz"
    _remove_old(folder)
    if path.exists():
        os.utime(path)
    else:
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]  # names of arrays, no other keyword
        folder.mkdir(parents=True, exist_ok=True)
        write_file(path, buffer.getvalue())
    return path


def _remove_old(folder: Path) -> None:
    """Remove inputs, and the ranges beside them, that nobody has used for a day."""
    for file in folder.iterdir() if folder.is_dir() else ():
        if file.name.startswith(_PREFIX):
            with suppress(OSError):  # another run may remove it at the same time
                if time.time() - file.stat().st_mtime > _KEPT_S:
                    file.unlink()
