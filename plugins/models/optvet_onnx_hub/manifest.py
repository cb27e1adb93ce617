"""The manifest of a hub: its entries, and finding one by name."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, Field, ValidationError, field_validator

from optvet.plugin import (
    InputError,
    ModelCard,
    UnknownName,
    UsageError,
    parse_json,
)
from optvet_onnx_hub.addresses import (
    safe_path,
    sha_of,
)
from optvet_onnx_hub.web import kind_of


@dataclass(frozen=True)
class HubReference:
    """What a reference asks for: a hub, a name, and what narrows it down."""

    address: str
    name: str
    opset: int | None
    sha: str
    data: bool


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
        return value if value is None else sha_of(value)

    @field_validator("model_with_data_path")
    @classmethod
    def _is_safe(cls, value: str | None) -> str | None:
        return value if value is None else safe_path(value)


class ManifestEntry(BaseModel):
    """One model of the manifest."""

    model: str = Field(min_length=1)
    model_path: str
    onnx_version: str = ""
    opset_version: int
    metadata: _Metadata

    @field_validator("model_path")
    @classmethod
    def _is_safe(cls, value: str) -> str:
        return safe_path(value)

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
class Manifest:
    """A hub's models; ``unusable`` has name and reason of what cannot be one."""

    address: str
    entries: tuple[ManifestEntry, ...]
    unusable: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, address: str, data: bytes) -> Manifest:
        """The manifest in ``data``, which came from ``address``."""
        try:
            items = parse_json(data, f"hub {address}", "listing")
        except InputError as error:
            raise InputError(
                f"hub {address} sends {kind_of(data)} for its manifest, expected JSON; "
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
                entries.append(ManifestEntry.model_validate(item))
            except ValidationError as error:
                name = item.get("model") if isinstance(item, dict) else None
                first = error.errors()[0]
                why = f"{'.'.join(map(str, first['loc'])) or 'entry'}: {first['msg']}"
                unusable.append((name if isinstance(name, str) else f"entry {number}", why))
        return cls(address, tuple(entries), tuple(unusable))

    def find(self, wanted: HubReference) -> ManifestEntry:
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
