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

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from optvet.graph import numpy_dtype
from optvet.plugin import (
    Dataset,
    Deferred,
    InputError,
    Model,
    PluginError,
    Probe,
    Sample,
    Sensitive,
    UsageError,
    ValueInfo,
    hookimpl,
)

if TYPE_CHECKING:
    from optvet_text_data.reading import Text

_WRITES = re.compile(r"language.model|generation|causal|\bgpt\b", re.I)
_WORDY = re.compile(
    r"text|language|sentence|sentiment|question|token|translat|review|word|nlp", re.I
)
_INTS = frozenset({"int64", "int32", "uint8"})


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
        from optvet_text_data.reading import find_files

        found = False
        for id_, path, label in find_files(argument):
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
        from optvet_text_data.reading import find_files

        words = " ".join(
            [model.task or "", Path(model.source).stem, *(i.name for i in model.inputs)]
        )
        if not _WORDY.search(words) or not model.inputs:
            return 0.0
        try:
            _TextSampler(model, TextDataOptions())
            return 0.8 if any(True for _ in find_files(argument)) else 0.0
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
        from optvet_text_data.tokenizing import Tokenizer, tokenizer_for

        self.model, self.options = model, options
        caches = [i for i in model.inputs if _role(i) in ("cache", "switch")]
        self.writes = (
            bool(caches)
            or model.config.comparator == "text"
            or bool(_WRITES.search(model.task or ""))
        )
        kinds = {i.dtype for i in model.inputs if i not in caches}
        self.tokenizer: Tokenizer | None = None
        if kinds == {"string"}:
            self.form = "strings"
        elif len(model.inputs) == 1 and kinds <= _INTS and _takes_bytes(model):
            self.form = "bytes of UTF-8"
        elif kinds and kinds <= _INTS - {"uint8"} | {"float", "bool"} and _ids(model):
            self.form = "tokens"
            self.tokenizer = tokenizer_for(model, options.tokenizer)
        else:
            shown = ", ".join(f"{i.name} {i.dtype}{list(i.shape or [])}" for i in model.inputs)
            raise InputError(
                f"dataset 'text': {model.source} has no inputs that take text ({shown}); "
                "use --dataset files:PATH"
            )

    def texts(self, id_: str, path: Path, label: Any) -> Iterator[Text]:
        """The texts of one file; of a language model's, runs of tokens."""
        from optvet_text_data.reading import Text, read_texts

        texts = read_texts(id_, path, label)
        if not (self.writes and self.tokenizer is not None):
            yield from texts
            return
        # A prompt of half of what fits leaves room to write. No token has more than a few letters.
        size = max(
            1, (self._fixed_length() or self.tokenizer.context or self.options.max_length) // 2
        )
        pending, number = "", 0
        for text in texts:
            pending += f"{text.text}\n"
            while len(pending) >= 4 * size:
                yield Text(f"{id_}#{number}", pending[: 4 * size])
                pending, number = pending[4 * size :], number + 1
        if pending.strip():
            yield Text(f"{id_}#{number}", pending)

    def sample(self, text: Text) -> Sample:
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

    def _label(self, text: Text) -> Any:
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

    def _strings(self, text: Text) -> dict[str, np.ndarray]:
        feeds = {}
        for info in self.model.inputs:
            second = text.pair is not None and re.search(r"context|passage|paragraph", info.name)
            value = text.pair if second else text.text
            rank = 1 if info.shape is None else len(info.shape)
            feeds[info.name] = np.full([1] * rank, value, dtype=object)
        return feeds

    def _bytes(self, text: Text) -> dict[str, np.ndarray]:
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
        return {info.name: data.reshape([1] * (rank - 1) + [-1]).astype(numpy_dtype(info))}

    def _tokens(self, text: Text) -> dict[str, np.ndarray]:
        assert self.tokenizer is not None
        fixed = self._fixed_length()
        room = fixed or self.tokenizer.context or self.options.max_length
        if self.writes and fixed is None:
            room = max(1, room // 2)
        encoded = self.tokenizer.encode(text.text, text.pair, room)
        if not encoded.ids:
            raise InputError(f"dataset 'text': {text.id} has no token in it")
        fill = (fixed or len(encoded.ids)) - len(encoded.ids)
        values = {
            "ids": [*encoded.ids, *[self.tokenizer.pad] * fill],
            "mask": [1] * len(encoded.ids) + [0] * fill,
            "types": [*encoded.types, *[0] * fill],
            "positions": list(range(len(encoded.ids) + fill)),
        }
        feeds = {}
        for info in self.model.inputs:
            role = _role(info)
            if role in ("cache", "switch"):
                feeds[info.name] = _before_the_first_token(info)
                continue
            row = values[role]
            rank = 2 if info.shape is None else len(info.shape)
            feeds[info.name] = (
                np.array(row).reshape([1] * (rank - 1) + [-1]).astype(numpy_dtype(info))
            )
        return feeds


def _role(info: ValueInfo) -> str:
    """What an input of a language model is, by its name and type."""
    if "float" in info.dtype and re.search(r"past|cache", info.name, re.I):
        return "cache"
    if info.dtype == "bool" and info.name.startswith("use_cache"):
        return "switch"
    for role, pattern in (
        ("mask", r"mask"),
        ("types", r"token_?type|segment|type_ids"),
        ("positions", r"position|pos_ids"),
    ):
        if re.search(pattern, info.name, re.I):
            return role
    return "ids"


def _before_the_first_token(info: ValueInfo) -> np.ndarray:
    """A cache of keys or values with no token in it, or the switch that says there is none.

    Raises:
        InputError: The cache has a fixed size.
    """
    shape = info.shape or ()
    first = next((axis for axis, size in enumerate(shape) if _is_batch(axis, size)), None)
    sizes = [
        1 if axis == first else size if isinstance(size, int) else 0
        for axis, size in enumerate(shape)
    ]
    if "float" in info.dtype and 0 not in sizes:
        raise InputError(
            f"dataset 'text': the cache {info.name!r} has the fixed shape {list(shape)}, so it "
            "cannot be empty; give its values with --dataset files:PATH"
        )
    return np.zeros(sizes, numpy_dtype(info))


def _is_batch(axis: int, size: int | str | None) -> bool:
    return "batch" in size.lower() if isinstance(size, str) else size is None and axis == 0


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


@hookimpl
def optvet_datasets() -> Iterable[Dataset]:
    """Texts."""
    return [TextDataset()]
