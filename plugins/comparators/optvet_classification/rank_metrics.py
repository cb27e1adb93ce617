"""Metrics of two rows of scores: the best labels, their order, and how far scores moved."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

CERTAINTY = "certainty_change_top"
_SAME_ORDER = 0.99
"""Least tau of labels in the same order, as in DiTOX (arXiv:2505.01892)."""


def ranking(scores: np.ndarray) -> np.ndarray:
    """Class numbers by falling score; of equal scores the first class, and NaN last."""
    return np.argsort(-np.where(np.isnan(scores), -np.inf, scores), kind="stable")


def row_metrics(
    reference: np.ndarray, candidate: np.ndarray, topk: Sequence[int]
) -> dict[str, float]:
    """Metrics of one row of scores.

    Args:
        reference: The reference's scores, float64 [classes].
        candidate: The candidate's.
        topk: Lengths of lists; those that would hold all classes say nothing and are left out,
            but for the first label alone.

    Returns:
        ``top<k>_agreement``, the share of labels that both top-k lists have; ``kendall_tau`` of
        the ranks of all labels in either of the longest lists, and ``kendall_tau_top<k>`` of each
        length above 1; ``reordered_top<k>``, 1 where that tau is below 0.99, or the first label is
        another one; ``confidence_change``, by how much the score of the reference's first label
        moved, in units of the scores, and ``certainty_change_top<k>``, by how much those of its
        first k labels moved on average. Where NaN stands on one side only the agreements are 0,
        tau is 0 and the changes are infinite.
    """
    sizes = sorted({k for k in topk if k < len(reference)} | {1})
    # A list of all labels has an order, and changes, though it always agrees.
    lengths = sorted({min(k, len(reference)) for k in topk} | {1})
    if not np.array_equal(np.isnan(reference), np.isnan(candidate)):
        lost = {f"top{k}_agreement": 0.0 for k in sizes}
        lost |= {f"kendall_tau_top{k}": 0.0 for k in lengths if k > 1}
        lost |= {f"reordered_top{k}": 1.0 for k in lengths}
        changes = {f"{CERTAINTY}{k}": float("inf") for k in lengths}
        return {**lost, **changes, "kendall_tau": 0.0, "confidence_change": float("inf")}
    first, second = ranking(reference), ranking(candidate)
    metrics = {
        f"top{k}_agreement": len(set(first[:k]) & set(second[:k])) / min(k, len(reference))
        for k in sizes
    }
    taus = {k: kendall_tau(reference, candidate, k) for k in lengths if k > 1}
    metrics |= {f"kendall_tau_top{k}": tau for k, tau in taus.items()}
    metrics |= {f"reordered_top{k}": float(tau < _SAME_ORDER) for k, tau in taus.items()}
    metrics["reordered_top1"] = float(first[0] != second[0])
    longest = lengths[-1]
    metrics["kendall_tau"] = taus[longest] if longest > 1 else kendall_tau(reference, candidate, 1)
    moved = [_distance(reference[i], candidate[i]) for i in first[:longest]]
    metrics |= {f"{CERTAINTY}{k}": float(np.mean(moved[:k])) for k in lengths}
    metrics["confidence_change"] = moved[0]
    return metrics


def _distance(a: float, b: float) -> float:
    """|a - b|; 0 where both are the same infinity, or both NaN."""
    # Python's own numbers: those of numpy warn where a difference is too large for them.
    return 0.0 if a == b or (np.isnan(a) and np.isnan(b)) else abs(float(a) - float(b))


def kendall_tau(reference: np.ndarray, candidate: np.ndarray, k: int) -> float:
    """Kendall's tau-b between the ranks of all labels that are in either top-k list.

    tau-b = (P - Q) / sqrt((P + Q + T) (P + Q + U)): P concordant and Q discordant pairs, T and U
    pairs tied on one side only. 1 if the ranks are equal, ties and all; 0 if one side has but one
    rank, since then there is no order to agree with.

    Source: Kendall 1945, "The treatment of ties in ranking problems", Biometrika 33 (3);
    ``scipy.stats.kendalltau``.
    """
    if np.array_equal(reference, candidate, equal_nan=True):
        return 1.0
    union = sorted({*ranking(reference)[:k].tolist(), *ranking(candidate)[:k].tolist()})
    ranks = [_ranks(np.where(np.isnan(s), -np.inf, s))[union] for s in (reference, candidate)]
    if np.array_equal(ranks[0], ranks[1]):
        return 1.0
    if any(np.ptp(r) == 0 for r in ranks):
        return 0.0
    from scipy import stats  # Only now: importing it takes longer than vetting a small model.

    return float(stats.kendalltau(*ranks).statistic)


def _ranks(scores: np.ndarray) -> np.ndarray:
    """How many scores are higher, for each of ``scores``; equal ones have equal ranks."""
    return np.searchsorted(np.sort(-scores), -scores, side="left")


def is_firm_flip(reference: np.ndarray, candidate: np.ndarray, noise: float) -> bool | None:
    """Whether the first label changed although the reference was sure; None if it did not change.

    False: the reference's scores of the two labels lie no further apart than ``noise``.
    """
    if not len(reference):
        return None
    if not np.array_equal(np.isnan(reference), np.isnan(candidate)):
        return True
    first, second = ranking(reference)[0], ranking(candidate)[0]
    if first == second:
        return None
    return not _distance(reference[first], reference[second]) <= noise
