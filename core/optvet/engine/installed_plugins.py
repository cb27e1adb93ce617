"""The entry points of what is installed, read anew only where something was installed since."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from importlib import metadata
from importlib.metadata import EntryPoint


def entry_points(*, group: str) -> tuple[EntryPoint, ...]:
    """As ``importlib.metadata.entry_points``, which reads files of every distribution each time."""
    return _read(group, tuple(map(_about, sys.path)))


@lru_cache(maxsize=4)
def _read(group: str, folders: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    return tuple(metadata.entry_points(group=group))


def _about(folder: str) -> tuple[str, int]:
    """A folder of modules, and when something was last installed there; -1 if that is unknown."""
    try:
        return folder, os.stat(folder or ".").st_mtime_ns
    except OSError:
        return folder, -1
