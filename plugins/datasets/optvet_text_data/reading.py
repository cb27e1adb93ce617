"""Texts, pairs of texts and labels, read from files of the usual forms."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from optvet.plugin import (
    InputError,
    check_size,
    files_in,
    open_text,
    parse_json,
    read_json,
    read_text,
)

MAX_LINE_CHARS = 16 << 20
_BYTES_PER_BYTE = 8
"""Memory that JSON takes, by what it takes on disk."""

_TEXT_KEYS = ("text", "sentence", "review", "content", "question", "query")
_LABEL_KEYS = ("label", "sentiment", "class", "category", "target")
_READABLE = frozenset({".txt", ".json", ".jsonl", ".csv", ".tsv", ".text", ""})


@dataclass(frozen=True)
class Text:
    """One text, or a question (``text``) with its context (``pair``)."""

    id: str
    text: str
    pair: str | None = None
    label: Any = None


def find_files(argument: str) -> Iterator[tuple[str, Path, Any]]:
    """Id, path and label of every file."""
    path = Path(argument).expanduser()
    if os.path.isfile(path):
        yield path.name, path, None
        return
    if not path.is_dir():
        raise InputError(f"dataset 'text': {argument!r} does not exist; check the path")
    # Among images and sounds, what is meant lies in a folder of its own.
    root = next((f for n in ("text", "texts") if (f := path / n).is_dir()), path)
    inside = files_in(root, lambda f: f.suffix.lower() in _READABLE - {""})
    for file in sorted(inside, key=lambda f: f.as_posix()):
        label = {"pos": 1, "neg": 0}.get(file.parent.name)
        yield file.relative_to(path).as_posix(), file, label


def read_texts(id_: str, path: Path, label: Any) -> Iterator[Text]:
    """The texts of one file; ``label`` is that of all of them, if there is one.

    Raises:
        InputError: It cannot be read.
    """
    try:
        if label is not None:
            check_size(f"dataset 'text': {path}", 4 * path.stat().st_size)
            yield Text(id_, read_text(path).strip(), None, label)
            return
        suffix = path.suffix.lower()
        if suffix in (".csv", ".tsv"):
            with open_text(path, newline="") as file:
                comma = "\t" if suffix == ".tsv" else ","
                yield from _rows(id_, csv.DictReader(_lines(path, file), delimiter=comma))
        elif suffix == ".jsonl":
            with open_text(path) as file:
                yield from _rows(
                    id_,
                    (
                        parse_json(n, f"a line of {path}", "annotations")
                        for n in _lines(path, file)
                        if n.strip()
                    ),
                )
        elif suffix == ".json":
            what = f"dataset 'text': {path}, whole (JSON lines are read one by one)"
            check_size(what, _BYTES_PER_BYTE * path.stat().st_size)
            yield from _of_json(id_, read_json(path, "annotations"))
        else:
            with open_text(path) as file:
                for number, line in enumerate(_lines(path, file)):
                    if line.strip():
                        yield Text(f"{id_}:{number + 1}", line.rstrip("\n"))
    except (OSError, ValueError, csv.Error, RecursionError) as error:
        raise InputError(f"dataset 'text': {path} cannot be read: {error}") from error


def _lines(path: Path, file: TextIO) -> Iterator[str]:
    """The lines of a file; one that does not end is refused before it is read."""
    for number, line in enumerate(iter(partial(file.readline, MAX_LINE_CHARS + 1), ""), 1):
        if len(line) > MAX_LINE_CHARS:
            raise InputError(
                f"dataset 'text': {path}, line {number} has more than {MAX_LINE_CHARS:,} "
                "characters; give one text per line"
            )
        yield line


def _of_json(id_: str, content: Any) -> Iterator[Text]:
    if isinstance(content, list):
        yield from _rows(id_, content)
        return
    articles = content.get("data") if isinstance(content, Mapping) else None
    if not isinstance(articles, list):
        raise InputError(f"dataset 'text': {id_} is neither a list of texts nor in SQuAD's form")
    for article, paragraph in (
        (a, p) for a in articles if isinstance(a, Mapping) for p in a.get("paragraphs", ())
    ):
        yield from _questions(f"{id_}/{article.get('title', '')}", paragraph)


def _questions(where: str, paragraph: Any) -> Iterator[Text]:
    try:
        for entry in paragraph["qas"]:
            texts = list(dict.fromkeys(str(a["text"]) for a in entry.get("answers", ())))
            # No answer is the right one where the text has none.
            label = {"answers": texts or [""]}
            name = str(entry.get("id") or entry["question"])
            yield Text(f"{where}/{name}", str(entry["question"]), str(paragraph["context"]), label)
    except (KeyError, TypeError) as error:
        raise InputError(f"dataset 'text': {where}: a question lacks {error}") from error


def _rows(id_: str, rows: Iterable[Any]) -> Iterator[Text]:
    for number, row in enumerate(rows):
        name = f"{id_}[{number}]"
        if isinstance(row, str):
            yield Text(name, row)
            continue
        keys = {str(k).lower(): k for k in row} if isinstance(row, Mapping) else {}
        text = next((row[keys[k]] for k in _TEXT_KEYS if k in keys), None)
        if not isinstance(text, str):
            raise InputError(
                f"dataset 'text': {name} has no column {', '.join(_TEXT_KEYS[:3])}; rename one"
            )
        yield Text(name, text, None, next((row[keys[k]] for k in _LABEL_KEYS if k in keys), None))
