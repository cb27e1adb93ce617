"""Reads the strings that a model outputs, or lets a language model continue a prompt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from optvet.plugin import InputError, Model, Run, Sample
from optvet_text import generation
from optvet_text.feeding import LanguageModelInterface, OnnxSteps, interface_of, prompt_of
from optvet_text.options import TextOptions
from optvet_text.vocabulary import TokenVocabulary


def string_outputs(outputs: Mapping[str, np.ndarray]) -> list[str]:
    """Outputs that hold strings alone, and at least one."""
    return [
        name
        for name, value in outputs.items()
        if value.size
        and (
            value.dtype.kind in "US"
            or (value.dtype.kind == "O" and all(isinstance(v, str) for v in value.ravel()))
        )
    ]


def read_strings(outputs: Mapping[str, np.ndarray], options: TextOptions) -> dict[str, np.ndarray]:
    """The strings that a model wrote itself.

    Raises:
        InputError: There are none.
    """
    names = [n for n in string_outputs(outputs) if options.output in ("", n)]
    if not names:
        what = repr(options.output) if options.output else "of strings"
        raise InputError(
            f"comparator 'text': no input of token numbers [batch, tokens], and no output {what} "
            f"among {', '.join(map(repr, outputs))}"
        )
    texts = [str(v) for v in outputs[names[0]].ravel()]
    return {"text": texts_array(texts), "words": np.array(True)}


def texts_array(texts: Sequence[str]) -> np.ndarray:
    """A vector of objects: numpy would pad strings to the longest."""
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return array


def continue_prompt(
    model: Model, sample: Sample, run: Run, options: TextOptions, vocabulary: TokenVocabulary
) -> dict[str, np.ndarray]:
    """The continuation of a prompt, with the scores of the choices along the way."""
    interface = interface_of(model, options.output)
    prompt, room = _fit_prompt(prompt_of(interface, sample), interface, options, vocabulary)
    rules = _rules(options, vocabulary, room)
    steps = OnnxSteps(model, interface, sample, run, prompt)
    if options.decode == "beam":
        trace = generation.beam_search(steps, rules, options.beams, options.length_penalty)
    else:
        trace = generation.nth_choice(steps, rules, options.choice)
    return {
        "text": np.array([vocabulary.decode(trace.tokens)], dtype=object),
        "prompt": np.array([vocabulary.decode(prompt)], dtype=object),
        "scores": np.array([interface.scores], dtype=object),
        "words": np.array(vocabulary.words),
        "best_in_prompt": np.array(steps.best_in_prompt, np.int64),
        **_pack(trace),
    }


def _fit_prompt(
    prompt: list[int],
    interface: LanguageModelInterface,
    options: TextOptions,
    vocabulary: TokenVocabulary,
) -> tuple[list[int], int]:
    """The prompt, cut at its end to what the model takes, and the number of tokens to add."""
    fixed = None if interface.past else interface.length
    limits = [n for n in (options.context, fixed, vocabulary.context) if n]
    if not limits:
        return prompt, options.max_tokens
    context = min(limits)
    if context < 2:
        raise InputError(
            f"comparator 'text': the model takes {context} token; expected room for two or more"
        )
    prompt = prompt[: max(context - options.max_tokens, context // 2)]
    # The last new token is never fed back, so it needs no room.
    return prompt, min(options.max_tokens, context - len(prompt) + 1)


def _rules(options: TextOptions, vocabulary: TokenVocabulary, room: int) -> generation.Rules:
    stop_texts = options.stop if isinstance(options.stop, tuple) else (options.stop,)
    ends = [s for s in stop_texts if isinstance(s, int)]
    texts = [s for s in stop_texts if isinstance(s, str) and s]

    def stops(tokens: Sequence[int]) -> bool:
        return bool(texts) and any(t in vocabulary.decode(tokens) for t in texts)

    least = min(options.min_tokens, room)
    return generation.Rules(room, least, frozenset(ends if stop_texts else vocabulary.ends), stops)


def _pack(trace: generation.Trace) -> dict[str, np.ndarray]:
    """A trace as arrays, that are kept; rows are filled up with -1 and -inf."""
    kept = max(len(k) for k in trace.kept)
    wide = max(len(p) for p in trace.pool)
    return {
        "tokens": np.array(trace.tokens, np.int64),
        "kept": np.array([k + [-1] * (kept - len(k)) for k in trace.kept], np.int64),
        "pool": np.array([[*p] + [-1] * (wide - len(p)) for p in trace.pool], np.int64),
        "pool_scores": np.array(
            [[*p.values()] + [-math.inf] * (wide - len(p)) for p in trace.pool], np.float64
        ),
        "scale": np.array(trace.scale, np.float64),
    }


def unpack_trace(side: Mapping[str, np.ndarray]) -> generation.Trace:
    """The trace of a continuation, from its arrays."""
    pools = zip(side["pool"].tolist(), side["pool_scores"].tolist(), strict=True)
    return generation.Trace(
        side["tokens"].tolist(),
        [[t for t in row if t >= 0] for row in side["kept"].tolist()],
        [{t: s for t, s in zip(*pool, strict=True) if t >= 0} for pool in pools],
        side["scale"].tolist(),
    )
