"""Models that published studies ran, by name: ``study:NAME``.

``catalogue.toml`` says which they are, what they are for and how images are prepared for them. The
files come from other sources: the Hugging Face Hub, where the ONNX Model Zoo lives now, else an
ONNX Model Hub. What the catalogue declares is put beside the file, as a user would, so that a model
behaves the same from either.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from optvet.plugin import (
    InfrastructureError,
    ModelCard,
    ModelSource,
    PluginError,
    UnknownName,
    UsageError,
    hookimpl,
    write_file,
)

_CATALOGUE = Path(__file__).with_name("catalogue.toml")
_ZOO = "onnxmodelzoo"
_ENTRY_POINTS = {"huggingface": "hf_models", "onnx_hub": "onnx_hub"}


@dataclass(frozen=True)
class Entry:
    """One file of the catalogue.

    Attributes:
        name: The file's name without its suffix.
        ditox: What DiTOX's results call it; empty where they do not have it.
        studies: Other studies that ran it.
        is_seen: Whether the name was seen anywhere, and not merely follows the zoo's naming.
        config: What is declared of the family, as in a TOML beside a model.
    """

    name: str
    family: str
    title: str
    opset: int
    ditox: str
    studies: tuple[str, ...]
    is_seen: bool
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def references(self) -> tuple[str, ...]:
        """Where it may be had, in the order in which that is tried."""
        return (f"huggingface:{_ZOO}/{self.name}", f"onnx_hub:{self.name}")

    def card(self) -> ModelCard:
        """What is told of it before it is fetched."""
        tags = [self.family]
        tags += [*(["ditox"] if self.ditox else []), *self.studies]
        tags += [kind for kind in ("int8", "qdq") if self.name.endswith(kind)]
        tags += [] if self.is_seen else ["unverified-name"]
        extra = {"opset": str(self.opset), "from": ", ".join(self.references)}
        if self.ditox:
            extra["ditox"] = self.ditox
        words = f"{self.title}; opset {self.opset}"
        return ModelCard(self.name, self.config.get("task"), words, None, tuple(tags), extra)


class StudySource:
    """The catalogue; listing it needs no network, fetching does."""

    name = "study"

    def models(self) -> Iterable[ModelCard]:
        """All models, by family and opset."""
        return [entry.card() for entry in catalogue()]

    def fetch(self, reference: str, cache: Path) -> Sequence[Path]:
        """The model's file, with what is declared of it beside it.

        Raises:
            UnknownName: The catalogue has no such model.
            UsageError: None of its sources gives it; the message has the reason of each.
            InfrastructureError: The cache cannot be written.
        """
        entry = _entry(reference)
        reasons = []
        for place in entry.references:
            scheme, _, rest = place.partition(":")
            source = _source(scheme)
            if source is None:
                reasons.append(f"{place}: there is no model source {scheme!r}")
                continue
            try:
                files = source.fetch(rest, cache)
            except InfrastructureError:
                raise
            except (UsageError, PluginError) as error:
                reasons.append(f"{place}: {error}")
                continue
            for file in files:
                write_file(file.with_suffix(".toml"), _toml(entry), private=True)
            pin = getattr(source, "pinned", None)
            write_file(
                _note(entry, cache), pin(rest, cache) if pin is not None else place, private=True
            )
            return files
        hint = "" if entry.is_seen else " (its name in the catalogue was never verified)"
        raise UsageError(f"study model {entry.name!r} is not available{hint}: {'; '.join(reasons)}")

    def pinned(self, reference: str, cache: Path) -> str:
        """The full reference, at its own source, of what ``fetch`` gave."""
        try:
            return _note(_entry(reference), cache).read_text(encoding="utf-8")
        except OSError:
            return f"{self.name}:{reference}"


@hookimpl
def optvet_model_sources() -> Iterable[ModelSource]:
    """The catalogue."""
    return [StudySource()]


def catalogue() -> list[Entry]:
    """All entries, in the order of the catalogue."""
    data = tomllib.loads(_CATALOGUE.read_text(encoding="utf-8"))
    ran = data["studies"]
    return [e for name, family in data["family"].items() for e in _entries(name, family, ran)]


def _entries(
    name: str, family: Mapping[str, Any], ran: Mapping[str, Sequence[str]]
) -> Iterator[Entry]:
    config = {k: family[k] for k in ("task", "comparator", "preprocessing") if k in family}
    for file, ditox in family["files"].items():
        opset = family.get("opsets", {}).get(file) or _opset_of(file)
        is_seen = file not in family.get("from_memory", ())
        studies = tuple(study for study, files in ran.items() if file in files)
        yield Entry(file, name, family["title"], opset, ditox, studies, is_seen, config)


def _opset_of(name: str) -> int:
    """The opset that a file of the zoo has in its name.

    >>> _opset_of("resnet50-v1-12-int8"), _opset_of("ssd_mobilenet_v1_10")
    (12, 10)
    """
    match = re.search(r"[-_](\d{1,2})(?:-int8|-qdq)?$", name)
    if match is None:
        raise ValueError(f"{name!r} has no opset in its name")
    return int(match[1])


def _entry(reference: str) -> Entry:
    entries = {entry.name: entry for entry in catalogue()}
    if reference not in entries:
        hint = "(optvet models list --source study lists all)"
        raise UnknownName("study model", reference, entries, hint)
    return entries[reference]


def _source(name: str) -> ModelSource | None:
    """The model source ``name``; None where no package brings it.

    It is found by its entry point, as the engine finds it: no plugin imports another.
    """
    for point in entry_points(group="optvet", name=_ENTRY_POINTS[name]):
        for source in point.load().optvet_model_sources():
            if source.name == name:
                found: ModelSource = source
                return found
    return None


def _note(entry: Entry, cache: Path) -> Path:
    """Where it is kept which file the entry stood for last."""
    return cache / "study" / f"{entry.name}.txt"


def _toml(entry: Entry) -> str:
    """What is declared of ``entry``; JSON's texts, numbers and lists are TOML's, too."""
    plain = {k: v for k, v in entry.config.items() if not isinstance(v, dict)}
    lines = [f"# {entry.title}, from the catalogue of optvet"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
    for table, values in entry.config.items():
        if isinstance(values, dict):
            lines += ["", f"[{table}]"]
            lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"
