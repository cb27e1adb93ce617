"""The numbers by which an estimator chooses its labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from optvet.plugin import LabelScores


def label_scores(model: Any, x: Any) -> LabelScores | None:
    """The scores of the classes; None of an estimator that does not show them.

    A classifier with a decision function names the class by that, not by its probabilities, which
    may be equal where the decision function is not.
    """
    from sklearn.base import is_clusterer, is_outlier_detector

    if is_outlier_detector(model):
        score = np.asarray(model.decision_function(x)).reshape(-1, 1)
        return _of_sign(score, np.array([-1, 1]), "scores")
    scored = hasattr(model, "predict_proba")
    if is_clusterer(model) and not scored and hasattr(model, "transform"):
        near = -np.asarray(model.transform(x))
        return LabelScores(near, np.arange(near.shape[-1]), "scores")
    if hasattr(model, "decision_function") and not _averages_probabilities(model):
        output = "" if scored else "scores"
        return _of_table(model, x, model.decision_function(x), 0.0, output)
    if scored:
        return _of_table(model, x, model.predict_proba(x), 0.5, "probabilities")
    return None


def _averages_probabilities(model: Any) -> bool:
    """Whether it names the class by its probabilities although it has a decision function."""
    from sklearn.ensemble import BaggingClassifier

    while True:
        steps = getattr(model, "steps", None)
        inner = steps[-1][1] if steps else getattr(model, "best_estimator_", None)
        if inner is None:
            return isinstance(model, BaggingClassifier)
        model = inner


def _of_table(model: Any, x: Any, values: Any, middle: float, output: str) -> LabelScores | None:
    """Scores in one of the forms of scikit-learn; ``middle`` is where one label alone turns."""
    classes = getattr(model, "classes_", None)
    if isinstance(values, list):  # several labels, each with a table
        if classes is None or len({v.shape for v in values}) != 1:
            return None
        same = all(np.array_equal(c, classes[0]) for c in classes)
        return LabelScores(np.stack(values, axis=1), np.asarray(classes[0])) if same else None
    table = np.asarray(values)
    if table.ndim == 1:
        return None if classes is None else _of_sign(table, np.asarray(classes), output)
    labels = np.asarray(model.predict(x))
    if labels.ndim == 2:  # several labels, each of which is there or not
        fits = labels.shape == table.shape
        return _of_sign(table - middle, np.array([0, 1]), "") if fits else None
    named = np.arange(table.shape[-1]) if classes is None else np.asarray(classes)
    return LabelScores(table, named, output) if len(named) == table.shape[-1] else None


def _of_sign(score: np.ndarray, classes: np.ndarray, output: str) -> LabelScores:
    return LabelScores(np.stack([-score, score], axis=-1), classes, output)
