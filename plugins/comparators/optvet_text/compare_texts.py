"""Compares texts by BLEU, word for word and token by token, and summarises them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from optvet.plugin import Comparison, Sample, Summary
from optvet_text import answers, generation, measures
from optvet_text.decode_text import unpack_trace

SIDES = ("reference", "candidate", "delta")
TEXT_METRICS = (
    *("bleu", "exact_match", "shared_start", "token_agreement"),
    *(f"bleu_{side}" for side in SIDES),
    *("texts", "texts_changed", "texts_undecided"),
)
MAX_PROMPT = 1000
"""Letters at the end of a prompt that a report shows."""


def compare_texts(
    sample: Sample,
    reference: Mapping[str, np.ndarray],
    candidate: Mapping[str, np.ndarray],
    noise: Mapping[str, float],
) -> Comparison:
    """Texts of both sides; by their tokens too where a model wrote them token by token."""
    before, after = ([str(t) for t in side["text"]] for side in (reference, candidate))
    words = bool(reference["words"])
    detail: dict[str, Any] = {"reference": before, "candidate": after, "words": words}
    label = answers.answers_from_label(sample.label, len(before))
    if label is not None:
        detail["label"] = label
    rows = max(len(before), len(after))
    other = rows - sum(a == b for a, b in zip(before, after, strict=False))
    if "tokens" in reference and "tokens" in candidate:
        metrics, changed, sensitive = _compare_tokens(reference, candidate, noise, detail)
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


def _compare_tokens(
    reference: Mapping[str, np.ndarray],
    candidate: Mapping[str, np.ndarray],
    noise: Mapping[str, float],
    detail: dict[str, Any],
) -> tuple[dict[str, float], bool, bool]:
    """Metrics of two texts by their tokens; whether that is a change, or sensitivity."""
    expected, actual = unpack_trace(reference), unpack_trace(candidate)
    shared = _shared(expected.tokens, actual.tokens)
    longest = max(len(expected.tokens), len(actual.tokens))
    metrics = {
        "exact_match": float(expected.tokens == actual.tokens),
        "shared_start": shared / longest if longest else 1.0,
    }
    first, second = (v["best_in_prompt"] for v in (reference, candidate))
    if first.size and first.shape == second.shape:
        metrics["token_agreement"] = float(np.mean(first == second))
    detail["prompt"] = str(reference["prompt"][0])[-MAX_PROMPT:]
    if metrics["exact_match"]:
        return metrics, False, False
    level = noise.get(str(reference["scores"][0]), 0.0)
    first_divergence = generation.divergence(expected, actual, level)
    firm = first_divergence is None or first_divergence.firm
    detail["first_difference"] = {
        "token": shared,
        "reference": expected.tokens[shared : shared + 1],
        "candidate": actual.tokens[shared : shared + 1],
    }
    if first_divergence is not None:
        margin = first_divergence.margin if math.isfinite(first_divergence.margin) else None
        detail["first_difference"] |= {"margin": margin, "noise": first_divergence.noise}
    return metrics, firm, not firm


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the start that both have."""
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )


def summarise_texts(comparisons: Sequence[Comparison]) -> Summary:
    """BLEU of all texts together, means of the other metrics, and counts."""
    metrics: dict[str, float] = {}
    words = bool(comparisons[0].detail["words"])
    even = [c for c in comparisons if len(c.detail["reference"]) == len(c.detail["candidate"])]
    before, after = ([t for c in even for t in c.detail[s]] for s in ("reference", "candidate"))
    # Other tokens may spell the same text: that is a BLEU of 1, and no exact match.
    score = measures.bleu(after, [[text] for text in before], words=words)
    if score is not None:
        metrics["bleu"] = score
    metrics |= measures.weighted_mean(comparisons, "exact_match", "texts")
    for key in ("shared_start", "token_agreement"):
        metrics |= measures.weighted_mean(comparisons, key)
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
