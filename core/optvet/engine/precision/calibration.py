"""The inputs on which an optimizer measures ranges, in a file named by their content."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from optvet.spec.files import write_file


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
    path = folder / f"calibration-{digest.hexdigest()[:24]}.npz"
    if not path.exists():
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]  # names of arrays, no other keyword
        folder.mkdir(parents=True, exist_ok=True)
        write_file(path, buffer.getvalue())
    return path
