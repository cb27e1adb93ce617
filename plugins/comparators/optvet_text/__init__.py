"""Texts: what a language model writes, and which answer to a question a model points at.

A language model is run token by token (greedily, by the second or third choice, or by beam search)
and both texts are compared, by BLEU and word for word, as are those of a model whose outputs are
strings. A model that scores where an answer
starts and ends is compared by the answers, as SQuAD does it. A text that parts from the
reference's where that was undecided is sensitivity of the model, not a change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    Comparator,
    Comparison,
    InputError,
    Model,
    Run,
    Sample,
    Sensitive,
    Suggestion,
    Summary,
    hookimpl,
)
from optvet_text import answers, generation, measures
from optvet_text.feeding import (
    LanguageModelInterface,
    OnnxSteps,
    caches,
    ids_input,
    interface_of,
    prompt_of,
    scores_output,
)
from optvet_text.task import WRITES, answers_questions, writes_text
from optvet_text.vocabulary import TokenVocabulary, digest_of, vocabulary_file, vocabulary_of

VERSION = 1
"""Raised when the same model, sample and options are decoded otherwise."""
_SIDES = ("reference", "candidate", "delta")
_OF_TEXTS = (
    *("bleu", "exact_match", "shared_start", "token_agreement"),
    *(f"bleu_{side}" for side in _SIDES),
    *("texts", "texts_changed", "texts_undecided"),
)
_OF_LOGITS = tuple(
    f"{place}_{name}"
    for place in ("start", "end")
    for name in ("kendall_tau", "cosine", "max_abs", "rmse")
)
_OF_ANSWERS = (
    *_OF_LOGITS,
    *("f1", "exact_match"),
    *(f"{key}_{side}" for key in ("f1", "exact_match") for side in _SIDES),
    *("answers", "answers_changed", "answers_undecided"),
)
MAX_PROMPT = 1000
"""Letters at the end of a prompt that a report shows."""


class TextOptions(BaseModel):
    """How a text is continued, or an answer found."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    decode: Literal["greedy", "beam"] = "greedy"
    """Token by token, or the best of several beams."""
    choice: int = Field(default=1, ge=1)
    """Which token "greedy" takes at each step: the most probable, or the second, third, … best."""
    beams: int = Field(default=4, ge=1, le=64)
    """How many texts "beam" keeps."""
    length_penalty: float = Field(default=1.0, ge=0, le=10, allow_inf_nan=False)
    """The power of its length by which a beam's log-probability is divided; 0 for none."""
    max_tokens: int = Field(default=32, ge=1, le=4096)
    """New tokens at most."""
    min_tokens: int = Field(default=0, ge=0)
    """New tokens before which no token may end the text."""
    stop: int | str | tuple[int | str, ...] = ()
    """Tokens, and texts, that end a text; where it is empty, the ends that the vocabulary names."""
    context: int = Field(default=0, ge=0)
    """The longest sequence that the model takes; 0 for what model or vocabulary say. Prompts are
    cut to leave room for the new tokens, down to half of it.
    """
    vocabulary: Annotated[str, Sensitive("reads a file", reads_data=True)] = ""
    """A file from which tokens become text (tokenizer.json, a JSON list or object, lines); the one
    declared of the model, or tokenizer.json beside it, where it is empty. Else numbers are words.
    """
    output: str = ""
    """The output that has the scores; found where it is empty."""
    max_answer_tokens: int = Field(default=30, ge=1)
    """Longest answer to a question."""
    no_answer: bool = True
    """Whether a question may have no answer, as in SQuAD 2.0; the first token has its score."""


class TextComparator:
    """BLEU and exact match of texts; F1 and exact match of answers."""

    name = "text"
    suggestions = (
        Suggestion("text"),
        Suggestion("token_logits", tasks=WRITES),
        Suggestion("token", tasks=WRITES),
    )
    wants = ("sacrebleu", "tokenizers")
    ragged = True
    options: TextOptions = TextOptions()

    def matches(self, model: Model, outputs: Mapping[str, np.ndarray]) -> float:
        """0.97 for a declared task; 0.85 for a key-value cache, or scores of starts and ends."""
        if writes_text(model.task) and _strings(outputs):
            return 0.97
        if ids_input(model) is None:
            return 0.0
        spans, scores = answers.span_outputs(model), scores_output(model, "")
        if answers_questions(model.task):
            return 0.97 if spans else 0.0
        if writes_text(model.task):
            return 0.97 if scores else 0.0
        if model.task is not None:
            return 0.0
        if spans and spans[0] != spans[1]:
            return 0.85
        return 0.85 if scores and caches(model) else 0.0

    def decoder(self, model: Model, options: TextOptions) -> str:
        """The version, and the vocabulary's digest."""
        path = vocabulary_file(model, options.vocabulary)
        return f"{VERSION} {digest_of(path)}"

    def decode(
        self, model: Model, sample: Sample, run: Run, options: TextOptions
    ) -> dict[str, np.ndarray]:
        """What the model writes.

        An answer per row where starts and ends are scored; the strings where outputs are strings;
        else the continuation of the first row.
        """
        if ids_input(model) is None or any(o.dtype == "string" for o in model.outputs):
            return _read_strings(run(sample.feeds), options)
        vocabulary = vocabulary_of(vocabulary_file(model, options.vocabulary))
        spans = answers.span_outputs(model)
        if spans and (answers_questions(model.task) or not writes_text(model.task)):
            return _answer(model, sample, run, options, vocabulary, spans)
        return _continue(model, sample, run, options, vocabulary)

    def compare(
        self,
        model: Model,
        sample: Sample,
        reference: Mapping[str, np.ndarray],
        candidate: Mapping[str, np.ndarray],
        options: TextOptions,
        *,
        noise: Mapping[str, float],
    ) -> Comparison:
        """What ``decode`` made of both models; labels are texts."""
        for side in (reference, candidate):
            if "text" not in side:
                raise InputError(
                    "comparator 'text': what is compared must be decoded first; "
                    f"expected what its method decode returns, not {', '.join(map(repr, side))}"
                )
        if "starts" in reference and "starts" in candidate:
            return _compared_answers(sample, reference, candidate, noise)
        return _compared_texts(sample, reference, candidate, noise)

    def metrics(self, options: TextOptions) -> Sequence[str]:
        """Every metric of a summary."""
        return (*_OF_TEXTS, *_OF_ANSWERS)

    def summarise(self, comparisons: Sequence[Comparison], options: TextOptions) -> Summary:
        """BLEU of all texts together; means over texts or answers for the rest."""
        if any("answers" in c.metrics for c in comparisons):
            return _summary_of_answers([c for c in comparisons if "answers" in c.metrics])
        return _summary_of_texts(comparisons)


def _strings(outputs: Mapping[str, np.ndarray]) -> list[str]:
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


# ── Texts ──────────────────────────────────────────────────────────────────────────────────────


def _read_strings(outputs: Mapping[str, np.ndarray], options: TextOptions) -> dict[str, np.ndarray]:
    """The strings that a model wrote itself.

    Raises:
        InputError: There are none.
    """
    names = [n for n in _strings(outputs) if options.output in ("", n)]
    if not names:
        what = repr(options.output) if options.output else "of strings"
        raise InputError(
            f"comparator 'text': no input of token numbers [batch, tokens], and no output {what} "
            f"among {', '.join(map(repr, outputs))}"
        )
    texts = [str(v) for v in outputs[names[0]].ravel()]
    return {"text": _texts_array(texts), "words": np.array(True)}


def _texts_array(texts: Sequence[str]) -> np.ndarray:
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return array


def _continue(
    model: Model, sample: Sample, run: Run, options: TextOptions, vocabulary: TokenVocabulary
) -> dict[str, np.ndarray]:
    interface = interface_of(model, options.output)
    prompt, room = _fitted(prompt_of(interface, sample), interface, options, vocabulary)
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
        **_packed(trace),
    }


def _fitted(
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


def _packed(trace: generation.Trace) -> dict[str, np.ndarray]:
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


def _unpacked(side: Mapping[str, np.ndarray]) -> generation.Trace:
    pools = zip(side["pool"].tolist(), side["pool_scores"].tolist(), strict=True)
    return generation.Trace(
        side["tokens"].tolist(),
        [[t for t in row if t >= 0] for row in side["kept"].tolist()],
        [{t: s for t, s in zip(*pool, strict=True) if t >= 0} for pool in pools],
        side["scale"].tolist(),
    )


def _compared_texts(
    sample: Sample,
    reference: Mapping[str, np.ndarray],
    candidate: Mapping[str, np.ndarray],
    noise: Mapping[str, float],
) -> Comparison:
    before, after = ([str(t) for t in side["text"]] for side in (reference, candidate))
    words = bool(reference["words"])
    detail: dict[str, Any] = {"reference": before, "candidate": after, "words": words}
    label = answers.answers_from_label(sample.label, len(before))
    if label is not None:
        detail["label"] = label
    rows = max(len(before), len(after))
    other = rows - sum(a == b for a, b in zip(before, after, strict=False))
    if "tokens" in reference and "tokens" in candidate:
        metrics, changed, sensitive = _compared_tokens(reference, candidate, noise, detail)
        other = int(changed)
    else:
        metrics, changed, sensitive = {"exact_match": 1 - other / rows}, other > 0, False
    metrics |= {
        "texts": float(rows),
        "texts_changed": float(other),
        "texts_undecided": float(sensitive),
    }
    if len(before) == len(after):
        score = measures.bleu(after, [[text] for text in before], words=words)
        metrics |= {} if score is None else {"bleu": score}
    return Comparison(sample.id, metrics, changed, sensitive, detail)


def _compared_tokens(
    reference: Mapping[str, np.ndarray],
    candidate: Mapping[str, np.ndarray],
    noise: Mapping[str, float],
    detail: dict[str, Any],
) -> tuple[dict[str, float], bool, bool]:
    """Metrics of two texts by their tokens; whether that is a change, or sensitivity."""
    ours, theirs = _unpacked(reference), _unpacked(candidate)
    shared = _shared(ours.tokens, theirs.tokens)
    longest = max(len(ours.tokens), len(theirs.tokens))
    metrics = {
        "exact_match": float(ours.tokens == theirs.tokens),
        "shared_start": shared / longest if longest else 1.0,
    }
    first, second = (v["best_in_prompt"] for v in (reference, candidate))
    if first.size and first.shape == second.shape:
        metrics["token_agreement"] = float(np.mean(first == second))
    detail["prompt"] = str(reference["prompt"][0])[-MAX_PROMPT:]
    if metrics["exact_match"]:
        return metrics, False, False
    level = noise.get(str(reference["scores"][0]), 0.0)
    parted = generation.divergence(ours, theirs, level)
    firm = parted is None or parted.firm
    detail["first_difference"] = {
        "token": shared,
        "reference": ours.tokens[shared : shared + 1],
        "candidate": theirs.tokens[shared : shared + 1],
    }
    if parted is not None:
        margin = parted.margin if math.isfinite(parted.margin) else None
        detail["first_difference"] |= {"margin": margin, "noise": parted.noise}
    return metrics, firm, not firm


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the start that both have."""
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )


def _summary_of_texts(comparisons: Sequence[Comparison]) -> Summary:
    metrics: dict[str, float] = {}
    words = bool(comparisons[0].detail["words"])
    even = [c for c in comparisons if len(c.detail["reference"]) == len(c.detail["candidate"])]
    before, after = ([t for c in even for t in c.detail[s]] for s in ("reference", "candidate"))
    # Other tokens may spell the same text: that is a BLEU of 1, and no exact match.
    score = measures.bleu(after, [[text] for text in before], words=words)
    if score is not None:
        metrics["bleu"] = score
    metrics |= _mean(comparisons, "exact_match", "texts")
    for key in ("shared_start", "token_agreement"):
        metrics |= _mean(comparisons, key)
    metrics |= _bleu_to_labels(even, words)
    for key in ("texts_changed", "texts_undecided", "texts"):
        metrics[key] = sum(c.metrics[key] for c in comparisons)
    headline = f"{int(metrics['texts_changed'])} of {int(metrics['texts'])} texts changed"
    if metrics["texts_undecided"]:
        headline += f", {int(metrics['texts_undecided'])} undecided"
    if "bleu" in metrics:
        headline += f"; BLEU {metrics['bleu']:.4g}"
    return Summary(metrics, headline + _first_other_token(comparisons))


def _first_other_token(comparisons: Sequence[Comparison]) -> str:
    """Where a text first goes another way, and by how much the original preferred its token."""
    changed = [c.detail.get("first_difference", {}) for c in comparisons if c.changed]
    found = min(
        (f for f in changed if f.get("margin") is not None), key=lambda f: f["token"], default=None
    )
    if found is None:
        return ""
    sizes = f"margin of the scores {found['margin']:.2g}, noise {found['noise']:.2g}"
    return f"; first other token at step {found['token'] + 1} ({sizes})"


def _bleu_to_labels(comparisons: Sequence[Comparison], words: bool) -> dict[str, float]:
    """BLEU of both sides to the texts that are right, where these are known."""
    having = [c for c in comparisons if "label" in c.detail]
    if not having:
        return {}
    labels = [gold for c in having for gold in c.detail["label"]]
    known = {}
    for side in ("reference", "candidate"):
        score = measures.bleu([t for c in having for t in c.detail[side]], labels, words=words)
        if score is None:
            return {}
        known[f"bleu_{side}"] = score
    return known | {"bleu_delta": known["bleu_candidate"] - known["bleu_reference"]}


def _mean(
    comparisons: Sequence[Comparison], key: str, weight: str | None = None
) -> dict[str, float]:
    having = [c for c in comparisons if key in c.metrics]
    weights = [c.metrics[weight] if weight else 1.0 for c in having]
    if not sum(weights):
        return {}
    total = sum(c.metrics[key] * w for c, w in zip(having, weights, strict=True))
    return {key: total / sum(weights)}


# ── Answers ────────────────────────────────────────────────────────────────────────────────────


def _answer(
    model: Model,
    sample: Sample,
    run: Run,
    options: TextOptions,
    vocabulary: TokenVocabulary,
    names: tuple[str, str],
) -> dict[str, np.ndarray]:
    starts, ends = answers.span_scores(run(sample.feeds), names)
    allowed = answers.context_mask(sample, starts.shape)
    ids = ids_input(model)
    tokens = np.asarray(sample.feeds[ids.name]) if ids is not None else np.zeros(0)
    spans = [
        answers.best_span(s, e, a, longest=options.max_answer_tokens, no_answer=options.no_answer)
        for s, e, a in zip(starts, ends, allowed, strict=True)
    ]
    texts = [
        "" if i == answers.NOWHERE else vocabulary.decode(tokens[row, i : j + 1].tolist())
        for row, (i, j) in enumerate(spans)
    ]
    return {
        "text": _texts_array(texts),
        "spans": np.array(spans, np.int64),
        "starts": starts,
        "ends": ends,
        "names": np.array(names, dtype=object),
    }


def _compared_answers(
    sample: Sample,
    reference: Mapping[str, np.ndarray],
    candidate: Mapping[str, np.ndarray],
    noise: Mapping[str, float],
) -> Comparison:
    if reference["spans"].shape != candidate["spans"].shape:
        raise InputError("comparator 'text': both sides must answer the same number of questions")
    before, after = ([str(t) for t in side["text"]] for side in (reference, candidate))
    allowed = sum(noise.get(str(n), 0.0) for n in reference["names"])
    changed = np.array([a != b for a, b in zip(before, after, strict=True)], bool)
    firm = np.array([_margin(reference, candidate, i) > allowed for i in range(len(changed))], bool)
    metrics = {
        "answers": float(len(changed)),
        "exact_match": _average(map(measures.exact_match, before, after)),
        "f1": _average(map(measures.f1, before, after)),
        "answers_changed": float((changed & firm).sum()),
        "answers_undecided": float((changed & ~firm).sum()),
    }
    for place in ("start", "end"):
        scores = answers.logit_metrics(reference[f"{place}s"], candidate[f"{place}s"])
        metrics |= {f"{place}_{name}": value for name, value in scores.items()}
    label = answers.answers_from_label(sample.label, len(changed))
    if label is not None:
        for side, texts in (("reference", before), ("candidate", after)):
            for key, measure in (("f1", measures.f1), ("exact_match", measures.exact_match)):
                best = [
                    max(measure(t, g) for g in gold) for t, gold in zip(texts, label, strict=True)
                ]
                metrics[f"{key}_{side}"] = _average(best)
    shown = [
        {
            "row": int(i),
            "reference": before[i],
            "candidate": after[i],
            "spans": [reference["spans"][i].tolist(), candidate["spans"][i].tolist()],
        }
        for i in np.flatnonzero(changed)
    ]
    is_changed = bool((changed & firm).any())
    sensitive = bool(changed.any()) and not is_changed
    return Comparison(sample.id, metrics, is_changed, sensitive, {"changed": shown})


def _margin(
    reference: Mapping[str, np.ndarray], candidate: Mapping[str, np.ndarray], row: int
) -> float:
    """By how much the reference preferred its answer to the candidate's; inf if not a number."""
    start, end = reference["starts"][row], reference["ends"][row]
    first, second = (
        answers.span_score(start, end, (int(s["spans"][row][0]), int(s["spans"][row][1])))
        for s in (reference, candidate)
    )
    margin = first - second
    return math.inf if math.isnan(margin) else margin


def _average(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known)


def _summary_of_answers(comparisons: Sequence[Comparison]) -> Summary:
    metrics: dict[str, float] = {}
    for key in ("f1", "exact_match"):
        metrics |= _mean(comparisons, key, "answers")
    for key in ("f1", "exact_match"):
        for side in ("reference", "candidate"):
            metrics |= _mean(comparisons, f"{key}_{side}", "answers")
        if f"{key}_reference" in metrics:
            metrics[f"{key}_delta"] = metrics[f"{key}_candidate"] - metrics[f"{key}_reference"]
    for key in _OF_LOGITS:
        values = [c.metrics[key] for c in comparisons]
        if key.endswith("tau"):
            metrics |= _mean(comparisons, key, "answers")
        else:
            metrics[key] = min(values) if key.endswith("cosine") else max(values)
    for key in ("answers_changed", "answers_undecided", "answers"):
        metrics[key] = sum(c.metrics[key] for c in comparisons)
    headline = f"{int(metrics['answers_changed'])} of {int(metrics['answers'])} answers changed"
    if metrics["answers_undecided"]:
        headline += f", {int(metrics['answers_undecided'])} undecided"
    headline += f"; F1 {metrics['f1']:.4g}"
    if "f1_reference" in metrics:
        headline += f", to the labels {metrics['f1_reference']:.4g} → {metrics['f1_candidate']:.4g}"
    return Summary(metrics, headline)


@hookimpl
def optvet_comparators() -> Iterable[Comparator]:
    """The comparator "text"."""
    return [TextComparator()]
