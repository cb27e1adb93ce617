"""Reads a model's answers to questions, compares them by F1 and exact match, and summarises."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from optvet.plugin import Comparison, InputError, Model, Run, Sample, Summary
from optvet_text import answers, measures
from optvet_text.compare_texts import SIDES
from optvet_text.decode_text import texts_array
from optvet_text.feeding import ids_input
from optvet_text.options import TextOptions
from optvet_text.vocabulary import TokenVocabulary

_LOGIT_METRICS = tuple(
    f"{place}_{name}"
    for place in ("start", "end")
    for name in ("kendall_tau", "cosine", "max_abs", "rmse")
)
ANSWER_METRICS = (
    *_LOGIT_METRICS,
    *("f1", "exact_match"),
    *(f"{key}_{side}" for key in ("f1", "exact_match") for side in SIDES),
    *("answers", "answers_changed", "answers_undecided"),
)


def find_answers(
    model: Model,
    sample: Sample,
    run: Run,
    options: TextOptions,
    vocabulary: TokenVocabulary,
    names: tuple[str, str],
) -> dict[str, np.ndarray]:
    """The best span of each row, its text, and its scores, from outputs called ``names``."""
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
        "text": texts_array(texts),
        "spans": np.array(spans, np.int64),
        "starts": starts,
        "ends": ends,
        "names": np.array(names, dtype=object),
    }


def compare_answers(
    sample: Sample,
    reference: Mapping[str, np.ndarray],
    candidate: Mapping[str, np.ndarray],
    noise: Mapping[str, float],
) -> Comparison:
    """Answers of both sides, row by row, and to the labels where the sample has some."""
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


def summarise_answers(comparisons: Sequence[Comparison]) -> Summary:
    """Means over answers; extremes of differences of scores."""
    metrics: dict[str, float] = {}
    for key in ("f1", "exact_match"):
        metrics |= measures.weighted_mean(comparisons, key, "answers")
    for key in ("f1", "exact_match"):
        for side in ("reference", "candidate"):
            metrics |= measures.weighted_mean(comparisons, f"{key}_{side}", "answers")
        if f"{key}_reference" in metrics:
            metrics[f"{key}_delta"] = metrics[f"{key}_candidate"] - metrics[f"{key}_reference"]
    for key in _LOGIT_METRICS:
        values = [c.metrics[key] for c in comparisons]
        if key.endswith("tau"):
            metrics |= measures.weighted_mean(comparisons, key, "answers")
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
