"""Making text from models, files and libraries safe to print."""

from __future__ import annotations

import re

_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


def printable(text: str, kept: str = "\n\t") -> str:
    r"""``text`` without control characters of terminals and editors; line ends are kept.

    >>> printable("a\x1b[2Jb")
    'a�[2Jb'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else "\N{REPLACEMENT CHARACTER}" for c in text)


def printable_json(text: str) -> str:
    r"""A JSON document with control characters escaped; its parsed value is the same.

    >>> printable_json('{"a": "\x9b"}')
    '{"a": "\\u009b"}'
    """
    return _UNPRINTABLE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    if character.isprintable() or character in "\n\t":
        return character
    # JSON escapes a character beyond 16 bits as a pair of surrogates.
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def shown(value: object, limit: int = 200) -> str:
    """A value from a file, for an error message: escaped, and cut if it is long."""
    words = repr(value)
    return words if len(words) <= limit else f"{words[:limit]}…"


def quoted(text: str, limit: int = 80) -> str:
    """A name from a file, for an error message: quoted, escaped, and cut in the middle if long.

    >>> quoted("a" * 1000, 10)
    "'aaaa…aaaa'"
    """
    shown = repr(text if len(text) <= 4 * limit else f"{text[:limit]}…{text[-limit:]}")
    half = limit // 2
    return shown if len(shown) <= limit else f"{shown[:half]}…{shown[-half:]}"
