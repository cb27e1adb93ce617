"""Rows that come to each node of decision trees, and fall to both sides of its threshold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

_SIDES = ("true", "false")
_MORE = ("BRANCH_GT", "BRANCH_GTE")
_NUMBERS_OF_MORE = (2, 3)
"""The same in a TreeEnsemble: modes of which the true side is above the threshold."""
Attribute = Callable[[str], np.ndarray]


@dataclass(frozen=True)
class _Trees:
    """Nodes by number: threshold and feature, and the inner nodes below and above it."""

    value: np.ndarray
    feature: np.ndarray
    roots: Sequence[int]
    children: tuple[Sequence[int | None], Sequence[int | None]]


def rows_of(
    operator: str,
    attribute: Attribute,
    width: int,
    step: float,
    most: int,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """Two rows, ``most`` in all, for each node: just below its threshold, and just above.

    Elements that do not decide whether a row comes to the node are NaN. ``step`` is relative to the
    range of the feature's thresholds.
    """
    trees = (_of_one_table if operator == "TreeEnsemble" else _of_nodes_and_leaves)(attribute)
    spans = np.ones(width)
    for f in set(trees.feature[trees.feature >= 0]):
        spans[f] = float(np.ptp(trees.value[trees.feature == f])) or 1.0
    rows: list[np.ndarray] = []
    start = (np.full(width, -np.inf), np.full(width, np.inf))
    waiting = [(root, *start) for root in trees.roots]
    while waiting and len(rows) < most:
        # In any order: of many trees, some nodes of each.
        node, low, high = waiting.pop(int(rng.integers(len(waiting))))
        column, bound = int(trees.feature[node]), float(trees.value[node])
        for side, children in enumerate(trees.children):
            a, b = low.copy(), high.copy()
            (a if side else b)[column] = bound
            if a[column] >= b[column]:
                continue  # no input comes there
            # NaN where neither side is bounded.
            begin = np.where(np.isinf(a), np.where(np.isinf(b), np.nan, b - spans), a)
            end = np.where(np.isinf(b), begin + spans, b)
            row = begin + (end - begin) * rng.random(width)
            # A part of the way where the next threshold is nearer than the step.
            move = min(step * spans[column], (b[column] - a[column]) / 4)
            row[column] = bound + (move if side else -move)
            rows.append(row)
            child = children[node]
            if child is not None:
                waiting.append((child, a, b))
    return rows


def _of_nodes_and_leaves(attribute: Attribute) -> _Trees:
    """The trees of a TreeEnsembleClassifier or TreeEnsembleRegressor."""
    modes = [m.decode() for m in attribute("nodes_modes").tolist()]
    trees = attribute("nodes_treeids").tolist()
    keys = zip(trees, attribute("nodes_nodeids").tolist(), strict=True)
    inner = {key: i for i, (key, m) in enumerate(zip(keys, modes, strict=True)) if m != "LEAF"}
    true, false = (
        [inner.get(key) for key in zip(trees, attribute(f"nodes_{side}nodeids"), strict=True)]
        for side in _SIDES
    )
    below = {side[i] for side in (true, false) for i in inner.values()}
    leaf = np.array([m == "LEAF" for m in modes])
    return _Trees(
        attribute("nodes_values").astype(np.float64),
        np.where(leaf, -1, attribute("nodes_featureids")),
        [i for i in inner.values() if i not in below],
        _sides(true, false, [m in _MORE for m in modes]),
    )


def _of_one_table(attribute: Attribute) -> _Trees:
    """The trees of a TreeEnsemble, whose leaves are no nodes."""
    true, false = (
        [
            None if leaf else int(i)
            for i, leaf in zip(
                attribute(f"nodes_{side}nodeids"), attribute(f"nodes_{side}leafs"), strict=True
            )
        ]
        for side in _SIDES
    )
    return _Trees(
        attribute("nodes_splits").astype(np.float64),
        attribute("nodes_featureids"),
        [int(i) for i in attribute("tree_roots")],
        _sides(true, false, np.isin(attribute("nodes_modes"), _NUMBERS_OF_MORE).tolist()),
    )


def _sides(
    true: Sequence[int | None], false: Sequence[int | None], more: Sequence[bool]
) -> tuple[list[int | None], list[int | None]]:
    """The children below and above the threshold; the true one is above where ``more``."""
    pairs = [(f, t) if m else (t, f) for t, f, m in zip(true, false, more, strict=True)]
    return [low for low, _ in pairs], [high for _, high in pairs]
