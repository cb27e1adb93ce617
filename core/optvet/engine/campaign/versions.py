"""Releases that a campaign file asks for: each cell is vetted with one in place of the installed.

``versions = {PACKAGE = ["1.30", "latest", "./dist"]}``: the newest release of a series, the newest
of all, or the newest in a folder of wheels. They are installed and kept as ``bisect`` does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from optvet.engine.bisect.overlay import Overlays
from optvet.engine.bisect.predicate import vet_there
from optvet.engine.bisect.run import released_packages
from optvet.engine.discovery import Plugins
from optvet.engine.environment.package_index import NotInstallable, PackageIndex, available
from optvet.engine.environment.releases import ReleaseStore, releases_root
from optvet.engine.trust import locate
from optvet.spec.campaign import JobSet, ReleaseRequest
from optvet.spec.errors import InfrastructureError, NothingTested, UnknownName, UsageError
from optvet.spec.optimizer_protocols import Optimizer
from optvet.spec.records import ErrorRecord, VetResult
from optvet.spec.request import VetRequest

LATEST = "latest"


@dataclass(frozen=True)
class WantedRelease:
    """A release that a file asks for.

    Attributes:
        package: The distribution.
        wanted: What the file says.
        release: The release that it stands for.
        wheels: The folder that it is installed from; None for the index of pip.
    """

    package: str
    wanted: str
    release: str
    wheels: Path | None

    def ask(self, request: VetRequest) -> ReleaseRequest:
        """The same question about this release."""
        return ReleaseRequest.model_validate(
            {
                **{name: getattr(request, name) for name in VetRequest.model_fields},
                "package": self.package,
                "wanted": self.wanted,
                "release": self.release,
                "wheels": self.wheels,
            }
        )


def check_versions(jobs: JobSet, plugins: Plugins) -> None:
    """Check what can be checked without an index.

    Raises:
        UsageError: A package is unknown, or of none of the optimizers; or a version is none.
    """
    known = released_packages(plugins)
    optimizers = jobs.optimizers or (plugins.default("optimizer"),)
    for package, several in jobs.versions.items():
        if package not in known:
            raise UnknownName("package", package, known)
        own = [name for name, _ in known[package]]
        if not set(own) & set(optimizers):
            raise UsageError(
                f"{package} is the package of {', '.join(own)}, none of which is vetted here; the "
                f"optimizers are {', '.join(optimizers)}"
            )
        if not several:
            raise UsageError(f"{package}: no version; expected a list such as ['1.30', 'latest']")
        for text in several:
            if text != LATEST and not is_folder(text):
                _series(package, text)


def optimizers_of(jobs: JobSet, plugins: Plugins) -> set[str]:
    """The optimizers whose releases are varied."""
    known = released_packages(plugins)
    return {name for package in jobs.versions for name, _ in known.get(package, ())}


def declared_optimizer(name: str, plugins: Plugins) -> Optimizer:
    """An optimizer whose library need not be installed."""
    (found,) = (e.plugin for e in plugins.all() if e.family == "optimizer" and e.name == name)
    assert isinstance(found, Optimizer)
    return found


def is_folder(text: str) -> bool:
    """Whether a version names a folder of wheels."""
    return "/" in text or text in (".", "..")


def releases_by_optimizer(
    jobs: JobSet, folder: Path, plugins: Plugins
) -> Mapping[str, list[WantedRelease]]:
    """The releases to vet each optimizer with; those that are not varied have none.

    Raises:
        UsageError: No release is meant by a version.
        InfrastructureError: The index cannot be reached.
    """
    known = released_packages(plugins)
    found: dict[str, list[WantedRelease]] = {}
    for package, several in jobs.versions.items():
        releases = list(_resolved(package, several, folder))
        for optimizer, _ in known[package]:
            found[optimizer] = releases
    return found


def _resolved(package: str, several: tuple[str, ...], folder: Path) -> Iterator[WantedRelease]:
    listed: dict[Path | None, list[str]] = {}
    for text in several:
        wheels = Path(locate(folder, text)) if is_folder(text) else None
        if wheels is not None and not wheels.is_dir():
            raise UsageError(
                f"{package} {text}: expected a folder of wheels; check the path, which begins at "
                "the folder of the file"
            )
        if wheels not in listed:
            listed[wheels] = available(package, PackageIndex(wheels), pre=wheels is not None)
        versions = listed[wheels]
        if text != LATEST and wheels is None:
            wanted = _series(package, text)
            versions = [v for v in versions if wanted.contains(v, prereleases=True)]
        if not versions:
            newest = listed[wheels][-1]
            raise UsageError(f"{package} {text}: there is no such release; the newest is {newest}")
        yield WantedRelease(package, text, versions[-1], wheels)


def _series(package: str, text: str) -> SpecifierSet:
    try:
        return SpecifierSet(f"=={text}.*")
    except InvalidSpecifier:
        raise UsageError(
            f"{package} {text!r}: expected a version such as '1.30' or '1.30.1', '{LATEST}', or a "
            "folder of wheels such as './dist'"
        ) from None


def build_name(request: ReleaseRequest) -> str:
    """What tells builds of one version apart, for people too; empty for a release of the index."""
    built = PackageIndex(request.wheels).build_of(request.package, request.release)
    return f"wheel {hashlib.sha256(repr(built).encode()).hexdigest()[:8]}" if built else ""


def vet_release(request: ReleaseRequest, plugins: Plugins) -> VetResult | ErrorRecord:
    """The answer of ``vet`` under the request's release, with bundles if it names a folder.

    Raises:
        NothingTested: The release cannot be used here.
        InfrastructureError: The disk is full, or the index is out of reach.
    """
    if request.package not in released_packages(plugins):
        raise InfrastructureError(f"no installed plugin declares the package {request.package}")
    overlays = _overlays(request.package, request.wheels)
    plain = {name: getattr(request, name) for name in VetRequest.model_fields}
    try:
        with overlays.using(request.release) as overlay:
            return vet_there(overlay, VetRequest.model_validate(plain))
    except NotInstallable as error:
        raise NothingTested(f"{request.package} {request.release}: {error}") from error


@cache
def _overlays(package: str, wheels: Path | None) -> Overlays:
    """Once per worker: what is found out about a release is kept."""
    released = released_packages(Plugins())[package][0][1]
    store = ReleaseStore(releases_root())
    return Overlays(released, store, PackageIndex(wheels), lambda words: None)
