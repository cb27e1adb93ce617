"""Calls of estimators, of signals and of text that the standard defines, and that it does not."""

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper
from tests.engine.standard.test_calls import f, i, rules

from optvet.engine.standard.rules import RULES


def s(*values: str) -> np.ndarray:
    return np.array(values, object)


GRAMS: dict[str, Any] = {
    "mode": "TF",
    "ngram_counts": [0, 2],
    "ngram_indexes": [0, 1, 2],
    "pool_int64s": [2, 3, 5, 4],
    "max_skip_count": 0,
    "min_gram_length": 1,
    "max_gram_length": 2,
}
TREE: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
    "nodes_featureids": [1, 0, 0],
    "nodes_values": [0.5, 0.0, 0.0],
    "target_treeids": [0, 0],
    "target_nodeids": [1, 2],
    "target_ids": [0, 0],
    "target_weights": [1.0, 2.0],
}
LEAVES: dict[str, Any] = {
    "tree_roots": [0],
    "nodes_modes": numpy_helper.from_array(np.array([0], np.uint8)),
    "nodes_featureids": [1],
    "nodes_splits": numpy_helper.from_array(np.array([0.5], np.float32)),
    "nodes_truenodeids": [0],
    "nodes_trueleafs": [1],
    "nodes_falsenodeids": [1],
    "nodes_falseleafs": [1],
    "leaf_targetids": [0, 0],
    "leaf_weights": numpy_helper.from_array(np.array([1, 2], np.float32)),
}
LINEAR = {"coefficients": [1.0] * 6, "intercepts": [0.0] * 2}
KERNEL = {"prob_a": [1.0], "prob_b": [1.0], "kernel_params": [1.0, 0.0, 2.0]}


@pytest.mark.parametrize(
    ("operator", "operands", "fine", "open_", "rule"),
    [
        ("TfIdfVectorizer", [i([2])], GRAMS, {"min_gram_length": 3}, "grams"),
        ("TfIdfVectorizer", [i([2])], GRAMS, {"max_skip_count": -1}, "grams"),
        ("TfIdfVectorizer", [i([2])], GRAMS, {"ngram_counts": [0, 1]}, "grams"),
        ("TfIdfVectorizer", [i([2])], GRAMS, {"ngram_indexes": [0, 1]}, "grams"),
        ("TfIdfVectorizer", [i([2])], GRAMS, {"weights": [1.0, 1.0]}, "grams"),
        ("TfIdfVectorizer", [i([2])], GRAMS, {"pool_int64s": [2, 2, 5, 4]}, "grams"),
        ("TfIdfVectorizer", [i([2])], GRAMS, {"max_gram_length": 3}, "long grams"),
        ("RegexFullMatch", [s("a")], {"pattern": "(a)+"}, {"pattern": r"(a)\1"}, "pattern"),
        (
            "LabelEncoder",
            [i([1])],
            {"keys_int64s": [1, 2], "values_int64s": [1, 2]},
            {"values_int64s": [1]},
            "pairs",
        ),
        (
            "ZipMap",
            [f(1, 2)],
            {"classlabels_int64s": [1, 2]},
            {"classlabels_int64s": [1]},
            "columns of map",
        ),
        ("OneHotEncoder", [i([1])], {"cats_int64s": [1, 2]}, {"cats_int64s": [1, 1]}, "categories"),
        (
            "FeatureVectorizer",
            [f(1, 2)],
            {"inputdimensions": [2]},
            {"inputdimensions": [1]},
            "vectors",
        ),
        (
            "Imputer",
            [f(1, 2)],
            {"imputed_value_floats": [1.0, 2.0]},
            {"imputed_value_floats": [1.0, 2.0, 3.0]},
            "imputed",
        ),
        (
            "Imputer",
            [f(1, 2)],
            {"imputed_value_floats": [1.0]},
            {"imputed_value_int64s": [1]},
            "imputed",
        ),
        (
            "Scaler",
            [f(1, 2)],
            {"scale": [1.0, 2.0], "offset": [1.0, 2.0]},
            {"offset": [1.0]},
            "scaled",
        ),
        ("LinearRegressor", [f(1, 3)], {**LINEAR, "targets": 2}, {"targets": 3}, "targets"),
        (
            "LinearClassifier",
            [f(1, 3)],
            {**LINEAR, "classlabels_ints": [0, 1]},
            {"classlabels_ints": [0, 1, 2]},
            "linear classes",
        ),
        ("SVMRegressor", [f(1, 3)], KERNEL, {"kernel_params": [1.0]}, "kernel machine"),
        ("SVMClassifier", [f(1, 3)], KERNEL, {"prob_b": [1.0, 2.0]}, "kernel machine"),
        ("TreeEnsembleRegressor", [f(1, 2)], TREE, {"nodes_featureids": [2, 0, 0]}, "trees"),
        *(
            ("TreeEnsemble", [f(1, 2)], LEAVES, open_, "trees with leaves")
            for open_ in (
                {"tree_roots": [1]},
                {"nodes_featureids": [2]},
                {"nodes_trueleafs": [0], "nodes_truenodeids": [1]},
                {"nodes_falsenodeids": [2]},
                {"leaf_targetids": [0, 1]},
                {"leaf_targetids": [0]},
            )
        ),
        ("TreeEnsembleRegressor", [f(1, 2)], TREE, {"nodes_falsenodeids": [3, 0, 0]}, "trees"),
        ("TreeEnsembleRegressor", [f(1, 2)], TREE, {"nodes_nodeids": [0, 1, 1]}, "trees"),
        ("TreeEnsembleRegressor", [f(1, 2)], TREE, {"nodes_values": [0.5]}, "trees"),
        ("TreeEnsembleRegressor", [f(1, 2)], TREE, {"target_nodeids": [1, 3]}, "trees"),
        ("TreeEnsembleRegressor", [f(1, 2)], TREE, {"target_ids": [0, 1]}, "trees"),
        *(
            (
                operator,
                [f(1, 2)],
                {**given, "aggregate_function": least},
                {"n_targets": 2},
                rule,
            )
            for operator, given, least, rule in (
                ("TreeEnsembleRegressor", TREE, "MIN", "trees"),
                ("TreeEnsemble", LEAVES, 2, "trees with leaves"),
            )
        ),
        (
            "TreeEnsembleRegressor",
            [f(1, 2)],
            TREE,
            {"nodes_modes": ["BRANCH_LE", "LEAF", "LEAF"]},
            "trees",
        ),
    ],
)
def test_attributes_of_an_estimator_have_an_answer_or_none(
    operator: str,
    operands: list[Any],
    fine: dict[str, Any],
    open_: dict[str, Any],
    rule: str,
) -> None:
    domain = "" if operator in ("TfIdfVectorizer", "RegexFullMatch") else "ai.onnx.ml:"
    assert rules(domain + operator, operands, **fine) == []
    assert rule in rules(domain + operator, operands, **{**fine, **open_})


SIGNAL = f(1, 6, 1)


@pytest.mark.parametrize(
    ("operator", "fine", "open_", "attributes", "rule"),
    [
        ("DFT", [SIGNAL, i(1)], [SIGNAL, i(0)], {}, "transformed"),
        ("DFT", [SIGNAL, None, i(1)], [SIGNAL, None, i(2)], {}, "transformed"),
        ("DFT", [SIGNAL], [f(1, 6, 3)], {}, "transformed"),
        ("STFT", [SIGNAL, i(1), f(4)], [SIGNAL, i(0), f(4)], {}, "frames"),
        ("STFT", [SIGNAL, i(1), f(6)], [SIGNAL, i(1), f(7)], {}, "frames"),
        ("STFT", [SIGNAL, i(1), f(4), i(4)], [SIGNAL, i(1), f(4), i(3)], {}, "frames"),
        ("STFT", [SIGNAL, i(1), None, i(1)], [SIGNAL, i(1), None, i(0)], {}, "frames"),
        (
            "MelWeightMatrix",
            [i(4), i(16), i(8000), f() * 0, f()],
            [i(4), i(16), i(8000), f(), f() + 4000],
            {},
            "bands",
        ),
        ("Cast", [s("1.5", "-1e3", "INF")], [s("1.5", "one")], {"to": 1}, "text of number"),
        ("Cast", [s("-128")], [s("-129")], {"to": 3}, "text of number"),
        ("Cast", [s("2")], [s("2.5")], {"to": 7}, "text of number"),
        ("CastLike", [s("2.5"), f(1)], [s(""), f(1)], {}, "text of number"),
        (
            "ai.onnx.ml:CategoryMapper",
            [i([1])],
            [s("a")],
            {"cats_strings": ["a", "a"], "cats_int64s": [1, 2]},
            "categories",
        ),
        (
            "ai.onnx.ml:OneHotEncoder",
            [i([1])],
            [i([3])],
            {"cats_int64s": [1, 2], "zeros": 0},
            "known categories",
        ),
        (
            "ai.onnx.ml:OneHotEncoder",
            [f(1)],
            [f(1) * np.float32(np.nan)],
            {"cats_int64s": [1, 2]},
            "whole numbers",
        ),
        ("OneHot", [f(1), i(3), f(2)], [f(1) * 1e30, i(3), f(2)], {}, "whole numbers"),
        ("ai.onnx.ml:ArrayFeatureExtractor", [f(1, 2), i([1])], [f(1, 2), i([-1])], {}, "features"),
        ("ai.onnx.ml:Normalizer", [f(2)], [f(2, 2, 2)], {"norm": "L1"}, "rows"),
        (
            "ai.onnx.ml:ZipMap",
            [f(1, 2)],
            [f(1, 3)],
            {"classlabels_int64s": [1, 2]},
            "columns of map",
        ),
    ],
)
def test_operands_of_signals_and_estimators_have_an_answer_or_none(
    operator: str,
    fine: list[Any],
    open_: list[Any],
    attributes: dict[str, Any],
    rule: str,
) -> None:
    assert rules(operator, fine, **attributes) == []
    assert rule in rules(operator, open_, **attributes)


def test_numbers_of_a_signal_that_are_not_known_break_no_rule() -> None:
    assert rules("MelWeightMatrix", [i(4), i(16), i(8000), None, None]) == []


def test_what_texts_are_silent_about_excuses_no_value() -> None:
    agreed = {rule.name for rules in RULES.values() for rule in rules if rule.agreed}
    assert {"bands", "features", "linear classes", "long grams"} <= agreed


def test_a_window_of_one_element_fits_into_no_elements() -> None:
    assert rules("Conv", [f(1, 1, 0), f(1, 1, 1)]) == []
    assert rules("AveragePool", [f(1, 1, 2, 0)], kernel_shape=[1, 1]) == []
    assert "window" in rules("Conv", [f(1, 1, 0), f(1, 1, 2)])
