"""The trees of both forms of ensembles are the same trees."""

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from optvet.graph.trees import Forest, as_listed

# Two trees: x0 <= 1.5 ? leaf 0 : (x1 > 0 ? leaf 1 : leaf 2), and x1 < 2 ? leaf 3 : leaf 0.
TABLE: dict[str, Any] = {
    "tree_roots": [0, 2],
    "nodes_featureids": [0, 1, 1],
    "nodes_splits": numpy_helper.from_array(np.array([1.5, 0.0, 2.0], np.float32)),
    "nodes_modes": numpy_helper.from_array(np.array([0, 3, 1], np.uint8)),
    "nodes_truenodeids": [0, 1, 3],
    "nodes_trueleafs": [1, 1, 1],
    "nodes_falsenodeids": [1, 2, 0],
    "nodes_falseleafs": [0, 1, 1],
    "leaf_targetids": [0, 0, 0, 0],
    "leaf_weights": numpy_helper.from_array(np.array([1.0, 2.0, 3.0, 4.0], np.float32)),
}


def weights(rows: np.ndarray) -> list[float]:
    """For each row, the sum of the weights of its leaves."""
    listed = as_listed(TABLE)
    forest = Forest(listed)
    keys = zip(listed["target_treeids"], listed["target_nodeids"], strict=True)
    of_leaf = dict(zip(keys, listed["target_weights"], strict=True))
    total = np.zeros(len(rows))
    for index, some in forest.visits(rows):
        total[some] += of_leaf.get(forest.keys[index], 0.0)
    return [float(value) for value in total]


def test_a_table_of_trees_is_listed_as_the_older_form_lists_it() -> None:
    rows = np.array([[1, 3], [2, 1], [2, -1], [np.nan, np.nan]], np.float32)
    assert weights(rows) == [1 + 1, 2 + 4, 3 + 4, 3 + 1]
    node = helper.make_node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, **TABLE)
    model = helper.make_model(
        helper.make_graph(
            [node],
            "g",
            [helper.make_tensor_value_info("x", 1, [4, 2])],
            [helper.make_tensor_value_info("y", 1, [4, 1])],
        ),
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 5)],
        ir_version=10,
    )
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    assert session.run(None, {"x": rows})[0].ravel().tolist() == weights(rows)
