"""JSON and TOML from untrusted files: with limits on size, nesting and numbers.

The standard library's parsers raise RecursionError for deep nesting and a ValueError without a
position for long numbers; the time of ``tomllib`` grows with the square of a dotted key's length.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from optvet.spec.errors import InputError
from optvet.spec.foreign import read_file


@dataclass(frozen=True)
class Bounds:
    """Limits of a document: its size in bytes, and its levels of nesting."""

    size_bytes: int
    depth: int = 32


Purpose = Literal["record", "listing", "annotations"]
"""record: a description of one model. listing: a catalogue of models, a finding, a vocabulary.
annotations: data, such as the labels of a whole dataset."""
_BOUNDS: Mapping[Purpose, Bounds] = {
    "record": Bounds(256 << 10),
    "listing": Bounds(64 << 20),
    # COCO's largest file has 450 MB.
    "annotations": Bounds(1 << 30),
}

_KEY_PARTS = 32
_HALF = re.compile("[\ud800-\udfff]")
"""Half of a character, which JSON may escape and no text in UTF-8 can hold."""
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'')
_PIECES = re.compile(r"[=,{}\[\]\n]")


def read_bytes(file: Path, purpose: Purpose) -> bytes:
    """The content of ``file``.

    Raises:
        InputError: It cannot be read, or has more bytes than allowed.
    """
    bounds = _BOUNDS[purpose]
    try:
        return read_file(file, bounds.size_bytes)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{file} cannot be read: {reason}") from error


def read_json(file: Path, purpose: Purpose) -> Any:
    """The JSON document in ``file``.

    Raises:
        InputError: It cannot be read, is none, or exceeds the bounds.
    """
    return parse_json(read_bytes(file, purpose), str(file), purpose)


def parse_json(data: bytes | str, name: str, purpose: Purpose) -> Any:
    """The JSON document ``data``, which messages call ``name``; raises as ``read_json``."""
    bounds = _BOUNDS[purpose]
    if len(data) > bounds.size_bytes:
        raise InputError(f"{name} has more than {bounds.size_bytes:,} bytes; give a smaller one")
    return _check_value(json.loads, data, name, bounds)


def read_toml(file: Path, purpose: Purpose) -> dict[str, Any]:
    """The TOML document in ``file``.

    Raises:
        InputError: It cannot be read, is none, or exceeds the bounds.
    """
    data = read_bytes(file, purpose)
    try:
        text = data.decode("utf-8-sig")  # Some editors begin a file with a mark of its encoding.
    except UnicodeDecodeError as error:
        raise InputError(f"{file} cannot be read: {error}; mend it, or rename it") from error
    for piece in _PIECES.split(_STRING.sub("_", text)):
        if piece.count(".") >= _KEY_PARTS and not piece.lstrip().startswith("#"):
            shown = f"{piece.strip()[:40]}…"
            raise InputError(f"{file}: key {shown!r} has more than {_KEY_PARTS} parts; shorten it")
    found: dict[str, Any] = _check_value(tomllib.loads, text, str(file), _BOUNDS[purpose])
    return found


def _check_value(parse: Callable[[Any], Any], data: Any, name: str, bounds: Bounds) -> Any:
    try:
        value = parse(data)
    except RecursionError as error:
        raise InputError(f"{name} is nested too deeply; flatten it") from error
    except ValueError as error:  # the errors of both parsers, of text that is no UTF-8, of digits
        raise InputError(f"{name} cannot be read: {error}; mend it, or rename it") from error
    _check(value, name, bounds.depth)
    return value


def _check(value: Any, name: str, depth: int) -> None:
    """Refuse nesting beyond ``depth``, integers of more than 64 bits and texts that are none."""
    level: list[tuple[Any, Any]] = [((), value)]
    for _ in range(depth + 1):
        inner: list[tuple[Any, Any]] = []
        for path, item in level:
            for key, part in _items(item):
                kind = type(part)
                if (kind is str and _is_no_text(part)) or (type(key) is str and _is_no_text(key)):
                    raise InputError(
                        f"{name}: key {_join_with_dots((path, key))!a} holds half of a character "
                        "(a lone surrogate); mend it"
                    )
                if kind is dict or kind is list:
                    inner.append(((path, key), part))
                elif kind is int and not -(1 << 63) <= part < 1 << 64:
                    raise InputError(
                        f"{name}: key {_join_with_dots((path, key))!r} is a number of "
                        f"{part.bit_length()} bits, expected at most 64"
                    )
        if not inner:
            return
        level = inner
    raise InputError(
        f"{name}: key {_join_with_dots(level[0][0])!r} is nested more than {depth} levels "
        "deep; flatten it"
    )


def _is_no_text(value: str) -> bool:
    return not value.isascii() and _HALF.search(value) is not None


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list):
        yield from enumerate(value)
    else:
        yield "(the whole)", value


def _join_with_dots(path: Any) -> str:
    """``((((), "a"), 0), "b")`` as "a.0.b"."""
    parts = []
    while path:
        path, key = path
        parts.append(str(key)[:40])
    text = ".".join(reversed(parts))
    return text if len(text) <= 100 else f"{text[:99]}…"
