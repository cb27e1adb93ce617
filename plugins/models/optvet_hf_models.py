"""Models of the Hugging Face Hub: ``huggingface:ORG/REPO[@REVISION][/PATH/FILE.onnx]``.

Any repository with an ONNX file will do; a name without ORG is one of ``onnxmodelzoo``, where the
ONNX Model Zoo lives since its files left GitHub. A branch may move, so each reference is resolved
to a commit first: the files lie under that commit, are compared with the checksums that the hub
lists for it, and the model says which it is. Without a network the commit that the same reference
last stood for is used, if its files are in the cache.

Of several ONNX files that one is meant which is named like the repository, else ``model.onnx`` or
``onnx/model.onnx``, as exporters put it; anything else must be named.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import quote

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from optvet.plugin import (
    InfrastructureError,
    InputError,
    MissingLibrary,
    ModelCard,
    ModelSource,
    PluginError,
    UnknownName,
    UsageError,
    hookimpl,
    parse_json,
    write_file,
)

ZOO = "onnxmodelzoo"
TIMEOUT_S = 20.0
GRAPH_LIMIT = 2**31 - 1
"""Bytes of an ONNX file; no larger one can be loaded."""

_T = TypeVar("_T")
_NAME = r"[A-Za-z0-9][\w.-]*"
_REFERENCE = re.compile(
    rf"(?:(?P<org>{_NAME})/)?(?P<repo>{_NAME})(?:@(?P<revision>[\w.%-]+))?(?:/(?P<file>.+\.onnx))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_OPSET = re.compile(r"[-_](?:Opset)?(\d{1,2})(?:[-_](?:int8|qdq|timm|torch_hub))?$")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOTDIR)


class HuggingFaceSource:
    """The hub at ``$HF_ENDPOINT``, by default huggingface.co.

    Attributes:
        needs_network: Listing it asks a server, so only who names it gets a list.
    """

    name = "huggingface"
    environment: Mapping[str, str] = {"HF_HUB_DISABLE_TELEMETRY": "1"}
    wants = ("huggingface_hub",)
    needs_network = True

    def models(self) -> Iterable[ModelCard]:
        """The repositories of the ONNX Model Zoo; any other can be had all the same.

        Raises:
            UsageError: The hub cannot be reached.
            MissingLibrary: huggingface_hub is not installed.
        """
        found = _call_library(f"organisation {ZOO}", lambda: list(_api().list_models(author=ZOO)))
        return [_card(info) for info in sorted(found, key=lambda info: str(info.id))]

    def fetch(self, reference: str, cache: Path) -> Sequence[Path]:
        """The ONNX file that ``reference`` names, with its external data beside it.

        Raises:
            UsageError: There is no such repository, revision or file, or it is not available.
            InputError: What came is not what the hub lists.
            MissingLibrary: huggingface_hub is needed and not installed.
            InfrastructureError: The cache cannot be written.
        """
        wanted = _parse_reference(reference)
        home = cache / "huggingface" / wanted.org / wanted.repo
        listing = _listing(wanted, home)
        file = _choose_file(wanted, listing)
        path = _fetch_file(wanted, listing, file, home)
        for data in _external_files(wanted, file, path, listing):
            _fetch_file(wanted, listing, data, home)
        return [path]

    def pinned(self, reference: str, cache: Path) -> str:
        """The full reference of what ``fetch`` gave, with commit and file."""
        wanted = _parse_reference(reference)
        kept = _kept_listing(wanted, cache / "huggingface" / wanted.org / wanted.repo)
        if kept is None:
            return f"{self.name}:{reference}"
        return f"{self.name}:{wanted.id}@{kept.commit}/{_choose_file(wanted, kept)}"


@hookimpl
def optvet_model_sources() -> Iterable[ModelSource]:
    """The Hugging Face Hub."""
    return [HuggingFaceSource()]


# ── References ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _HfReference:
    org: str
    repo: str
    revision: str
    file: str | None

    @property
    def id(self) -> str:
        return f"{self.org}/{self.repo}"

    @property
    def label(self) -> str:
        """How it is called in messages."""
        return f"huggingface model {self.id}@{self.revision}"


def _parse_reference(reference: str) -> _HfReference:
    match = _REFERENCE.fullmatch(reference)
    if match is None or ".." in reference:
        raise UsageError(
            f"huggingface reference {reference!r} is not understood; write it as ORG/REPO, "
            "ORG/REPO@REVISION or ORG/REPO/PATH/FILE.onnx"
        )
    revision = (match["revision"] or "main").replace("%2F", "/").replace("%2f", "/")
    return _HfReference(match["org"] or ZOO, match["repo"], revision, match["file"])


def _card(info: Any) -> ModelCard:
    name = str(info.id)
    opset = _OPSET.search(name)
    extra = {"opset": opset[1]} if opset else {}
    tags = tuple(str(tag) for tag in info.tags or ())
    return ModelCard(name, info.pipeline_tag, "", None, tags, extra)


# ── What the hub has ───────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _File:
    """Size and checksum as the hub lists them.

    ``sha256`` is given for large files, ``sha1`` (of git's blob) for the others.
    """

    size: int | None
    sha256: str | None
    sha1: str | None

    def objection(self, path: Path) -> str:
        """How ``path`` differs from what is listed; empty if it does not."""
        size = path.stat().st_size
        if self.size is not None and size != self.size:
            return f"has {size:,} bytes, but the hub lists {self.size:,}"
        if self.sha256 is not None:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != self.sha256:
                return f"has SHA-256 {found}, but the hub lists {self.sha256}"
        elif self.sha1 is not None:
            found = hashlib.sha1(b"blob %d\0" % size + path.read_bytes()).hexdigest()
            if found != self.sha1:
                return f"has git's SHA-1 {found}, but the hub lists {self.sha1}"
        return ""


@dataclass(frozen=True)
class _Listing:
    """The files of one commit."""

    commit: str
    files: Mapping[str, _File]

    def dump(self) -> bytes:
        """As it is kept."""
        files = {name: vars(file) for name, file in self.files.items()}
        return json.dumps({"commit": self.commit, "files": files}, indent=1).encode()

    @classmethod
    def load(cls, data: bytes) -> _Listing:
        """As it was kept; InputError, KeyError or TypeError for anything else."""
        value = parse_json(data, "what is kept of a repository", "listing")
        return cls(value["commit"], {n: _File(**f) for n, f in value["files"].items()})


def _record(wanted: _HfReference, home: Path) -> Path:
    return home / "revisions" / f"{quote(wanted.revision, safe='')}.json"


def _kept_listing(wanted: _HfReference, home: Path) -> _Listing | None:
    with contextlib.suppress(OSError, InputError, KeyError, TypeError, AttributeError):
        return _Listing.load(_record(wanted, home).read_bytes())
    return None


def _listing(wanted: _HfReference, home: Path) -> _Listing:
    """The commit that is meant: as the hub has it now, or else as it was kept."""
    kept = _kept_listing(wanted, home)
    if kept is not None and _COMMIT.fullmatch(wanted.revision):
        return kept
    try:
        info = _call_library(
            wanted.label,
            lambda: _api().model_info(
                wanted.id, revision=wanted.revision, files_metadata=True, timeout=TIMEOUT_S
            ),
        )
    except (_Unreachable, PluginError):
        if kept is None:
            raise
        return kept
    commit = str(info.sha or "")
    if not _COMMIT.fullmatch(commit):
        raise InputError(f"{wanted.label}: the hub names no commit ({commit!r}); try again later")
    files = {str(s.rfilename): _file(s) for s in info.siblings or ()}
    listing = _Listing(commit, {n: f for n, f in files.items() if _is_inside(n)})
    write_file(_record(wanted, home), listing.dump(), private=True)
    write_file(
        _record(_HfReference(wanted.org, wanted.repo, commit, None), home),
        listing.dump(),
        private=True,
    )
    return listing


def _file(sibling: Any) -> _File:
    lfs = sibling.lfs
    # Before 0.24 a dictionary, since then an object that is one, too, or has attributes.
    sha256 = lfs.get("sha256") if isinstance(lfs, dict) else getattr(lfs, "sha256", None)
    return _File(sibling.size, sha256, None if lfs else sibling.blob_id)


def _is_inside(name: str) -> bool:
    """Whether a file's name stays in the folder that it is put into."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\\" not in name


def _choose_file(wanted: _HfReference, listing: _Listing) -> str:
    found = sorted(name for name in listing.files if name.endswith(".onnx"))
    if wanted.file is not None:
        if wanted.file not in listing.files:
            hint = "" if found else "(it has no ONNX file at all)"
            raise UnknownName(f"file of {wanted.label}", wanted.file, found, hint)
        return wanted.file
    if not found:
        shown = ", ".join(sorted(listing.files)[:8]) or "nothing"
        raise UsageError(
            f"{wanted.label} has no ONNX file; it has {shown}; choose a repository with one, or "
            "export the model"
        )
    named = [name for name in found if PurePosixPath(name).stem == wanted.repo]
    usual = [name for name in ("model.onnx", "onnx/model.onnx") if name in found]
    chosen = (found if len(found) == 1 else []) or (named if len(named) == 1 else []) or usual
    if not chosen:
        shown = ", ".join(found[:8]) + (", …" if len(found) > 8 else "")
        raise UsageError(
            f"{wanted.label} has {len(found)} ONNX files; name one, as in "
            f"huggingface:{wanted.id}/{found[0]}: {shown}"
        )
    return chosen[0]


# ── Bringing files ─────────────────────────────────────────────────────────────────────────────


def _fetch_file(wanted: _HfReference, listing: _Listing, name: str, home: Path) -> Path:
    """Where the file ``name`` lies, which is what the hub lists; downloaded if need be."""
    listed = listing.files[name]
    folder = home / listing.commit
    path = folder / name
    try:
        if path.is_file() and not listed.objection(path):
            return path
        # The library trusts a file of the right commit, and this one is damaged.
        path.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(wanted, folder, error) from error
    if name.endswith(".onnx") and (listed.size or 0) > GRAPH_LIMIT:
        raise InputError(
            f"{wanted.label}: {name} has {listed.size:,} bytes, but an ONNX file can have at most "
            f"{GRAPH_LIMIT:,}; choose another"
        )
    # Not the library's usual cache: its links lead out of the model's folder, where nothing may
    # read external data from.
    _call_library(
        f"{wanted.label}: file {name}",
        lambda: _api().hf_hub_download(
            wanted.id, name, revision=listing.commit, local_dir=folder, etag_timeout=TIMEOUT_S
        ),
    )
    why = listed.objection(path) if path.is_file() else "did not come"
    if why:
        path.unlink(missing_ok=True)
        raise InputError(
            f"{wanted.label}: file {name} {why}; it is refused as changed or damaged: try again, "
            "or another revision"
        )
    return path


def _external_files(
    wanted: _HfReference, file: str, path: Path, listing: _Listing
) -> Sequence[str]:
    """Files of the repository in which the model at ``path`` keeps tensors, sorted."""
    try:
        model = onnx.load(str(path), load_external_data=False)
    except (DecodeError, OSError):
        return []  # opening the model reports what is wrong with it
    needed = set()
    for location in set(_locations(model)):
        name = posixpath.normpath(posixpath.join(posixpath.dirname(file), location))
        if name not in listing.files:
            raise InputError(
                f"{wanted.label}: {file} keeps tensors in {location!r}, which the repository does "
                "not have; choose another revision or file"
            )
        needed.add(name)
    return sorted(needed)


def _locations(message: Any) -> Iterator[str]:
    """Where tensors lie that ``message``, or anything inside of it, keeps in other files."""
    if isinstance(message, onnx.TensorProto):
        if message.data_location == onnx.TensorProto.EXTERNAL:
            yield from (e.value for e in message.external_data if e.key == "location")
        return
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        repeated = not hasattr(value, "ListFields")
        for inner in value if repeated else (value,):
            yield from _locations(inner)


def _unwritable(wanted: _HfReference, folder: Path, error: OSError) -> InfrastructureError:
    return InfrastructureError(
        f"{wanted.label}: cannot write to {folder}: {error.strerror or error}; make room, or "
        "choose another cache folder"
    )


# ── The library ────────────────────────────────────────────────────────────────────────────────


class _Unreachable(UsageError):
    """The hub gives no answer at all, so one that was kept will do."""


def _api() -> Any:
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        who, extra = "model source 'huggingface'", "optvet[huggingface]"
        raise MissingLibrary("huggingface_hub", extra, who) from error
    # The library reads the variable when it is imported, which may be long ago.
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, library_name="optvet")


def _call_library(subject: str, action: Callable[[], _T]) -> _T:
    """What ``action`` gives; an error of the library in words that say what to do.

    Its exceptions are told apart by name: they moved between modules, and those for a network
    that fails are of another library from one version to the next.
    """
    try:
        return action()
    except PluginError:
        raise
    except Exception as error:
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if isinstance(error, OSError) and error.errno in _FULL:
            raise InfrastructureError(
                f"{subject}: {error}; make room, or choose another cache folder"
            ) from error
        raise _in_words(subject, error, kinds) from error


def _in_words(subject: str, error: Exception, kinds: set[str]) -> UsageError:
    if "GatedRepoError" in kinds:
        return UsageError(
            f"{subject} is gated: accept its terms on its page, then log in with 'hf auth login' "
            "or set HF_TOKEN"
        )
    if "DisabledRepoError" in kinds:
        return UsageError(f"{subject} is disabled by its hub; choose another")
    if "RepositoryNotFoundError" in kinds:
        return UsageError(
            f"{subject}: there is no such repository, or it is private; check ORG/REPO, or log in "
            "with 'hf auth login' or set HF_TOKEN"
        )
    if "RevisionNotFoundError" in kinds:
        return UsageError(f"{subject}: there is no such revision; give a branch, tag or commit")
    if "HFValidationError" in kinds:
        return UsageError(f"{subject} is no name of a repository: {error}; write it as ORG/REPO")
    if "EntryNotFoundError" in kinds and "LocalEntryNotFoundError" not in kinds:
        return InputError(f"{subject} is listed by the hub, but it does not give it; try later")
    status = getattr(getattr(error, "response", None), "status_code", None)
    words = f"the hub answers {status}" if status else f"{type(error).__name__}: {error}"
    words = " ".join(words.split())[:300]
    return _Unreachable(
        f"{subject} is not available ({words}), and is not in the cache; check your network and "
        "HF_ENDPOINT, or try later"
    )
