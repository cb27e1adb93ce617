"""Tree ensembles of ai.onnx.ml in float64; the evaluator adds up in float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from optvet.engine.numerics.float64.float_arrays import Array
from optvet.graph.trees import Forest


def tree_regressor(
    x: Array,
    *,
    n_targets: int,
    aggregate_function: str = "SUM",
    base_values: Sequence[float] | None = None,
    post_transform: str = "NONE",
    **attributes: Any,
) -> Array:
    """TreeEnsembleRegressor of ai.onnx.ml 1 to 3; the evaluator adds up in float32."""
    trees = len(set(attributes["nodes_treeids"]))
    if aggregate_function not in ("SUM", "AVERAGE") or post_transform != "NONE":
        raise NotImplementedError(f"trees with {aggregate_function} and {post_transform}")
    total = _leaf_sums(x, attributes, "target", n_targets)
    total = total / trees if aggregate_function == "AVERAGE" else total
    return total if not base_values else total + np.asarray(base_values, np.float64)


def tree_classifier(
    x: Array,
    *,
    base_values: Sequence[float] | None = None,
    classlabels_int64s: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    post_transform: str = "NONE",
    **attributes: Any,
) -> tuple[Array, Array]:
    """TreeEnsembleClassifier of ai.onnx.ml 1 to 3, for three classes or more."""
    labels = np.array(classlabels_int64s or np.array(classlabels_strings, object))
    # For two classes, onnxruntime derives the score that no leaf has: [3] becomes [-3, 3].
    if post_transform != "NONE" or len(labels) == 2:
        raise NotImplementedError("trees for two classes or with a post-transform")
    scores = _leaf_sums(x, attributes, "class", len(labels))
    if base_values:
        scores = scores + np.asarray(base_values, np.float64)
    return labels[scores.argmax(axis=1)], scores


def _leaf_sums(x: Array, trees: Mapping[str, Any], prefix: str, columns: int) -> Array:
    """Sum of the weights of the leaves that each row of ``x`` reaches, by target or class."""
    if any(value is not None for name, value in trees.items() if name.endswith("_as_tensor")):
        raise NotImplementedError("trees with double-precision thresholds")
    forest = Forest(trees)
    leaves = np.zeros((len(forest.keys), columns))
    weighted = ("treeids", "nodeids", "ids", "weights")
    for tree, node, column, weight in zip(*(trees[f"{prefix}_{n}"] for n in weighted), strict=True):
        leaves[forest.place[tree, node], column] += float(weight)
    total, ends = np.zeros((len(x), columns)), {*forest.leaves}
    for index, rows in forest.visits(x):
        if index in ends:
            total[rows] += leaves[index]
    return total
