"""Scores per position (language models, taggers): the best token everywhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    Comparator,
    Comparison,
    Model,
    Sample,
    Suggestion,
    Summary,
    hookimpl,
    readable_outputs,
)

MAX_SHOWN = 20
"""Changed positions of one sample that a report shows."""
_TASK = re.compile(
    r"language.model|token|fill.mask|named.entity|\bner\b|part.of.speech|pos.tagging|tagging"
    r"|(sentence|word|text).segmentation|text.generation"
)
_LOGITS = re.compile(r"logit|token|lm_head", re.IGNORECASE)
_HIDDEN = re.compile(r"hidden|encod|embed|state|past|present", re.IGNORECASE)


class TokenOptions(BaseModel):
    """Which output has the scores, and how many of the best tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    output: str = ""
    """The output that has the scores [batch, positions, tokens]; found if it is empty."""
    topk: int = Field(default=5, ge=1)
    """How many of the best tokens of a position are compared as a set."""
    mask: str = "attention_mask"
    """The input that is 0 where a position is padding; "" for none."""


class TokenComparator:
    """Agreement of the best token, and of the best few, per position."""

    name = "token"
    suggestions = (Suggestion("token_logits"), Suggestion("token"))
    options: TokenOptions = TokenOptions()

    def matches(self, model: Model, outputs: Mapping[str, np.ndarray]) -> float:
        """0.95 for a declared task; less for scores per position of an integer input."""
        task = (model.task or "").lower()
        fitting = [n for n, v in outputs.items() if v.ndim == 3 and v.dtype.kind in "fiu"]
        if _TASK.search(task):
            return 0.95 if fitting or not outputs else 0.0
        if len(outputs) != 1 or not fitting:
            return 0.0
        name, value = fitting[0], outputs[fitting[0]]
        per_position = value.shape[1] > 1 and any(
            i.shape is not None
            and len(i.shape) == 2
            and "int" in i.dtype
            and (not isinstance(i.shape[1], int) or i.shape[1] in (-1, value.shape[1]))
            for i in model.inputs
        )
        if not per_position or _HIDDEN.search(name):
            return 0.0
        if _LOGITS.search(name):
            return 0.7
        # Widths of hidden layers are round numbers; vocabularies are larger, tag sets smaller.
        width = value.shape[2]
        return 0.4 if 2 <= width < 64 or width > 8192 or width % 8 else 0.0

    def compare(
        self,
        model: Model,
        sample: Sample,
        reference: Mapping[str, np.ndarray],
        candidate: Mapping[str, np.ndarray],
        options: TokenOptions,
        *,
        noise: Mapping[str, float],
    ) -> Comparison:
        """Every position that is no padding; see ``token_metrics``."""
        name = scores_name(reference, options.output)
        shape = reference[name].shape
        expected, actual = (
            v[name].reshape(int(np.prod(shape[:-1])), shape[-1]).astype(np.float64)
            for v in (reference, candidate)
        )
        kept = _positions(sample, options.mask, shape[:-1])
        expected, actual = expected[kept], actual[kept]
        metrics, wrong, firm = token_metrics(expected, actual, options.topk, noise.get(name, 0.0))
        truth = np.asarray(sample.label) if sample.label is not None else np.zeros(0)
        if truth.dtype.kind in "iu" and truth.shape == shape[:-1]:
            metrics |= _accuracy(expected, actual, truth.ravel()[kept])
        shown = [
            {
                "position": int(kept[i]),
                "reference": int(best_of(expected[i : i + 1])[0]),
                "candidate": int(best_of(actual[i : i + 1])[0]),
            }
            for i in np.flatnonzero(wrong)[:MAX_SHOWN]
        ]
        changed = bool((wrong & firm).any())
        return Comparison(
            sample.id, metrics, changed, bool(wrong.any()) and not changed, {"changed": shown}
        )

    def metrics(self, options: TokenOptions) -> Sequence[str]:
        """Every metric of a summary."""
        accuracy = ("accuracy_reference", "accuracy_candidate", "accuracy_delta")
        counts = ("positions", "tokens_changed", "tokens_undecided")
        return ("token_agreement", "topk_overlap", "max_abs", *accuracy, *counts)

    def summarise(self, comparisons: Sequence[Comparison], options: TokenOptions) -> Summary:
        """Means over positions, and the numbers of changed tokens."""
        counts = ("positions", "tokens_changed", "tokens_undecided")
        metrics = {k: sum(c.metrics[k] for c in comparisons) for k in counts}
        for key in sorted({k for c in comparisons for k in c.metrics} - {*counts, "max_abs"}):
            having = [c for c in comparisons if key in c.metrics]
            total = sum(c.metrics["positions"] for c in having)
            value = sum(c.metrics[key] * c.metrics["positions"] for c in having)
            metrics[key] = value / total if total else 1.0
        metrics["max_abs"] = max(c.metrics["max_abs"] for c in comparisons)
        headline = f"{int(metrics['tokens_changed'])} of {int(metrics['positions'])} tokens changed"
        if metrics["tokens_undecided"]:
            headline += f", {int(metrics['tokens_undecided'])} undecided"
        return Summary(metrics, headline)


def scores_name(outputs: Mapping[str, np.ndarray], wanted: str) -> str:
    """The output that has scores per position.

    Raises:
        InputError: There is none.
    """

    def fits(name: str, v: np.ndarray) -> bool:
        scored = v.ndim >= 2 and v.dtype.kind in "fiu" and v.shape[-1] > 0
        return scored and (v.ndim == 3 or name == wanted)

    kind = "of shape [batch, positions, tokens]"
    fitting = readable_outputs("token", outputs, wanted, fits, kind)
    named = [n for n in fitting if _LOGITS.search(n)]
    return (named or fitting)[0]


def _positions(sample: Sample, mask: str, shape: tuple[int, ...]) -> np.ndarray:
    """Positions, counted through the batch, that are not padding."""
    mask_values = sample.feeds.get(mask)
    if mask_values is not None and mask_values.shape == shape and mask_values.any():
        return np.flatnonzero(mask_values)
    return np.arange(int(np.prod(shape)))


def best_of(scores: np.ndarray) -> np.ndarray:
    """Number of the best token per row; of equal ones the first, and NaN is never best."""
    return np.asarray(np.where(np.isnan(scores), -np.inf, scores).argmax(axis=1))


def token_metrics(
    reference: np.ndarray, candidate: np.ndarray, topk: int, noise: float
) -> tuple[dict[str, float], np.ndarray, np.ndarray]:
    """Metrics of scores [positions, tokens]; where the best token changed; where it was sure.

    Returns:
        ``token_agreement``, the share of positions with the same best token (accuracy of the
        candidate against the reference); ``topk_overlap``, the mean share of tokens that both
        lists of the ``topk`` best have; ``max_abs`` of the scores, infinite where one side alone
        is not finite. A position that is NaN on one side alone has changed.
    """
    count, width = reference.shape
    if not count:
        empty = np.zeros(0, bool)
        metrics = {"token_agreement": 1.0, "topk_overlap": 1.0, "max_abs": 0.0, "positions": 0.0}
        return metrics | {"tokens_changed": 0.0, "tokens_undecided": 0.0}, empty, empty
    lost = (np.isnan(reference) != np.isnan(candidate)).any(axis=1)
    first, second = best_of(reference), best_of(candidate)
    wrong = (first != second) | lost
    rows = np.arange(count)
    with np.errstate(invalid="ignore", over="ignore"):
        margin = reference[rows, first] - reference[rows, second]
        same = (reference == candidate) | (np.isnan(reference) & np.isnan(candidate))
        distance = np.where(same, 0.0, np.abs(reference - candidate))
    firm = lost | ~(margin <= noise)
    k = min(topk, width)
    overlap = [
        0.0 if lost[i] else len({*_top(reference[i], k)} & {*_top(candidate[i], k)}) / k
        for i in rows
    ]
    metrics = {
        "token_agreement": float(np.mean(~wrong)),
        "topk_overlap": float(np.mean(overlap)),
        "max_abs": float(np.nan_to_num(distance, nan=np.inf, posinf=np.inf).max()),
        "positions": float(count),
        "tokens_changed": float((wrong & firm).sum()),
        "tokens_undecided": float((wrong & ~firm).sum()),
    }
    return metrics, wrong, firm


def _top(scores: np.ndarray, k: int) -> list[int]:
    # By the k-th score rather than by sorting: a vocabulary has 100,000 tokens.
    known = np.where(np.isnan(scores), -np.inf, scores)
    least = np.partition(known, len(known) - k)[len(known) - k]
    above = np.flatnonzero(known > least).tolist()
    return [*above, *np.flatnonzero(known == least)[: k - len(above)].tolist()]


def _accuracy(reference: np.ndarray, candidate: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Share of labelled positions (-100 and other negative labels are none) that are right."""
    kept = truth >= 0
    if not kept.any():
        return {}
    before, after = (
        float(np.mean(best_of(s)[kept] == truth[kept])) for s in (reference, candidate)
    )
    return {
        "accuracy_reference": before,
        "accuracy_candidate": after,
        "accuracy_delta": after - before,
    }


@hookimpl
def optvet_comparators() -> Iterable[Comparator]:
    """The comparator "token"."""
    return [TokenComparator()]
