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
import difflib
import fcntl
import gzip
import hashlib
import http.client
import ipaddress
import os
import re
import shutil
import ssl
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPMessage, HTTPResponse
from pathlib import Path, PurePosixPath
from typing import IO, TypeVar
from urllib.parse import quote, urljoin, urlsplit

from pydantic import BaseModel, Field, ValidationError, field_validator

from optvet.plugin import (
    InfrastructureError,
    InputError,
    ModelCard,
    ModelSource,
    UnknownName,
    UsageError,
    file_sha256,
    hookimpl,
    parse_json,
    write_file,
)

_T = TypeVar("_T")

ADDRESS = "https://raw.githubusercontent.com/onnx/models/main/ONNX_HUB_MANIFEST.json"
VARIABLE = "OPTVET_ONNX_HUB"
MANIFEST_LIMIT = 64 << 20
MODEL_LIMIT = 2**31
"""Bytes of a model whose size the manifest leaves open; no larger one can be loaded anyway."""
ARCHIVE_LIMIT = 8 << 30
"""Bytes of an archive, packed or unpacked."""
MEMBER_LIMIT = 10_000

_CHUNK = 1 << 20
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers that may be different the next time."""
_REFERENCE = re.compile(
    r"(?P<name>[^@#+]+)(?:@(?P<opset>\d{1,4}))?(?:@sha256:(?P<sha>[0-9a-fA-F]{8,64}))?"
    r"(?P<data>\+data)?"
)


@dataclass(frozen=True)
class RetryPolicy:
    """Time limits and retries of downloads.

    Attributes:
        timeout_s: A connection without any data for this time is closed.
        attempts: Maximal number of connections for one file.
        backoff_s: Pause after the first failure; doubled after each further one.
        longest_pause_s: Limit of a pause, even if the server asks for a longer one.
        slow_s: A connection that brings less than ``slow_bytes`` in this time is closed.
    """

    timeout_s: float = 30.0
    attempts: int = 5
    backoff_s: float = 1.0
    longest_pause_s: float = 30.0
    slow_s: float = 60.0
    slow_bytes: int = 16 << 10


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
        data = _refused(subject, lambda: self._web(address).read(address, MANIFEST_LIMIT))
        manifest = _Manifest.parse(address, data)
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
        wanted = _wanted(reference, self._default())
        entry, kept = self._entry(wanted, cache / "onnx_hub")
        return [kept or self._brought(wanted, entry, cache / "onnx_hub")]

    def pinned(self, reference: str, cache: Path) -> str:
        """The full reference of what ``fetch`` gives, with opset and start of its checksum."""
        wanted = _wanted(reference, self._default())
        entry, _ = self._entry(wanted, cache / "onnx_hub")
        hub = "" if wanted.address == ADDRESS else f"{wanted.address}#"
        pin = f"{hub}{entry.model}@{entry.opset_version}@sha256:{entry.sha[:12]}"
        return f"{self.name}:{pin}{'+data' if wanted.data else ''}"

    def _default(self) -> str:
        return self.address or os.environ.get(VARIABLE) or ADDRESS

    def _web(self, address: str) -> _Web:
        return _Web(self.policy, is_local=_is_local(_checked_address(address)))

    def _entry(self, wanted: _HubReference, folder: Path) -> tuple[_ManifestEntry, Path | None]:
        """What the manifest says of the wanted model, and where the cache has it, if it does.

        A manifest that was kept will do for a model that was kept: that needs no network.
        """
        digest = hashlib.sha256(wanted.address.encode()).hexdigest()
        copy = folder / "manifests" / f"{digest[:16]}.json"
        old = None
        with contextlib.suppress(UsageError, OSError):
            old = _Manifest.parse(wanted.address, copy.read_bytes())
            entry = old.find(wanted)
            kept = self._kept(wanted, entry, folder)
            if kept is not None:
                return entry, kept
        try:
            data = self._web(wanted.address).read(wanted.address, MANIFEST_LIMIT)
        except _Failed as error:
            if old is not None:
                return old.find(wanted), None
            raise InputError(
                f"onnx_hub model {wanted.name!r}: {error}; check the address and your network "
                f"({VARIABLE} chooses another hub)"
            ) from error
        manifest = _Manifest.parse(wanted.address, data)
        write_file(copy, data, private=True)
        entry = manifest.find(wanted)
        return entry, self._kept(wanted, entry, folder)

    def _kept(self, wanted: _HubReference, entry: _ManifestEntry, folder: Path) -> Path | None:
        """Where the cache has the model; None where it has not, or not all of it."""
        if wanted.data:
            place = folder / f"{entry.archive_sha}-data"
            return entry.model_in(place) if place.is_dir() else None
        path = folder / entry.sha / PurePosixPath(entry.model_path).name
        return path if path.is_file() and file_sha256(path) == entry.sha else None

    def _brought(self, wanted: _HubReference, entry: _ManifestEntry, folder: Path) -> Path:
        if wanted.data:
            return self._unpacked(wanted, entry, folder)
        path = folder / entry.sha / PurePosixPath(entry.model_path).name
        size = entry.metadata.model_bytes
        self._download(wanted, entry, entry.model_path, path, entry.sha, size, MODEL_LIMIT)
        return path

    def _unpacked(self, wanted: _HubReference, entry: _ManifestEntry, folder: Path) -> Path:
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
            with _locked(archive.parent):
                if not place.is_dir():
                    _unpack(archive, place, f"onnx_hub model {entry.label}")
        finally:
            # It is of no use beside its own content; one that does not unpack is of none at all.
            shutil.rmtree(archive.parent, ignore_errors=True)
        return entry.model_in(place)

    def _download(
        self,
        wanted: _HubReference,
        entry: _ManifestEntry,
        file: str,
        target: Path,
        sha: str,
        size: int | None,
        limit: int,
    ) -> None:
        """Download ``file`` of the hub to ``target``, whole and with the checksum ``sha``."""
        subject = f"onnx_hub model {entry.label}"
        url = _address_of(file, wanted.address)
        web = self._web(wanted.address)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with _locked(target.parent):
                # Whoever held the lock before may have brought what is wanted.
                if not (target.is_file() and file_sha256(target) == sha):
                    _bring(web, url, target, sha, size, size or limit, subject)
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


@dataclass(frozen=True)
class _HubReference:
    address: str
    name: str
    opset: int | None
    sha: str
    data: bool


def _wanted(reference: str, default: str) -> _HubReference:
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
    _checked_address(address)
    return _HubReference(address, match["name"].strip(), opset, sha, match["data"] is not None)


def _checked_address(address: str) -> str:
    """``address``, if a hub may be there.

    Raises:
        UsageError: It is no address, has a password in it, or could be tampered with on its way.
    """
    why = _objection(address)
    if why:
        raise UsageError(f"hub address {address!r} {why}; give the https address of its manifest")
    return address


def _objection(url: str) -> str:
    """What speaks against fetching from ``url``; empty if nothing does."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"is malformed ({error})"
    if parts.scheme not in ("http", "https") or not host:
        return "is no web address"
    if parts.username is not None or parts.password is not None:
        return "has a user name or password in it"
    if any(c <= " " or c == "\x7f" for c in url):
        return "has blanks or control characters in it"
    if parts.scheme == "http" and not _is_local(url):
        return "is plain http, which is accepted from this machine only"
    return ""


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _address_of(file: str, manifest: str) -> str:
    """Where the hub of ``manifest`` has ``file``.

    GitHub serves a repository's large files elsewhere; at the raw address is but a pointer.
    """
    parts = urlsplit(manifest)
    if parts.hostname == "raw.githubusercontent.com":
        manifest = f"https://media.githubusercontent.com/media{parts.path}"
    return urljoin(manifest.partition("?")[0], quote(file))


# ── The manifest ───────────────────────────────────────────────────────────────────────────────


def _safe_path(path: str) -> str:
    """``path``, if it is a relative one that stays in the hub."""
    parts = path.split("/")
    if (
        not path
        or path.startswith("/")
        or "\\" in path
        or ":" in parts[0]
        or not path.isprintable()
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise ValueError(f"the path {path!r} leads out of the hub")
    return path


def _sha(text: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise ValueError(f"{text!r} is no SHA-256")
    return text.lower()


class _Metadata(BaseModel):
    """What is read of ``metadata``; other keys are left alone."""

    model_sha: str
    model_bytes: int | None = Field(default=None, gt=0)
    tags: list[str] = []
    model_with_data_path: str | None = None
    model_with_data_sha: str | None = None
    model_with_data_bytes: int | None = Field(default=None, gt=0)

    @field_validator("model_sha", "model_with_data_sha")
    @classmethod
    def _is_sha(cls, value: str | None) -> str | None:
        return value if value is None else _sha(value)

    @field_validator("model_with_data_path")
    @classmethod
    def _is_safe(cls, value: str | None) -> str | None:
        return value if value is None else _safe_path(value)


class _ManifestEntry(BaseModel):
    """One model of the manifest."""

    model: str = Field(min_length=1)
    model_path: str
    onnx_version: str = ""
    opset_version: int
    metadata: _Metadata

    @field_validator("model_path")
    @classmethod
    def _is_safe(cls, value: str) -> str:
        return _safe_path(value)

    @property
    def sha(self) -> str:
        """SHA-256 of the model file."""
        return self.metadata.model_sha

    @property
    def archive_sha(self) -> str:
        """SHA-256 of the archive with test data; empty where there is none."""
        return self.metadata.model_with_data_sha or ""

    @property
    def stem(self) -> str:
        """The file's name without its suffix."""
        return PurePosixPath(self.model_path).stem

    @property
    def label(self) -> str:
        """How it is called in messages."""
        return f"{self.model}@{self.opset_version}"

    def card(self) -> ModelCard:
        """What is told of it before it is fetched."""
        extra = {
            "opset": str(self.opset_version),
            "file": self.model_path,
            "sha256": self.sha,
            "onnx": self.onnx_version,
        }
        bytes_ = self.metadata.model_bytes
        tags = tuple(self.metadata.tags)
        return ModelCard(self.label, None, self.stem, bytes_, tags, extra)

    def model_in(self, place: Path) -> Path:
        """The model among the files of an unpacked archive."""
        files = sorted(f for f in place.rglob("*.onnx") if f.is_file())
        named = [f for f in files if f.stem == self.stem]
        chosen = files if len(files) == 1 else named
        if len(chosen) != 1:
            shown = ", ".join(str(f.relative_to(place)) for f in files[:5])
            raise InputError(
                f"onnx_hub model {self.label}: its archive has {len(files)} .onnx files "
                f"({shown or 'none'}), expected one, or one called {self.stem}.onnx; leave out "
                "+data"
            )
        return chosen[0]


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.strip().lower())


@dataclass(frozen=True)
class _Manifest:
    """A hub's models; ``unusable`` has name and reason of what cannot be one."""

    address: str
    entries: tuple[_ManifestEntry, ...]
    unusable: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, address: str, data: bytes) -> _Manifest:
        """The manifest in ``data``, which came from ``address``."""
        try:
            items = parse_json(data, f"hub {address}", "listing")
        except InputError as error:
            raise InputError(
                f"hub {address} sends {_kind_of(data)} for its manifest, expected JSON; "
                "give the address of the manifest's raw file"
            ) from error
        if not isinstance(items, list):
            raise InputError(
                f"hub {address} sends a JSON {type(items).__name__} for its manifest, expected a "
                "list of models; give the address of ONNX_HUB_MANIFEST.json"
            )
        entries, unusable = [], []
        for number, item in enumerate(items, 1):
            try:
                entries.append(_ManifestEntry.model_validate(item))
            except ValidationError as error:
                name = item.get("model") if isinstance(item, dict) else None
                first = error.errors()[0]
                why = f"{'.'.join(map(str, first['loc'])) or 'entry'}: {first['msg']}"
                unusable.append((name if isinstance(name, str) else f"entry {number}", why))
        return cls(address, tuple(entries), tuple(unusable))

    def find(self, wanted: _HubReference) -> _ManifestEntry:
        """The one entry that is meant; of several opsets the highest."""
        name = _plain(wanted.name)
        found = [e for e in self.entries if name in (_plain(e.model), _plain(e.stem))]
        found = [e for e in found if _plain(e.stem) == name] or found
        if not found:
            for other, why in self.unusable:
                if _plain(other) == name:
                    raise InputError(
                        f"onnx_hub model {wanted.name!r} is refused: in the manifest of "
                        f"{self.address}, {why}; tell the hub's owner"
                    )
            raise UnknownName("onnx_hub model", wanted.name, self._near(name), self._hint())
        matching = [e for e in found if wanted.opset in (None, e.opset_version)]
        if not matching:
            opsets = ", ".join(str(o) for o in sorted({e.opset_version for e in found}))
            raise UsageError(
                f"onnx_hub model {wanted.name!r} has no opset {wanted.opset}; it has {opsets}"
            )
        pinned = [e for e in matching if e.sha.startswith(wanted.sha)]
        if not pinned:
            raise InputError(
                f"onnx_hub model {wanted.name!r}: the hub has another file now, with SHA-256 "
                f"{matching[0].sha} and not {wanted.sha}…; leave out @sha256 to take it"
            )
        highest = max(e.opset_version for e in pinned)
        best = {e.sha: e for e in reversed(pinned) if e.opset_version == highest}
        if len(best) > 1:
            names = ", ".join(sorted(e.stem for e in best.values()))
            raise UsageError(
                f"onnx_hub model {wanted.name!r} is {len(best)} files of opset {highest}; "
                f"name one of them: {names}"
            )
        return next(iter(best.values()))

    def _near(self, name: str) -> list[str]:
        """Names as the manifest spells them, the near ones only if there are any."""
        spelled = {_plain(n): n for e in self.entries for n in (e.model, e.stem)}
        near = difflib.get_close_matches(name, spelled, n=3, cutoff=0.5)
        return [spelled[n] for n in near] or list(spelled.values())

    def _hint(self) -> str:
        return "(optvet models list --source onnx_hub lists all)"


def _kind_of(data: bytes) -> str:
    """What the bytes seem to be instead of what was expected."""
    text = data[:512].lstrip().lower()
    if not data:
        return "nothing"
    if text.startswith((b"<!doctype html", b"<html")) or b"<html" in text:
        return "an HTML page"
    if text.startswith(b"version https://git-lfs"):
        return "a git-lfs pointer"
    if text.startswith((b"{", b"[")):
        return "broken JSON or a part of it"
    return "something else"


# ── Downloading ────────────────────────────────────────────────────────────────────────────────

# Why not pooch (1.9): it downloads to a new temporary file at each attempt, so it never resumes; it
# limits no size, follows redirections anywhere, and retries by a number of attempts alone. With a
# downloader of our own, what is left of pooch is comparing a checksum and moving a file. Why not
# filelock: it leaves a lock file in the cache, where locking the folder itself takes one call.


class _Failed(Exception):
    """The server does not give the file; the text says which and why.

    ``resumable`` tells that what came so far may be gone on with later.
    """

    def __init__(self, why: str, *, resumable: bool = False) -> None:
        super().__init__(why)
        self.resumable = resumable


class _Again(Exception):
    """The same may work a moment later; ``pause_s`` is what the server asks for."""

    def __init__(self, why: str, pause_s: float = 0.0) -> None:
        super().__init__(why)
        self.pause_s = pause_s


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirection to where the hub might be as well, and to nowhere else."""

    def __init__(self, is_local: bool) -> None:
        self.is_local = is_local

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """The request to follow with."""
        why = _objection(newurl)
        if not why and _is_local(newurl) and not self.is_local:
            why = "is on this machine, and the hub is not"
        if why:
            fp.close()
            raise _Failed(f"{req.full_url} leads on to {newurl!r}, which {why}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Web:
    """Gets files from a server that may do anything."""

    def __init__(self, policy: RetryPolicy, *, is_local: bool) -> None:
        self.policy = policy
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            # A proxy cannot reach what is on this machine.
            urllib.request.ProxyHandler({} if is_local else None),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
            _Redirects(is_local),
        ):
            self._opener.add_handler(handler)

    def read(self, url: str, limit: int) -> bytes:
        """All of ``url``, at most ``limit`` bytes; in memory."""

        def read() -> bytes:
            with self._open(url, 0) as response:
                length = _announced(url, response, 0, None, limit)
                return b"".join(self._chunks(url, response, length, limit))

        return self._with_retries(url, read)

    def save(self, url: str, part: Path, size: int | None, limit: int) -> None:
        """All of ``url`` in the file ``part``, going on where that ends."""
        self._with_retries(url, lambda: self._go_on(url, part, size, limit))

    def _with_retries(self, url: str, once: Callable[[], _T]) -> _T:
        pause = self.policy.backoff_s
        for attempt in range(1, self.policy.attempts + 1):
            try:
                return once()
            except _Again as error:
                if attempt == self.policy.attempts:
                    times = "once" if attempt == 1 else f"{attempt} times"
                    raise _Failed(f"{url} {error} (tried {times})", resumable=True) from error
                time.sleep(min(max(pause, error.pause_s), self.policy.longest_pause_s))
                pause *= 2
        raise AssertionError("attempts must be positive")

    def _go_on(self, url: str, part: Path, size: int | None, limit: int) -> None:
        start = part.stat().st_size if part.exists() else 0
        if size is not None and start == size:
            return
        if start >= limit:
            part.unlink()
            start = 0
        try:
            with self._open(url, start) as response:
                start = _start(response, start)
                length = _announced(url, response, start, size, limit)
                with part.open("ab") as file:
                    file.truncate(start)
                    for chunk in self._chunks(url, response, length, limit - start):
                        file.write(chunk)
        except _Unsatisfiable as error:
            part.unlink(missing_ok=True)
            raise _Again("cannot go on where the kept part ends") from error
        got = part.stat().st_size
        if size is not None and got < size:
            raise _Again(f"ends after {got:,} of {size:,} bytes")

    def _open(self, url: str, start: int) -> HTTPResponse:
        headers = {"User-Agent": "optvet", "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        request = urllib.request.Request(url, headers=headers)
        try:
            response: HTTPResponse = self._opener.open(request, timeout=self.policy.timeout_s)
            return response
        except urllib.error.HTTPError as error:
            with error:
                raise _answer(url, error, start) from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise _Failed(f"{url} cannot be trusted: {error.reason}") from error
            raise _Again(f"cannot be reached: {error.reason}") from error
        except TimeoutError as error:
            raise _Again(f"does not answer within {self.policy.timeout_s:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise _Again(f"breaks off: {error or type(error).__name__}") from error
        except ValueError as error:
            raise _Failed(f"{url} gives a malformed answer: {error}") from error

    def _chunks(
        self, url: str, response: HTTPResponse, length: int | None, limit: int
    ) -> Iterator[bytes]:
        """What the server sends, as it comes: ``length`` bytes, or up to ``limit``."""
        policy = self.policy
        total, recent, until = 0, 0, time.monotonic() + policy.slow_s
        # Not until the connection ends: a server may well keep it open.
        while length is None or total < length:
            try:
                chunk = response.read1(_CHUNK if length is None else min(_CHUNK, length - total))
            except TimeoutError as error:
                raise _Again(f"falls silent for {policy.timeout_s:g} s") from error
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise _Again(f"breaks off: {error or type(error).__name__}") from error
            if not chunk:
                break
            total, recent = total + len(chunk), recent + len(chunk)
            if total > limit:
                raise _Failed(f"{url} sends more than {limit:,} bytes")
            yield chunk
            if time.monotonic() > until:
                if recent < policy.slow_bytes:
                    raise _Again(f"sends only {recent:,} bytes in {policy.slow_s:g} s")
                recent, until = 0, time.monotonic() + policy.slow_s
        if length is not None and total < length:
            # ``read1`` takes a connection that ends early for the end of the file.
            raise _Again(f"breaks off after {total:,} of {length:,} bytes")


class _Unsatisfiable(Exception):
    """The server has nothing from the asked-for byte on."""


def _answer(url: str, error: urllib.error.HTTPError, start: int) -> Exception:
    """What an answer other than 200 and 206 means."""
    if error.code == 416 and start:
        return _Unsatisfiable()
    words = f"answers {error.code} {http.client.responses.get(error.code, '')}".rstrip()
    if error.code in _PASSING:
        after = error.headers.get("Retry-After", "") if error.headers else ""
        return _Again(words, float(after) if re.fullmatch(r"\d{1,6}", after) else 0.0)
    if 300 <= error.code < 400:
        return _Failed(f"{url} leads on in a circle, or to no web address ({error.code})")
    return _Failed(f"{url} {words}")


def _start(response: HTTPResponse, asked: int) -> int:
    """The byte at which the answer starts; 0 from a server that does not know ranges."""
    if response.status == 206:
        content = response.headers.get("Content-Range", "")
        if re.match(rf"bytes {asked}-\d+/", content):
            return asked
        raise _Unsatisfiable
    if response.status == 200:
        return 0
    raise _Again(f"answers {response.status}, expected 200")


def _announced(
    url: str, response: HTTPResponse, start: int, size: int | None, limit: int
) -> int | None:
    """How many bytes are to come, if the server says so.

    Raises:
        _Failed: It says so many that this cannot be what is wanted.
    """
    if response.length is None:
        return None
    total = start + response.length
    if size is None and total > limit:
        raise _Failed(f"{url} announces {total:,} bytes, more than the {limit:,} allowed")
    if size is not None and total != size:
        kind = "another file"
        if not start and total < _CHUNK:
            with contextlib.suppress(OSError, http.client.HTTPException):
                kind = _kind_of(response.read(512))
        raise _Failed(f"{url} announces {total:,} bytes ({kind}), but the manifest says {size:,}")
    return response.length


def _refused(subject: str, action: Callable[[], _T]) -> _T:
    try:
        return action()
    except _Failed as error:
        raise InputError(f"{subject}: {error}; check the address and your network") from error


def _bring(
    web: _Web, url: str, target: Path, sha: str, size: int | None, limit: int, subject: str
) -> None:
    """``url`` as the file ``target``, once its checksum is right; else no file at all.

    A part that does not lead to the right checksum was of another file: then from its start.
    """
    part = target.with_name(f"{target.name}.part")
    resumed = part.exists()
    try:
        web.save(url, part, size, limit)
        found = file_sha256(part)
        if found != sha and resumed:
            part.unlink()
            web.save(url, part, size, limit)
            found = file_sha256(part)
    except _Failed as error:
        kept = part.stat().st_size if part.exists() and error.resumable else 0
        advice = f"{kept:,} bytes are kept: run again to go on from there"
        if not kept:
            part.unlink(missing_ok=True)
            advice = "try later, or another hub"
        raise InputError(f"{subject}: {error}; {advice}") from error
    if found != sha:
        kind = _kind_of(part.read_bytes()[:512]) if part.stat().st_size < _CHUNK else "other bytes"
        part.unlink()
        raise InputError(
            f"{subject}: {url} has SHA-256 {found}, but the manifest says {sha}; it is refused "
            f"({kind}: a file that was changed or damaged): try later, or another hub"
        )
    os.replace(part, target)


# ── Files ──────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keeps other processes from writing to ``folder``; waits for those that do."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


class _Bounded(gzip.GzipFile):
    """Unpacks as much as an honest archive needs; a header may claim to be gigabytes long."""

    def read(self, size: int | None = -1) -> bytes:
        """The next ``size`` bytes."""
        if size is None or not 0 <= size <= _CHUNK or self.tell() > ARCHIVE_LIMIT:
            raise tarfile.ReadError("it unpacks to more than is allowed")
        return super().read(size)


def _unpack(archive: Path, place: Path, subject: str) -> None:
    """The files of ``archive`` in the new folder ``place``; all of them or none.

    Raises:
        InputError: It is damaged, or has anything but files and folders that stay in ``place``.
        InfrastructureError: There is no room.
    """
    folder = Path(tempfile.mkdtemp(dir=place.parent, prefix=".unpacking."))
    try:
        with (
            archive.open("rb") as raw,
            _Bounded(fileobj=raw, mode="rb") as plain,
            tarfile.open(fileobj=plain, mode="r:") as tar,
        ):
            # Python 3.11.3 and older know no filters; what they would change is refused below.
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            total = 0
            for number, member in enumerate(tar, 1):
                total += member.size
                why = _objection_to(member, number, total)
                if why:
                    raise InputError(
                        f"{subject}: its archive is refused, since member {member.name!r} {why}; "
                        "leave out +data, and tell the hub's owner"
                    )
                tar.extract(member, folder)
            # What follows has no files, but the checksum of all at its end.
            while plain.read(_CHUNK):
                pass
        os.replace(folder, place)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(
            f"{subject}: its archive cannot be unpacked ({error}); leave out +data"
        ) from error
    except OSError as error:
        raise InfrastructureError(
            f"{subject}: cannot unpack to {place}: {error.strerror or error}; make room, or "
            "choose another cache folder"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _objection_to(member: tarfile.TarInfo, number: int, total: int) -> str:
    """What speaks against unpacking ``member``, the ``number``-th; empty if nothing does."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name or "\0" in member.name:
        return "leads out of its folder"
    if not (member.isreg() or member.isdir()):
        return "is a link or a device, expected files and folders only"
    if total > ARCHIVE_LIMIT:
        return f"makes it more than {ARCHIVE_LIMIT:,} bytes"
    if number > MEMBER_LIMIT:
        return f"is one of more than {MEMBER_LIMIT:,}"
    return ""
