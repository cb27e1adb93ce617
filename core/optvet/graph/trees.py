"""Trees of the ensembles of ai.onnx.ml, and which of their nodes rows of a table come to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from onnx.numpy_helper import to_array

ENSEMBLES = ("TreeEnsembleClassifier", "TreeEnsembleRegressor", "TreeEnsemble")
_BRANCHES: dict[str, Any] = {
    "BRANCH_LEQ": np.less_equal,
    "BRANCH_LT": np.less,
    "BRANCH_GTE": np.greater_equal,
    "BRANCH_GT": np.greater,
    "BRANCH_EQ": np.equal,
    "BRANCH_NEQ": np.not_equal,
}


class Forest:
    """The nodes of all trees by index, in the order of the attributes ``nodes_…``."""

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        self._of = attributes
        modes = attributes["nodes_modes"]
        self.modes = [m.decode() if isinstance(m, bytes) else m for m in modes]
        self.keys = list(zip(attributes["nodes_treeids"], attributes["nodes_nodeids"], strict=True))
        self.place = {key: index for index, key in enumerate(self.keys)}

    @property
    def leaves(self) -> list[int]:
        """Indices of leaves."""
        return [i for i, mode in enumerate(self.modes) if mode not in _BRANCHES]

    @cached_property
    def children(self) -> Mapping[str, Sequence[int]]:
        """Indices of the nodes that follow where a test is ``true``, and where it is ``false``."""
        return {
            side: [
                self.place.get((tree, node), 0)
                for (tree, _), node in zip(self.keys, self._of[f"nodes_{side}nodeids"], strict=True)
            ]
            for side in ("true", "false")
        }

    def visits(self, x: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Each node that rows of ``x`` ([rows, features]) come to, with those rows."""
        missing = self._of.get("nodes_missing_value_tracks_true") or [0] * len(self.keys)
        roots = {tree: index for index, (tree, _) in reversed(list(enumerate(self.keys)))}
        pending = [(root, np.arange(len(x))) for root in roots.values()]
        while pending:
            index, rows = pending.pop()
            yield index, rows
            branch = _BRANCHES.get(self.modes[index])
            if branch is None:
                continue
            values = x[rows, self._of["nodes_featureids"][index]]
            taken = branch(values, float(self._of["nodes_values"][index]))
            taken = taken | (np.isnan(values) & bool(missing[index]))
            true, false = (self.children[side][index] for side in ("true", "false"))
            ways = (true, rows[taken]), (false, rows[~taken])
            pending += [(child, some) for child, some in ways if len(some)]


def as_listed(ensemble: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of a TreeEnsemble of ai.onnx.ml 5 as those of its predecessors list the same.

    There the nodes of all trees are one table, a leaf is in another, and modes are numbers; here
    each tree lists its nodes from the root on, leaves behind the inner nodes in number.

    Raises:
        KeyError: A node tests whether a value is a member of a set, or an attribute is missing.
    """
    values, modes = (to_array(ensemble[f"nodes_{n}"]).tolist() for n in ("splits", "modes"))
    weights, inner = to_array(ensemble["leaf_weights"]).tolist(), len(modes)
    ways = [
        [
            (inner if leaf else 0) + place
            for place, leaf in zip(
                ensemble[f"nodes_{side}nodeids"], ensemble[f"nodes_{side}leafs"], strict=True
            )
        ]
        for side in ("true", "false")
    ]
    names = dict(enumerate(_BRANCHES))
    missing = ensemble.get("nodes_missing_value_tracks_true") or [0] * inner
    features = ensemble["nodes_featureids"]
    nodes: list[tuple[Any, ...]] = []
    leaves: list[tuple[Any, ...]] = []
    for tree, root in enumerate(ensemble["tree_roots"]):
        pending, seen = [root], set[int]()
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            if node >= inner:
                leaf = node - inner
                nodes.append((tree, node, "LEAF", 0, 0.0, 0, 0, 0))
                leaves.append((tree, node, ensemble["leaf_targetids"][leaf], weights[leaf]))
                continue
            sides = [way[node] for way in ways]
            about = (names[modes[node]], features[node], values[node], *sides, missing[node])
            nodes.append((tree, node, *about))
            pending += sides
    columns = "treeids nodeids modes featureids values truenodeids falsenodeids".split()
    columns.append("missing_value_tracks_true")
    listed = {f"nodes_{n}": list(c) for n, c in zip(columns, zip(*nodes, strict=True), strict=True)}
    of_leaves = zip("treeids nodeids ids weights".split(), zip(*leaves, strict=True), strict=True)
    return {**listed, **{f"target_{n}": list(column) for n, column in of_leaves}}
