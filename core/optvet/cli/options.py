"""Options of commands, and parsing of their values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from optvet.cli.terminal import Terminal
from optvet.engine.work.cache.disk import cache_root
from optvet.spec.errors import UsageError
from optvet.spec.request import seconds_of


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
        help="Folder of the cache.",
        show_default="the user's cache folder",
    ),
]
Environments = Annotated[
    list[str] | None,
    typer.Option(
        "--environment",
        metavar="NAME=PATH",
        envvar="OPTVET_ENVIRONMENTS",
        help="Where an environment is: a folder, or a Python in it.",
        show_default="the one that optvet env make made",
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Allow files that came with the model (or the bundle) to name code, commands and "
        "files.",
    ),
]


def cache_folder(folder: Path | None) -> Path:
    """The cache folder that the options mean."""
    return folder.expanduser() if folder is not None else cache_root()


def was_typed(context: typer.Context, name: str) -> bool:
    """Whether an option was typed, not taken from the environment or left to its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def parse_seconds(text: str) -> float:
    """``seconds_of`` for an option."""
    try:
        return seconds_of(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


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
