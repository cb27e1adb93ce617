"""Graphs of a campaign's models, read again where their files are as they were."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # ships no types
from onnx import ModelProto

from optvet.engine.campaign.digests import files_of
from optvet.engine.campaign.store import CampaignStore
from optvet.engine.models.sidecar import config_for
from optvet.engine.work.cache.cache_key import key
from optvet.graph.outline import outline_of
from optvet.spec.errors import OptvetError


def graph_of(store: CampaignStore, reference: str, digest: str) -> ModelProto | None:
    """The model without large weights; None if its files changed, or are no longer there.

    Nothing is fetched or hashed: the store knows size and time of change of what it has read.
    """
    for path in _places(store, reference):
        try:
            parts = [_known_digest(store, file) for file in files_of(path)]
            # What is declared beside a model is part of its digest, but not of a source's.
            if None not in parts and digest in (key(parts, config_for(path)), key(parts, "")):
                return outline_of(path)
        except (OptvetError, OSError, DecodeError):
            continue
    return None


def _places(store: CampaignStore, reference: str) -> list[Path]:
    """The path that a reference is, or the files that it stood for."""
    rows = store.database.execute("SELECT reference, path FROM models ORDER BY reference")
    named = [Path(path) for about, path in rows if about.endswith(f" {reference}")]
    return [*named, Path(reference).expanduser()]


def _known_digest(store: CampaignStore, path: Path) -> str | None:
    about = path.stat()
    row = store.database.execute(
        "SELECT digest FROM files WHERE path = ? AND size = ? AND mtime_ns = ?",
        (str(path.resolve()), about.st_size, about.st_mtime_ns),
    ).fetchone()
    return None if row is None else str(row[0])
