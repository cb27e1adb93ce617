"""Models on disk: a file, or a folder of files."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from optvet.plugin import InputError, ModelCard, ModelSource, UsageError, check_file, hookimpl


class LocalSource:
    """A path names itself; a folder names the ``*.onnx`` files right inside it."""

    name = "local"
    preference = 100

    def models(self) -> Iterable[ModelCard]:
        """Nothing: what lies on the disk is not listed."""
        return []

    def fetch(self, reference: str, cache: Path) -> Sequence[Path]:
        """``reference`` itself, or the models of the folder ``reference``, sorted by name.

        Raises:
            UsageError: Nothing is there.
            InputError: It is there, but is no model, or holds none.
        """
        if not reference:
            raise UsageError("model path is empty; give a file or a folder of .onnx files")
        path = Path(reference).expanduser()
        try:
            if path.is_dir():
                return _models_in(path)
            if not path.exists():
                raise UsageError(_nothing_there(path))
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from error
        return [_usable(path)]


@hookimpl
def optvet_model_sources() -> Iterable[ModelSource]:
    """Plain paths."""
    return [LocalSource()]


def _models_in(folder: Path) -> list[Path]:
    if folder.suffix == ".onnx":
        inside = [entry for entry in _entries(folder) if entry.suffix == ".onnx"]
        advice = f"give {inside[0]}" if inside else "give the file itself"
        raise InputError(f"{folder} is a directory, expected an ONNX file; {advice}")
    named = (e for e in _entries(folder) if e.suffix == ".onnx")
    files = [e for e in named if e.is_file() or (e.is_symlink() and not e.exists())]
    if not files:
        raise InputError(f"folder {folder} has no .onnx file; {_where_else(folder)}")
    # Of several, what is wrong with one is told where it is opened, and the others are vetted.
    return files if len(files) > 1 else [_usable(files[0])]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise InputError(f"folder {folder} cannot be read: {error.strerror}") from error


def _where_else(folder: Path) -> str:
    """What to do about a folder without models; they may lie one level deeper."""
    for inner in _entries(folder):
        readable = inner.is_dir() and os.access(inner, os.R_OK | os.X_OK)
        if readable and any(entry.suffix == ".onnx" for entry in inner.iterdir()):
            return f"folders are not searched deeper; did you mean {inner}?"
    return "give a folder that has one, or a file"


def _usable(path: Path) -> Path:
    if not path.is_file():
        raise InputError(f"{path} is not a regular file, expected an ONNX file")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty, expected an ONNX file; export or download it again")
    try:
        check_file(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    return path


def _nothing_there(path: Path) -> str:
    """Text of the error, with names that are near in the nearest folder that exists."""
    if path.is_symlink():
        return f"{path} is a link to {path.readlink()}, which does not exist"
    parent = path.parent
    if not parent.is_dir():
        return f"no such file: {path}; its folder {parent} does not exist either"
    names = [entry.name for entry in _entries(parent)]
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.6)
    if near:
        return f"no such file: {path}; did you mean {' or '.join(repr(n) for n in near)}?"
    models = [name for name in names if name.endswith(".onnx")]
    shown = ", ".join(models[:5]) + (", …" if len(models) > 5 else "")
    return f"no such file: {path}; {parent} has {shown or 'no .onnx file'}"
