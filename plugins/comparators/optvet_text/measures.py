"""BLEU, and SQuAD's F1 and exact match, of texts, from 0 to 1; means of metrics over samples."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec

from optvet.plugin import Comparison

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def bleu(
    candidates: Sequence[str], references: Sequence[Sequence[str]], *, words: bool
) -> float | None:
    """Corpus BLEU of ``candidates`` against the references of each, from 0 to 1.

    Exactly 1 where each candidate is one of its references. N-grams are as long as the texts
    allow, up to four words; orders without a match are smoothed exponentially.

    Args:
        candidates: One text per sample.
        references: Texts of which each is right, per sample; not empty.
        words: Whether punctuation is cut off from words (sacrebleu's "13a"), as in a language;
            else words are what blanks separate.

    Returns:
        None of no texts, and where sacrebleu is not installed.

    Source: Papineni, Roukos, Ward, Zhu 2002, "BLEU: a method for automatic evaluation of machine
    translation", section 2.3; as computed by sacrebleu (Post 2018, "A call for clarity in reporting
    BLEU scores").
    """
    if not candidates:
        return None
    if all(c in r for c, r in zip(candidates, references, strict=True)):
        return 1.0
    if find_spec("sacrebleu") is None:
        return None
    from sacrebleu.metrics.bleu import BLEU

    most = max(len(r) for r in references)
    # sacrebleu wants as many references for each; one that is repeated counts once.
    streams = [[r[min(i, len(r) - 1)] for r in references] for i in range(most)]
    metric = BLEU(
        tokenize="13a" if words else "none",
        smooth_method="exp",
        effective_order=True,
        # It warns of texts that end in " ." as tokenized ones do.
        force=True,
    )
    score = float(metric.corpus_score(list(candidates), streams).score) / 100
    return min(max(score, 0.0), 1.0)


def normalised(text: str) -> str:
    """Lower case, without punctuation, articles and superfluous blanks.

    Source: Rajpurkar, Zhang, Lopyrev, Liang 2016, "SQuAD: 100,000+ questions for machine
    comprehension of text", section 6.1, in the order of the evaluation script of SQuAD 2.0.
    """
    plain = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def exact_match(first: str, second: str) -> float:
    """1 if both answers are the same after normalisation, else 0."""
    return float(normalised(first) == normalised(second))


def f1(first: str, second: str) -> float:
    """Harmonic mean of precision and recall over the words that two answers share.

    Symmetric. 1 if both are empty (no answer), 0 if one of them is.

    Source: Rajpurkar et al. 2016, section 6.1; for empty answers, Rajpurkar, Jia, Liang 2018, "Know
    what you don't know: unanswerable questions for SQuAD", section 5.
    """
    reference, candidate = normalised(first).split(), normalised(second).split()
    if not reference or not candidate:
        return float(reference == candidate)
    shared = sum((Counter(reference) & Counter(candidate)).values())
    return 2 * shared / (len(reference) + len(candidate))


def weighted_mean(
    comparisons: Sequence[Comparison], key: str, weight: str | None = None
) -> dict[str, float]:
    """The mean of a metric over the samples that have it, by its name; empty without any weight."""
    having = [c for c in comparisons if key in c.metrics]
    weights = [c.metrics[weight] if weight else 1.0 for c in having]
    if not sum(weights):
        return {}
    total = sum(c.metrics[key] * w for c, w in zip(having, weights, strict=True))
    return {key: total / sum(weights)}
