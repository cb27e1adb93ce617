"""Answers to questions: from scores of where a span starts and ends to the span, and its text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from optvet.plugin import InputError, Model, Sample

_START, _END = re.compile(r"start", re.IGNORECASE), re.compile(r"end(?!c|ing_)", re.IGNORECASE)
NOWHERE = -1
"""Start and end of no answer."""


def span_outputs(model: Model) -> tuple[str, str] | None:
    """The outputs that score starts and ends; the same one twice if it has both [batch, n, 2]."""
    starts = [o for o in model.outputs if _START.search(o.name)]
    ends = [o for o in model.outputs if _END.search(o.name) and o not in starts]
    if len(starts) == 1 and len(ends) == 1:
        return starts[0].name, ends[0].name
    both = [o for o in model.outputs if o.shape and len(o.shape) == 3 and o.shape[-1] == 2]
    return (both[0].name, both[0].name) if len(both) == 1 == len(model.outputs) else None


def span_scores(
    outputs: Mapping[str, np.ndarray], names: tuple[str, str]
) -> tuple[np.ndarray, np.ndarray]:
    """Scores of starts and of ends, float64 [batch, tokens] each.

    Raises:
        InputError: They have another shape.
    """
    start, end = (np.asarray(outputs[n]).astype(np.float64) for n in names)
    if names[0] == names[1] and start.ndim == 3:
        start, end = start[..., 0], end[..., 1]
    if start.ndim == end.ndim == 3 and start.shape[2] == end.shape[2] == 1:
        start, end = start[..., 0], end[..., 0]
    if start.ndim != 2 or start.shape != end.shape or not start.size:
        raise InputError(
            f"comparator 'text': starts {names[0]!r} and ends {names[1]!r} have the shapes "
            f"{list(start.shape)} and {list(end.shape)}, expected [batch, tokens] for both"
        )
    return start, end


def context_mask(sample: Sample, shape: tuple[int, ...]) -> np.ndarray:
    """Where an answer may lie, boolean [batch, tokens].

    That is neither in padding nor, as far as token types tell them, in the question or at the
    token that ends the context. The first token stands for "no answer".
    """
    allowed = np.ones(shape, bool)
    for name, value in sample.feeds.items():
        if np.shape(value) == shape and re.search(r"mask", name) and np.any(value):
            allowed &= np.asarray(value) != 0
    for name, value in sample.feeds.items():
        if np.shape(value) == shape and re.search(r"token_type|segment", name):
            types = np.asarray(value) == 1
            for row in np.flatnonzero((types & allowed).any(axis=1)):
                allowed[row] &= types[row]
                allowed[row, np.flatnonzero(allowed[row])[-1]] = False
    allowed[:, 0] = False
    return allowed


def best_span(
    start: np.ndarray, end: np.ndarray, allowed: np.ndarray, *, longest: int, no_answer: bool
) -> tuple[int, int]:
    """First and last token of the best answer; ``NOWHERE`` twice if there is none.

    The best of all spans with start <= end, at most ``longest`` tokens and both ends ``allowed``,
    by the sum of both scores; of equal ones the first. If ``no_answer``, there is none where the
    first token has a higher sum. NaN is never best.

    Source: Devlin, Chang, Lee, Toutanova 2019, "BERT: pre-training of deep bidirectional
    transformers for language understanding", sections 4.2 and 4.3 (with a threshold of 0).
    """
    start, end = (np.where(np.isnan(s), -np.inf, s) for s in (start, end))
    top, span = -np.inf, (NOWHERE, NOWHERE)
    for i in np.flatnonzero(allowed):
        ends = np.arange(int(i), min(int(i) + longest, len(end)))
        ends = ends[allowed[ends]]
        totals = start[i] + end[ends]
        j, total = int(ends[totals.argmax()]), float(totals.max())
        if total > top or span[0] == NOWHERE:
            top, span = total, (int(i), j)
    if no_answer and float(start[0] + end[0]) > top:
        return NOWHERE, NOWHERE
    return span


def span_score(start: np.ndarray, end: np.ndarray, span: tuple[int, int]) -> float:
    """The sum of both scores of a span, or of no answer."""
    i, j = (0, 0) if span[0] == NOWHERE else span
    return float(start[i] + end[j])


def answers_from_label(label: Any, rows: int) -> list[list[str]] | None:
    """The right answers of each row; an empty text where there is no answer.

    A label is a text, a list of texts of which each is right, or the object that SQuAD's
    collections have: ``{"text": [...], ...}`` or ``{"answers": ...}``. Of several rows, it is a
    list of such.
    """
    if rows > 1:
        if not isinstance(label, (list, tuple)) or len(label) != rows:
            return None
        each = [answers_from_label(part, 1) for part in label]
        return None if None in each else [part[0] for part in each if part]
    found = _texts(label)
    return None if found is None else [found or [""]]


def _texts(label: Any) -> list[str] | None:
    if isinstance(label, str):
        return [label]
    if isinstance(label, Mapping):
        inner = label.get("text", label.get("answers"))
        return None if inner is None else _texts(inner)
    if isinstance(label, (list, tuple)):
        parts = [_texts(part) for part in label]
        return None if None in parts else [t for part in parts if part for t in part]
    return None


def logit_metrics(reference: np.ndarray, candidate: np.ndarray) -> dict[str, float]:
    """How scores of starts, or of ends, moved: float64 [batch, tokens] on both sides.

    Returns:
        ``kendall_tau`` of the order of all tokens, the mean over rows (Kendall 1945, tau-b);
        ``cosine``, the least of a row; ``max_abs`` and ``rmse`` in units of the scores. Where NaN
        or an infinity stands on one side only: 0, 0, and infinite differences.
    """
    same = (reference == candidate) | (np.isnan(reference) & np.isnan(candidate))
    finite = np.isfinite(reference) & np.isfinite(candidate)
    if same.all():
        return {"kendall_tau": 1.0, "cosine": 1.0, "max_abs": 0.0, "rmse": 0.0}
    if (~same & ~finite).any():
        return {"kendall_tau": 0.0, "cosine": 0.0, "max_abs": math.inf, "rmse": math.inf}
    rows = [(a[f], b[f]) for a, b, f in zip(reference, candidate, finite, strict=True)]
    with np.errstate(over="ignore"):
        distance = np.abs(candidate[finite] - reference[finite])
        rmse = float(np.sqrt(np.mean(distance**2)))
    return {
        "kendall_tau": float(np.mean([_tau(a, b) for a, b in rows])),
        "cosine": min(_cosine(a, b) for a, b in rows),
        "max_abs": float(distance.max()),
        "rmse": rmse,
    }


def _tau(a: np.ndarray, b: np.ndarray) -> float:
    if np.array_equal(a, b):
        return 1.0
    # Here, because every command loads every plugin, and scipy takes longer than all of optvet.
    from scipy.stats import kendalltau

    value = float(kendalltau(a, b).statistic) if len(a) > 1 else 1.0
    return 0.0 if math.isnan(value) else value


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine of the angle between two vectors; 1 if they are equal, 0 if one alone is zero."""
    if np.array_equal(a, b):
        return 1.0
    # Scaled first, so that squares do not overflow.
    tops = [float(np.abs(v).max()) for v in (a, b)]
    if 0.0 in tops:
        return 0.0
    x, y = a / tops[0], b / tops[1]
    return float(np.clip(np.dot(x, y) / (np.linalg.norm(x) * np.linalg.norm(y)), -1.0, 1.0))
