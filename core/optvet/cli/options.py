"""Options as they are typed, and the values that they mean."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from optvet import UsageError
from optvet.cli.terminal import Terminal
from optvet.engine.cache import cache_root

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


class Note(StrEnum):
    """Symptoms that are notes, unless ``--fail-on`` makes findings of them."""

    BLOAT = "bloat"
    METADATA_CHANGE = "metadata-change"
    PORTABILITY = "portability"
    SENSITIVITY = "sensitivity"
    SLOWDOWN = "slowdown"


def _want_debug(context: typer.Context, wanted: bool) -> bool:
    context.ensure_object(Terminal).debug |= wanted
    return wanted


Debug = Annotated[
    bool,
    typer.Option("--debug", callback=_want_debug, help="Show the traceback of an error."),
]
CacheDir = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        envvar="OPTVET_CACHE",
        help="Folder where results are kept.",
        show_default="the user's cache folder",
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Let what came with the model (or the bundle) name code, commands and files.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def cache_folder(given: Path | None) -> Path:
    """The cache folder that the options mean."""
    return given.expanduser() if given is not None else cache_root()


def bytes_of(text: str) -> int:
    """The number of bytes that ``512M``, ``4G``, ``1.5GiB`` or ``1000000`` means."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise typer.BadParameter(f"{text!r} is no size; write it as 512M or 4G")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def seconds_of(text: str) -> float:
    """The positive, finite number of seconds that ``text`` means; ``90``, ``2.5`` or ``90s``."""
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = 0.0
    # NaN fails both comparisons; a week is beyond any use, and below what a clock can take.
    if not 0 < seconds <= 7 * 24 * 3600:
        raise typer.BadParameter(f"{text!r} is no number of seconds above 0; write it as 120")
    return seconds


def mapping_of(option: str, pairs: Sequence[str]) -> dict[str, Any]:
    """``KEY=VALUE`` pairs as a mapping; a value is JSON where it parses, else text.

    >>> mapping_of("--option", ["fixed_point=true", "level=O2"])
    {'fixed_point': True, 'level': 'O2'}
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key.strip() and equals):
            raise UsageError(f"{option} {pair!r}: expected KEY=VALUE, such as fixed_point=true")
        try:
            values[key.strip()] = json.loads(value)
        except (ValueError, RecursionError):
            values[key.strip()] = value
    return values


def names_of(option: str, lists: Sequence[str]) -> list[str]:
    """The names in ``lists``, each separated by commas, once each.

    >>> names_of("--cross-check", ["tvm,openvino", "tvm"])
    ['tvm', 'openvino']
    """
    names = [part.strip() for text in lists for part in text.split(",")]
    if not all(names):
        raise UsageError(f"{option} {','.join(lists)!r}: expected names separated by commas")
    return list(dict.fromkeys(names))
