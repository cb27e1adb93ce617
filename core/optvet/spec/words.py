"""Making text from models, files and libraries safe to print: one function per medium.

A name in a model is data wherever it is shown. It may hold control sequences of terminals, commands
that CI systems look for in logs, Markdown, HTML, and formulas of spreadsheets.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from typing import Any

_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


def printable(text: str, kept: str = "\n\t") -> str:
    r"""``text`` without control characters of terminals and editors; line ends are kept.

    >>> printable("a\x1b[2Jb")
    'a�[2Jb'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else "\N{REPLACEMENT CHARACTER}" for c in text)


_COMMAND = re.compile(r"^((?:\s|\x1b\[[0-9;]*m)*):(?=:)|(?<=#)#(?=\w*\[)", re.MULTILINE)


def without_commands(text: str) -> str:
    r"""Text for a log, in which CI systems find no command of theirs.

    GitHub executes ``::name`` at the start of a line, and ``##[name`` anywhere; Azure ``##vso[``.

    >>> without_commands("::error::a")
    '\\::error::a'
    """
    return _COMMAND.sub(lambda found: f"{found[1] or ''}\\{found[0][-1]}", text)


def printable_json(text: str) -> str:
    r"""A JSON document with control characters escaped; its parsed value is the same.

    >>> printable_json('{"a": "\x9b"}')
    '{"a": "\\u009b"}'
    """
    # A "#" stands in strings alone; see ``without_commands``.
    return _UNPRINTABLE.sub(_escape, _MARKED.sub(r"\\u0023", text))


_MARKED = re.compile(r"(?<=#)#(?=\w*\[)")


def toml_value(value: Any) -> str:
    r"""A text, number, list or mapping as TOML, which has no lone surrogates: `�` in their place.

    >>> toml_value({"a b": ["\x7f\n", 1, True]})
    '{"a b" = ["\\U0000007f\\n", 1, true]}'
    """
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{toml_value(k)} = {toml_value(v)}' for k, v in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml_value, value))}]"
    # What JSON escapes, TOML reads.
    return "".join(map(_in_toml, json.dumps(value, ensure_ascii=False)))


def _in_toml(character: str) -> str:
    if character.isprintable():
        return character
    half = "\ud800" <= character <= "\udfff"
    return "\N{REPLACEMENT CHARACTER}" if half else f"\\U{ord(character):08x}"


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def csv_cell(text: str) -> str:
    """A text that no spreadsheet takes for a formula: one that looks like it gets an apostrophe.

    >>> csv_cell("=cmd()"), csv_cell("a=b")
    ("'=cmd()", 'a=b')
    """
    clean = printable(text)
    return (
        f"'{clean}" if text.startswith(_FORMULA) or clean.lstrip().startswith(_FORMULA) else clean
    )


# An underscore between letters or digits emphasizes nothing.
_MARKDOWN = re.compile(r"([\\`*{}\[\]|~#!]|(?<![^\W_])_|_(?![^\W_]))")


def markdown_text(text: str, limit: int = 0, *, in_table: bool = False) -> str:
    """One line of Markdown that shows ``text``: no markup, HTML, link, mention or reference.

    Args:
        text: Anything.
        limit: How many of its characters are kept; 0 for all.
        in_table: Whether it will stand in a cell, and so never at the start of a line.
    """
    line = " ".join(printable(text).split())
    cut = f"{line[: limit - 1]}…" if 0 < limit < len(line) else line
    marked = _MARKDOWN.sub(r"\\\1", html.escape(cut, quote=False))
    marked = marked.replace("@", "&#64;").replace("://", "&#58;//")
    marked = re.sub(r"(?i)(www)\.", r"\1&#46;", marked)
    if in_table:
        return marked
    # What would begin a list, a heading's underline or a table.
    return re.sub(r"^([-+=:]|\d+(?=[.)](\s|$)))", lambda m: f"&#{ord(m[0][0])};{m[0][1:]}", marked)


_LATEX: Mapping[int, str] = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': r"\textquotedbl{}",
        "–": "--",
        "→": r"$\rightarrow$",
        "×": r"$\times$",
        "τ": r"$\tau$",
        "…": r"\dots{}",
    }
)


def latex_text(text: str) -> str:
    r"""One line of LaTeX that shows ``text`` and runs no command of it.

    >>> print(latex_text("fuse_bn & 5 %"))
    fuse\_bn \& 5 \%
    """
    return " ".join(printable(text).split()).translate(_LATEX)


def markdown_code(text: str) -> str:
    """``text`` as code within a line of Markdown, also within a table."""
    line = " ".join(printable(text).split()).replace("`", "'").replace("|", "\N{BROKEN BAR}")
    return f"`{line or ' '}`"


def markdown_block(text: str, language: str = "") -> str:
    """``text`` in a Markdown code block with a fence longer than any in ``text``."""
    clean = printable(text)
    longest = max((len(run) for run in re.findall("`+", clean)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{clean.rstrip()}\n{fence}\n"


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character.isprintable() or character in "\n\t":
        return character
    # JSON escapes a character beyond 16 bits as a pair of surrogates.
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def show(value: object, limit: int = 200) -> str:
    """A value from a file, for an error message: escaped, and cut if it is long."""
    words = repr(value)
    return words if len(words) <= limit else f"{words[:limit]}…"


def quote(text: str, limit: int = 80) -> str:
    """A name from a file, for an error message: quoted, escaped, and cut in the middle if long.

    >>> quote("a" * 1000, 10)
    "'aaaa…aaaa'"
    """
    shown = repr(text if len(text) <= 4 * limit else f"{text[:limit]}…{text[-limit:]}")
    half = limit // 2
    return shown if len(shown) <= limit else f"{shown[:half]}…{shown[-half:]}"


def summarize_arrays(arrays: Mapping[str, Any]) -> str:
    """Arrays by name, as their types and shapes: ``{x: float32[1, 3], n: int64[]}``."""
    each = (f"{name}: {_summarize_array(value)}" for name, value in arrays.items())
    return f"{{{', '.join(each)}}}"


def _summarize_array(value: Any) -> str:
    if not hasattr(value, "dtype"):
        return type(value).__name__
    return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
