"""What is installed in the environment of optvet: the input of a plugin's ``diagnose``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Collision:
    """Two distributions that own the same files with different contents.

    Attributes:
        names: Canonical names of the two distributions.
        versions: Their versions, in the same order.
        on_disk: How many of the differing files on disk have the content of the first, of the
            second, and of neither.
        example: Path of one of these files.
    """

    names: tuple[str, str]
    versions: tuple[str, str]
    on_disk: tuple[int, int, int]
    example: str

    @property
    def winner(self) -> str | None:
        """The distribution whose files are all on disk; None if they are mixed or damaged."""
        ours, theirs, other = self.on_disk
        if other or (ours and theirs):
            return None
        return self.names[0] if ours else self.names[1]

    @property
    def message(self) -> str:
        """Which files both distributions own, and which of the two is in place."""
        both = " and ".join(f"{n} {v}" for n, v in zip(self.names, self.versions, strict=True))
        files = sum(self.on_disk)
        more = f" and {files - 1} files more" if files > 1 else ""
        whose = f"those of {self.winner} are in place" if self.winner else "they are mixed"
        return f"{both} both own {self.example}{more}; {whose}"


@dataclass(frozen=True)
class Unmet:
    """A requirement that is not fulfilled.

    Attributes:
        name: The distribution that has the requirement.
        version: Its version.
        requirement: A name with bounds of versions.
        library: The canonical name of what is required.
        found: The version of it that is installed; None if there is none.
    """

    name: str
    version: str
    requirement: str
    library: str
    found: str | None

    @property
    def message(self) -> str:
        """Which distribution needs what, and what is installed instead."""
        instead = f"{self.found} is installed" if self.found else "it is not installed"
        return f"{self.name} {self.version} needs {self.requirement}; {instead}"


@dataclass(frozen=True)
class Unimportable:
    """A distribution whose module cannot be imported.

    Attributes:
        reason: The error, on one line.
        modules: The top-level modules that were being imported when it was raised, the outermost
            first; empty if the process died.
    """

    reason: str
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ran:
    """What a function returned in a worker, or one line that says how it failed."""

    value: Any = None
    error: str | None = None


class RunsElsewhere(Protocol):
    """Runs a function of a module in a worker process of its own, where it may crash."""

    def __call__(self, function: Any, *arguments: Any) -> Ran:
        """Run ``function(*arguments)``; function, arguments and result must be picklable."""
        ...


@dataclass(frozen=True)
class Installation:
    """What is installed, and what is wrong with it.

    Names of distributions are canonical: lower case, hyphens.

    Attributes:
        versions: Version of each installed distribution.
        collisions: Distributions that own the same files.
        unmet: Requirements that are not fulfilled.
        unimportable: The libraries that cannot be imported, by distribution.
        folder: The working directory, in which programs are started.
        run: Runs a function in a worker process; import native code there only.
        pip: The command of the installer that installed optvet, for cures: "pip" or "uv pip".
    """

    versions: Mapping[str, str]
    collisions: tuple[Collision, ...]
    unmet: tuple[Unmet, ...]
    unimportable: Mapping[str, Unimportable]
    folder: Path
    run: RunsElsewhere
    pip: str = "pip"
