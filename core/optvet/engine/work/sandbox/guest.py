"""Modules of one environment, imported by the interpreter of another.

That interpreter executes this file before it can import anything of optvet, so it imports nothing
of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType


class Lender:
    """Finds certain modules by their files, before any that are installed."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = dict(files)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where a lent module is; None for every other one."""
        file = self._files.get(name)
        if file is None:
            return None
        folder, base = os.path.split(file)
        inside = [folder] if base == "__init__.py" else None
        return spec_from_file_location(name, file, submodule_search_locations=inside)


def lend(files: Mapping[str, str]) -> None:
    """Make modules importable here."""
    sys.meta_path.insert(0, Lender(files))
