"""Operator sequences that occur only in models on which an optimizer fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from onnx import ModelProto

from optvet.graph.sequences import sequences_of
from optvet.spec.records.report_table import ReportTable
from optvet.spec.studies import TrialRow, grouped

_LENGTHS = (2, 3, 4, 5)
"""As far as the failure study of converters looks, which begins with 3."""
_LISTED = 20
"""Sequences per optimizer."""

Known = Mapping[str, frozenset[tuple[str, ...]]]
"""Sequences by the digest of a model."""


def sequences_in(model: ModelProto) -> frozenset[tuple[str, ...]]:
    """Sequences of two to five operators along the edges of a model."""
    return frozenset(s for length in _LENGTHS for s in sequences_of(model, length))


def only_failing(rows: Sequence[TrialRow], known: Known) -> ReportTable | None:
    """Sequences that occur in models that fail and in no other; None if no model fails.

    A model fails under an optimizer if any job of the two is faulty. A sequence is left out if a
    shorter one in it occurs in no other model either, and in as many that fail.
    """
    lines: list[list[str | int | float | None]] = []
    judged = [row for row in rows if row.judged]
    for optimizer, group in grouped(judged).items():
        failing = {row.digest for row in group if row.faulty}
        sound = {row.digest for row in group} - failing
        innocent = frozenset[tuple[str, ...]]().union(*(known.get(d, frozenset()) for d in sound))
        counts = Counter(s for d in failing for s in known.get(d, frozenset()) - innocent)
        shortest = {s: n for s, n in counts.items() if not _is_told(s, counts)}
        ordered = sorted(shortest.items(), key=lambda item: (-item[1], len(item[0]), item[0]))
        read = len(failing & known.keys())
        lines += [[" → ".join(s), optimizer, n, read] for s, n in ordered[:_LISTED]]
    if not any(row.faulty for row in judged):
        return None
    unread = len({row.digest for row in judged} - known.keys())
    more = f" Models left out because their files changed or are gone: {unread}." if unread else ""
    return ReportTable(
        title="Operator sequences that occur only in failing models",
        note="Each operator reads the output of the one before it. A sequence that occurs only in "
        f"failing models may be a cause or a coincidence. At most {_LISTED} per optimizer, the "
        f"most frequent first.{more}",
        columns=["sequence", "optimizer", "failing models", "of"],
        rows=lines,
    )


def _is_told(sequence: tuple[str, ...], counts: Mapping[tuple[str, ...], int]) -> bool:
    parts = (sequence[:-1], sequence[1:])
    return len(sequence) > min(_LENGTHS) and any(
        counts.get(part) == counts[sequence] for part in parts
    )
