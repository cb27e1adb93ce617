"""The files of one commit as the hub lists them, with size and checksum; kept in the cache."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from optvet.plugin import InputError, PluginError, UnknownName, UsageError, parse_json, write_file
from optvet_hf_models.hub import Unreachable, call_library, hub_api
from optvet_hf_models.references import HfReference

TIMEOUT_S = 20.0
_COMMIT = re.compile(r"[0-9a-f]{40}")


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
class Listing:
    """The files of one commit."""

    commit: str
    files: Mapping[str, _File]

    def dump(self) -> bytes:
        """As it is kept."""
        files = {name: vars(file) for name, file in self.files.items()}
        return json.dumps({"commit": self.commit, "files": files}, indent=1).encode()

    @classmethod
    def load(cls, data: bytes) -> Listing:
        """As it was kept; InputError, KeyError or TypeError for anything else."""
        value = parse_json(data, "what is kept of a repository", "listing")
        return cls(value["commit"], {n: _File(**f) for n, f in value["files"].items()})


def _record(wanted: HfReference, home: Path) -> Path:
    return home / "revisions" / f"{quote(wanted.revision, safe='')}.json"


def kept_listing(wanted: HfReference, home: Path) -> Listing | None:
    """What is kept of the revision in the cache; None if nothing readable is."""
    with contextlib.suppress(OSError, InputError, KeyError, TypeError, AttributeError):
        return Listing.load(_record(wanted, home).read_bytes())
    return None


def fetch_listing(wanted: HfReference, home: Path) -> Listing:
    """The commit that is meant: as the hub has it now, or else as it was kept."""
    kept = kept_listing(wanted, home)
    if kept is not None and _COMMIT.fullmatch(wanted.revision):
        return kept
    try:
        info = call_library(
            wanted.label,
            lambda: hub_api().model_info(
                wanted.id, revision=wanted.revision, files_metadata=True, timeout=TIMEOUT_S
            ),
        )
    except (Unreachable, PluginError):
        if kept is None:
            raise
        return kept
    commit = str(info.sha or "")
    if not _COMMIT.fullmatch(commit):
        raise InputError(f"{wanted.label}: the hub names no commit ({commit!r}); try again later")
    files = {str(s.rfilename): _file(s) for s in info.siblings or ()}
    listing = Listing(commit, {n: f for n, f in files.items() if _is_inside(n)})
    write_file(_record(wanted, home), listing.dump(), private=True)
    write_file(
        _record(HfReference(wanted.org, wanted.repo, commit, None), home),
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


def choose_file(wanted: HfReference, listing: Listing) -> str:
    """The ONNX file that is meant; UsageError if there is none, or several."""
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
