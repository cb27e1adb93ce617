"""Processes in which one release stands in the place of the installed one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement

from optvet.engine.bisect.release_process import Document, ReleaseProcesses, Task
from optvet.engine.environment.child_process import ChildEnd, run_below
from optvet.engine.environment.package_index import (
    NotInstallable,
    PackageIndex,
    available,
)
from optvet.engine.environment.releases import ReleaseStore, Say
from optvet.spec.errors import UsageError
from optvet.spec.releases import ReleasedPackage
from optvet.spec.scratch import temporary_variables

_PROBE_S = 120.0
_PROBE = """\
import os, sys
import {module}
place = os.path.realpath({module}.__file__ or list({module}.__path__)[0])
if not place.startswith(os.path.realpath({folder!r}) + os.sep):
    sys.exit("Python imports {module} from " + place + ", not from the folder of the release")
{probe}
"""


@dataclass(frozen=True)
class Overlay:
    """A release that works beside what is installed: folders to put first on the path."""

    version: str
    folders: tuple[Path, ...]
    processes: ReleaseProcesses = field(default_factory=ReleaseProcesses, compare=False)
    """Those that do its tasks."""

    @property
    def variables(self) -> dict[str, str]:
        """All variables of a process that imports this release."""
        before = os.environ.get("PYTHONPATH", "")
        paths = [*map(str, self.folders), *([before] if before else [])]
        return {**os.environ, **temporary_variables(), "PYTHONPATH": os.pathsep.join(paths)}

    def ask(self, task: Task, *, alone: bool = False) -> Document | ChildEnd:
        """The document that answers a task in a process with this release, or how it ended.

        ``alone``: in a process that does nothing else.
        """
        return self.processes.ask(self.variables, task, alone=alone)

    def run(self, arguments: Sequence[str], *, timeout_s: float | None = None) -> ChildEnd:
        """Run Python with this release; the current folder is not on its path."""
        return run_below([sys.executable, "-P", *arguments], self.variables, timeout_s=timeout_s)

    def run_program(self, command: Sequence[str], *, timeout_s: float) -> ChildEnd:
        """Run a program; what it starts of Python has this release."""
        return run_below(command, self.variables, timeout_s=timeout_s)


class Overlays:
    """Makes overlays of a package; what was found out about a release is kept."""

    def __init__(
        self, package: ReleasedPackage, store: ReleaseStore, index: PackageIndex, say: Say
    ) -> None:
        self.package, self.store, self.index = package, store, index
        self.installed: set[str] = set()
        """Releases that were on disk at some time."""
        self.processes = ReleaseProcesses()
        """To be closed at the end."""
        self._say = say
        self._kinds: dict[str, _Kind] = {}
        self._newest: dict[str, str | None] = {}

    @contextmanager
    def using(self, version: str) -> Iterator[Overlay]:
        """The overlay of a release, until the block ends.

        Raises:
            NotInstallable: It cannot be installed, or does not work beside what is installed.
            InfrastructureError: The disk is full, or the index is out of reach.
        """
        kind = self._kinds.get(version)
        if kind is not None and kind.problem:
            raise NotInstallable(kind.problem)
        with ExitStack() as stack:
            try:
                overlay, found = self._enter(version, stack, kind)
            except NotInstallable as error:
                self._kinds[version] = _Kind(str(error))
                raise
            self._kinds[version] = found
            yield overlay

    def _enter(self, version: str, stack: ExitStack, kind: _Kind | None) -> tuple[Overlay, _Kind]:
        name = self.package.distribution
        folder = stack.enter_context(self.store.using(name, version, self.index, self._say))
        self.installed.add(version)
        alone = Overlay(version, (folder,), self.processes)
        if kind is not None and not kind.beside:
            return alone, kind
        problem = "" if kind is not None else self._problem(alone)
        if kind is None and not problem:
            return alone, _Kind()
        others = [f for text in self.package.beside for f in self._beside(text, stack)]
        both = Overlay(version, (folder, *others), self.processes)
        if kind is not None or (others and not self._problem(both)):
            return both, _Kind(beside=True)
        raise NotInstallable(f"it does not work beside what is installed: {problem}")

    def _beside(self, text: str, stack: ExitStack) -> list[Path]:
        """The folder of the newest release that meets a requirement, if there is one."""
        name = Requirement(text).name
        if text not in self._newest:
            self._newest[text] = self._newest_of(text)
        version = self._newest[text]
        if version is None:
            return []
        try:
            return [stack.enter_context(self.store.using(name, version, self.index, self._say))]
        except NotInstallable:
            return []

    def _newest_of(self, text: str) -> str | None:
        wanted = Requirement(text)
        try:
            found = available(wanted.name, self.index)
        except UsageError:
            return None
        fitting = [v for v in found if wanted.specifier.contains(v)]
        return fitting[-1] if fitting else None

    def _problem(self, overlay: Overlay) -> str:
        """Why the release does not work there; empty if it does."""
        package = self.package
        code = _PROBE.format(
            module=package.module, folder=str(overlay.folders[0]), probe=package.probe
        )
        ended = overlay.run(["-c", code], timeout_s=_PROBE_S)
        if ended.status == 0:
            return ""
        if ended.status is None:
            return f"importing it takes more than {_PROBE_S:g} s"
        if ended.status > 128 and not ended.errors.strip():
            return f"importing it ends with signal {ended.status - 128}"
        return ended.last_lines(1)[-300:]


@dataclass(frozen=True)
class _Kind:
    """What is known of a release: why it does not work, or whether it needs what is put beside."""

    problem: str = ""
    beside: bool = False
