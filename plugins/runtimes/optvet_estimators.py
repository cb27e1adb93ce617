"""Estimators with scikit-learn's interface: scikit-learn, XGBoost, LightGBM.

What an estimator gives depends on what it is: a classifier its labels and probabilities, a
regressor its predictions, a transformer its features.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from optvet import (
    Artifact,
    Feeds,
    InputError,
    Made,
    Runtime,
    Session,
    SourceFacts,
    hookimpl,
    load_factory,
    version_of,
)


class EstimatorOptions(BaseModel):
    """How estimators are run: there is nothing to choose."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class EstimatorRuntime:
    """A fitted estimator of a factory; it computes in the types that it chooses itself."""

    name = "estimator"
    accepts = frozenset({"estimator"})
    source_formats: Mapping[str, str] = {".py": "estimator"}
    preload: Sequence[str] = ("sklearn.pipeline", "sklearn.linear_model", "pandas")
    libraries: Mapping[str, str] = {"scikit-learn": "sklearn"}
    options: EstimatorOptions = EstimatorOptions()
    deployed: EstimatorOptions = EstimatorOptions()

    def version(self) -> str:
        """Version of scikit-learn."""
        return version_of("scikit-learn", extra="optvet[estimators]")

    def source_facts(self, artifact: Artifact, options: EstimatorOptions) -> SourceFacts:
        """Example inputs of the factory; the number of rows may always change."""
        made = estimator_of(artifact)
        rows = {n: {0: "rows"} for n, v in made.facts.inputs.items() if v.ndim}
        return SourceFacts(made.facts.inputs, made.facts.others, made.facts.dynamic or rows)

    def load(self, artifact: Artifact, options: EstimatorOptions) -> Session:
        """The estimator, ready to be called."""
        return EstimatorSession(estimator_of(artifact))


class EstimatorSession:
    """A fitted estimator."""

    def __init__(self, made: Made) -> None:
        self._made = made

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Labels and probabilities, predictions or features."""
        model = self._made.model
        if self._made.call is not None:
            given = self._made.call(model, *feeds.values())
            listed = given if isinstance(given, (tuple, list)) else [given]
            return {f"output_{i}": _array(v) for i, v in enumerate(listed)}
        return _outputs(model, _table(feeds))


def estimator_of(artifact: Artifact) -> Made:
    """The estimator that a factory makes.

    Raises:
        InputError: It is none.
    """
    made = load_factory(artifact)
    if not any(hasattr(made.model, name) for name in ("predict", "transform")):
        assert artifact.path is not None
        raise InputError(
            f"{artifact.path.name}:{artifact.handle.name}() returned a "
            f"{type(made.model).__name__}, expected a fitted estimator with predict or transform"
        )
    return made


def _table(feeds: Feeds) -> Any:
    """The one input as it is, several as columns of a table."""
    if len(feeds) == 1:
        return next(iter(feeds.values()))
    import pandas

    return pandas.DataFrame({name: value.reshape(len(value)) for name, value in feeds.items()})


def _outputs(model: Any, x: Any) -> dict[str, np.ndarray]:
    from sklearn.base import is_clusterer, is_outlier_detector, is_regressor

    if hasattr(model, "predict_proba"):
        return {"label": _array(model.predict(x)), "probabilities": _probabilities(model, x)}
    if is_clusterer(model) and hasattr(model, "transform"):
        return {"label": _array(model.predict(x)), "scores": _array(model.transform(x))}
    if is_outlier_detector(model):
        return {"label": _column(model.predict(x)), "scores": _column(model.decision_function(x))}
    if hasattr(model, "decision_function"):
        return {"label": _array(model.predict(x)), "scores": _column(model.decision_function(x))}
    if hasattr(model, "predict") and (is_regressor(model) or not hasattr(model, "transform")):
        return {"variable": _column(model.predict(x))}
    return {"variable": _array(model.transform(x))}


def _probabilities(model: Any, x: Any) -> np.ndarray:
    """Probabilities; those of several labels at once, as one array of (label, row, class)."""
    given = model.predict_proba(x)
    return np.stack(given) if isinstance(given, list) else _array(given)


def _column(value: Any) -> np.ndarray:
    """Predictions as columns, which is how converters declare them."""
    array = _array(value)
    return array.reshape(len(array), -1)


def _array(value: Any) -> np.ndarray:
    return np.asarray(value.toarray() if hasattr(value, "toarray") else value)


@hookimpl
def optvet_runtimes() -> Iterable[Runtime]:
    """Estimators."""
    return [EstimatorRuntime()]
