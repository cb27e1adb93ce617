"""Problems of the installed distributions, found in their own records.

pip allows two distributions to install the same file, and does not record which came last. But each
distribution lists its files with their hashes, so comparing these with the files on disk shows it.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution, PackageMetadata
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from optvet.engine.environment.extras import canonical
from optvet.spec.environment import Collision, Unmet


class ParsedOnce(Distribution):
    """A distribution whose files are read once: it parses its metadata for each of its fields."""

    def __init__(self, distribution: Distribution) -> None:
        self._from = distribution
        self._texts: dict[str, str | None] = {}
        self._metadata: PackageMetadata | None = None

    def read_text(self, filename: str) -> str | None:
        """The text of one of its files; None if it has none of that name."""
        if filename not in self._texts:
            self._texts[filename] = self._from.read_text(filename)
        return self._texts[filename]

    def locate_file(self, path: str | os.PathLike[str]) -> Any:
        """Where a file that it lists is."""
        return self._from.locate_file(path)

    @property
    def metadata(self) -> PackageMetadata:
        """Its metadata, parsed."""
        if self._metadata is None:
            self._metadata = self._from.metadata
        return self._metadata


def name_of(distribution: Distribution) -> str:
    """Its canonical name; empty for a folder that is not a distribution."""
    return canonical(distribution.metadata["Name"] or "")


def collisions(distributions: Iterable[Distribution], concerned: Iterable[str]) -> list[Collision]:
    """Files that two distributions claim with different contents, one of them ``concerned``."""
    wanted = set(concerned)
    # Several versions of one distribution are reported by ``duplicates``.
    owners: dict[str, dict[str, str]] = defaultdict(dict)
    versions: dict[str, str] = {}
    for distribution in distributions:
        # Once per distribution, not per file: reading its metadata takes a millisecond.
        name = name_of(distribution)
        versions[name] = distribution.version
        for file, digest in _record(distribution):
            owners[file][name] = digest
    shared: dict[tuple[str, str], list[tuple[Path, str, str]]] = defaultdict(list)
    for file, by_name in owners.items():
        if len(by_name) != 2 or not wanted & by_name.keys():
            continue
        first, second = sorted(by_name)
        if by_name[first] != by_name[second]:
            shared[first, second].append((Path(file), by_name[first], by_name[second]))
    return [
        Collision(pair, (versions[pair[0]], versions[pair[1]]), _whose(files), files[0][0].name)
        for pair, files in sorted(shared.items())
    ]


def duplicates(
    distributions: Iterable[Distribution], concerned: Iterable[str]
) -> dict[str, list[str]]:
    """Versions of each ``concerned`` distribution that is installed in several versions."""
    versions: dict[str, list[str]] = defaultdict(list)
    for distribution in distributions:
        name = name_of(distribution)
        if name in concerned and distribution.version not in versions[name]:
            versions[name].append(distribution.version)
    return {name: found for name, found in sorted(versions.items()) if len(found) > 1}


def usurpers(
    distributions: Iterable[Distribution], modules: Iterable[str], owner: str
) -> dict[str, list[str]]:
    """Distributions other than ``owner`` that install some of ``modules``; with these modules."""
    wanted = set(modules)
    found: dict[str, list[str]] = {}
    for distribution in distributions:
        if name_of(distribution) == canonical(owner):
            continue
        root = f"{distribution.locate_file('')}{os.sep}"
        inside = (f.removeprefix(root) for f, _ in _record(distribution) if f.startswith(root))
        tops = {f.partition(os.sep)[0] for f in inside}
        mine = sorted(wanted & {t.removesuffix(".py") for t in tops})
        if mine:
            found[name_of(distribution)] = mine
    return found


def unmet(distributions: Iterable[Distribution], concerned: Iterable[str]) -> list[Unmet]:
    """Requirements of ``concerned`` distributions that are not met."""
    every = list(distributions)
    versions = {name_of(d): d.version for d in reversed(every)}
    found = []
    for distribution in every:
        if name_of(distribution) not in concerned:
            continue
        for line in distribution.requires or ():
            problem = _problem(line, versions)
            if problem is not None:
                name, version = name_of(distribution), distribution.version
                library = canonical(problem.name)
                found.append(Unmet(name, version, str(problem), library, versions.get(library)))
    return found


def _problem(line: str, versions: Mapping[str, str]) -> Requirement | None:
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return None
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return None
    version = versions.get(canonical(requirement.name))
    if version is not None and requirement.specifier.contains(version, prereleases=True):
        return None
    requirement.marker = None
    return requirement


def _record(distribution: Distribution) -> Iterator[tuple[str, str]]:
    """Files with their hashes, without compiled Python files and files without a hash.

    Paths are texts: an environment has a hundred thousand, for which ``Path`` takes seconds.
    """
    text = distribution.read_text("RECORD") or ""
    root = str(distribution.locate_file(""))
    rows: Iterable[Sequence[str]] = csv.reader(text.splitlines())
    return ((os.path.join(root, row[0]), row[1]) for row in rows if len(row) > 1 and row[1])


def _whose(files: Sequence[tuple[Path, str, str]]) -> tuple[int, int, int]:
    votes: Counter[int] = Counter()
    for file, first, second in files:
        digest = _digest(file, first.partition("=")[0])
        votes[0 if digest == first else 1 if digest == second else 2] += 1
    return votes[0], votes[1], votes[2]


def _digest(file: Path, algorithm: str) -> str:
    """The hash of a file in the form of RECORD files; empty if it cannot be read."""
    try:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, algorithm).digest()
    except (OSError, ValueError):
        return ""
    return f"{algorithm}={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"
