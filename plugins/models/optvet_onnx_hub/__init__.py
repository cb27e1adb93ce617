"""Models of an ONNX Model Hub: ``onnx_hub:NAME[@OPSET]``.

A hub is a manifest, ``ONNX_HUB_MANIFEST.json``, and files beside it; any web server can be one. The
manifest gives each file's SHA-256, and here nothing that came over the network is used before its
checksum was compared: bytes gather in a ``.part`` file, which a later call goes on with, and only
a file that proved whole is moved to its place. What is in the cache is served without a network.

::

    NAME[@OPSET][@sha256:START][+data]                 of $OPTVET_ONNX_HUB, else of onnx/models
    https://host/…/ONNX_HUB_MANIFEST.json#NAME…        of another hub

NAME is the manifest's (``ResNet50-v1``; upper or lower case, spaces or hyphens) or the file's
(``resnet50-v1-12``). Without an opset the highest is taken. ``+data`` takes the archive that has
test data, too. Plain http is accepted from this machine only.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from optvet.plugin import (
    InfrastructureError,
    InputError,
    ModelCard,
    ModelSource,
    UsageError,
    file_sha256,
    hookimpl,
    write_file,
)
from optvet_onnx_hub.addresses import (
    address_of,
    checked_address,
    is_local,
)
from optvet_onnx_hub.archive import ARCHIVE_LIMIT, unpack
from optvet_onnx_hub.manifest import HubReference, Manifest, ManifestEntry
from optvet_onnx_hub.web import Failed, RetryPolicy, Web, bring, refused

ADDRESS = "https://raw.githubusercontent.com/onnx/models/main/ONNX_HUB_MANIFEST.json"
VARIABLE = "OPTVET_ONNX_HUB"
MANIFEST_LIMIT = 64 << 20
MODEL_LIMIT = 2**31
"""Bytes of a model whose size the manifest leaves open; no larger one can be loaded anyway."""

_REFERENCE = re.compile(
    r"(?P<name>[^@#+]+)(?:@(?P<opset>\d{1,4}))?(?:@sha256:(?P<sha>[0-9a-fA-F]{8,64}))?"
    r"(?P<data>\+data)?"
)


class HubSource:
    """The hub at ``address``; by default that of the environment, else the ONNX Model Zoo.

    Attributes:
        needs_network: Listing it asks a server, so only who names it gets a list.
    """

    name = "onnx_hub"
    needs_network = True

    def __init__(self, address: str | None = None, policy: RetryPolicy | None = None) -> None:
        self.address = address
        self.policy = policy or RetryPolicy()

    def models(self) -> Iterable[ModelCard]:
        """What the manifest lists, by name and opset; an unusable entry says why.

        Raises:
            UsageError: The hub cannot be reached, or has no manifest.
        """
        address = self._default()
        subject = f"hub {address}"
        data = refused(subject, lambda: self._web(address).read(address, MANIFEST_LIMIT))
        manifest = Manifest.parse(address, data)
        return [e.card() for e in manifest.entries] + [
            ModelCard(name, description=f"unusable: {why}") for name, why in manifest.unusable
        ]

    def fetch(self, reference: str, cache: Path) -> Sequence[Path]:
        """The file of the model ``reference``, from the cache if it is there.

        Raises:
            UsageError: There is no such model, or the hub cannot be reached.
            InputError: What the hub sends is not what its manifest promises.
            InfrastructureError: The cache cannot be written.
        """
        wanted = _parse_reference(reference, self._default())
        entry, kept = self._entry(wanted, cache / "onnx_hub")
        return [kept or self._fetch_archive(wanted, entry, cache / "onnx_hub")]

    def pinned(self, reference: str, cache: Path) -> str:
        """The full reference of what ``fetch`` gives, with opset and start of its checksum."""
        wanted = _parse_reference(reference, self._default())
        entry, _ = self._entry(wanted, cache / "onnx_hub")
        hub = "" if wanted.address == ADDRESS else f"{wanted.address}#"
        pin = f"{hub}{entry.model}@{entry.opset_version}@sha256:{entry.sha[:12]}"
        return f"{self.name}:{pin}{'+data' if wanted.data else ''}"

    def _default(self) -> str:
        return self.address or os.environ.get(VARIABLE) or ADDRESS

    def _web(self, address: str) -> Web:
        return Web(self.policy, is_local=is_local(checked_address(address)))

    def _entry(self, wanted: HubReference, folder: Path) -> tuple[ManifestEntry, Path | None]:
        """What the manifest says of the wanted model, and where the cache has it, if it does.

        A manifest that was kept will do for a model that was kept: that needs no network.
        """
        digest = hashlib.sha256(wanted.address.encode()).hexdigest()
        copy = folder / "manifests" / f"{digest[:16]}.json"
        old = None
        with contextlib.suppress(UsageError, OSError):
            old = Manifest.parse(wanted.address, copy.read_bytes())
            entry = old.find(wanted)
            kept = self._kept(wanted, entry, folder)
            if kept is not None:
                return entry, kept
        try:
            data = self._web(wanted.address).read(wanted.address, MANIFEST_LIMIT)
        except Failed as error:
            if old is not None:
                return old.find(wanted), None
            raise InputError(
                f"onnx_hub model {wanted.name!r}: {error}; check the address and your network "
                f"({VARIABLE} chooses another hub)"
            ) from error
        manifest = Manifest.parse(wanted.address, data)
        write_file(copy, data, private=True)
        entry = manifest.find(wanted)
        return entry, self._kept(wanted, entry, folder)

    def _kept(self, wanted: HubReference, entry: ManifestEntry, folder: Path) -> Path | None:
        """Where the cache has the model; None where it has not, or not all of it."""
        if wanted.data:
            place = folder / f"{entry.archive_sha}-data"
            return entry.model_in(place) if place.is_dir() else None
        path = folder / entry.sha / PurePosixPath(entry.model_path).name
        return path if path.is_file() and file_sha256(path) == entry.sha else None

    def _fetch_archive(self, wanted: HubReference, entry: ManifestEntry, folder: Path) -> Path:
        if wanted.data:
            return self._unpack(wanted, entry, folder)
        path = folder / entry.sha / PurePosixPath(entry.model_path).name
        size = entry.metadata.model_bytes
        self._download(wanted, entry, entry.model_path, path, entry.sha, size, MODEL_LIMIT)
        return path

    def _unpack(self, wanted: HubReference, entry: ManifestEntry, folder: Path) -> Path:
        packed, sha = entry.metadata.model_with_data_path, entry.archive_sha
        if packed is None or not sha:
            raise UsageError(
                f"onnx_hub model {entry.label}: the hub has no archive with test data of it; "
                "leave out +data"
            )
        archive = folder / sha / PurePosixPath(packed).name
        size = entry.metadata.model_with_data_bytes
        self._download(wanted, entry, packed, archive, sha, size, ARCHIVE_LIMIT)
        place = folder / f"{sha}-data"
        try:
            with locked(archive.parent):
                if not place.is_dir():
                    unpack(archive, place, f"onnx_hub model {entry.label}")
        finally:
            # It is of no use beside its own content; one that does not unpack is of none at all.
            shutil.rmtree(archive.parent, ignore_errors=True)
        return entry.model_in(place)

    def _download(
        self,
        wanted: HubReference,
        entry: ManifestEntry,
        file: str,
        target: Path,
        sha: str,
        size: int | None,
        limit: int,
    ) -> None:
        """Download ``file`` of the hub to ``target``, whole and with the checksum ``sha``."""
        subject = f"onnx_hub model {entry.label}"
        url = address_of(file, wanted.address)
        web = self._web(wanted.address)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with locked(target.parent):
                # Whoever held the lock before may have brought what is wanted.
                if not (target.is_file() and file_sha256(target) == sha):
                    bring(web, url, target, sha, size, size or limit, subject)
        except OSError as error:
            raise InfrastructureError(
                f"{subject}: cannot write to {target.parent}: {error.strerror or error}; "
                "make room, or choose another cache folder"
            ) from error
        finally:
            with contextlib.suppress(OSError):
                target.parent.rmdir()


@hookimpl
def optvet_model_sources() -> Iterable[ModelSource]:
    """The hub."""
    return [HubSource()]


# ── References and addresses ───────────────────────────────────────────────────────────────────


def _parse_reference(reference: str, default: str) -> HubReference:
    address, rest = default, reference
    if "://" in reference:
        address, hash_, rest = reference.rpartition("#")
        if not hash_:
            raise UsageError(
                f"onnx_hub reference {reference!r} names no model; write it as ADDRESS#NAME"
            )
    match = _REFERENCE.fullmatch(rest)
    if match is None:
        raise UsageError(
            f"onnx_hub reference {reference!r} is not understood; write it as NAME or NAME@OPSET"
        )
    opset = int(match["opset"]) if match["opset"] else None
    sha = (match["sha"] or "").lower()
    checked_address(address)
    return HubReference(address, match["name"].strip(), opset, sha, match["data"] is not None)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes from writing to ``folder``; waits for those that do."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
