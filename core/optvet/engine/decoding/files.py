"""Which files of a folder are which part of a model that decodes, by the names of exports."""

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
    """The files of a folder by the part that they are.

    Attributes:
        files: File by part: those that decode together.
        others: Files of a part that another file stands for, such as a merged decoder beside
            its halves.
    """

    files: Mapping[str, Path]
    others: tuple[Path, ...]

    def decoder_at(self, token: int) -> str:
        """The part that computes a token, counted from 1."""
        first = next(p for p in (FIRST, MERGED, ALONE, CACHED) if p in self.files)
        return CACHED if token > 1 and CACHED in self.files else first


def is_decoding_folder(reference: str) -> bool:
    """Whether ``reference`` is a folder with files of a model that decodes."""
    folder = Path(reference)
    return folder.is_dir() and any(_part(file) for file in _models(folder))


def parts_of(reference: str) -> DecodingFiles:
    """The parts of the model in a folder.

    Raises:
        UsageError: It is no folder, has no decoder, or two files of one part.
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
    """The part that a file is; empty if it is none."""
    for part in _PARTS:
        if file.stem == part or (part != ALONE and file.stem.startswith(f"{part}_")):
            return part
    return ""


def cache_entry(name: str) -> str | None:
    """Name of the entry of the cache that an input or output is; None if it is none.

    An entry has one name, whether it is read (`past_key_values.0.key`) or written
    (`present.0.key`).
    """
    found = _PAST.match(name)
    return name[found.end() :] or name if found else None
