"""Code of libraries that is not as it was installed: built in place, edited, or from a checkout.

The version of a library stays as it is when its authors rebuild it. What was worked out with the
build before must not be given again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import metadata
from importlib.util import find_spec

_CODE = re.compile(r"\.(py|pyd|dll|dylib|so(\.[\d.]+)?)$")
_OWN = re.compile(r"^([^,]+\.dist-info/RECORD),", re.MULTILINE)
_SLACK_NS = 60 * 10**9
"""Files are written before the list of them, by most installers; packages may carry older times."""


@cache
def modified_code_digest(*modules: str) -> str:
    """A digest of code files of top-level ``modules`` that differ from what was installed.

    Empty if none differs. A file differs if no distribution lists it, as in a checkout, or lists
    another size, or if it was written after the list. Paths, sizes and times are compared, no
    contents are read.
    """
    found = [line for module in modules for line in _find_modified_files(module)]
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16] if found else ""


def code_digest(*modules: str) -> str:
    """A digest of paths, sizes and times of all code files of top-level ``modules``."""
    lines = []
    for path in (path for module in modules for path in _code_of(module)):
        with contextlib.suppress(OSError):
            about = os.stat(path)
            lines.append(f"{path} {about.st_size} {about.st_mtime_ns}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _find_modified_files(module: str) -> Iterator[str]:
    """A line for each code file that differs."""
    listed = _list_recorded_files(module)
    for path in _code_of(module):
        try:
            about = os.stat(path)
        except OSError:
            continue
        size, written_ns = listed.get(path, (-1, 0))
        if about.st_size != size or about.st_mtime_ns > written_ns + _SLACK_NS:
            yield f"{path} {about.st_size} {about.st_mtime_ns}"


def _code_of(module: str) -> list[str]:
    """Code files of a module or package, which is not imported; sorted."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):  # a module without a spec, a finder that fails
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations is None:
        return [os.path.realpath(spec.origin)] if spec.origin else []
    return sorted(
        os.path.join(folder, name)
        for root in spec.submodule_search_locations
        for folder, _, names in os.walk(os.path.realpath(root))
        for name in names
        if _CODE.search(name)
    )


@cache
def owners_of(module: str) -> tuple[str, ...]:
    """The distributions that install a top-level module, also beside what else they install."""
    begins = [f"\n{module}{end}" for end in "/.,\n"]
    found = (d for d, text in _listings() if any(begin in text for begin in begins))
    return tuple(sorted({distribution.name for distribution in found}))


@cache
def _listings() -> Sequence[tuple[metadata.Distribution, str]]:
    """Each distribution, and a text of which a line begins with each of its modules.

    ``metadata.packages_distributions`` makes a path of every installed file and parses the metadata
    of every distribution, which takes longer than vetting a small model.
    """
    return [(d, f"\n{_modules_in(d)}\n") for d in metadata.distributions()]


def _modules_in(distribution: metadata.Distribution) -> str:
    declared = (distribution.read_text("top_level.txt") or "").split()
    return "\n".join(declared) or distribution.read_text("RECORD") or ""


def _list_recorded_files(module: str) -> dict[str, tuple[int, int]]:
    """Listed size in bytes, and time of the list in ns, of code files of ``module``."""
    found: dict[str, tuple[int, int]] = {}
    for name in owners_of(module):
        distribution = metadata.distribution(name)
        base = os.path.realpath(str(distribution.locate_file("")))
        record = distribution.read_text("RECORD") or ""
        own = _OWN.search(record)
        written_ns = os.stat(os.path.join(base, own[1])).st_mtime_ns if own else 0
        for line in record.splitlines():
            path, _, size = line.rpartition(",")
            path = path.rpartition(",")[0].strip('"')
            if size.isdigit() and _CODE.search(path):
                found[os.path.join(base, path)] = int(size), written_ns
    return found
