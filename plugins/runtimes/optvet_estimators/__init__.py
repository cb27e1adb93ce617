"""Estimators with scikit-learn's interface: scikit-learn, XGBoost, LightGBM.

What an estimator gives depends on what it is: a classifier its labels and probabilities, a
regressor its predictions, a transformer its features.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from optvet.plugin import (
    Artifact,
    FactoryResult,
    Feeds,
    InputError,
    LabelScores,
    PartScript,
    Runtime,
    Session,
    SourceFacts,
    SourceInside,
    SourcePart,
    SourceStep,
    SourceValue,
    hookimpl,
    load_factory,
    version_of,
)
from optvet_estimators.chosen_labels import label_scores


class EstimatorOptions(BaseModel):
    """How estimators are run: there is nothing to choose."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class EstimatorRuntime:
    """A fitted estimator of a factory; it computes in the types that it chooses itself."""

    name = "estimator"
    accepts = frozenset({"estimator"})
    source_formats: Mapping[str, str] = {".py": "estimator"}
    source_preload: Sequence[str] = ("sklearn.utils.discovery", "optvet_estimators.made_sources")
    preload: Sequence[str] = (
        "optvet_estimators.start",
        "sklearn.pipeline",
        "sklearn.linear_model",
        "pandas",
    )
    libraries: Mapping[str, str] = {"scikit-learn": "sklearn"}
    options: EstimatorOptions = EstimatorOptions()
    deployed: EstimatorOptions = EstimatorOptions()

    def version(self) -> str:
        """Version of scikit-learn."""
        return version_of("scikit-learn", extra="optvet[estimators]")

    def source_facts(self, artifact: Artifact, options: EstimatorOptions) -> SourceFacts:
        """Example inputs of the factory; the number of rows may always change."""
        estimator = estimator_of(artifact)
        rows = {n: {0: "rows"} for n, v in estimator.facts.inputs.items() if v.ndim}
        return replace(
            estimator.facts,
            dynamic=estimator.facts.dynamic or rows,
            labels=frozenset(() if estimator.call is not None else {"label"}),
            columns=_columns(estimator),
            has_counterparts=estimator.call is not None or not _has_labels_alone(estimator.model),
            tables=frozenset(estimator.facts.inputs),
        )

    def load(self, artifact: Artifact, options: EstimatorOptions) -> Session:
        """The estimator, ready to be called."""
        return EstimatorSession(estimator_of(artifact))

    def load_double(self, artifact: Artifact, options: EstimatorOptions) -> Session:
        """The estimator on inputs in float64: some compute in the type that they are given."""
        return EstimatorSession(estimator_of(artifact), double=True)

    def inside(
        self, artifact: Artifact, feeds: Feeds, options: EstimatorOptions, seed: int | None
    ) -> SourceInside:
        """What each step of a pipeline gives; of another estimator its outputs alone.

        Estimators compute in float64 and their models in float32, so what they give is moved by the
        latter's roundoff.
        """
        estimator = estimator_of(artifact)
        x, values = _table(feeds), list[SourceValue]()
        reads: tuple[int, ...] = ()
        steps = list(getattr(estimator.model, "steps", ()))
        for name, step in steps[:-1]:
            if step in (None, "passthrough"):
                continue
            values += _last_neighbors(step, name, x, len(values))
            x = step.transform(x)
            values.append(_step(step, name, _array(x), reads))
            reads = (len(values) - 1,)
        name, last = steps[-1] if steps else ("", estimator.model)
        outputs = EstimatorSession(estimator).run(feeds)
        values += _last_neighbors(last, name, x, len(values))
        first = len(values)
        values += [_step(last, name, value, reads) for value in outputs.values()]
        if seed is not None:
            rng = np.random.default_rng(seed)
            values = [replace(v, value=_move(v.value, rng)) for v in values]
        fitted = {n: v for name, each in steps or [("", last)] for n, v in _fitted(name, each)}
        return SourceInside(tuple(values), tuple(range(first, len(values))), fitted)

    def parts(
        self, artifact: Artifact, feeds: Feeds, options: EstimatorOptions
    ) -> Sequence[SourcePart]:
        """The steps of a pipeline, and its beginnings; of another estimator the whole."""
        divisible = _divisible(artifact)
        return [part for part, _, _ in _parts(divisible.model, feeds)]

    def write_part(
        self, artifact: Artifact, feeds: Feeds, options: EstimatorOptions, name: str, folder: Path
    ) -> str:
        """An estimator by joblib, and its inputs beside it."""
        import joblib  # type: ignore[import-untyped]  # ships no types

        divisible = _divisible(artifact)
        wanted = ((m, x) for part, m, x in _parts(divisible.model, feeds) if part.name == name)
        joblib.dump(next(wanted), folder / "part.joblib")
        (folder / "part.py").write_text(_SOURCE)
        return "part.py"

    def script(self, converter: str, options: Mapping[str, object]) -> PartScript | None:
        """For the converters of estimators, of those with one table as their input."""
        from optvet_estimators.scripts import script_for

        return script_for(converter, options)

    def source_operators(self) -> Mapping[str, Sequence[str]]:
        """Classes of estimators."""
        from optvet_estimators.made_sources import operators

        return operators()

    def last_operators(self) -> Collection[str]:
        """Classes that have no ``transform``: a pipeline ends with them."""
        from optvet_estimators.made_sources import last_operators

        return last_operators()

    def source_settings(self, steps: Sequence[SourceStep]) -> Sequence[Mapping[str, str]]:
        """Arguments that are not the usual ones, gaps in the table, and more than two classes."""
        from optvet_estimators.made_sources import source_settings

        return source_settings(steps)

    def make_source(
        self,
        steps: Sequence[SourceStep],
        dynamic: bool,
        folder: Path,
        feeds: Feeds | None = None,
    ) -> str | None:
        """An estimator or a pipeline, fitted to a table; the number of rows is always open."""
        from optvet_estimators.made_sources import write_source

        return write_source(steps, folder, feeds)


_SOURCE = '''\
"""A part of an estimator, and what it was given."""

from pathlib import Path

import joblib

HERE = Path(__file__).resolve().parent
model, example_inputs = joblib.load(HERE / "part.joblib")


def part():
    return model
'''


def _divisible(artifact: Artifact) -> FactoryResult:
    """An estimator that is called in the usual way.

    Raises:
        InputError: The file says by ``run`` how it is called.
    """
    estimator = estimator_of(artifact)
    if estimator.call is not None:
        raise InputError("a model that the file's own run() calls cannot be taken apart")
    return estimator


def _parts(model: Any, feeds: Feeds) -> list[tuple[SourcePart, Any, dict[str, Any]]]:
    """Parts with their estimators and what these are given."""
    steps = list(getattr(model, "steps", ()))
    names = [name for name, _ in steps]
    found = [(SourcePart("", max(1, len(steps)), frozenset(names or [""])), model, dict(feeds))]
    x = _table(feeds)
    for number, (name, step) in enumerate(steps if len(steps) > 1 else ()):
        if step in (None, "passthrough"):
            continue
        fed = {"x": _array(x)} if number else dict(feeds)
        found.append((SourcePart(name, 1, frozenset({name})), step, fed))
        if 0 < number < len(steps) - 1:
            beginning = SourcePart(f":{number + 1}", number + 1, frozenset(names[: number + 1]))
            found.append((beginning, model[: number + 1], dict(feeds)))
        if number < len(steps) - 1:
            x = step.transform(x)
    return found


_MOST_FITTED = 1 << 16
"""Numbers of one fitted array that are shown."""
_TREE_ARRAYS = ("threshold", "missing_go_to_left", "n_node_samples")


def _step(estimator: Any, name: str, value: np.ndarray, reads: tuple[int, ...]) -> SourceValue:
    operator = type(estimator).__name__
    return SourceValue(operator, value, reads, module=name, settings=_settings(estimator))


def _last_neighbors(estimator: Any, name: str, x: Any, place: int) -> list[SourceValue]:
    """The distances of the last neighbor that counts and the first that does not, and these two.

    Which of equally far neighbors count depends on how the training data are ordered in a tree, as
    scikit-learn's guide says ("Nearest Neighbors", 1.6.2).
    """
    if not hasattr(estimator, "kneighbors"):
        return []  # neighbors within a radius, of which there is no number
    fitted = getattr(estimator, "n_samples_fit_", 0)
    count = getattr(estimator, "n_neighbors", fitted)
    # A graph of distances has one more: each row of the training data is its own neighbor.
    count += getattr(estimator, "mode", "") == "distance"
    if count >= fitted:
        return []
    distances, indices = (v[:, -2:] for v in estimator.kneighbors(x, n_neighbors=count + 1))
    operator = f"{type(estimator).__name__}.kneighbors"
    return [
        SourceValue(operator, distances.astype(np.float32), module=name),
        SourceValue(operator, indices, (place,), module=name, open_ties=True),
    ]


def _fitted(step: str, estimator: Any) -> Iterator[tuple[str, np.ndarray]]:
    """What an estimator was fitted to, by attribute; of trees, the nodes of all in order."""
    prefix = f"{step}." if step else ""
    for name, value in vars(estimator).items() if hasattr(estimator, "__dict__") else ():
        if name.endswith("_") and not name.startswith("_") and isinstance(value, np.ndarray):
            if value.dtype.kind in "fiub" and value.size <= _MOST_FITTED:
                yield f"{prefix}{name}", value
    members = np.ravel(np.asarray(getattr(estimator, "estimators_", [estimator]), object))
    trees = [tree for m in members if (tree := getattr(m, "tree_", None)) is not None]
    for name in _TREE_ARRAYS if trees and len(trees) == len(members) else ():
        arrays = [np.asarray(getattr(tree, name)).reshape(-1) for tree in trees]
        if sum(a.size for a in arrays) <= _MOST_FITTED:
            yield f"{prefix}tree_.{name}", np.concatenate(arrays)


def _settings(estimator: Any) -> dict[str, object]:
    """Parameters that are not the default ones; words and truth values first, which choose a way.

    Those are left out that change nothing of what a fitted estimator gives.
    """
    if not hasattr(estimator, "get_params"):
        return {}
    inits = [vars(c)["__init__"] for c in type(estimator).__mro__[-2::-1] if "__init__" in vars(c)]
    usual = {n: p for init in inits for n, p in inspect.signature(init).parameters.items()}
    settings = {n: v for n, v in estimator.get_params(deep=False).items() if n not in _IRRELEVANT}
    plain = {n: v for n, v in settings.items() if isinstance(v, (str, bool, int, float))}
    defaults = {n: usual[n].default for n in plain if n in usual}
    changed = {n: v for n, v in plain.items() if not _is_same(defaults.get(n), v)}
    return dict(sorted(changed.items(), key=lambda item: not isinstance(item[1], (str, bool))))


def _is_same(one: object, other: object) -> bool:
    return one is other or one == other


_IRRELEVANT = frozenset({"n_jobs", "random_state", "verbose", "verbosity"})


def _move(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if value.dtype.kind != "f" or not value.size:
        return value
    top = float(np.max(np.abs(value), where=np.isfinite(value), initial=0.0))
    step = float(np.finfo(np.float32).eps) * top
    return np.asarray(value + rng.choice((-step, step), value.shape))


class EstimatorSession:
    """A fitted estimator."""

    def __init__(self, loaded: FactoryResult, double: bool = False) -> None:
        self._loaded, self._double = loaded, double

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Labels and probabilities, predictions or features."""
        if self._double:
            feeds = {n: v.astype(float) if v.dtype.kind == "f" else v for n, v in feeds.items()}
        model = self._loaded.model
        if self._loaded.call is not None:
            outputs = self._loaded.call(model, *feeds.values())
            listed = outputs if isinstance(outputs, (tuple, list)) else [outputs]
            return {f"output_{i}": _array(v) for i, v in enumerate(listed)}
        return _outputs(model, _table(feeds))

    def label_scores(self, feeds: Feeds) -> dict[str, LabelScores]:
        """What the classes are chosen by, of an estimator that is called in the usual way."""
        usual = self._loaded.call is None
        found = label_scores(self._loaded.model, _table(feeds)) if usual else None
        return {} if found is None else {"label": found}


def estimator_of(artifact: Artifact) -> FactoryResult:
    """The estimator that a factory makes.

    Raises:
        InputError: It is none.
    """
    loaded = load_factory(artifact)
    if not any(hasattr(loaded.model, name) for name in ("predict", "transform")):
        assert artifact.path is not None
        raise InputError(
            f"{artifact.path.name}:{artifact.handle.name}() returned a "
            f"{type(loaded.model).__name__}, expected a fitted estimator with predict or transform"
        )
    return loaded


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
        return {"label": _array(model.predict(x)), "scores": _scores(model, x)}
    if _has_labels_alone(model):
        return {"label": _array(model.predict(x))}
    if hasattr(model, "predict") and (is_regressor(model) or not hasattr(model, "transform")):
        return {"variable": _column(model.predict(x))}
    return {"variable": _array(model.transform(x))}


def _has_labels_alone(model: Any) -> bool:
    """Whether it is a classifier without probabilities and scores, such as a hard vote."""
    from sklearn.base import is_classifier

    scored = any(hasattr(model, name) for name in ("predict_proba", "decision_function"))
    return is_classifier(model) and hasattr(model, "predict") and not scored


def _columns(estimator: FactoryResult) -> frozenset[str]:
    """Outputs of one number for each row, which converters give as vectors or as columns."""
    from sklearn.base import is_outlier_detector

    if estimator.call is not None:
        return frozenset()
    if is_outlier_detector(estimator.model):
        return frozenset({"label", "scores"})
    return frozenset({"variable"} if hasattr(estimator.model, "predict") else ())


def _probabilities(model: Any, x: Any) -> np.ndarray:
    """Probabilities; those of several labels at once, as one array of (label, row, class)."""
    predicted = model.predict_proba(x)
    return np.stack(predicted) if isinstance(predicted, list) else _array(predicted)


def _scores(model: Any, x: Any) -> np.ndarray:
    """One column for each class: the one score of two classes belongs to the second."""
    scores = _column(model.decision_function(x))
    two = scores.shape[1] == 1 and len(getattr(model, "classes_", ())) == 2
    return np.concatenate([-scores, scores], axis=1) if two else scores


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
