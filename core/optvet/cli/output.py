"""Writing documents to files: targets are checked before the work, and written atomically."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from optvet.cli.terminal import Terminal
from optvet.spec.errors import UsageError
from optvet.spec.files import refuse_link, refuse_links_of_others, write_file
from optvet.spec.foreign import open_file

if TYPE_CHECKING:
    from optvet.engine.discovery import Plugins


def _check_target(target: str | None) -> str | None:
    if target is not None:
        check_file("--json", target, "answer")
    return target


Kind = Literal["answer", "baseline", "patch", "model", "text", "picture"]
"""What optvet writes to a file that the user names."""


def check_file(option: str, target: str, kind: Kind) -> None:
    """Refuse a file that cannot be written, before the work; ``-`` is stdout.

    Raises:
        UsageError: It is a folder or a link, its folder does not exist, it cannot be written, or
            it holds what is no ``kind``, and is not empty.
    """
    if target == "-":
        return
    path = Path(target)
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder; give a file, or - for stdout")
    try:
        refuse_link(path)
        refuse_links_of_others(path.parent)
    except FileNotFoundError:  # of the current folder
        raise
    except OSError as error:
        words = f"{option} {error.filename}: {error.strerror}; give a path without it"
        raise UsageError(words) from error
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: folder {path.parent} does not exist; make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{option} {path} cannot be written; choose another file")
    if path.is_file():
        _refuse_to_lose(option, path, kind)


def check_file_in(option: str, path: Path, kind: Kind) -> None:
    """Refuse what ``check_file`` does, if something is there: its folder may be missing."""
    if path.is_symlink() or path.exists():
        check_file(option, str(path), kind)


_HEAD_BYTES = 4096
_DOCUMENT = re.compile(rb'\s*\{\s*"schema":\s*"optvet\.([a-z-]+)/')
_READ_AGAIN = (b"baseline", b"finding", b"patch")
"""Documents that are no answers: other commands read them."""
_CONTROLS = bytes({*range(32), 127} - {*b"\t\n\r\f"})
_SOURCES = (".toml", ".py")
"""Texts that people write: no report is called so."""
_PICTURES = {".png": (b"\x89PNG",), ".svg": (b"<?xml", b"<svg")}


def _refuse_to_lose(option: str, path: Path, kind: Kind) -> None:
    """Refuse to overwrite what optvet would not have written to this file."""
    try:
        with open_file(path) as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        words = f"{option} {path} exists and cannot be read ({error.strerror})"
        raise UsageError(f"{words}; give another file") from error
    if head.strip() and not _is_of_kind(head, kind, path.suffix.lower()):
        model = "an ONNX model" if _is_model(head) else f"what is no {_KINDS[kind]}"
        words = f"{option} {path} would overwrite {model}"
        raise UsageError(f"{words}; give another file, or remove this one first")


_KINDS = {
    "answer": "answer of optvet",
    "baseline": "baseline or answer of optvet",
    "patch": "document of optvet",
    "model": "ONNX model",
    "text": "report",
    "picture": "picture of that format",
}


def _is_of_kind(head: bytes, kind: Kind, suffix: str) -> bool:
    if kind == "model":
        return _is_model(head)
    if kind == "text":
        return suffix not in _SOURCES and head == head.translate(None, _CONTROLS)
    if kind == "picture":
        return head.startswith(_PICTURES.get(suffix, (b"",)))
    found = _DOCUMENT.match(head)
    return found is not None and (kind in ("baseline", "patch") or found[1] not in _READ_AGAIN)


def _is_model(head: bytes) -> bool:
    """Whether a message begins as an ONNX model does, with the version of the format."""
    return head[:1] == b"\x08" and len(head) > 2


Json = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="FILE|-",
        callback=_check_target,
        help="Write the answer as JSON; `-` is stdout, instead of the screen.",
        show_default=False,
        rich_help_panel="The answer",
    ),
]


def write_document(terminal: Terminal, target: str, text: str) -> None:
    """Write ``text`` and a line break to stdout (``-``) or to a file.

    Raises:
        InfrastructureError: It cannot be written; the previous file is untouched.
    """
    if target == "-":
        terminal.write(f"{text}\n")
    else:
        advice = "make room or choose another file, then run again"
        write_file(Path(target), f"{text}\n", advice=advice)


_MODELS = (".onnx", ".tflite", ".xml", ".json")
"""What files are called that someone may expect where a folder is written."""


def check_folder(option: str, folder: Path) -> None:
    """Refuse a folder that cannot be written, before the work.

    Raises:
        UsageError: It is a file, is called like a model, cannot be written, or lies behind a link
            that another user put where everybody may.
    """
    if folder.suffix in _MODELS and not folder.exists():
        raise UsageError(f"{option} {folder} is called like a file; it is a folder: {folder.stem}")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{option} {folder} is a file; give a folder")
    try:
        refuse_links_of_others(folder)
    except FileNotFoundError:  # of the current folder
        raise
    except OSError as error:
        words = f"{option} {error.filename}: {error.strerror}; give a path without it"
        raise UsageError(words) from error
    nearest = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    try:
        # Try it: permissions do not show it for root, nor for folders such as /proc.
        os.rmdir(tempfile.mkdtemp(dir=nearest))
    except OSError as error:
        why = error.strerror or error
        words = f"{option} {folder} cannot be written ({why}); choose another folder"
        raise UsageError(words) from error


def refuse_inputs_in(option: str, folder: Path, names: str, *inputs: str | Path | None) -> None:
    """Refuse a folder in which a file that the command reads has a name that it writes.

    Args:
        option: The option that names the folder.
        folder: It.
        names: A pattern of the names that are written.
        inputs: Files that the command reads; the name of a function may follow one.

    Raises:
        UsageError: There is one.
    """
    for given in inputs:
        file = Path(str(given).partition(":")[0] if given is not None else "")
        if file.is_file() and folder.is_dir() and file.parent.samefile(folder):
            if re.fullmatch(names, file.name):
                words = f"{option} {folder} would overwrite {file}, which the command reads"
                raise UsageError(f"{words}; give another folder")


_SCRIPTS = ("comparing.py", "part.py", "reproduce.py", "running.py")
_MODULES = (".py", ".pyc", ".so", ".pyd")


def refuse_modules_in(option: str, folder: Path) -> None:
    """Refuse a folder with modules that optvet did not write: a script is tried there.

    Python looks for what the script imports in its own folder first.

    Raises:
        UsageError: There is one.
    """
    if not folder.is_dir():
        return
    for place in folder.iterdir():
        is_module = place.suffix in _MODULES and place.name not in _SCRIPTS
        is_package = place.is_dir() and any(p.stem == "__init__" for p in place.iterdir())
        if is_module or is_package:
            words = f"{option} {folder} has {place.name}, which the script there could import"
            raise UsageError(f"{words}; give another folder")


def fitting_reporter(plugins: Plugins, out: str) -> str:
    """The reporter for files of that name."""
    suffix = Path(out).suffix
    names = plugins.names("reporter")
    fitting = [n for n in names if suffix and plugins.reporter(n).suffix == suffix]
    return fitting[0] if fitting else plugins.default("reporter")
