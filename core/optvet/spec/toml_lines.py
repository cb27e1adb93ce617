"""On which line of a TOML document a key is.

``tomllib`` tells values, not where they are; a message about a value should.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

Path = tuple[str | int, ...]

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_DOTTED = rf"{_PART}(?:\s*\.\s*{_PART})*"
_TABLE = re.compile(rf"\s*(\[\[?)\s*({_DOTTED})\s*\]")
_KEY = re.compile(rf"\s*({_DOTTED})\s*=(.*)")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'')
_LONG = re.compile(r'"""|\'\'\'')


def line_of(text: str, path: Sequence[str | int]) -> int | None:
    """The line, from 1, where ``path`` or the innermost part of it that has a line begins.

    Args:
        text: A document that ``tomllib`` reads.
        path: Keys, and indices of arrays of tables: ``("jobs", 1, "vet", "timeout")``.
    """
    lines: dict[Path, int] = {}
    for found, number in _keys(text):
        lines.setdefault(found, number)
    wanted = tuple(path)
    while wanted and wanted not in lines:
        wanted = wanted[:-1]
    return lines.get(wanted)


def join_with_dots(path: Sequence[str | int]) -> str:
    """A path as people write it, indices from 1.

    >>> join_with_dots(("jobs", 1, "vet", "timeout"))
    'jobs[2].vet.timeout'
    """
    text = "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def _keys(text: str) -> Iterator[tuple[Path, int]]:
    table: Path = ()
    counts: dict[Path, int] = {}
    depth, quotes = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if quotes:
            # Within a text of several lines; what follows its end on the line closes brackets.
            _, end, line = line.partition(quotes)
            if not end:
                continue
            quotes = ""
            depth += _count_open_brackets(line)
            continue
        if depth > 0:
            depth += _count_open_brackets(line)
            continue
        if header := _TABLE.match(line):
            table = _locate(_parts(header[2]), counts, array=header[1] == "[[")
            yield table, number
        elif key := _KEY.match(line):
            for end_ in range(1, len(parts := _parts(key[1])) + 1):
                yield (*table, *parts[:end_]), number
            long = _LONG.search(key[2])
            if long is not None and key[2].count(long[0]) % 2:
                quotes = long[0]
            else:
                depth = max(0, _count_open_brackets(key[2]))


def _locate(parts: Sequence[str], counts: dict[Path, int], *, array: bool) -> Path:
    """Where a header leads: parts that are arrays of tables mean their last table."""
    path: Path = ()
    for place, part in enumerate(parts, 1):
        path = (*path, part)
        if array and place == len(parts):
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path


def _parts(name: str) -> list[str]:
    return [part.strip("\"'") for part in re.findall(_PART, name)]


def _count_open_brackets(line: str) -> int:
    """Brackets that a line opens and does not close, outside of texts and comments."""
    bare = _STRING.sub("", line).partition("#")[0]
    return sum(bare.count(c) for c in "[{") - sum(bare.count(c) for c in "]}")
