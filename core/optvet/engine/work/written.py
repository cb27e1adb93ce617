"""Which models optvet wrote to files that the user named, so that no other one is replaced.

A model can be the only copy of hours of training. The cache holds the digest of what was written
to each path; a file with another content is the user's, as is any file after ``cache clear``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from optvet.engine.work.cache import cache_key
from optvet.engine.work.cache.disk import Cache, cache_root
from optvet.spec.errors import UsageError
from optvet.spec.files import file_sha256


def refuse_to_lose(option: str, *files: Path, cache_dir: Path | None = None) -> None:
    """Refuse to replace a file that is there unless optvet wrote it, before the work.

    Raises:
        UsageError: One has another content, or nobody knows who wrote it.
    """
    there = [file for file in files if file.is_file() and file.stat().st_size]
    if not there:
        return
    with Cache(cache_dir or cache_root()) as cache:
        for file in there:
            if cache.get(_key(file)) != file_sha256(file).encode():
                words = f"{option} {file} would overwrite a model that optvet did not write there"
                raise UsageError(f"{words}; give another path, or remove this file first")


def remember(files: Iterable[Path], cache_dir: Path | None = None) -> None:
    """Keep in mind that optvet wrote these files."""
    with Cache(cache_dir or cache_root()) as cache:
        for file in files:
            cache.put(_key(file), "written", file_sha256(file).encode())


def _key(file: Path) -> str:
    return cache_key.key("written", file.resolve())
