"""Texts: ``text:FILE_OR_FOLDER``, as strings, as bytes or as tokens, as the model takes them.

What is read, by what the file holds:

- SQuAD's JSON (``{"data": [{"paragraphs": …}]}``, versions 1.1 and 2.0): questions with contexts,
  labelled with the right answers, the empty one where there is none;
- a JSON list, JSON lines, CSV or TSV with a column text, sentence or review, and perhaps a label;
- folders ``pos`` and ``neg`` with one text per file, as IMDB has them: labels 1 and 0;
- any other text file: a line is a sample, and for a language model a run of tokens is.

Tokens need the model's own tokenizer, which its record names as ``vocabulary``, or the option
``tokenizer``: a ``tokenizer.json`` of the library ``tokenizers``, a list of characters, or a list
of words or of WordPiece's pieces. Made-up numbers would say nothing, so without one there is none.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, TextIO

import numpy as np
import onnx
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    Dataset,
    Deferred,
    InputError,
    MissingLibrary,
    Model,
    PluginError,
    Probe,
    Sample,
    Sensitive,
    UsageError,
    ValueInfo,
    check_size,
    files_in,
    hookimpl,
    open_text,
    parse_json,
    read_file,
    read_json,
    read_text,
)

MAX_TOKENIZER_BYTES = 64 << 20
_MOST_BYTES = 64 << 20
MAX_LINE_CHARS = 16 << 20
_BYTES_PER_BYTE = 8
"""Memory that JSON takes, by what it takes on disk."""

_WRITES = re.compile(r"language.model|generation|causal|\bgpt\b", re.I)
_WORDY = re.compile(
    r"text|language|sentence|sentiment|question|token|translat|review|word|nlp", re.I
)
_TEXT_KEYS = ("text", "sentence", "review", "content", "question", "query")
_LABEL_KEYS = ("label", "sentiment", "class", "category", "target")
_READABLE = frozenset({".txt", ".json", ".jsonl", ".csv", ".tsv", ".text", ""})
_INTS = frozenset({"int64", "int32", "uint8"})
_UNKNOWN = ("[UNK]", "<unk>", "<UNK>", "UNK")
_FIRST, _LAST, _PAD = ("[CLS]", "<s>"), ("[SEP]", "</s>"), ("[PAD]", "<pad>", "<PAD>")


class TextDataOptions(BaseModel):
    """How texts become inputs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokenizer: Annotated[str, Sensitive("reads a file", reads_data=True)] = ""
    """A tokenizer.json, or a vocabulary, in place of the one that the model's record names."""
    max_length: int = Field(default=256, ge=1)
    """Tokens of one sample at most, where neither the model nor the vocabulary says; longer texts
    are cut off."""
    labels: tuple[str, ...] = ()
    """Names of the classes in the model's order, for labels that are names."""


@dataclass(frozen=True)
class _Text:
    """One text, or a question (``text``) with its context (``pair``)."""

    id: str
    text: str
    pair: str | None = None
    label: Any = None


@dataclass(frozen=True)
class _Encoded:
    ids: Sequence[int]
    types: Sequence[int]


@dataclass(frozen=True)
class _Tokenizer:
    """``encode`` gives at most so many tokens; ``pad`` fills up where the length is fixed."""

    encode: Callable[[str, str | None, int | None], _Encoded]
    pad: int = 0
    context: int | None = None
    labels: tuple[str, ...] = ()
    origin: str = ""
    digest: str = ""


class TextDataset:
    """Texts in files."""

    name = "text"
    options: TextDataOptions = TextDataOptions()

    def samples(
        self,
        model: Model,
        argument: str | None,
        options: TextDataOptions,
        *,
        seed: int,
        limit: int | None,
        probe: Probe,
    ) -> Iterator[Sample | Deferred]:
        """Texts in the order of files and lines; see ``Dataset``."""
        if not argument:
            raise UsageError("dataset 'text': no path was given; say --dataset text:PATH")
        maker = _TextSampler(model, options)
        return itertools.islice(self._items(maker, argument), limit)

    def _items(self, maker: _TextSampler, argument: str) -> Iterator[Sample | Deferred]:
        found = False
        for id_, path, label in _files(argument):
            try:
                for text in maker.texts(id_, path, label):
                    found = True
                    yield Deferred(text.id, partial(maker.sample, text))
            except InputError as error:
                found = True
                yield Deferred(id_, partial(_refuse, error))
        if not found:
            raise InputError(f"dataset 'text': {argument!r} has no text in it")

    def suits(self, model: Model, argument: str) -> float:
        """0.8 for a model that is about text and can be fed, and a folder that has some."""
        words = " ".join(
            [model.task or "", Path(model.source).stem, *(i.name for i in model.inputs)]
        )
        if not _WORDY.search(words) or not model.inputs:
            return 0.0
        try:
            _TextSampler(model, TextDataOptions())
            return 0.8 if any(True for _ in _files(argument)) else 0.0
        except (InputError, PluginError):
            return 0.0

    def provenance(
        self, model: Model, argument: str | None, options: TextDataOptions
    ) -> Mapping[str, str]:
        """The tokenizer, by file and digest."""
        maker = _TextSampler(model, options)
        if maker.tokenizer is None:
            return {"form": maker.form}
        return {
            "form": maker.form,
            "tokenizer": f"{maker.tokenizer.origin} (sha256 {maker.tokenizer.digest[:12]})",
        }


def _refuse(error: InputError) -> Sample:
    raise error


# --- inputs ---------------------------------------------------------------------------------------


class _TextSampler:
    """Makes one model's inputs of texts.

    Raises:
        InputError: The model takes no text, or its tokenizer is missing.
    """

    def __init__(self, model: Model, options: TextDataOptions) -> None:
        self.model, self.options = model, options
        self.writes = model.config.comparator == "text" or bool(_WRITES.search(model.task or ""))
        kinds = {i.dtype for i in model.inputs}
        self.tokenizer: _Tokenizer | None = None
        if kinds == {"string"}:
            self.form = "strings"
        elif len(model.inputs) == 1 and kinds <= _INTS and _takes_bytes(model):
            self.form = "bytes of UTF-8"
        elif kinds and kinds <= _INTS - {"uint8"} | {"float", "bool"} and _ids(model):
            self.form = "tokens"
            self.tokenizer = _tokenizer(model, options.tokenizer)
        else:
            shown = ", ".join(f"{i.name} {i.dtype}{list(i.shape or [])}" for i in model.inputs)
            raise InputError(
                f"dataset 'text': {model.source} has no inputs that take text ({shown}); "
                "use --dataset files:PATH"
            )

    def texts(self, id_: str, path: Path, label: Any) -> Iterator[_Text]:
        """The texts of one file; of a language model's, runs of tokens."""
        texts = _read(id_, path, label)
        if not (self.writes and self.tokenizer is not None):
            yield from texts
            return
        # A prompt of half of what fits leaves room to write. No token has more than a few letters.
        size = max(
            1, (self._fixed_length() or self.tokenizer.context or self.options.max_length) // 2
        )
        held, number = "", 0
        for text in texts:
            held += f"{text.text}\n"
            while len(held) >= 4 * size:
                yield _Text(f"{id_}#{number}", held[: 4 * size])
                held, number = held[4 * size :], number + 1
        if held.strip():
            yield _Text(f"{id_}#{number}", held)

    def sample(self, text: _Text) -> Sample:
        """The inputs of ``text``.

        Raises:
            InputError: It cannot be encoded.
        """
        feeds = {
            "strings": self._strings,
            "bytes of UTF-8": self._bytes,
            "tokens": self._tokens,
        }[self.form](text)
        return Sample(text.id, feeds, self._label(text))

    def _label(self, text: _Text) -> Any:
        label = text.label
        names = self.options.labels or (self.tokenizer.labels if self.tokenizer else ())
        if isinstance(label, str) and label.isdecimal():
            return int(label)
        if not isinstance(label, str):
            return label
        if not names:
            # A name says nothing to a model that answers with numbers.
            return label if any(o.dtype == "string" for o in self.model.outputs) else None
        if label in names:
            return names.index(label)
        if self.options.labels:
            raise InputError(
                f"dataset 'text': {text.id}: label {label!r} is none of {', '.join(names)}"
            )
        return None  # the texts are labelled for another task

    def _fixed_length(self) -> int | None:
        """The length that the model's shape fixes."""
        info = _ids(self.model)
        shape = info.shape if info is not None else None
        return shape[-1] if shape and len(shape) > 1 and isinstance(shape[-1], int) else None

    def _strings(self, text: _Text) -> dict[str, np.ndarray]:
        feeds = {}
        for info in self.model.inputs:
            second = text.pair is not None and re.search(r"context|passage|paragraph", info.name)
            value = text.pair if second else text.text
            rank = 1 if info.shape is None else len(info.shape)
            feeds[info.name] = np.full([1] * rank, value, dtype=object)
        return feeds

    def _bytes(self, text: _Text) -> dict[str, np.ndarray]:
        (info,) = self.model.inputs
        data = np.frombuffer(text.text.encode("utf-8"), np.uint8)
        size = info.shape[-1] if info.shape else None
        if isinstance(size, int) and len(data) < size:
            raise InputError(
                f"dataset 'text': {text.id} has {len(data)} bytes, and the model takes {size}"
            )
        if not data.size:
            raise InputError(f"dataset 'text': {text.id} is empty")
        data = data[: size if isinstance(size, int) else self.options.max_length]
        rank = 1 if info.shape is None else len(info.shape)
        return {info.name: data.reshape([1] * (rank - 1) + [-1]).astype(_dtype(info))}

    def _tokens(self, text: _Text) -> dict[str, np.ndarray]:
        assert self.tokenizer is not None
        fixed = self._fixed_length()
        room = fixed or self.tokenizer.context or self.options.max_length
        if self.writes and fixed is None:
            room = max(1, room // 2)
        made = self.tokenizer.encode(text.text, text.pair, room)
        if not made.ids:
            raise InputError(f"dataset 'text': {text.id} has no token in it")
        fill = (fixed or len(made.ids)) - len(made.ids)
        values = {
            "ids": [*made.ids, *[self.tokenizer.pad] * fill],
            "mask": [1] * len(made.ids) + [0] * fill,
            "types": [*made.types, *[0] * fill],
            "positions": list(range(len(made.ids) + fill)),
        }
        feeds = {}
        for info in self.model.inputs:
            row = values[_role(info)]
            rank = 2 if info.shape is None else len(info.shape)
            feeds[info.name] = np.array(row).reshape([1] * (rank - 1) + [-1]).astype(_dtype(info))
        return feeds


def _role(info: ValueInfo) -> str:
    """What an input of a language model is, by its name."""
    for role, pattern in (
        ("mask", r"mask"),
        ("types", r"token_?type|segment|type_ids"),
        ("positions", r"position|pos_ids"),
    ):
        if re.search(pattern, info.name, re.I):
            return role
    return "ids"


def _ids(model: Model) -> ValueInfo | None:
    """The one input that takes tokens; None if several could, or it has no such shape."""
    ids = [i for i in model.inputs if _role(i) == "ids"]
    if len(ids) != 1 or ids[0].dtype not in _INTS:
        return None
    shape = ids[0].shape
    return ids[0] if shape is None or len(shape) in (1, 2) else None


def _takes_bytes(model: Model) -> bool:
    (info,) = model.inputs
    if info.shape is not None and len(info.shape) not in (1, 2):
        return False
    return bool(re.search(r"\bbytes?\b", f"{model.task or ''} {info.name}", re.I))


def _dtype(info: ValueInfo) -> np.dtype[Any]:
    kind = onnx.TensorProto.DataType.Value(info.dtype.upper())
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))


# --- tokenizers -----------------------------------------------------------------------------------


def _tokenizer(model: Model, wanted: str) -> _Tokenizer:
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
def _tokenizer_in(path: Path, modified_ns: int) -> _Tokenizer:
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
    return _Tokenizer(
        partial(encode, tokens),
        _one_of(tokens, _PAD) or 0,
        context,
        tuple(labels) if _are_texts(labels) else (),
        path.name,
        digest,
    )


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(x, str) for x in value)


def _of_library(path: Path, text: str, digest: str) -> _Tokenizer:
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

    def encode(first: str, second: str | None, room: int | None) -> _Encoded:
        if room is not None:
            inner.enable_truncation(room)
        made = inner.encode(first, second)
        return _Encoded(made.ids, made.type_ids)

    pad = next((i for t in _PAD if (i := inner.token_to_id(t)) is not None), 0)
    return _Tokenizer(encode, pad, origin=path.name, digest=digest)


def _one_of(tokens: Mapping[str, int], names: Iterable[str]) -> int | None:
    return next((tokens[n] for n in names if n in tokens), None)


def _characters(
    tokens: Mapping[str, int], first: str, second: str | None, room: int | None
) -> _Encoded:
    unknown = _one_of(tokens, _UNKNOWN)
    ids = []
    for letter in (first + (second or ""))[:room]:
        number = tokens.get(letter, unknown)
        if number is None:
            raise InputError(f"dataset 'text': the vocabulary has no character {letter!r}")
        ids.append(number)
    return _Encoded(ids, [0] * len(ids))


def _words(tokens: Mapping[str, int], first: str, second: str | None, room: int | None) -> _Encoded:
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
    return _Encoded(ids, types)


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


# --- files ----------------------------------------------------------------------------------------


def _files(argument: str) -> Iterator[tuple[str, Path, Any]]:
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


def _read(id_: str, path: Path, label: Any) -> Iterator[_Text]:
    try:
        if label is not None:
            check_size(f"dataset 'text': {path}", 4 * path.stat().st_size)
            yield _Text(id_, read_text(path).strip(), None, label)
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
                        yield _Text(f"{id_}:{number + 1}", line.rstrip("\n"))
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


def _of_json(id_: str, content: Any) -> Iterator[_Text]:
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


def _questions(where: str, paragraph: Any) -> Iterator[_Text]:
    try:
        for entry in paragraph["qas"]:
            texts = list(dict.fromkeys(str(a["text"]) for a in entry.get("answers", ())))
            # No answer is the right one where the text has none.
            label = {"answers": texts or [""]}
            name = str(entry.get("id") or entry["question"])
            yield _Text(f"{where}/{name}", str(entry["question"]), str(paragraph["context"]), label)
    except (KeyError, TypeError) as error:
        raise InputError(f"dataset 'text': {where}: a question lacks {error}") from error


def _rows(id_: str, rows: Iterable[Any]) -> Iterator[_Text]:
    for number, row in enumerate(rows):
        name = f"{id_}[{number}]"
        if isinstance(row, str):
            yield _Text(name, row)
            continue
        keys = {str(k).lower(): k for k in row} if isinstance(row, Mapping) else {}
        text = next((row[keys[k]] for k in _TEXT_KEYS if k in keys), None)
        if not isinstance(text, str):
            raise InputError(
                f"dataset 'text': {name} has no column {', '.join(_TEXT_KEYS[:3])}; rename one"
            )
        yield _Text(name, text, None, next((row[keys[k]] for k in _LABEL_KEYS if k in keys), None))


@hookimpl
def optvet_datasets() -> Iterable[Dataset]:
    """Texts."""
    return [TextDataset()]
