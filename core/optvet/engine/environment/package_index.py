"""Releases of a package in the index that pip is set up with, or in a folder of wheels."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from optvet.engine.environment.child_process import ChildEnd, run_below
from optvet.spec.errors import InfrastructureError, UsageError
from optvet.spec.scratch import temporary_folder

_LIST_S = 300.0
_INSTALL_S = 1800.0
_LOG_LINES = 4
_LONGEST_LINE = 200
# pip tells of an index that it cannot reach only where it tries again.
_QUIET = ("--disable-pip-version-check", "--no-input", "--no-color", "--retries", "2")
_WHEELS = "--only-binary=:all:"
"""Building from source takes minutes to hours, and executes what it builds."""
_LISTED = re.compile(r"^Available versions: (.*)$", re.MULTILINE)
_FULL = re.compile(r"no space left|disk quota exceeded|file too large|\[errno (28|122|27)\]", re.I)
_MACHINE = re.compile(r"\[errno (4|5|11|12|23|24|30)\]|memoryerror", re.I)
"""Interrupted calls, a broken or read-only disk, no process, memory or descriptors: no release is
to blame, and none is skipped for it."""
_CUT_OFF = re.compile(
    r"connection (broken|refused|reset|aborted)|could not fetch url|max retries exceeded|"
    r"name resolution|newconnectionerror|timed out|proxy ?error|ssl ?error|"
    r"not a trusted or secure host",
    re.I,
)
_NO_RELEASE = re.compile(r"no matching distribution|could not find a version", re.I)


@dataclass(frozen=True)
class PackageIndex:
    """Where wheels come from.

    Attributes:
        folder: A folder of wheels; None for the index that pip is set up with.
    """

    folder: Path | None = None

    @property
    def name(self) -> str:
        """The index in words."""
        return "the index that pip is set up with" if self.folder is None else str(self.folder)

    @contextmanager
    def arguments(self) -> Iterator[tuple[str, ...]]:
        """Arguments of pip, for as long as it runs.

        Of a folder it is given links to what is a wheel and a regular file: it opens whatever has
        such a name, and pages as well, and waits for ever at a pipe.
        """
        if self.folder is None:
            yield ()
            return
        with temporary_folder("optvet-wheels-") as place:
            for wheel in self._wheels():
                (Path(place) / wheel.name).symlink_to(wheel.absolute())
            yield ("--no-index", "--find-links", place)

    def _wheels(self) -> list[Path]:
        if self.folder is None:
            return []
        return sorted(f for f in self.folder.iterdir() if f.suffix == ".whl" and f.is_file())

    def build_of(self, package: str, version: str) -> tuple[tuple[str, int, int], ...]:
        """Name, size and time of the wheels of a release in the folder, which may be built anew."""
        found = []
        for file in self._wheels():
            try:
                name, number, *_ = parse_wheel_filename(file.name)
            except InvalidWheelFilename:  # no release, for pip neither
                continue
            if name == canonicalize_name(package) and number == Version(version):
                status = file.stat()
                found.append((file.name, status.st_size, status.st_mtime_ns))
        return tuple(found)


class NotInstallable(Exception):
    """A release cannot be installed here; another one may."""


def available(package: str, index: PackageIndex, *, pre: bool = False) -> list[str]:
    """Releases with a wheel for this Python and platform, oldest first.

    Args:
        package: Name of the distribution.
        index: Where to look.
        pre: Whether pre-releases count.

    Raises:
        UsageError: There is none.
        InfrastructureError: The index cannot be asked.
    """
    if index.folder is not None and not index.folder.is_dir():
        raise UsageError(f"--index {index.folder}: expected a folder of wheels; check the path")
    more = ("--pre",) if pre else ()
    with index.arguments() as place:
        ended = _pip(("index", "versions", package, _WHEELS, *more, *place), _LIST_S)
    listed = _LISTED.search(ended.printed)
    found = ended.status == 0 and listed is not None
    if found and listed and (versions := in_order(n.strip() for n in listed[1].split(","))):
        return versions
    # An index that cannot be reached looks to pip like one without this package.
    cut_off = _line_with(_CUT_OFF, ended)
    if ended.status is None or cut_off:
        words = cut_off or f"no answer in {_LIST_S:g} s"
        raise InfrastructureError(
            f"{index.name} cannot be reached ({words}); check the network and pip's configuration, "
            "or give a folder of wheels with --index"
        )
    if found or _NO_RELEASE.search(ended.errors):  # found: of versions that are none
        python = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
        raise UsageError(
            f"package {package!r}: {index.name} has no wheel of it for {python} on this platform; "
            "check the name, or give a folder of wheels with --index"
        )
    raise InfrastructureError(f"pip cannot list releases: {ended.last_lines(_LOG_LINES)}")


def in_order(versions: Iterable[str]) -> list[str]:
    """Versions, oldest first; what is no version is left out."""
    known: dict[Version, str] = {}
    for text in versions:
        try:
            known[Version(text)] = text
        except InvalidVersion:
            continue
    return [known[version] for version in sorted(known)]


def choose(versions: Sequence[str], wanted: str) -> list[str]:
    """Those of ``versions`` that ``wanted`` names: ``1.20,1.21.1`` or ``>=1.20,<1.28``.

    Raises:
        UsageError: It is neither, names one that is not there, or leaves none.
    """
    parts = [part.strip() for part in wanted.split(",") if part.strip()]
    if parts and all(part[0] in "<>=!~" for part in parts):
        try:
            fitting = SpecifierSet(wanted)
        except InvalidSpecifier as error:
            raise UsageError(f"--versions {wanted!r}: {error}; such as '>=1.20,<1.28'") from error
        chosen = [text for text in versions if fitting.contains(text, prereleases=True)]
    else:
        chosen = in_order(find(versions, part, "--versions") for part in parts)
    if not chosen:
        raise UsageError(f"--versions {wanted!r}: none of {_span(versions)} is one of them")
    return chosen


def find(versions: Sequence[str], wanted: str, option: str) -> str:
    """The release that the user names, as the index spells it.

    Raises:
        UsageError: There is none.
    """
    try:
        number = Version(wanted)
    except InvalidVersion:
        raise UsageError(f"{option} {wanted!r} is no version; write it as 1.20.1") from None
    for text in versions:
        if Version(text) == number:
            return text
    near = [text for text in versions if Version(text).release[:2] == number.release[:2]]
    advice = f"there is {', '.join(near)}" if near else f"there are {_span(versions)}"
    raise UsageError(f"{option} {wanted}: there is no such release; {advice}")


def _span(versions: Sequence[str]) -> str:
    return f"{versions[0]} … {versions[-1]}" if len(versions) > 1 else versions[0]


def install(package: str, version: str, target: Path, index: PackageIndex) -> None:
    """Install one wheel into ``target``, without what it requires.

    Raises:
        NotInstallable: There is no wheel of that release that fits, or it is broken.
        InfrastructureError: The disk is full, or the index is out of reach.
    """
    place = ("--no-deps", _WHEELS, "--no-compile", "--quiet", "--target", str(target))
    with index.arguments() as source:
        ended = _pip(("install", *place, *source, f"{package}=={version}"), _INSTALL_S)
    if ended.status == 0:
        return
    what = f"{package} {version}"
    if ended.status is None:
        raise InfrastructureError(
            f"{what}: pip has not installed it in {_INSTALL_S:g} s; run again"
        )
    if _FULL.search(ended.errors):
        raise InfrastructureError(
            f"{what} cannot be installed: no space left; make room (optvet env clear), then rerun"
        )
    if failed := _line_with(_MACHINE, ended):
        raise InfrastructureError(
            f"{what} cannot be installed: {failed}; mend that, then run again"
        )
    if cut_off := _line_with(_CUT_OFF, ended):
        raise InfrastructureError(
            f"{what} cannot be fetched from {index.name} ({cut_off}); check the network, then run "
            "again"
        )
    if ended.status > 128:
        raise InfrastructureError(
            f"{what}: pip was ended by signal {ended.status - 128}; run again"
        )
    lines = [line for line in ended.errors.splitlines() if line.startswith("ERROR: ")]
    raise NotInstallable((lines[-1] if lines else ended.last_lines(1)).removeprefix("ERROR: "))


def _line_with(pattern: re.Pattern[str], ended: ChildEnd) -> str:
    """The last line of pip's log that the pattern matches, without what pip adds; "" if none."""
    lines = [line for line in ended.errors.splitlines() if pattern.search(line)]
    added = r"^(WARNING|ERROR): (Retrying \(.*?\)\) after )?"
    return re.sub(added, "", lines[-1])[:_LONGEST_LINE] if lines else ""


def _pip(arguments: Sequence[str], timeout_s: float) -> ChildEnd:
    """Run this Python's pip.

    Raises:
        InfrastructureError: It has none.
    """
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    command = [sys.executable, "-I", "-m", "pip", *arguments, *_QUIET]
    ended = run_below(command, variables, timeout_s=timeout_s)
    if "No module named pip" in ended.errors:
        raise InfrastructureError(
            f"{sys.executable} has no pip; get it with: {sys.executable} -m ensurepip"
        )
    return ended
