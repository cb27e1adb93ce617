"""Tokenizers and vocabularies, read from files: texts to numbers of tokens."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from optvet.plugin import (
    InputError,
    MissingLibrary,
    Model,
    parse_json,
    read_file,
)

MAX_TOKENIZER_BYTES = 64 << 20
_MOST_BYTES = 64 << 20

_UNKNOWN = ("[UNK]", "<unk>", "<UNK>", "UNK")
_FIRST, _LAST, _PAD = ("[CLS]", "<s>"), ("[SEP]", "</s>"), ("[PAD]", "<pad>", "<PAD>")


@dataclass(frozen=True)
class Encoded:
    """Numbers of tokens, and of the text that each belongs to: 0, or 1 for the second."""

    ids: Sequence[int]
    types: Sequence[int]


@dataclass(frozen=True)
class Tokenizer:
    """``encode`` gives at most so many tokens; ``pad`` fills up where the length is fixed."""

    encode: Callable[[str, str | None, int | None], Encoded]
    pad: int = 0
    context: int | None = None
    labels: tuple[str, ...] = ()
    origin: str = ""
    digest: str = ""


def tokenizer_for(model: Model, wanted: str) -> Tokenizer:
    """The tokenizer in the file ``wanted``, or else in the file that the model's record names.

    Raises:
        InputError: There is none.
    """
    path = Path(wanted).expanduser() if wanted else _declared(model)
    if path is None:
        raise InputError(
            f"dataset 'text': {model.source} takes tokens, and no tokenizer is declared of it; "
            "give one with --dataset-option tokenizer=PATH"
        )
    if not os.path.isfile(path):
        raise InputError(f"dataset 'text': tokenizer {path} does not exist; give another")
    stat = path.stat()
    if stat.st_size > MAX_TOKENIZER_BYTES:
        raise InputError(
            f"dataset 'text': tokenizer {path} has more than {MAX_TOKENIZER_BYTES} bytes"
        )
    return _tokenizer_in(path, stat.st_mtime_ns)


def _declared(model: Model) -> Path | None:
    """The vocabulary of the record; it never leads out of its folder, or ``data`` beside that."""
    name = model.config.preprocessing.get("vocabulary")
    if not name:
        beside = model.path.absolute().parent / "tokenizer.json"
        return beside if beside.is_file() else None
    posix, windows = PurePosixPath(str(name)), PureWindowsPath(str(name))
    if posix.is_absolute() or windows.anchor or ".." in {*posix.parts, *windows.parts}:
        raise InputError(f"dataset 'text': vocabulary {name!r} leads out of the record's folder")
    folder = Path(model.config.origin).absolute().parent
    for place in (folder, folder.parent / "data"):
        found = place / posix
        if found.is_file() and found.resolve().is_relative_to(place.resolve()):
            return found
    raise InputError(
        f"dataset 'text': vocabulary {name!r} of {model.source} is not in {folder}; put it there, "
        "or give one with --dataset-option tokenizer=PATH"
    )


@functools.lru_cache(maxsize=4)
def _tokenizer_in(path: Path, modified_ns: int) -> Tokenizer:
    data = read_file(path, _MOST_BYTES)
    digest = hashlib.sha256(data).hexdigest()
    try:
        text = data.decode("utf-8")
        # The first line of a list of tokens may well be "[PAD]", which looks like JSON.
        plain = path.suffix == ".txt" or text.lstrip()[:1] not in ("{", "[")
        content = text.splitlines() if plain else parse_json(text, str(path), "listing")
    except ValueError as error:
        raise InputError(f"dataset 'text': tokenizer {path} cannot be read: {error}") from error
    if isinstance(content, Mapping) and isinstance(content.get("model"), Mapping):
        return _of_library(path, text, digest)
    about = content if isinstance(content, Mapping) else {}
    listed = next((about[k] for k in ("chars", "vocab", "tokens") if k in about), content)
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(listed, Mapping):
        pairs = listed.items()
    elif isinstance(listed, list):
        pairs = ((t, i) for i, t in enumerate(listed))
    tokens = {t: i for t, i in pairs if isinstance(t, str) and type(i) is int}
    if not tokens:
        raise InputError(
            f"dataset 'text': tokenizer {path}: expected a tokenizer.json, a JSON list of tokens, "
            "an object from token to number, or one token per line"
        )
    context = next((about[k] for k in ("context", "max_len") if type(about.get(k)) is int), None)
    labels = about.get("labels", ())
    encode = _characters if "chars" in about or all(len(t) == 1 for t in tokens) else _words
    return Tokenizer(
        partial(encode, tokens),
        _one_of(tokens, _PAD) or 0,
        context,
        tuple(labels) if _are_texts(labels) else (),
        path.name,
        digest,
    )


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(x, str) for x in value)


def _of_library(path: Path, text: str, digest: str) -> Tokenizer:
    try:
        import tokenizers
    except ImportError as error:
        who = f"dataset 'text': {path.name}"
        raise MissingLibrary("the library tokenizers", "optvet[text]", who) from error
    try:
        inner = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises Exception itself
        raise InputError(f"dataset 'text': tokenizer {path}: {error}") from error
    inner.no_padding()
    inner.no_truncation()

    def encode(first: str, second: str | None, room: int | None) -> Encoded:
        if room is not None:
            inner.enable_truncation(room)
        encoded = inner.encode(first, second)
        return Encoded(encoded.ids, encoded.type_ids)

    pad = next((i for t in _PAD if (i := inner.token_to_id(t)) is not None), 0)
    return Tokenizer(encode, pad, origin=path.name, digest=digest)


def _one_of(tokens: Mapping[str, int], names: Iterable[str]) -> int | None:
    return next((tokens[n] for n in names if n in tokens), None)


def _characters(
    tokens: Mapping[str, int], first: str, second: str | None, room: int | None
) -> Encoded:
    unknown = _one_of(tokens, _UNKNOWN)
    ids = []
    for letter in (first + (second or ""))[:room]:
        number = tokens.get(letter, unknown)
        if number is None:
            raise InputError(f"dataset 'text': the vocabulary has no character {letter!r}")
        ids.append(number)
    return Encoded(ids, [0] * len(ids))


def _words(tokens: Mapping[str, int], first: str, second: str | None, room: int | None) -> Encoded:
    """Words and marks; or WordPiece's greedy pieces (Devlin et al. 2019), if there are any."""
    begin, end = _one_of(tokens, _FIRST), _one_of(tokens, _LAST)
    ids: list[int] = [] if begin is None else [begin]
    types = [0] * len(ids)
    for kind, text in enumerate(t for t in (first, second) if t is not None):
        part = _pieces(tokens, text) + ([] if end is None else [end])
        ids += part
        types += [kind] * len(part)
    if room is not None and len(ids) > room:
        ids, types = ids[:room], types[:room]
        if end is not None:
            ids[-1] = end
    return Encoded(ids, types)


def _pieces(tokens: Mapping[str, int], text: str) -> list[int]:
    if not any(t != t.lower() for t in tokens if not re.fullmatch(r"\[.*\]|<.*>", t)):
        text = text.lower()
    unknown = _one_of(tokens, _UNKNOWN)
    splits = any(t.startswith("##") for t in tokens)
    ids: list[int] = []
    for word in re.findall(r"[\w']+|[^\w\s']", text):
        part = _split(tokens, word) if splits else [tokens[word]] if word in tokens else None
        if part is None and unknown is None:
            raise InputError(f"dataset 'text': the vocabulary has no word {word!r}")
        ids += part if part is not None else [unknown]  # type: ignore[list-item]
    return ids


def _split(tokens: Mapping[str, int], word: str) -> list[int] | None:
    found, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        end = next(
            (e for e in range(len(word), start, -1) if prefix + word[start:e] in tokens), None
        )
        if end is None:
            return None
        found.append(tokens[prefix + word[start:end]])
        start = end
    return found
