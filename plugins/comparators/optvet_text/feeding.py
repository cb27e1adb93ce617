"""A language model in ONNX, step by step: its text, its caches, its scores.

Without a cache the whole text runs at each step. With one (inputs ``past…``, outputs ``present…``),
the text so far stands in the cache, which begins empty, and the new token alone runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optvet.graph import numpy_dtype
from optvet.plugin import InputError, Model, Run, Sample, ValueInfo

_IDS = re.compile(r"(^|[_.])(input_?)?(ids?|tokens?)([_.\d]|$)", re.IGNORECASE)
_NO_IDS = re.compile(r"type|segment|position|mask|past|cache|length", re.IGNORECASE)
_MASK = re.compile(r"mask", re.IGNORECASE)
_POSITION = re.compile(r"position", re.IGNORECASE)
_TYPES = re.compile(r"token_type|segment", re.IGNORECASE)
_PAST = re.compile(r"past(_key_values?)?", re.IGNORECASE)
_PRESENT = re.compile(r"present(_key_values?)?", re.IGNORECASE)
_SCORES = re.compile(r"logit|score|lm_head|prob", re.IGNORECASE)


@dataclass(frozen=True)
class LanguageModelInterface:
    """What the inputs and outputs of a language model are.

    Attributes:
        ids: The input with the text so far [batch, tokens].
        scores: The output with scores per token.
        past: Outputs by the inputs into which they go at the next step.
        prefix: What the names of inputs that grow with the text begin with: "decoder_" where
            another text is translated, else nothing.
    """

    ids: ValueInfo
    scores: str
    past: Mapping[str, str]
    prefix: str

    @property
    def length(self) -> int | None:
        """The number of tokens that the model takes, if it is a fixed one."""
        return _fixed_size(self.ids, 1)

    @property
    def batch(self) -> int:
        """How often the text is given: once, if the model does not want it more often."""
        return _fixed_size(self.ids, 0) or 1


def _fixed_size(value: ValueInfo, axis: int) -> int | None:
    size = value.shape[axis] if value.shape is not None and len(value.shape) > axis else None
    return size if isinstance(size, int) and size > 0 else None


def ids_input(model: Model) -> ValueInfo | None:
    """The input with token numbers; that of the decoder where there are two."""
    matrices = [
        i
        for i in model.inputs
        if i.dtype in ("int64", "int32") and (i.shape is None or len(i.shape) == 2)
    ]
    fitting = [i for i in matrices if not _NO_IDS.search(i.name)]
    named = [i for i in fitting if _IDS.search(i.name)]
    ranked = sorted(named, key=lambda i: not i.name.startswith("decoder"))
    if ranked:
        return ranked[0]
    return fitting[0] if len(fitting) == 1 else None


def caches(model: Model) -> dict[str, str]:
    """Outputs by the inputs that they continue, as ``past_key_values.0.key: present.0.key``."""
    rests = {_PRESENT.sub("", o.name, count=1): o.name for o in model.outputs if _is_present(o)}
    pasts = [i for i in model.inputs if _PAST.search(i.name) and "float" in i.dtype]
    return {i.name: rests[rest] for i in pasts if (rest := _PAST.sub("", i.name, count=1)) in rests}


def _is_present(value: ValueInfo) -> bool:
    return bool(_PRESENT.search(value.name))


def scores_output(model: Model, wanted: str) -> str | None:
    """The output with scores [batch, tokens, vocabulary] or, of the last token, [batch, …]."""
    if wanted:
        return wanted if wanted in {o.name for o in model.outputs} else None
    fitting = [
        o
        for o in model.outputs
        if ("float" in o.dtype or o.dtype == "double")
        and not _is_present(o)
        and (o.shape is None or len(o.shape) in (2, 3))
    ]
    named = [o for o in fitting if _SCORES.search(o.name)]
    full = [o for o in fitting if o.shape is None or len(o.shape) == 3]
    return next((o.name for group in (named, full) for o in group), None)


def interface_of(model: Model, output: str = "") -> LanguageModelInterface:
    """The interface of a language model.

    Raises:
        InputError: It has none, or one that cannot be continued token by token.
    """
    ids = ids_input(model)
    if ids is None:
        raise _unfit(model.inputs, "no input of token numbers [batch, tokens]", "")
    scores = scores_output(model, output)
    if scores is None:
        what = repr(output) if output else "with scores [batch, tokens, vocabulary]"
        raise _unfit(model.outputs, f"no output {what}", "; choose one with the option 'output'")
    past = caches(model)
    alone = [i for i in model.inputs if _PAST.search(i.name) and i.name not in past]
    alone = [i for i in alone if i.dtype != "bool" and "float" in i.dtype]
    if alone:
        raise _unfit(
            model.outputs, f"no output that continues the cache {alone[0].name!r} (present…)", ""
        )
    found = LanguageModelInterface(
        ids, scores, past, "decoder_" if ids.name.startswith("decoder") else ""
    )
    if past and found.length not in (None, 1):
        raise InputError(
            f"comparator 'text': the model has a cache, and takes {found.length} tokens at a time; "
            "expected any number, or one"
        )
    return found


def _unfit(values: Sequence[ValueInfo], problem: str, advice: str) -> InputError:
    names = ", ".join(repr(v.name) for v in values[:8]) + (", …" if len(values) > 8 else "")
    return InputError(f"comparator 'text': {problem} among {names}{advice}")


def prompt_of(interface: LanguageModelInterface, sample: Sample) -> list[int]:
    """The tokens of a sample's first row that its mask does not hide; all if it hides all.

    Raises:
        InputError: There is none.
    """
    row = np.asarray(sample.feeds[interface.ids.name])[:1].ravel()
    name = f"{interface.prefix}attention_mask"
    mask = np.asarray(sample.feeds.get(name, np.ones(0)))[:1].ravel()
    seen = row[mask[: len(row)] != 0] if len(mask) == len(row) and mask.any() else row
    if not len(seen):
        raise InputError(
            f"comparator 'text': input {interface.ids.name!r} has no token to continue; "
            "give samples with at least one"
        )
    return [int(t) for t in seen]


@dataclass(frozen=True)
class _TextSoFar:
    """The text so far, and the cache after it."""

    tokens: tuple[int, ...]
    cache: Mapping[str, np.ndarray]


class OnnxSteps:
    """A language model in ONNX, token by token, on one text at a time."""

    def __init__(
        self,
        model: Model,
        interface: LanguageModelInterface,
        sample: Sample,
        run: Run,
        prompt: Sequence[int],
    ) -> None:
        self.model, self.interface, self.sample, self.run = model, interface, sample, run
        self.prompt = tuple(prompt)
        self.best_in_prompt: list[int] = []
        """The best token after each of the prompt, where one run tells them all."""

    def start(self) -> tuple[np.ndarray, _TextSoFar]:
        """Run the prompt."""
        if not self.interface.past:
            return self._run(_TextSoFar(self.prompt, {}), len(self.prompt))
        empty = {i.name: self._empty(i) for i in self.model.inputs if i.name in self.interface.past}
        if self.interface.length != 1:
            return self._run(_TextSoFar(self.prompt, empty), len(self.prompt))
        scores, seen = self._run(_TextSoFar(self.prompt[:1], empty), 1)
        for token in self.prompt[1:]:
            scores, seen = self.extend(seen, token)
        return scores, seen

    def extend(self, state: _TextSoFar, token: int) -> tuple[np.ndarray, _TextSoFar]:
        """Run one token more: alone with a cache, else with all before it."""
        seen = _TextSoFar((*state.tokens, token), state.cache)
        return self._run(seen, 1 if self.interface.past else len(seen.tokens))

    def _run(self, seen: _TextSoFar, new: int) -> tuple[np.ndarray, _TextSoFar]:
        """Scores after ``seen``, whose last ``new`` tokens are not in the cache."""
        outputs = self.run(self._feeds(seen, new))
        scores = self._scores(outputs, new, first=len(seen.tokens) == len(self.prompt))
        cache = {
            into: _continued(seen.cache[into], outputs[name])
            for into, name in self.interface.past.items()
        }
        return scores, _TextSoFar(seen.tokens, cache)

    def _scores(self, outputs: Mapping[str, np.ndarray], new: int, *, first: bool) -> np.ndarray:
        value = np.asarray(outputs[self.interface.scores])
        if value.ndim not in (2, 3) or 0 in value.shape:
            raise InputError(
                f"comparator 'text': output {self.interface.scores!r} has shape "
                f"{list(value.shape)}, expected [batch, tokens, vocabulary] or [batch, "
                "vocabulary]; choose another with the option 'output'"
            )
        rows = value[0] if value.ndim == 3 else value[:1]
        if first and len(rows) >= new == len(self.prompt):
            known = np.where(np.isnan(rows[:new]), -np.inf, rows[:new])
            self.best_in_prompt = [int(t) for t in known.argmax(axis=-1)]
        # Some models give scores of the last token only; fixed lengths are filled up behind it.
        return np.asarray(rows[new - 1] if len(rows) >= new else rows[-1])

    def _feeds(self, seen: _TextSoFar, new: int) -> dict[str, np.ndarray]:
        interface = self.interface
        total = len(seen.tokens)
        width = interface.length or new
        row = np.zeros(width, np.int64)
        row[:new] = seen.tokens[total - new :]
        # The cache's tokens come before those that run, and what fills up a fixed length after.
        visible = (np.arange(total - new + width) < total).astype(np.int64)
        positions = np.arange(total - new, total - new + width)
        feeds: dict[str, np.ndarray] = {}
        for value in self.model.inputs:
            fed = self.sample.feeds.get(value.name)
            if value.name == interface.ids.name:
                grown = row
            elif value.name in interface.past:
                feeds[value.name] = seen.cache[value.name]
                continue
            elif value.name.startswith("use_cache") and value.dtype == "bool":
                feeds[value.name] = np.array([total > new])
                continue
            elif not value.name.startswith(interface.prefix) or "encoder_" in value.name:
                grown = None
            elif _MASK.search(value.name) and _is_matrix(value):
                grown = visible
            elif _POSITION.search(value.name) and _is_matrix(value):
                grown = positions
            elif _TYPES.search(value.name) and _is_matrix(value):
                grown = np.zeros(width, np.int64)
            else:
                grown = None
            if grown is not None:
                dtype = np.int64 if fed is None else fed.dtype
                feeds[value.name] = np.repeat(grown[None].astype(dtype), interface.batch, axis=0)
            elif fed is not None:
                feeds[value.name] = self._first_row(fed)
        return feeds

    def _first_row(self, value: np.ndarray) -> np.ndarray:
        """What belongs to the first of several texts."""
        rows = np.shape(self.sample.feeds[self.interface.ids.name])[0]
        if value.ndim and value.shape[0] == rows and rows > self.interface.batch:
            return value[: self.interface.batch]
        return value

    def _empty(self, value: ValueInfo) -> np.ndarray:
        """A cache of no token: 0 wherever the size is open, but for the batch.

        Raises:
            InputError: It has no open size.
        """
        shape = value.shape or ()
        batch = self.interface.ids.shape[0] if self.interface.ids.shape else None
        sizes: list[int] = []
        for axis, size in enumerate(shape):
            if isinstance(size, int):
                sizes.append(size)
            elif (isinstance(size, str) and (size == batch or "batch" in size.lower())) or (
                size is None and axis == 0
            ):
                sizes.append(self.interface.batch)
            else:
                sizes.append(0)
        if 0 not in sizes:
            raise InputError(
                f"comparator 'text': the cache {value.name!r} has the fixed shape {list(shape)}; "
                "expected an open length, so that it can be empty"
            )
        return np.zeros(sizes, numpy_dtype(value))


def _continued(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    # What a decoder has read of another text comes once, and is empty afterwards.
    return before if before.size and not after.size else after


def _is_matrix(value: ValueInfo) -> bool:
    return value.shape is None or len(value.shape) == 2
