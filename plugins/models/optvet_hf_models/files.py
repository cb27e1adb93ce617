"""Downloads files of a repository, and refuses those that differ from what the hub lists."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from optvet.plugin import InfrastructureError, InputError
from optvet_hf_models.hub import call_library, hub_api
from optvet_hf_models.listing import TIMEOUT_S, Listing
from optvet_hf_models.references import HfReference

GRAPH_LIMIT = 2**31 - 1
"""Bytes of an ONNX file; no larger one can be loaded."""


def fetch_file(wanted: HfReference, listing: Listing, name: str, home: Path) -> Path:
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
    call_library(
        f"{wanted.label}: file {name}",
        lambda: hub_api().hf_hub_download(
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


def external_files(wanted: HfReference, file: str, path: Path, listing: Listing) -> Sequence[str]:
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


def _unwritable(wanted: HfReference, folder: Path, error: OSError) -> InfrastructureError:
    return InfrastructureError(
        f"{wanted.label}: cannot write to {folder}: {error.strerror or error}; make room, or "
        "choose another cache folder"
    )
