"""From token numbers to text: the vocabulary that was declared of a model, or lies beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from optvet.plugin import InputError, Model, parse_json, read_file

MAX_BYTES = 64 << 20
"""Larger vocabularies are refused; those of large language models have some ten megabytes."""
_ENDS = frozenset(
    {"</s>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<eos>", "[EOS]"}
)
"""How the usual tokenizers spell the end of a text."""


@dataclass(frozen=True)
class TokenVocabulary:
    """Makes text of token numbers.

    Attributes:
        words: Whether the text has words of a language; False where numbers stand for words.
        ends: Tokens that end a text.
        context: The longest sequence that the model takes, if the vocabulary says so.
    """

    decode: Callable[[Sequence[int]], str]
    words: bool = True
    ends: tuple[int, ...] = ()
    context: int | None = None


def numbers_as_words(tokens: Sequence[int]) -> str:
    """Token numbers separated by blanks, where nobody knows better."""
    return " ".join(str(t) for t in tokens)


def vocabulary_file(model: Model, wanted: str) -> Path | None:
    """The file with the vocabulary: ``wanted``, the declared one, or ``tokenizer.json``.

    What is declared is looked for in the folder of the declaration, and in a folder ``data`` beside
    that folder. A declaration may come with an untrusted model, so it never leads elsewhere.

    Raises:
        InputError: A file that was asked for, or declared, is not there.
    """
    if wanted:
        path = Path(wanted)
        if not path.is_file():
            raise _unusable(path, "there is no such file; give another with 'vocabulary'")
        return path
    declared = model.config.preprocessing.get("vocabulary")
    if declared:
        return _declared(Path(model.config.origin).parent, str(declared))
    # A repository of a model hub has its ONNX files in a folder of their own.
    folder = model.path.absolute().parent
    folders = [folder, folder.parent] if folder.name == "onnx" else [folder]
    return next((f / "tokenizer.json" for f in folders if (f / "tokenizer.json").is_file()), None)


def _declared(folder: Path, name: str) -> Path:
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    if posix.is_absolute() or windows.anchor or ".." in {*posix.parts, *windows.parts}:
        raise _unusable(Path(name), "expected a path below the folder of its declaration")
    places = [folder, folder.absolute().parent / "data"]
    for place in places:
        found = place / name
        if found.is_file() and found.resolve().is_relative_to(place.resolve()):
            return found
    raise _unusable(
        Path(name), f"it is declared of the model, but not in {' or '.join(map(str, places))}"
    )


def digest_of(path: Path | None) -> str:
    """What the vocabulary is, in a few letters; of none, nothing."""
    return "" if path is None else hashlib.sha256(_bytes(path)).hexdigest()


def vocabulary_of(path: Path | None) -> TokenVocabulary:
    """The vocabulary in a file; numbers stand for words where there is none.

    The file is a ``tokenizer.json`` of the library ``tokenizers``; or JSON with a list of tokens
    (or such a list under "chars" or "vocab"), or an object from token to number; or one token per
    line.

    Raises:
        InputError: It is none of these.
    """
    if path is None:
        return TokenVocabulary(numbers_as_words, words=False)
    try:
        text = _bytes(path).decode("utf-8")
        # The first line of a list of tokens may well be "[PAD]", which looks like JSON.
        plain = path.suffix == ".txt" or text.lstrip()[:1] not in ("{", "[")
        data = text.split("\n") if plain else parse_json(text, f"vocabulary {path}", "listing")
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are such
        raise _unusable(path, str(error)) from error
    if isinstance(data, Mapping) and isinstance(data.get("model"), Mapping):
        return _of_library(path, text)
    context = data.get("context") if isinstance(data, Mapping) else None
    tokens = _tokens(path, data)
    listed = isinstance(data, Mapping) and "chars" in data
    joined = listed or {len(t) for t in tokens.values()} == {1}
    return TokenVocabulary(
        lambda ids: _join([tokens.get(i, f"⟨{i}⟩") for i in ids], joined),
        ends=tuple(sorted(i for i, t in tokens.items() if t in _ENDS)),
        context=context if isinstance(context, int) and context > 0 else None,
    )


def _bytes(path: Path) -> bytes:
    try:
        return read_file(path, MAX_BYTES)
    except OSError as error:
        raise _unusable(path, f"it cannot be read: {error.strerror or error}") from error


def _tokens(path: Path, data: Any) -> dict[int, str]:
    """Tokens by number."""
    listed = data
    if isinstance(data, Mapping):
        listed = next((data[k] for k in ("chars", "vocab", "tokens") if k in data), data)
    if isinstance(listed, Mapping):
        pairs = [(v, k) for k, v in listed.items()]
    elif isinstance(listed, list):
        pairs = list(enumerate(listed))
    else:
        pairs = []
    if not pairs or not all(type(i) is int and isinstance(t, str) for i, t in pairs):
        raise _unusable(
            path,
            "expected a tokenizer.json, a JSON list of tokens, a JSON object from token to number, "
            "or one token per line",
        )
    return dict(pairs)


def _join(tokens: Sequence[str], characters: bool) -> str:
    """Characters as they are; pieces by the marks of SentencePiece (▁) or WordPiece (##)."""
    if characters:
        return "".join(tokens)
    if any(t.startswith("▁") for t in tokens):
        return "".join(tokens).replace("▁", " ").strip()
    return " ".join(tokens).replace(" ##", "")


def _of_library(path: Path, text: str) -> TokenVocabulary:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise _unusable(path, "it needs the library tokenizers; install optvet[text]") from error
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the library raises a bare Exception
        raise _unusable(path, str(error)) from error
    ends = [i for t in sorted(_ENDS) if (i := tokenizer.token_to_id(t)) is not None]
    return TokenVocabulary(lambda ids: str(tokenizer.decode(list(ids))), ends=tuple(ends))


def _unusable(path: Path, problem: str) -> InputError:
    return InputError(f"comparator 'text': vocabulary {path} cannot be used: {problem}")
