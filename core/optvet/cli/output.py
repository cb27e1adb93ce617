"""Writing documents to files: targets are checked before the work, and written atomically."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from optvet.cli.terminal import Terminal
from optvet.spec.errors import UsageError
from optvet.spec.files import refuse_link, refuse_links_of_others, write_file


def _check_target(target: str | None) -> str | None:
    if target is not None:
        check_file("--json", target)
    return target


def check_file(option: str, target: str) -> None:
    """Refuse a file that cannot be written, before the work; ``-`` is stdout.

    Raises:
        UsageError: It is a folder or a link, its folder does not exist, or it cannot be written.
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
        tempfile.TemporaryDirectory(dir=nearest).cleanup()
    except OSError as error:
        why = error.strerror or error
        words = f"{option} {folder} cannot be written ({why}); choose another folder"
        raise UsageError(words) from error
