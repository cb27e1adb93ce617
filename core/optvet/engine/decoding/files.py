"""Finds encoder and decoder files in a folder, by the names that Hugging Face's exporter gives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from optvet.spec.errors import UsageError
from optvet.spec.foreign import files_in

ENCODER, FIRST, CACHED, MERGED, ALONE = (
    "encoder_model",
    "decoder_model",
    "decoder_with_past_model",
    "decoder_model_merged",
    "model",
)
# A longer name first: `decoder_model_merged_quantized` is no `decoder_model` of a kind.
_PARTS = (CACHED, MERGED, FIRST, ENCODER, ALONE)
_PAST = re.compile(r"^(past|present)(_key_values?|_keys?|_values?)?[._]?")


@dataclass(frozen=True)
class DecodingFiles:
    """The ONNX files of a folder, by role.

    Attributes:
        by_part: The files that decode together.
        others: Redundant files, such as a merged decoder beside its two halves.
    """

    by_part: Mapping[str, Path]
    others: tuple[Path, ...]

    def decoder_at(self, token: int) -> str:
        """The part that computes this token; tokens count from 1."""
        first = next(p for p in (FIRST, MERGED, ALONE, CACHED) if p in self.by_part)
        return CACHED if token > 1 and CACHED in self.by_part else first


def is_decoding_folder(reference: str) -> bool:
    """Whether ``reference`` is a folder that holds an exported encoder or decoder."""
    folder = Path(reference)
    return folder.is_dir() and any(_part(file) for file in _models(folder))


def files_of(reference: str) -> DecodingFiles:
    """Find the ONNX file of each part in a folder.

    Raises:
        UsageError: It is no folder, has no decoder, or has two files for one part.
    """
    if not Path(reference).is_dir():
        raise UsageError(f"{reference} is no folder; compare a folder with a folder")
    found: dict[str, Path] = {}
    for file in _models(Path(reference)):
        part = _part(file)
        if part in found:
            # The plain name wins: a tool that writes beside it adds a suffix.
            exact = [f for f in (found[part], file) if f.stem == part]
            if not exact:
                raise UsageError(
                    f"{reference}: {found[part].name} and {file.name} are both the {part}; "
                    "leave one in the folder"
                )
            found[part] = exact[0]
        elif part:
            found[part] = file
    others = []
    if FIRST in found and MERGED in found:
        others.append(found.pop(MERGED))
    if ALONE in found and len(found) > 1:
        others.append(found.pop(ALONE))
    if not {FIRST, CACHED, MERGED, ALONE} & set(found):
        raise UsageError(f"{reference}: there is no decoder; it is named {FIRST}.onnx")
    return DecodingFiles({part: found[part] for part in _PARTS if part in found}, tuple(others))


def _models(folder: Path) -> list[Path]:
    return files_in(folder, lambda path: path.suffix == ".onnx" and path.parent == folder)


def _part(file: Path) -> str:
    """The part of a file, by its name; empty if it is none."""
    for part in _PARTS:
        if file.stem == part or (part != ALONE and file.stem.startswith(f"{part}_")):
            return part
    return ""


def cache_entry(name: str) -> str | None:
    """The cache entry that an input or output stands for; None if it is none.

    `past_key_values.0.key` (read) and `present.0.key` (written) are the same entry.
    """
    found = _PAST.match(name)
    return name[found.end() :] or name if found else None
